// Attention to one part of the keys after the other: partial results, merged by their log-sum-exps,
// give what attention to all keys at once gives.
#pragma once

#include "attention/attention.h"

namespace cachedit::parallel {

class MergedStates {
 public:
  /// `in_fp32`: 16-bit outputs are merged in fp32; otherwise in their dtype. Log-sum-exps always
  /// are fp32.
  explicit MergedStates(bool in_fp32) : in_fp32_(in_fp32) {}

  /// `part` has an lse; what it refers to may be written. Rows whose lse is -inf count nothing, in
  /// one part or in all.
  void add(const attention::Result& part);

  /// After the last part.
  attention::Result finish(at::ScalarType dtype, bool return_lse) const;

 private:
  bool in_fp32_;
  attention::Result merged_;
};

}  // namespace cachedit::parallel
