// Measuring the kernels of linear layers alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cachedit/export.h"

namespace cachedit {

struct GemmRecord {
  std::string form;            ///< "fp32", "bf16", "int8" (W8A8), "int8_weight_only"...
  int64_t m = 0;               ///< rows of the activations
  int64_t n = 0;               ///< outputs
  int64_t k = 0;               ///< inputs
  double gflops = 0;           ///< 2 m n k over the fastest of several runs, in 1e9 a second
  double percent_of_roof = 0;  ///< of the products that the form multiplies with
};

/// FLUX.1's shapes at 1024 + 512 tokens, every form, bf16 activations (fp32 for fp32), with the
/// threads of set_num_threads().
CACHEDIT_API std::vector<GemmRecord> benchmark_gemm();

}  // namespace cachedit
