// Measuring the attention backends: time, share of the machine's arithmetic, gain over ATen's
// scaled_dot_product_attention, accuracy and scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cachedit/export.h"

namespace cachedit::attention {

/// One backend on one case in one dtype.
struct BenchmarkRecord {
  std::string name;  ///< of the case
  std::string backend;
  std::string dtype;  ///< "fp32", "bf16" or "fp16"
  std::string isa;    ///< instruction level of our kernels, e.g. "avx512_bf16"
  double ms = 0;      ///< median of the repeats
  double gflops = 0;  ///< 4 B H Nq Nkv D operations over that time, in 1e9 a second
  /// What this level's registers alone reach in the tensors' dtype: bf16 dot products for bf16,
  /// fp32 multiply-adds for fp32 and fp16. A backend that quantizes may pass it.
  double roof_gflops = 0;
  /// Median over the repeats of SDPA's time divided by the backend's: above 1, the backend is
  /// faster.
  double ratio_to_sdpa = 0;
  double cosine = 0;  ///< to a reference in fp64 on the same inputs, over a sample of the rows
  double rel_l1 = 0;  ///< sum |out - reference| / sum |reference|, over the same rows
  /// The most that the call allocated through LibTorch at one time, besides its output.
  size_t scratch_bytes = 0;
};

struct BenchmarkOptions {
  std::vector<std::string> cases;     ///< of benchmark_cases(); empty: those that are default
  std::vector<std::string> backends;  ///< empty: every one that runs on this CPU
  std::vector<std::string> dtypes;    ///< "fp32", "bf16", "fp16"; empty: all three
  /// Pairs of runs, backend and SDPA by turns, after a warm-up of each. A measurement that has
  /// taken half a minute stops early, with three pairs at least.
  int64_t repeats = 5;
  /// Told what is measured next, and what is left out and why.
  std::function<void(const std::string&)> on_note;
  std::function<void(const BenchmarkRecord&)> on_record;
};

struct BenchmarkCase {
  std::string name;
  std::string description;
  bool is_default = true;  ///< measured when no case is named
};

CACHEDIT_API std::vector<BenchmarkCase> benchmark_cases();

/// Runs cases x dtypes x backends on the CPU with the threads of set_num_threads(). Combinations
/// that a backend refuses are left out with a note. Throws InputError for a name that does not
/// exist and where nothing is left to measure, UnsupportedError for a backend without a CPU kernel.
CACHEDIT_API std::vector<BenchmarkRecord> run_benchmark(const BenchmarkOptions& options = {});

}  // namespace cachedit::attention
