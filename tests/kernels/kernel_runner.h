// Calls kernels::attention() on tensors, in memory that shows what the kernel should not do:
// scratch starts as NaN bytes and lies between guard bytes, as do the outputs.
#pragma once

#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu_isa.h"
#include "support/attention_reference.h"

namespace cachedit::test {

struct KernelOptions {
  kernels::AttentionScheme scheme = kernels::AttentionScheme::kExact;
  kernels::CpuIsa isa = kernels::CpuIsa::kPortable;
  int threads = 1;
  bool lse = true;
  /// Whether out has gaps between tokens, heads and rows.
  bool strided_out = false;
};

/// The problem that the inputs stand for, without outputs.
kernels::AttentionProblem kernel_problem(const AttentionInputs& in, const KernelOptions& options);

/// Runs the kernel; adds a test failure where it wrote outside out, lse or the scratch that
/// attention_scratch_bytes() asked for. `out` is contiguous and in the dtype of the query, `lse`
/// fp32 and undefined unless wanted. Both start as NaN, so that what is not written shows.
AttentionOutputs run_kernel(const AttentionInputs& in, const KernelOptions& options);

/// Gives every task of a job a std::thread of its own, unless there is only one.
class ThreadPerTask {
 public:
  explicit ThreadPerTask(int threads) : threads_(threads) {}

  /// Refers to this object.
  kernels::Parallel parallel();

 private:
  int threads_;
};

std::vector<kernels::CpuIsa> supported_isas();

const char* scheme_name(kernels::AttentionScheme scheme);

/// One line for a trace: shapes, dtype, mask, causal offset, scheme and instruction level.
std::string describe(const AttentionInputs& in, const KernelOptions& options);

}  // namespace cachedit::test
