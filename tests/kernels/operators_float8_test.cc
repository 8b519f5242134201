// Rounding of rows to e4m3 against ATen's conversion, bit for bit, on every instruction level.
#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/gapped.h"
#include "kernels/kernel_runner.h"
#include "kernels/operators.h"
#include "support/tensor_compare.h"

namespace cachedit::test {
namespace {

using kernels::CpuIsa;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

struct Call {
  CpuIsa isa = CpuIsa::kPortable;
  int threads = 1;
  int64_t group = 0;
  bool in_place = false;
};

/// Magnitudes that spread over twelve orders, so that e4m3's subnormals and zeros are met.
at::Tensor spread(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  const at::Tensor v = seeded_normal(shape, at::kFloat, seed);
  return (v * seeded_normal(shape, at::kFloat, seed + 1).pow(3).abs()).to(dtype);
}

at::Tensor round_to_float8(const at::Tensor& in, const Call& call,
                           const at::Tensor& magnitude = {}) {
  Gapped x(in, in.scalar_type());
  Gapped other(at::zeros_like(in), in.scalar_type());
  Gapped& out = call.in_place ? x : other;
  ThreadPerTask threads(call.threads);
  kernels::round_to_float8(
      {.type = element_type(in),
       .batch = in.size(0),
       .rows = in.size(1),
       .columns = in.size(2),
       .group = call.group,
       .x = x.view().const_data_ptr(),
       .x_strides = row_strides(x.view()),
       .out = out.view().mutable_data_ptr(),
       .out_strides = row_strides(out.view()),
       .magnitude = magnitude.defined() ? magnitude.const_data_ptr<float>() : nullptr},
      threads.parallel(), call.isa);
  return out.take();
}

at::Tensor row_magnitudes(const at::Tensor& in, CpuIsa isa, int threads = 1) {
  Gapped x(in, in.scalar_type());
  at::Tensor result = at::full({in.size(0), in.size(1)}, -1.0f, at::kFloat);
  ThreadPerTask pool(threads);
  kernels::row_magnitudes({.type = element_type(in),
                           .batch = in.size(0),
                           .rows = in.size(1),
                           .columns = in.size(2),
                           .x = x.view().const_data_ptr(),
                           .x_strides = row_strides(x.view()),
                           .magnitude = result.mutable_data_ptr<float>()},
                          pool.parallel(), isa);
  return result;
}

/// `magnitude` broadcasts to x.
at::Tensor by_aten(const at::Tensor& x, const at::Tensor& magnitude) {
  const at::Tensor scale = at::where(magnitude < 1e-30, 1.0, magnitude / 448.0);
  const at::Tensor codes = at::clamp(x.to(at::kFloat) / scale, -448, 448).to(at::kFloat8_e4m3fn);
  return (codes.to(at::kFloat) * scale).to(x.scalar_type());
}

at::Tensor by_aten_in_groups(const at::Tensor& x, int64_t group) {
  at::Tensor result = at::zeros_like(x);
  for (int64_t first = 0; first < x.size(2); first += group) {
    const int64_t count = std::min(group, x.size(2) - first);
    const at::Tensor part = x.narrow(2, first, count);
    result.narrow(2, first, count).copy_(by_aten(part, part.to(at::kFloat).abs().amax(-1, true)));
  }
  return result;
}

TEST(RoundToFloat8, EqualsTheConversionAtEverySize) {
  for (const CpuIsa isa : supported_isas()) {
    for (const at::ScalarType dtype : kTypes) {
      for (const int64_t columns : {1, 7, 16, 17, 63, 64, 128, 129, 300}) {
        const at::Tensor x = spread({2, 5, columns}, dtype, 3);
        for (const int64_t group : {int64_t{0}, int64_t{128}, int64_t{5}}) {
          const at::Tensor want = by_aten_in_groups(x, group > 0 ? group : columns);
          for (const bool in_place : {false, true}) {
            const at::Tensor got =
                round_to_float8(x, {.isa = isa, .group = group, .in_place = in_place});
            ASSERT_TRUE(same_values(got, want)) << dtype << " " << columns << " by " << group;
          }
        }
      }
    }
  }
}

TEST(RoundToFloat8, TakesTheMagnitudesThatItIsGiven) {
  const at::Tensor x = spread({2, 3, 70}, at::kFloat, 5);
  const at::Tensor magnitude = x.abs().amax(-1) * 1.75 + 0.5;
  const at::Tensor want = by_aten(x, magnitude.unsqueeze(-1));
  for (const CpuIsa isa : supported_isas()) {
    EXPECT_TRUE(same_values(round_to_float8(x, {.isa = isa}, magnitude), want));
  }
  EXPECT_FALSE(same_values(by_aten_in_groups(x, 70), want));
}

TEST(RoundToFloat8, ZerosStayZerosAndWhatIsNotFiniteSpoilsItsGroupOnly) {
  at::Tensor x = spread({1, 4, 130}, at::kFloat, 7);
  x[0][0].zero_();
  x[0][1][100] = std::numeric_limits<float>::infinity();
  x[0][2][129] = std::numeric_limits<float>::quiet_NaN();
  for (const CpuIsa isa : supported_isas()) {
    const at::Tensor got = round_to_float8(x, {.isa = isa, .group = 128});
    EXPECT_EQ(got[0][0].abs().max().item<float>(), 0);
    EXPECT_TRUE(at::isnan(got[0][1].narrow(0, 0, 128)).all().item<bool>());
    EXPECT_FALSE(at::isnan(got[0][1].narrow(0, 128, 2)).any().item<bool>());
    EXPECT_TRUE(at::isnan(got[0][2].narrow(0, 128, 2)).all().item<bool>());
    EXPECT_TRUE(same_values(got.select(1, 3), by_aten_in_groups(x, 128).select(1, 3)));

    const at::Tensor magnitudes = row_magnitudes(x, isa);
    EXPECT_EQ(magnitudes[0][0].item<float>(), 0);
    EXPECT_TRUE(at::isnan(magnitudes[0].narrow(0, 1, 2)).all().item<bool>());
    EXPECT_EQ(magnitudes[0][3].item<float>(), x[0][3].abs().max().item<float>());
  }
}

TEST(RoundToFloat8, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor x = spread({3, 50, 1000}, at::kBFloat16, 9);
  for (const CpuIsa isa : supported_isas()) {
    const at::Tensor one = round_to_float8(x, {.isa = isa});
    EXPECT_TRUE(same_values(round_to_float8(x, {.isa = isa, .threads = 4}), one));
    const at::Tensor want = x.abs().amax(-1).to(at::kFloat);
    EXPECT_TRUE(same_values(row_magnitudes(x, isa, 4), want));
  }
}

}  // namespace
}  // namespace cachedit::test
