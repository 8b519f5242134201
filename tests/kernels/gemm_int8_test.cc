// W8A8: sums are exact integers, and the quantization of the activations is its definition.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/gemm_runner.h"
#include "kernels/kernel_runner.h"

namespace cachedit::test {
namespace {

using kernels::ActivationScale;
using kernels::CpuIsa;
using kernels::ElementType;
using kernels::WeightForm;

LinearCase int8_case(int64_t rows, int64_t inputs, int64_t outputs) {
  LinearCase c;
  c.spec = {.form = WeightForm::kInt8, .outputs = outputs, .inputs = inputs};
  c.weights.emplace_back(ElementType::kFloat32, outputs, inputs);
  c.input.emplace_back(ElementType::kFloat32, rows, inputs);
  return c;
}

/// The sums of the quantized operands in 64 bits, dequantized in fp32 as the kernel does.
TypedMatrix exact_output(const LinearCase& c, CpuIsa isa) {
  const StoredWeight w = stored_weight(c, isa);
  const QuantizedInput a = quantize_input(c);
  TypedMatrix out(ElementType::kFloat32, c.rows(), c.spec.outputs);
  const auto inputs = static_cast<size_t>(c.spec.inputs);
  out.fill([&](int64_t m, int64_t n) {
    const auto row = static_cast<size_t>(m), column = static_cast<size_t>(n);
    int64_t sum = 0;
    for (size_t k = 0; k < inputs; ++k) {
      sum += int64_t{a.integers[row * inputs + k]} * w.integers[column * inputs + k];
    }
    return static_cast<float>(sum) * a.scales[row] * w.scales[column];
  });
  return out;
}

class GemmInt8 : public ::testing::TestWithParam<CpuIsa> {
 protected:
  void expect_exact(const LinearCase& c) const {
    SCOPED_TRACE(describe(c));
    EXPECT_TRUE(same_bytes(run_gemm(c, GetParam()), exact_output(c, GetParam())));
  }
};

TEST_P(GemmInt8, EqualsIntegerArithmetic) {
  std::mt19937 random(1);
  for (const int64_t rows : {1, 5, 6, 7, 17, 50}) {
    for (const int64_t inputs : {1, 2, 3, 4, 5, 63, 64, 130, 1000}) {
      for (const int64_t outputs : {1, 7, 64, 67, 129}) {
        LinearCase c = int8_case(rows, inputs, outputs);
        c.weights[0] = random_matrix(ElementType::kFloat32, outputs, inputs, random);
        c.input[0] = random_matrix(ElementType::kBFloat16, rows, inputs, random);
        c.activation_scale =
            random() % 2 == 0 ? ActivationScale::kPerRow : ActivationScale::kPerTensor;
        expect_exact(c);
      }
    }
  }
}

/// The largest sums there are: every product is +-127 * 127, at the largest K.
TEST_P(GemmInt8, LargestSumsDoNotOverflow) {
  for (const double sign : {1.0, -1.0}) {
    LinearCase c = int8_case(7, 65536, 9);
    c.weights[0].fill([&](int64_t n, int64_t) { return n % 2 == 0 ? 3.0 : -3.0; });
    c.input[0].fill([&](int64_t, int64_t) { return 2 * sign; });
    expect_exact(c);
  }
}

TEST_P(GemmInt8, LargestMagnitudesBecome127) {
  // One weight 127 at each column picks one element of the row; scales are powers of two.
  LinearCase c = int8_case(3, 32, 32);
  c.weights[0].fill([](int64_t n, int64_t k) { return n == k ? 127 : 0; });
  c.input[0].fill([](int64_t m, int64_t k) {
    if (k == 3) return std::ldexp(127.0, static_cast<int>(m));
    if (k == 4) return -std::ldexp(127.0, static_cast<int>(m));
    return std::ldexp(static_cast<double>(k % 7) - 3, static_cast<int>(m));
  });
  const TypedMatrix out = run_gemm(c, GetParam());
  for (int64_t m = 0; m < 3; ++m) {
    for (int64_t n = 0; n < 32; ++n) EXPECT_EQ(out.at(m, n), 127 * c.input[0].at(m, n));
  }
}

/// Amplitudes whose scale is no exact number still end at 127, not 128.
TEST_P(GemmInt8, NoScaleRoundsBeyond127) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> exponent(-20, 20);
  LinearCase c = int8_case(500, 4, 1);
  c.weights[0].fill([](int64_t, int64_t k) { return k == 0 ? 1 : 0; });
  c.input[0].fill([&](int64_t, int64_t k) { return k == 0 ? -std::exp2(exponent(random)) : 0; });
  const QuantizedInput q = quantize_input(c);
  for (size_t m = 0; m < 500; ++m) ASSERT_EQ(q.integers[m * 4], -127);
  expect_exact(c);
}

/// Parts of K, each quantized by the magnitude of the whole row, add up to the whole product.
TEST_P(GemmInt8, PartsOfARowCanShareItsScale) {
  constexpr int64_t kRows = 5, kHalf = 64, kOutputs = 33;
  std::mt19937 random(11);
  std::uniform_int_distribution<int> numbers(-126, 126);
  LinearCase whole = int8_case(kRows, 2 * kHalf, kOutputs);
  // Every part of a weight's row reaches 127, so that its scale is one everywhere.
  whole.weights[0].fill([&](int64_t, int64_t k) { return k % kHalf == 0 ? 127 : numbers(random); });
  whole.input[0].fill([&](int64_t m, int64_t k) {
    return std::ldexp(k == 0 ? 127 : numbers(random) / 8, static_cast<int>(m));
  });
  const TypedMatrix want = run_gemm(whole, GetParam());
  std::vector<TypedMatrix> parts;
  for (int64_t part = 0; part < 2; ++part) {
    LinearCase c = int8_case(kRows, kHalf, kOutputs);
    c.weights[0].fill(
        [&](int64_t n, int64_t k) { return whole.weights[0].at(n, part * kHalf + k); });
    c.input[0].fill([&](int64_t m, int64_t k) { return whole.input[0].at(m, part * kHalf + k); });
    for (int64_t m = 0; m < kRows; ++m) {
      c.magnitude.push_back(std::ldexp(127.0f, static_cast<int>(m)));
    }
    parts.push_back(run_gemm(c, GetParam()));
  }
  for (int64_t m = 0; m < kRows; ++m) {
    for (int64_t n = 0; n < kOutputs; ++n) {
      EXPECT_EQ(parts[0].at(m, n) + parts[1].at(m, n), want.at(m, n)) << m << " " << n;
    }
  }
}

TEST_P(GemmInt8, ZerosGiveZeros) {
  for (const ActivationScale scale : {ActivationScale::kPerRow, ActivationScale::kPerTensor}) {
    std::mt19937 random(3);
    LinearCase c = int8_case(8, 70, 66);
    c.activation_scale = scale;
    c.weights[0] = random_matrix(ElementType::kFloat32, 66, 70, random);
    c.input[0] = random_matrix(ElementType::kFloat32, 8, 70, random);
    for (int64_t k = 0; k < 70; ++k) {
      c.input[0].set(2, k, 0);
      c.weights[0].set(5, k, 0);
    }
    const TypedMatrix out = run_gemm(c, GetParam());
    for (int64_t m = 0; m < 8; ++m) {
      for (int64_t n = 0; n < 66; ++n) {
        EXPECT_EQ(out.at(m, n) == 0, m == 2 || n == 5) << m << " " << n << " " << out.at(m, n);
      }
    }
    c.input[0].fill([](int64_t, int64_t) { return 0; });
    const TypedMatrix zeros = run_gemm(c, GetParam());
    for (int64_t m = 0; m < 8; ++m) {
      for (int64_t n = 0; n < 66; ++n) EXPECT_EQ(zeros.at(m, n), 0);
    }
  }
}

/// One channel a thousand times the others: the row's other elements become 0, by the definition.
TEST_P(GemmInt8, OutlierChannels) {
  std::mt19937 random(4);
  LinearCase c = int8_case(20, 300, 40);
  c.weights[0] = random_matrix(ElementType::kFloat32, 40, 300, random);
  c.input[0] = random_matrix(ElementType::kFloat32, 20, 300, random);
  for (int64_t m = 0; m < 20; m += 2) c.input[0].set(m, 77, 1000.0 + static_cast<double>(m));
  expect_exact(c);
  for (int64_t k = 0; k < 300; ++k) c.weights[0].set(9, k, k == 11 ? 5000 : c.weights[0].at(9, k));
  expect_exact(c);
}

TEST_P(GemmInt8, NonFiniteRowsGiveNan) {
  std::mt19937 random(5);
  LinearCase c = int8_case(9, 70, 66);
  c.weights[0] = random_matrix(ElementType::kFloat32, 66, 70, random);
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const int64_t at : {0, 64, 69}) {
      c.input[0] = random_matrix(ElementType::kFloat32, 9, 70, random);
      c.input[0].set(4, at, bad);
      c.activation_scale = ActivationScale::kPerRow;
      const TypedMatrix rows = run_gemm(c, GetParam());
      c.activation_scale = ActivationScale::kPerTensor;
      const TypedMatrix tensor = run_gemm(c, GetParam());
      for (int64_t m = 0; m < 9; ++m) {
        for (int64_t n = 0; n < 66; ++n) {
          ASSERT_EQ(std::isnan(rows.at(m, n)), m == 4);
          ASSERT_TRUE(std::isnan(tensor.at(m, n)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GemmInt8, ::testing::ValuesIn(supported_isas()),
                         [](const auto& test) { return kernels::isa_name(test.param); });

}  // namespace
}  // namespace cachedit::test
