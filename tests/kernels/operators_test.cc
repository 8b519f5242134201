// The operators between GEMMs and attention against float64, on every instruction level of this
// machine: odd sizes, gaps between rows, in place, degenerate rows, numbers of threads.
#include "kernels/operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/gapped.h"
#include "kernels/kernel_runner.h"
#include "support/tensor_compare.h"

namespace cachedit::test {
namespace {

using kernels::CpuIsa;
using kernels::ElementType;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Half the distance to the next number, relative.
double unit(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return std::ldexp(1, -8);
  return dtype == at::kHalf ? std::ldexp(1, -11) : std::ldexp(1, -24);
}

/// One rounding to got's type, and `slack` of fp32 arithmetic relative to the largest value.
void expect_close(const at::Tensor& got, const at::Tensor& want, double slack = 1e-6) {
  ASSERT_EQ(got.sizes(), want.sizes());
  if (want.numel() == 0) return;
  const double largest = want.abs().max().item<double>();
  const at::Tensor bound = want.abs() * unit(got.scalar_type()) + (slack * largest + 3e-8);
  const at::Tensor error = (got.to(at::kDouble) - want).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << "largest error " << error.max().item<double>() << " of " << largest;
}

kernels::HeadStrides head_strides(const at::Tensor& t) {
  return {t.stride(0), t.stride(1), t.stride(2)};
}
kernels::ItemVector item_vector(const at::Tensor& t) { return {t.const_data_ptr(), t.stride(0)}; }

struct Call {
  CpuIsa isa = CpuIsa::kPortable;
  int threads = 1;
  bool in_place = false;
};

struct LayerNormInputs {
  at::Tensor x;             ///< [B, N, C]
  at::Tensor scale, shift;  ///< [B, C]
  float scale_offset = 1.0f;
};

at::Tensor layer_norm(const LayerNormInputs& in, const Call& call) {
  Gapped x(in.x, in.x.scalar_type());
  Gapped other(at::zeros_like(in.x), in.x.scalar_type());
  Gapped& out = call.in_place ? x : other;
  const Gapped scale(in.scale, in.scale.scalar_type()), shift(in.shift, in.shift.scalar_type());
  ThreadPerTask threads(call.threads);
  kernels::layer_norm({.type = element_type(in.x),
                       .batch = in.x.size(0),
                       .rows = in.x.size(1),
                       .columns = in.x.size(2),
                       .x = x.view().const_data_ptr(),
                       .x_strides = row_strides(x.view()),
                       .out = out.view().mutable_data_ptr(),
                       .out_strides = row_strides(out.view()),
                       .vector_type = element_type(in.scale),
                       .scale = item_vector(scale.view()),
                       .shift = item_vector(shift.view()),
                       .scale_offset = in.scale_offset},
                      threads.parallel(), call.isa);
  return out.take();
}

at::Tensor layer_norm_in_fp64(const LayerNormInputs& in) {
  const at::Tensor x = in.x.to(at::kDouble);
  const at::Tensor centered = x - x.mean(-1, true);
  const at::Tensor variance = (centered * centered).mean(-1, true);
  return centered / (variance + 1e-6).sqrt() *
             (in.scale.to(at::kDouble) + static_cast<double>(in.scale_offset)).unsqueeze(1) +
         in.shift.to(at::kDouble).unsqueeze(1);
}

LayerNormInputs layer_norm_inputs(at::IntArrayRef shape, at::ScalarType dtype,
                                  at::ScalarType vector_dtype) {
  return {.x = seeded_normal(shape, dtype, 1),
          .scale = seeded_normal({shape[0], shape[2]}, vector_dtype, 2),
          .shift = seeded_normal({shape[0], shape[2]}, vector_dtype, 3)};
}

struct HeadInputs {
  at::Tensor x;       ///< [B, N, H, D]
  at::Tensor weight;  ///< [D], or undefined
  at::Tensor rotary;  ///< fp32 [N, D], cos and sin in turn, or undefined
};

at::Tensor norm_and_rotate(const HeadInputs& in, const Call& call) {
  Gapped x(in.x, in.x.scalar_type());
  Gapped other(at::zeros_like(in.x), in.x.scalar_type());
  Gapped& out = call.in_place ? x : other;
  kernels::HeadNormProblem p{.type = element_type(in.x),
                             .batch = in.x.size(0),
                             .tokens = in.x.size(1),
                             .heads = in.x.size(2),
                             .head_dim = in.x.size(3),
                             .x = x.view().const_data_ptr(),
                             .x_strides = head_strides(x.view()),
                             .out = out.view().mutable_data_ptr(),
                             .out_strides = head_strides(out.view())};
  if (in.weight.defined()) {
    p.weight = in.weight.const_data_ptr();
    p.weight_type = element_type(in.weight);
  }
  const at::Tensor none = at::zeros({1, 1});
  const Gapped rotary(in.rotary.defined() ? in.rotary : none, at::kFloat);
  if (in.rotary.defined()) {
    p.rotary = rotary.view().const_data_ptr<float>();
    p.rotary_stride = rotary.view().stride(0);
  }
  ThreadPerTask threads(call.threads);
  kernels::norm_and_rotate(p, threads.parallel(), call.isa);
  return out.take();
}

at::Tensor norm_and_rotate_in_fp64(const HeadInputs& in) {
  at::Tensor y = in.x.to(at::kDouble);
  if (in.weight.defined()) {
    y = y / ((y * y).mean(-1, true) + 1e-6).sqrt() * in.weight.to(at::kDouble);
    if (in.rotary.defined()) y = y.to(in.x.scalar_type()).to(at::kDouble);
  }
  if (!in.rotary.defined()) return y;
  const at::Tensor pairs = y.unflatten(-1, {-1, 2});
  const at::Tensor turns =
      in.rotary.to(at::kDouble).unflatten(-1, {-1, 2}).unsqueeze(0).unsqueeze(2);
  const at::Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
  const at::Tensor c = turns.select(-1, 0), s = turns.select(-1, 1);
  return at::stack({a * c - b * s, b * c + a * s}, -1).flatten(-2);
}

HeadInputs head_inputs(at::IntArrayRef shape, at::ScalarType dtype, at::ScalarType weight_dtype) {
  const at::Tensor angles = seeded_normal({shape[1], shape[3] / 2}, at::kDouble, 5) * 10;
  return {.x = seeded_normal(shape, dtype, 4),
          .weight = seeded_normal({shape[3]}, weight_dtype, 6),
          .rotary = at::stack({at::cos(angles), at::sin(angles)}, -1).flatten(-2).to(at::kFloat)};
}

at::Tensor gated_residual(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& gate,
                          const Call& call, bool into_x = false) {
  Gapped first(x, x.scalar_type()), second(residual, x.scalar_type());
  Gapped other(at::zeros_like(x), x.scalar_type());
  Gapped& out = !call.in_place ? other : into_x ? first : second;
  const Gapped gates(gate, gate.scalar_type());
  ThreadPerTask threads(call.threads);
  kernels::gated_residual({.type = element_type(x),
                           .batch = x.size(0),
                           .rows = x.size(1),
                           .columns = x.size(2),
                           .x = first.view().const_data_ptr(),
                           .x_strides = row_strides(first.view()),
                           .residual = second.view().const_data_ptr(),
                           .residual_strides = row_strides(second.view()),
                           .out = out.view().mutable_data_ptr(),
                           .out_strides = row_strides(out.view()),
                           .vector_type = element_type(gate),
                           .gate = item_vector(gates.view())},
                          threads.parallel(), call.isa);
  return out.take();
}

at::Tensor activated(const at::Tensor& values, kernels::Activation activation, const Call& call) {
  Gapped x(values, values.scalar_type());
  Gapped other(at::zeros_like(values), values.scalar_type());
  Gapped& out = call.in_place ? x : other;
  ThreadPerTask threads(call.threads);
  kernels::activate({.activation = activation,
                     .type = element_type(values),
                     .rows = values.size(0),
                     .columns = values.size(1),
                     .x = x.view().const_data_ptr(),
                     .x_stride = x.view().stride(0),
                     .out = out.view().mutable_data_ptr(),
                     .out_stride = out.view().stride(0)},
                    threads.parallel(), call.isa);
  return out.take();
}

class Operators : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(Operators, LayerNormEqualsItsDefinition) {
  for (const at::ScalarType dtype : kTypes) {
    for (const at::ScalarType vector_dtype : {dtype, at::kFloat}) {
      for (const int64_t columns : {1, 2, 17, 24, 64, 100, 3072}) {
        for (const int64_t batch : {1, 3}) {
          SCOPED_TRACE(c10::str(dtype, " with ", vector_dtype, ", ", batch, " x 5 x ", columns));
          LayerNormInputs in = layer_norm_inputs({batch, 5, columns}, dtype, vector_dtype);
          in.scale_offset = columns == 100 ? 0.0f : 1.0f;
          const at::Tensor got = layer_norm(in, {.isa = GetParam()});
          expect_close(got, layer_norm_in_fp64(in));
          EXPECT_TRUE(same_values(layer_norm(in, {.isa = GetParam(), .in_place = true}), got));
        }
      }
    }
  }
}

TEST_P(Operators, LayerNormKeepsDigitsUnderALargeMean) {
  for (const double mean : {1000.0, -30000.0}) {
    LayerNormInputs in = layer_norm_inputs({1, 4, 777}, at::kFloat, at::kFloat);
    in.x += mean;
    expect_close(layer_norm(in, {.isa = GetParam()}), layer_norm_in_fp64(in));
  }
}

TEST_P(Operators, LayerNormOfConstantRowsIsTheShift) {
  for (const at::ScalarType dtype : kTypes) {
    for (const double value : {0.0, 0.1, -1234.5}) {
      LayerNormInputs in = layer_norm_inputs({2, 3, 333}, dtype, dtype);
      in.x.fill_(value);
      expect_close(layer_norm(in, {.isa = GetParam()}),
                   in.shift.unsqueeze(1).expand({2, 3, 333}).to(at::kDouble));
    }
  }
}

// One element differs in its last place: rounding may leave a variance below zero by more than eps.
TEST_P(Operators, LayerNormOfHugeNearlyConstantRowsIsFinite) {
  for (const int64_t columns : {333, 3072, 30001}) {
    LayerNormInputs in = layer_norm_inputs({1, 50, columns}, at::kFloat, at::kFloat);
    in.x.copy_((at::arange(50, at::kFloat) * 1234567 + 1e8).view({1, 50, 1}).expand_as(in.x));
    in.x.select(2, 100) += 8;
    EXPECT_TRUE(layer_norm(in, {.isa = GetParam()}).isfinite().all().item<bool>());
  }
}

TEST_P(Operators, LayerNormOfOneRowWithNanLeavesTheOthers) {
  LayerNormInputs in = layer_norm_inputs({1, 3, 40}, at::kBFloat16, at::kBFloat16);
  const at::Tensor want = layer_norm(in, {.isa = GetParam()});
  in.x[0][1][39] = kNan;
  const at::Tensor got = layer_norm(in, {.isa = GetParam()});
  EXPECT_TRUE(got[0][1].isnan().all().item<bool>());
  EXPECT_TRUE(same_values(got[0][0], want[0][0]) && same_values(got[0][2], want[0][2]));
}

/// Results that round elsewhere than the definition in float64: few, and by one step.
void expect_same_roundings(const at::Tensor& got, const HeadInputs& in) {
  const at::Tensor want = norm_and_rotate_in_fp64(in);
  if (in.x.scalar_type() == at::kFloat) return expect_close(got, want);
  // A norm that rounds to the other neighbour turns both elements of its pair.
  expect_close(got, want, 2 * unit(in.x.scalar_type()));
  const double different = (got != want.to(got.scalar_type())).to(at::kDouble).sum().item<double>();
  EXPECT_LE(different, 1 + 0.005 * static_cast<double>(got.numel()));
}

TEST_P(Operators, NormAndRotateEqualsItsDefinition) {
  for (const at::ScalarType dtype : kTypes) {
    for (const at::ScalarType weight_dtype : {dtype, at::kFloat}) {
      for (const int64_t head_dim : {2, 6, 24, 32, 128, 320}) {
        for (const int64_t heads : {1, 5, 40}) {
          SCOPED_TRACE(c10::str(dtype, " with ", weight_dtype, ", ", heads, " x ", head_dim));
          const HeadInputs in = head_inputs({3, 4, heads, head_dim}, dtype, weight_dtype);
          const at::Tensor got = norm_and_rotate(in, {.isa = GetParam()});
          expect_same_roundings(got, in);
          EXPECT_TRUE(same_values(norm_and_rotate(in, {.isa = GetParam(), .in_place = true}), got));
        }
      }
    }
  }
}

TEST_P(Operators, HeadsAreNormedOrRotatedAlone) {
  for (const at::ScalarType dtype : kTypes) {
    const HeadInputs both = head_inputs({2, 3, 4, 26}, dtype, dtype);
    const HeadInputs rotated{.x = both.x, .rotary = both.rotary};
    expect_close(norm_and_rotate(rotated, {.isa = GetParam()}), norm_and_rotate_in_fp64(rotated));
    const HeadInputs copied{.x = both.x};
    EXPECT_TRUE(same_values(norm_and_rotate(copied, {.isa = GetParam()}), both.x));
    // Without pairs, the width of a head may be odd.
    const HeadInputs normed{.x = seeded_normal({2, 3, 4, 17}, dtype, 7),
                            .weight = seeded_normal({17}, dtype, 8)};
    expect_close(norm_and_rotate(normed, {.isa = GetParam()}), norm_and_rotate_in_fp64(normed));
  }
}

TEST_P(Operators, HeadsOfZerosStayZero) {
  for (const at::ScalarType dtype : kTypes) {
    HeadInputs in = head_inputs({1, 2, 3, 24}, dtype, dtype);
    in.x.zero_();
    EXPECT_TRUE((norm_and_rotate(in, {.isa = GetParam()}) == 0).all().item<bool>());
  }
}

TEST_P(Operators, GatedResidualEqualsItsDefinition) {
  for (const at::ScalarType dtype : kTypes) {
    for (const at::ScalarType gate_dtype : {dtype, at::kFloat}) {
      for (const int64_t columns : {1, 17, 64, 3072}) {
        for (const int64_t batch : {1, 3}) {
          SCOPED_TRACE(c10::str(dtype, " with ", gate_dtype, ", ", batch, " x 5 x ", columns));
          const at::Tensor x = seeded_normal({batch, 5, columns}, dtype, 1);
          const at::Tensor residual = seeded_normal({batch, 5, columns}, dtype, 2);
          const at::Tensor gate = seeded_normal({batch, columns}, gate_dtype, 3);
          const at::Tensor got = gated_residual(x, residual, gate, {.isa = GetParam()});
          expect_close(got, residual.to(at::kDouble) +
                                gate.to(at::kDouble).unsqueeze(1) * x.to(at::kDouble));
          const Call in_place{.isa = GetParam(), .in_place = true};
          EXPECT_TRUE(same_values(gated_residual(x, residual, gate, in_place), got));
          EXPECT_TRUE(same_values(gated_residual(x, residual, gate, in_place, true), got));
        }
      }
    }
  }
}

at::Tensor activated_in_fp64(const at::Tensor& x, kernels::Activation activation) {
  const at::Tensor wide = x.to(at::kDouble);
  if (activation == kernels::Activation::kSilu) return at::silu(wide);
  return at::gelu(wide, activation == kernels::Activation::kGeluTanh ? "tanh" : "none");
}

TEST_P(Operators, ActivationsEqualTheirDefinition) {
  // From the flat part to where the value is x, and so many that rows have tails.
  const at::Tensor grid = (at::arange(16 * 1501, at::kDouble) / 1000 - 12).view({16, 1501});
  for (const at::ScalarType dtype : kTypes) {
    const at::Tensor x = grid.to(dtype);
    for (const kernels::Activation activation :
         {kernels::Activation::kGeluTanh, kernels::Activation::kGeluErf,
          kernels::Activation::kSilu}) {
      SCOPED_TRACE(c10::str(dtype, ", activation ", static_cast<int>(activation)));
      const at::Tensor got = activated(x, activation, {.isa = GetParam()});
      const at::Tensor want = activated_in_fp64(x, activation);
      const at::Tensor bound =
          want.abs() * unit(dtype) + x.to(at::kDouble).abs().clamp_min(1) * 4e-7;
      const at::Tensor excess = (got.to(at::kDouble) - want).abs() - bound;
      EXPECT_LE(excess.max().item<double>(), 0.0);
      EXPECT_TRUE(
          same_values(activated(x, activation, {.isa = GetParam(), .in_place = true}), got));
    }
    EXPECT_TRUE(same_values(activated(x, kernels::Activation::kNone, {.isa = GetParam()}), x));
  }
}

TEST_P(Operators, ActivationsAtTheEndsOfTheRange) {
  const at::Tensor x = at::tensor({-60000.0f, -300.0f, 300.0f, 60000.0f, 0.0f}).unsqueeze(0);
  const at::Tensor want = x.clamp_min(0).to(at::kDouble);
  for (const kernels::Activation activation :
       {kernels::Activation::kGeluTanh, kernels::Activation::kGeluErf,
        kernels::Activation::kSilu}) {
    for (const at::ScalarType dtype : kTypes) {
      const at::Tensor got = activated(x.to(dtype), activation, {.isa = GetParam()});
      EXPECT_LE(max_abs_error(got, want.to(dtype)), 1e-30) << dtype;
      const at::Tensor nans = at::full({2, 33}, kNan, dtype);
      EXPECT_TRUE(activated(nans, activation, {.isa = GetParam()}).isnan().all().item<bool>());
    }
  }
}

TEST_P(Operators, ThreadsDoNotChangeAnyBit) {
  const Call one{.isa = GetParam()}, three{.isa = GetParam(), .threads = 3};
  for (const at::ScalarType dtype : kTypes) {
    const LayerNormInputs norm = layer_norm_inputs({3, 40, 1030}, dtype, dtype);
    EXPECT_TRUE(same_values(layer_norm(norm, three), layer_norm(norm, one)));
    const HeadInputs heads = head_inputs({3, 40, 8, 128}, dtype, dtype);
    EXPECT_TRUE(same_values(norm_and_rotate(heads, three), norm_and_rotate(heads, one)));
    EXPECT_TRUE(same_values(gated_residual(norm.x, norm.x, norm.scale, three),
                            gated_residual(norm.x, norm.x, norm.scale, one)));
    const at::Tensor rows = norm.x.flatten(0, 1);
    EXPECT_TRUE(same_values(activated(rows, kernels::Activation::kGeluTanh, three),
                            activated(rows, kernels::Activation::kGeluTanh, one)));
  }
}

TEST_P(Operators, NoRowsAreNoWork) {
  const Call call{.isa = GetParam(), .threads = 3};
  for (const auto& [batch, rows] : {std::pair<int64_t, int64_t>{0, 4}, {2, 0}}) {
    const LayerNormInputs norm = layer_norm_inputs({batch, rows, 20}, at::kFloat, at::kFloat);
    EXPECT_EQ(layer_norm(norm, call).numel(), 0);
    EXPECT_EQ(gated_residual(norm.x, norm.x, norm.scale, call).numel(), 0);
    EXPECT_EQ(activated(norm.x.flatten(0, 1), kernels::Activation::kSilu, call).numel(), 0);
    const HeadInputs heads = head_inputs({batch, rows, 3, 8}, at::kFloat, at::kFloat);
    EXPECT_EQ(norm_and_rotate(heads, call).numel(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Operators, ::testing::ValuesIn(supported_isas()),
                         [](const auto& level) { return kernels::isa_name(level.param); });

}  // namespace
}  // namespace cachedit::test
