// Measuring the kernels of linear layers alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/export.h"

namespace cachedit {

/// How fast a small batch, whose cost is reading the weight, reads it.
struct WeightReading {
  double gb_per_s = 0;         ///< bytes of the packed weight, scales included, in 1e9 a second
  double roof_gb_per_s = 0;    ///< of a loop that only sums numbers up, with as many threads
  double percent_of_roof = 0;  ///< one of the other
};

struct GemmRecord {
  std::string form;            ///< "fp32", "bf16", "int8" (W8A8), "int8_weight_only"...
  int64_t m = 0;               ///< rows of the activations
  int64_t n = 0;               ///< outputs
  int64_t k = 0;               ///< inputs
  double gflops = 0;           ///< 2 m n k over the fastest of several runs, in 1e9 a second
  double percent_of_roof = 0;  ///< of the products that the form multiplies with
  /// Of the small batches only: the others read their weight from a cache in part.
  std::optional<WeightReading> reading;
};

struct GemmBenchmarkOptions {
  std::vector<std::string> forms;  ///< of gemm_benchmark_forms(); empty: all of them
  std::vector<int64_t> rows;       ///< of 1536, 16 and 1, in any order; empty: all of them
  int64_t repeats = 8;             ///< runs of each shape; small batches run more often
  std::function<void(const GemmRecord&)> on_record;
};

CACHEDIT_API std::vector<std::string> gemm_benchmark_forms();

/// FLUX.1's shapes at 1024 + 512 tokens, and 1 and 16 rows whose weights come from memory: equal
/// ones, too many for any cache, are read by turns. bf16 activations (fp32 for fp32), with the
/// threads of set_num_threads(). Throws InputError for a form that does not exist.
CACHEDIT_API std::vector<GemmRecord> benchmark_gemm(const GemmBenchmarkOptions& options = {});

}  // namespace cachedit
