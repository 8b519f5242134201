// Collectives of src/comm as operators of PyTorch, so that a Python test can run them on the
// process groups of torch.distributed and compare with those.
#include <torch/library.h>

#include "comm/collectives.h"
#include "comm/process_group.h"

namespace cachedit::test {
namespace {

using Tensors = std::vector<at::Tensor>;

void all_to_all(const std::string& group, const Tensors& send, const Tensors& receive) {
  comm::all_to_all(*comm::process_group(group), send, receive).wait();
}

/// Two operations under way at once, the second one waited for first.
void two_all_to_alls(const std::string& group, const Tensors& send, const Tensors& receive,
                     const Tensors& send_second, const Tensors& receive_second) {
  const auto ranks = comm::process_group(group);
  comm::Pending first = comm::all_to_all(*ranks, send, receive);
  comm::Pending second = comm::all_to_all(*ranks, send_second, receive_second);
  second.wait();
  first.wait();
}

at::Tensor all_gather(const std::string& group, const at::Tensor& local,
                      const std::vector<int64_t>& sizes, int64_t dim) {
  return comm::all_gather(*comm::process_group(group), local, sizes, dim);
}

at::Tensor all_reduce(const std::string& group, const at::Tensor& tensor) {
  at::Tensor sum = tensor.clone();
  comm::all_reduce_sum(*comm::process_group(group), sum);
  return sum;
}

void rotate(const std::string& group, const at::Tensor& send, const at::Tensor& receive) {
  comm::rotate(*comm::process_group(group), send, receive).wait();
}

void require_equal(const std::string& group, const std::string& text) {
  comm::require_equal(*comm::process_group(group), "arguments", text);
}

/// Rank, size and the device as text, as the communicator sees them.
std::vector<std::string> describe(const std::string& group) {
  const auto ranks = comm::process_group(group);
  return {std::to_string(ranks->rank()), std::to_string(ranks->size()), ranks->device().str()};
}

}  // namespace
}  // namespace cachedit::test

TORCH_LIBRARY(cachedit_test, library) {
  namespace ops = cachedit::test;
  library.def("all_to_all", &ops::all_to_all);
  library.def("two_all_to_alls", &ops::two_all_to_alls);
  library.def("all_gather", &ops::all_gather);
  library.def("all_reduce", &ops::all_reduce);
  library.def("rotate", &ops::rotate);
  library.def("require_equal", &ops::require_equal);
  library.def("describe", &ops::describe);
}
