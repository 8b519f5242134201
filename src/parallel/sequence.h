// How a sequence of tokens is shared out: everybody computes everybody's part from the whole
// length, so no rank decides anything by what only it knows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace cachedit::parallel {

/// `total` in `parts` lengths that differ by at most 1, the longer ones first.
std::vector<int64_t> split_lengths(int64_t total, int64_t parts);

/// The parts of one sequence over the ranks of a group.
class SequenceSplit {
 public:
  /// `group` must outlive it.
  SequenceSplit(comm::Communicator& group, int64_t total);

  /// Tokens of each rank.
  const std::vector<int64_t>& lengths() const { return lengths_; }
  int64_t total() const { return total_; }
  int64_t local() const { return lengths_[static_cast<size_t>(group_.rank())]; }

  /// This rank's part of `whole`, which has total() entries in `dim`, as a view.
  at::Tensor take(const at::Tensor& whole, int64_t dim) const;
  /// The whole from every rank's part, on every rank.
  at::Tensor gather(const at::Tensor& part, int64_t dim) const;

 private:
  comm::Communicator& group_;
  int64_t total_;
  std::vector<int64_t> lengths_;
  int64_t begin_ = 0;
};

/// Tokens of each rank where each holds its parts of several sequences (text, then image).
std::vector<int64_t> joint_lengths(const std::vector<const SequenceSplit*>& splits);

}  // namespace cachedit::parallel
