// Packing and quantization of weights: their definition, quantized sources, fused weights, special
// numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/gemm_runner.h"
#include "kernels/kernel_runner.h"

namespace cachedit::test {
namespace {

using kernels::CpuIsa;
using kernels::ElementType;
using kernels::SourceType;
using kernels::WeightForm;
using kernels::WeightScale;
using kernels::WeightSpec;

struct Layout {
  WeightForm form;
  WeightScale scale;
  int64_t group = 64;
  ElementType group_scale = ElementType::kFloat32;
};

constexpr Layout kQuantized[] = {
    {WeightForm::kInt8, WeightScale::kPerChannel},
    {WeightForm::kInt8, WeightScale::kPerTensor},
    {WeightForm::kInt8WeightOnly, WeightScale::kPerChannel},
    {WeightForm::kInt4WeightOnly, WeightScale::kPerGroup, 32},
    {WeightForm::kInt4WeightOnly, WeightScale::kPerGroup, 128, ElementType::kBFloat16},
    {WeightForm::kE4M3WeightOnly, WeightScale::kPerChannel},
    {WeightForm::kE4M3WeightOnly, WeightScale::kPerTensor},
    {WeightForm::kE4M3WeightOnly, WeightScale::kPerBlock},
};

WeightSpec spec_of(const Layout& layout, int64_t outputs, int64_t inputs) {
  return {.form = layout.form,
          .outputs = outputs,
          .inputs = inputs,
          .scale = layout.scale,
          .group = layout.group,
          .group_scale = layout.group_scale};
}

LinearCase random_case(const Layout& layout, int64_t rows, int64_t inputs, int64_t outputs,
                       uint32_t seed) {
  std::mt19937 random(seed);
  LinearCase c;
  c.spec = spec_of(layout, outputs, inputs);
  c.weights.push_back(random_matrix(ElementType::kFloat32, outputs, inputs, random));
  c.input.push_back(random_matrix(ElementType::kBFloat16, rows, inputs, random));
  return c;
}

class GemmPack : public ::testing::TestWithParam<CpuIsa> {};

/// value = nearest of w / scale, scale = amax / largest number over what the scale covers.
TEST_P(GemmPack, QuantizesByTheDefinition) {
  for (const Layout& layout : kQuantized) {
    const int64_t outputs = 140, inputs = 205;
    const LinearCase c = random_case(layout, 1, inputs, outputs, 1);
    SCOPED_TRACE(describe(c));
    const StoredWeight w = stored_weight(c, GetParam());
    const bool grouped = layout.scale == WeightScale::kPerGroup;
    const bool block = layout.scale == WeightScale::kPerBlock;
    const bool tensor = layout.scale == WeightScale::kPerTensor;
    for (int64_t n = 0; n < outputs; ++n) {
      for (int64_t k = 0; k < inputs; k += 7) {
        const int64_t width = grouped ? layout.group : block ? 128 : inputs;
        const int64_t height = block ? 128 : tensor ? outputs : 1;
        double amax = 0;
        for (int64_t r = n / height * height; r < std::min(outputs, (n / height + 1) * height);
             ++r) {
          for (int64_t j = k / width * width; j < std::min(inputs, (k / width + 1) * width); ++j) {
            amax = std::max(amax, std::abs(c.weights[0].at(r, j)));
          }
        }
        const double value = w.values[static_cast<size_t>(n * inputs + k)];
        const double want = c.weights[0].at(n, k);
        if (layout.form == WeightForm::kE4M3WeightOnly) {
          // Half a step of a 4-bit significand, or of the smallest numbers.
          EXPECT_LE(std::abs(value - want),
                    std::max(std::abs(want) / 16, amax / 448 / 1024) * 1.0001);
          continue;
        }
        const double most = layout.form == WeightForm::kInt4WeightOnly ? 7 : 127;
        const double slack = layout.group_scale == ElementType::kBFloat16 ? 0.02 : 1e-5;
        EXPECT_LE(std::abs(value - want), amax / most * (0.5 + slack * most)) << n << " " << k;
      }
    }
  }
}

TEST_P(GemmPack, QuantizesAlikeOnEveryLevel) {
  for (const Layout& layout : kQuantized) {
    const LinearCase c = random_case(layout, 1, 333, 140, 2);
    SCOPED_TRACE(describe(c));
    const StoredWeight here = stored_weight(c, GetParam());
    const StoredWeight portable = stored_weight(c, CpuIsa::kPortable);
    EXPECT_EQ(here.values, portable.values);
    EXPECT_EQ(here.scales, portable.scales);
  }
}

TEST_P(GemmPack, QuantizedSourcesEqualOwnQuantization) {
  for (const Layout& layout : kQuantized) {
    for (const int64_t inputs : {1, 31, 128, 205, 300}) {
      for (const int64_t rows : {3, 40}) {
        const LinearCase c = random_case(layout, rows, inputs, 140, 3);
        SCOPED_TRACE(describe(c));
        const TypedMatrix own = run_gemm(c, PackedWeight(c, GetParam()), GetParam());
        const TypedMatrix given = run_gemm(c, PackedWeight(c, GetParam(), true, 3), GetParam());
        EXPECT_TRUE(same_bytes(own, given));
      }
    }
  }
}

/// A fused weight gives the columns of its parts, scales included.
TEST_P(GemmPack, FusedWeightsEqualTheirParts) {
  std::vector<Layout> layouts(std::begin(kQuantized), std::end(kQuantized));
  layouts.push_back({WeightForm::kFloat32, WeightScale::kPerChannel});
  layouts.push_back({WeightForm::kBFloat16, WeightScale::kPerChannel});
  for (const Layout& layout : layouts) {
    std::mt19937 random(4);
    LinearCase fused = random_case(layout, 20, 205, 3 * 45, 5);
    fused.weights.clear();
    for (int i = 0; i < 3; ++i) {
      fused.weights.push_back(random_matrix(ElementType::kBFloat16, 45, 205, random, i));
      // Different amplitudes, so that a scale of the whole would differ.
      fused.weights[static_cast<size_t>(i)].fill([&](int64_t n, int64_t k) {
        return std::sin(static_cast<double>(n * 37 + k)) * (i + 1);
      });
    }
    SCOPED_TRACE(describe(fused));
    const TypedMatrix all = run_gemm(fused, GetParam(), 2);
    for (int64_t i = 0; i < 3; ++i) {
      LinearCase part = fused;
      part.spec.outputs = 45;
      part.weights = {fused.weights[static_cast<size_t>(i)]};
      const TypedMatrix out = run_gemm(part, GetParam());
      for (int64_t m = 0; m < 20; ++m) {
        for (int64_t n = 0; n < 45; ++n) ASSERT_EQ(out.at(m, n), all.at(m, i * 45 + n));
      }
    }
  }
}

TEST_P(GemmPack, ZeroWeightsGiveZeros) {
  for (const Layout& layout : kQuantized) {
    LinearCase c = random_case(layout, 9, 140, 70, 6);
    c.weights[0].fill([](int64_t, int64_t) { return 0; });
    SCOPED_TRACE(describe(c));
    const TypedMatrix out = run_gemm(c, GetParam());
    for (int64_t m = 0; m < 9; ++m) {
      for (int64_t n = 0; n < 70; ++n) ASSERT_EQ(out.at(m, n), 0);
    }
  }
}

TEST_P(GemmPack, NonFiniteWeightsGiveNan) {
  for (const Layout& layout : kQuantized) {
    LinearCase c = random_case(layout, 9, 140, 70, 7);
    c.weights[0].set(33, 77, std::numeric_limits<double>::infinity());
    SCOPED_TRACE(describe(c));
    const TypedMatrix out = run_gemm(c, GetParam());
    for (int64_t m = 0; m < 9; ++m) {
      EXPECT_TRUE(std::isnan(out.at(m, 33)));
      if (layout.scale == WeightScale::kPerTensor || layout.scale == WeightScale::kPerBlock)
        continue;
      EXPECT_FALSE(std::isnan(out.at(m, 32)));
    }
  }
}

/// Every e4m3 code as a weight, in kernels that decode in registers and by blocks.
TEST_P(GemmPack, DecodesEveryE4M3Code) {
  std::vector<unsigned char> codes;
  for (int code = 0; code < 256; ++code) codes.push_back(static_cast<unsigned char>(code));
  const float scale = 0.5f;
  for (const int64_t rows : {1, 20}) {
    LinearCase c;
    c.spec = {.form = WeightForm::kE4M3WeightOnly,
              .outputs = 256,
              .inputs = 1,
              .scale = WeightScale::kPerTensor};
    TypedMatrix& ones = c.input.emplace_back(ElementType::kBFloat16, rows, 1);
    ones.fill([](int64_t, int64_t) { return 1; });
    const kernels::WeightSource source{.type = SourceType::kE4M3,
                                       .data = codes.data(),
                                       .rows = 256,
                                       .stride = 1,
                                       .scales = &scale};
    GuardedBytes packed(kernels::packed_weight_bytes(c.spec, GetParam()));
    ThreadPerTask pool(1);
    kernels::pack_weight(c.spec, &source, 1, packed.data(), pool.parallel(), GetParam());
    TypedMatrix out(ElementType::kFloat32, rows, 256);
    kernels::GemmProblem p{.rows = rows,
                           .input_type = ElementType::kBFloat16,
                           .weight = c.spec,
                           .packed = packed.data(),
                           .out = out.data(),
                           .out_stride = 256};
    p.input[0] = {ones.data(), 1, 1};
    GuardedBytes scratch(kernels::gemm_scratch_bytes(p, 1, GetParam()));
    kernels::gemm(p, scratch.data(), pool.parallel(), GetParam());
    for (int code = 0; code < 256; ++code) {
      const int exponent = (code >> 3) & 15, mantissa = code & 7;
      const double magnitude =
          exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
      for (int64_t m = 0; m < rows; ++m) {
        if ((code & 0x7f) == 0x7f) {
          EXPECT_TRUE(std::isnan(out.at(m, code))) << code;
        } else {
          EXPECT_EQ(out.at(m, code), (code & 0x80 ? -0.5 : 0.5) * magnitude) << code;
        }
      }
    }
  }
}

/// All sixteen values at all places of a word.
TEST_P(GemmPack, DecodesEveryInt4Value) {
  LinearCase c;
  const int64_t inputs = 40, outputs = 16;
  c.spec = {.form = WeightForm::kInt4WeightOnly,
            .outputs = outputs,
            .inputs = inputs,
            .scale = WeightScale::kPerGroup,
            .group = 32};
  std::vector<unsigned char> values(static_cast<size_t>(outputs * inputs / 2));
  const auto value = [](int64_t n, int64_t k) { return static_cast<int>((n + k * 3) % 16); };
  for (int64_t n = 0; n < outputs; ++n) {
    for (int64_t k = 0; k < inputs; k += 2) {
      values[static_cast<size_t>(n * inputs + k) / 2] =
          static_cast<unsigned char>(value(n, k) | value(n, k + 1) << 4);
    }
  }
  const std::vector<float> scales(static_cast<size_t>(outputs) * 2, 0.25f);
  const kernels::WeightSource source{.type = SourceType::kInt4,
                                     .data = values.data(),
                                     .rows = outputs,
                                     .stride = inputs,
                                     .scales = scales.data()};
  GuardedBytes packed(kernels::packed_weight_bytes(c.spec, GetParam()));
  ThreadPerTask pool(1);
  kernels::pack_weight(c.spec, &source, 1, packed.data(), pool.parallel(), GetParam());
  // The unit matrix: output (k, n) is the weight (n, k). 40 rows decode by blocks, 5 in registers.
  for (const int64_t rows : {5, 40}) {
    TypedMatrix unit(ElementType::kFloat32, rows, inputs);
    for (int64_t first = 0; first < inputs; first += rows) {
      unit.fill([&](int64_t m, int64_t k) { return m + first == k ? 1 : 0; });
      TypedMatrix out(ElementType::kFloat32, rows, outputs);
      kernels::GemmProblem p{.rows = rows,
                             .weight = c.spec,
                             .packed = packed.data(),
                             .out = out.data(),
                             .out_stride = outputs};
      p.input[0] = {unit.data(), inputs, inputs};
      GuardedBytes scratch(kernels::gemm_scratch_bytes(p, 1, GetParam()));
      kernels::gemm(p, scratch.data(), pool.parallel(), GetParam());
      for (int64_t m = 0; m < rows && first + m < inputs; ++m) {
        for (int64_t n = 0; n < outputs; ++n) {
          const int v = value(n, first + m);
          ASSERT_EQ(out.at(m, n), 0.25 * (v < 8 ? v : v - 16)) << n << " " << first + m;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GemmPack, ::testing::ValuesIn(supported_isas()),
                         [](const auto& test) { return kernels::isa_name(test.param); });

TEST(GemmPackedBytes, AreAsFewAsTheFormSays) {
  const Layout bf16{WeightForm::kBFloat16, WeightScale::kPerChannel};
  for (const CpuIsa isa : supported_isas()) {
    const auto per_weight = [&](const Layout& layout) {
      return static_cast<double>(kernels::packed_weight_bytes(spec_of(layout, 3072, 3072), isa)) /
             (3072.0 * 3072.0);
    };
    EXPECT_LT(per_weight(bf16), 2.01);
    EXPECT_LT(per_weight(kQuantized[0]), 1.01);
    EXPECT_LT(per_weight(kQuantized[2]), 1.01);
    EXPECT_LT(per_weight(kQuantized[3]), 0.64);  // an fp32 scale for 32 weights
    EXPECT_LT(per_weight(kQuantized[4]), 0.52);
    EXPECT_LT(per_weight(kQuantized[7]), 1.04);
  }
}

}  // namespace
}  // namespace cachedit::test
