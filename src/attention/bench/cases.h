// The shapes that the attention benchmark measures, their inputs, and how far a result is from
// what exact arithmetic gives on those inputs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "attention/attention.h"

namespace cachedit::attention::bench {

/// Self-attention of one batch entry.
struct Case {
  std::string_view name;
  std::string_view description;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t masked_keys = 0;  ///< the last ones, by a bool mask [1, 1, 1, tokens]; 0: no mask
  bool is_default = true;

  /// Operations of the two products, a multiply-add counting as two.
  double operations() const {
    return 4.0 * static_cast<double>(heads) * static_cast<double>(tokens) *
           static_cast<double>(tokens) * static_cast<double>(head_dim);
  }
};

std::span<const Case> all_cases();

/// Throws InputError listing the names if there is none of this name.
const Case& find_case(std::string_view name);

/// Seeded by the case's shape, so equal for every backend: normal values, and in K an offset per
/// channel, large in a few, as activations of diffusion transformers have.
Inputs make_inputs(const Case& c, at::ScalarType dtype);

struct Accuracy {
  double cosine = 0;
  double rel_l1 = 0;
};

/// The exact result for a sample of query rows and heads: the whole would cost more than all the
/// measurements.
class Reference {
 public:
  explicit Reference(const Inputs& inputs);
  /// `out` is [1, N, H, D].
  Accuracy judge(const at::Tensor& out) const;

 private:
  at::Tensor rows_;      ///< token indices
  at::Tensor heads_;     ///< head indices
  at::Tensor expected_;  ///< [heads, rows, D] in fp64
};

}  // namespace cachedit::attention::bench
