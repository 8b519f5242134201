// What ranks do together, by means of Communicator::exchange(). Every rank of the group must call
// the same operations in the same order with sizes that fit; nothing may depend on what only one
// rank knows. With one rank all of them are copies or nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace cachedit::comm {

/// Sends send[r] to rank r and receives receive[r] from it; sizes may differ, and be 0.
Pending all_to_all(Communicator& group, const std::vector<at::Tensor>& send,
                   const std::vector<at::Tensor>& receive);

/// Sends `send` to the next rank and receives `receive`, contiguous, from the one before, in a
/// ring.
Pending rotate(Communicator& group, const at::Tensor& send, const at::Tensor& receive);
/// The same for several tensors in one exchange, which `what` names in errors.
Pending rotate(Communicator& group, const std::vector<at::Tensor>& send,
               const std::vector<at::Tensor>& receive, std::string_view what);

/// The ranks' tensors one after the other along `dim`, where they have sizes[r] entries, in rank
/// order.
at::Tensor all_gather(Communicator& group, const at::Tensor& local,
                      const std::vector<int64_t>& sizes, int64_t dim);

/// Replaces `tensor` (contiguous, any floating or integer dtype) by the sum over all ranks. Added
/// in rank order, 16-bit types in fp32: the same bits on every rank.
void all_reduce_sum(Communicator& group, at::Tensor& tensor);
/// The element-wise sum of equally many numbers of each rank, the same bits on every rank.
std::vector<double> all_reduce_sum(Communicator& group, const std::vector<double>& values);

/// Replaces `tensor` (contiguous) by that of `root`.
void broadcast(Communicator& group, at::Tensor& tensor, int64_t root);

/// One text of each rank, in rank order, on every rank.
std::vector<std::string> all_gather_text(Communicator& group, const std::string& text);

/// Returns when all ranks called it.
void barrier(Communicator& group);

/// Throws CommError on every rank, naming `what` and the ranks whose text is not rank 0's, with the
/// first line that differs.
void require_equal(Communicator& group, std::string_view what, const std::string& text);

}  // namespace cachedit::comm
