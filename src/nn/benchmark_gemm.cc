#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <algorithm>

#include "attention/bench/measure.h"
#include "base/cpu.h"
#include "base/stopwatch.h"
#include "cachedit/gemm_benchmark.h"
#include "nn/linear_forms.h"

namespace cachedit {
namespace {

struct Form {
  const char* name;
  at::ScalarType dtype;
  std::optional<nn::QuantType> type;
  kernels::RoofKind roof;
};

constexpr Form kForms[] = {
    {"fp32", at::kFloat, std::nullopt, kernels::RoofKind::kFloat32},
    {"bf16", at::kBFloat16, std::nullopt, kernels::RoofKind::kBFloat16},
    {"int8", at::kBFloat16, nn::QuantType::kInt8PerRow, kernels::RoofKind::kInt8},
    {"int8_weight_only", at::kBFloat16, nn::QuantType::kInt8WeightOnly,
     kernels::RoofKind::kBFloat16},
    {"int4_weight_only", at::kBFloat16, nn::QuantType::kInt4WeightOnly,
     kernels::RoofKind::kBFloat16},
    {"float8_weight_only", at::kBFloat16, nn::QuantType::kFloat8WeightOnly,
     kernels::RoofKind::kBFloat16},
};

struct Shape {
  int64_t m, n, k;
};

constexpr Shape kShapes[] = {{1536, 3072, 3072}, {1536, 12288, 3072}, {1536, 3072, 15360}};

double seconds_of(const nn::LinearForm& form, const nn::LinearCall& call) {
  constexpr int kRuns = 8;
  double best = 1e9;
  for (int i = 0; i < kRuns; ++i) {
    const Stopwatch watch;
    form.run(call);
    best = std::min(best, watch.seconds());
  }
  return best;
}

}  // namespace

std::vector<GemmRecord> benchmark_gemm() {
  std::vector<GemmRecord> records;
  for (const Form& form : kForms) {
    const double roof = attention::bench::measure_roof(form.roof, cpu_isa());
    for (const Shape& s : kShapes) {
      const nn::LinearWeight weight{.values = at::randn({s.n, s.k}, form.dtype)};
      const at::Tensor bias = at::randn({s.n}, form.dtype);
      const auto layer = form.type ? nn::make_quantized_form({weight}, bias, *form.type, 64)
                                   : nn::make_packed_form({weight}, bias, form.dtype);
      const nn::LinearCall call{.input = at::randn({1, s.m, s.k}, form.dtype),
                                .out = at::empty({1, s.m, s.n}, form.dtype)};
      const double operations =
          2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
      const double gflops = operations / seconds_of(*layer, call) / 1e9;
      records.push_back({.form = form.name,
                         .m = s.m,
                         .n = s.n,
                         .k = s.k,
                         .gflops = gflops,
                         .percent_of_roof = 100 * gflops / roof});
    }
  }
  return records;
}

}  // namespace cachedit
