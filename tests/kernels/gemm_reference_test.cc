// kernels::gemm() against float64 over forms, types, sizes that fit no tile, segments, fused
// weights and epilogues, on every instruction level of this machine.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "kernels/gemm_runner.h"
#include "kernels/kernel_runner.h"

namespace cachedit::test {
namespace {

using kernels::Activation;
using kernels::Combine;
using kernels::CpuIsa;
using kernels::ElementType;
using kernels::WeightForm;
using kernels::WeightScale;

constexpr int64_t kRows[] = {1, 2, 5, 6, 7, 12, 13, 17, 33, 64, 100};
constexpr int64_t kInputs[] = {1,   2,   3,   7,   8,   17,  32,  33,  64,
                               100, 127, 128, 129, 130, 256, 300, 1030};
constexpr int64_t kOutputs[] = {1, 8, 17, 63, 64, 65, 130, 200};
constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBFloat16,
                                  ElementType::kFloat16};

struct FormCase {
  const char* name;
  WeightForm form;
  WeightScale scale;
  int64_t group = 64;
  ElementType group_scale = ElementType::kFloat32;
};

constexpr FormCase kForms[] = {
    {"fp32", WeightForm::kFloat32, WeightScale::kPerChannel},
    {"bf16", WeightForm::kBFloat16, WeightScale::kPerChannel},
    {"int8_per_row", WeightForm::kInt8, WeightScale::kPerChannel},
    {"int8_per_tensor", WeightForm::kInt8, WeightScale::kPerTensor},
    {"int8_weight_only", WeightForm::kInt8WeightOnly, WeightScale::kPerChannel},
    {"int4_by_32", WeightForm::kInt4WeightOnly, WeightScale::kPerGroup, 32},
    {"int4_by_64_bf16_scales", WeightForm::kInt4WeightOnly, WeightScale::kPerGroup, 64,
     ElementType::kBFloat16},
    {"int4_by_128", WeightForm::kInt4WeightOnly, WeightScale::kPerGroup, 128},
    {"e4m3_per_channel", WeightForm::kE4M3WeightOnly, WeightScale::kPerChannel},
    {"e4m3_per_tensor", WeightForm::kE4M3WeightOnly, WeightScale::kPerTensor},
    {"e4m3_per_block", WeightForm::kE4M3WeightOnly, WeightScale::kPerBlock},
    {"e4m3_per_block_bf16_scales", WeightForm::kE4M3WeightOnly, WeightScale::kPerBlock, 64,
     ElementType::kBFloat16},
};

template <class T, size_t n>
T draw(const T (&values)[n], std::mt19937& random) {
  return values[random() % n];
}

std::vector<float> random_floats(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

/// W in `parts` parts and A in one or two segments.
void add_operands(LinearCase& c, int64_t rows, int64_t parts, int64_t first_columns,
                  std::mt19937& random) {
  const int64_t share = c.spec.outputs / parts;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t n = i + 1 < parts ? share : c.spec.outputs - share * (parts - 1);
    c.weights.push_back(random_matrix(draw(kTypes, random), n, c.spec.inputs, random,
                                      static_cast<int64_t>(random() % 3)));
  }
  const ElementType type = draw(kTypes, random);
  const auto gap = [&] { return static_cast<int64_t>(random() % 4); };
  c.input.push_back(random_matrix(type, rows, first_columns, random, gap()));
  if (first_columns < c.spec.inputs) {
    c.input.push_back(random_matrix(type, rows, c.spec.inputs - first_columns, random, gap()));
  }
}

LinearCase random_case(const FormCase& form, int64_t rows, int64_t inputs, int64_t outputs,
                       std::mt19937& random) {
  LinearCase c;
  c.spec = {.form = form.form,
            .outputs = outputs,
            .inputs = inputs,
            .scale = form.scale,
            .group = form.group,
            .group_scale = form.group_scale};
  int64_t first = inputs;
  if (inputs > 1 && random() % 2 == 0) {
    // Also at the boundaries where A can be read in place.
    first = inputs > 128 && random() % 2 == 0
                ? 128
                : 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(inputs - 1));
  }
  add_operands(c, rows, outputs >= 3 && random() % 3 == 0 ? 3 : 1, first, random);
  constexpr Activation kActivations[] = {Activation::kNone, Activation::kGeluTanh,
                                         Activation::kGeluErf, Activation::kSilu};
  constexpr Combine kCombines[] = {Combine::kStore, Combine::kMultiply, Combine::kGatedResidual};
  c.activation = draw(kActivations, random);
  c.combine = draw(kCombines, random);
  c.out_type = draw(kTypes, random);
  c.out_gap = static_cast<int64_t>(random() % 4);
  if (random() % 3 > 0) c.bias = random_floats(outputs, random);
  if (c.combine != Combine::kStore) {
    c.before = random_matrix(c.out_type, rows, outputs, random, 1);
    c.in_place = random() % 2 == 0;
  }
  if (c.combine == Combine::kGatedResidual && random() % 4 > 0) {
    c.gate = random_floats(outputs, random);
  }
  if (random() % 3 == 0) c.activation_scale = kernels::ActivationScale::kPerTensor;
  return c;
}

void expect_right_on_every_isa(const LinearCase& c) {
  for (const CpuIsa isa : supported_isas()) {
    SCOPED_TRACE(std::string(kernels::isa_name(isa)) + ": " + describe(c));
    const PackedWeight weight(c, isa);
    const TypedMatrix got = run_gemm(c, weight, isa);
    ASSERT_NO_FATAL_FAILURE(expect_close(got, reference_linear(c, stored_weight(c, isa), isa)));
    EXPECT_TRUE(same_bytes(got, run_gemm(c, weight, isa, 3))) << "three threads differ from one";
  }
}

class GemmReference : public ::testing::TestWithParam<FormCase> {};

TEST_P(GemmReference, AgreesWithFloat64) {
  std::mt19937 random(17);
  for (int i = 0; i < 60; ++i) {
    const LinearCase c = random_case(GetParam(), draw(kRows, random), draw(kInputs, random),
                                     draw(kOutputs, random), random);
    ASSERT_NO_FATAL_FAILURE(expect_right_on_every_isa(c));
  }
}

/// K of several blocks on every level.
TEST_P(GemmReference, AgreesWithFloat64OverManyBlocksOfK) {
  std::mt19937 random(18);
  for (const int64_t inputs : {6400, 13001}) {
    for (const int64_t rows : {3, 31}) {
      const LinearCase c = random_case(GetParam(), rows, inputs, 70, random);
      ASSERT_NO_FATAL_FAILURE(expect_right_on_every_isa(c));
    }
  }
}

/// More rows than are packed at a time equal the same rows in separate calls.
TEST_P(GemmReference, ManyRowsEqualTheirParts) {
  std::mt19937 random(19);
  const int64_t inputs = 2816, rows = 3300;
  LinearCase c;
  c.spec = {.form = GetParam().form,
            .outputs = 5,
            .inputs = inputs,
            .scale = GetParam().scale,
            .group = GetParam().group,
            .group_scale = GetParam().group_scale};
  c.weights.push_back(random_matrix(ElementType::kFloat32, 5, inputs, random));
  TypedMatrix all(ElementType::kFloat16, rows, inputs);
  all.fill([](int64_t r, int64_t k) { return static_cast<double>((r * 31 + k * 17) % 101) - 50; });
  const CpuIsa isa = kernels::best_isa();
  const PackedWeight weight(c, isa, false, 2);
  c.input = {all};
  const TypedMatrix whole = run_gemm(c, weight, isa, 2);
  for (int64_t first = 0; first < rows; first += 1100) {
    TypedMatrix part(ElementType::kFloat16, 1100, inputs);
    part.fill([&](int64_t r, int64_t k) { return all.at(first + r, k); });
    c.input = {part};
    const TypedMatrix out = run_gemm(c, weight, isa, 2);
    for (int64_t r = 0; r < 1100; ++r) {
      for (int64_t n = 0; n < 5; ++n) ASSERT_EQ(out.at(r, n), whole.at(first + r, n)) << first + r;
    }
  }
}

TEST_P(GemmReference, NoRowsWriteNothing) {
  std::mt19937 random(20);
  const LinearCase c = random_case(GetParam(), 0, 40, 20, random);
  for (const CpuIsa isa : supported_isas()) EXPECT_EQ(run_gemm(c, isa).bytes().size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Forms, GemmReference, ::testing::ValuesIn(kForms),
                         [](const auto& test) { return test.param.name; });

/// The activations far from zero: no overflow of an intermediate may reach the output.
TEST(GemmActivations, HoldOverTheWholeRange) {
  std::vector<double> points;
  for (int i = -400; i <= 400; ++i) points.push_back(i / 20.0);
  for (const double x : {50.0, 88.0, 89.0, 100.0, 1000.0, 1e6, 1e10}) {
    points.push_back(x);
    points.push_back(-x);
  }
  for (const Activation activation :
       {Activation::kGeluTanh, Activation::kGeluErf, Activation::kSilu}) {
    LinearCase c;
    c.spec = {.form = WeightForm::kFloat32, .outputs = 1, .inputs = 1};
    c.activation = activation;
    c.weights.emplace_back(ElementType::kFloat32, 1, 1).set(0, 0, 1);
    c.input.emplace_back(ElementType::kFloat32, static_cast<int64_t>(points.size()), 1);
    for (size_t i = 0; i < points.size(); ++i) {
      c.input[0].set(static_cast<int64_t>(i), 0, points[i]);
    }
    for (const CpuIsa isa : supported_isas()) {
      SCOPED_TRACE(std::string(kernels::isa_name(isa)) + ": " + describe(c));
      expect_close(run_gemm(c, isa), reference_linear(c, stored_weight(c, isa), isa));
    }
  }
}

/// NaN reaches the outputs of its row and no others.
TEST(GemmActivations, NanStaysInItsRow) {
  std::mt19937 random(21);
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kInt8) continue;  // see gemm_int8_test.cc
    for (const Activation activation :
         {Activation::kNone, Activation::kGeluTanh, Activation::kGeluErf, Activation::kSilu}) {
      LinearCase c = random_case(form, 9, 70, 66, random);
      c.activation = activation;
      c.combine = Combine::kStore;
      c.in_place = false;
      c.input[0].set(4, 0, std::numeric_limits<double>::quiet_NaN());
      for (const CpuIsa isa : supported_isas()) {
        SCOPED_TRACE(std::string(kernels::isa_name(isa)) + ": " + describe(c));
        const TypedMatrix out = run_gemm(c, isa);
        for (int64_t r = 0; r < 9; ++r) {
          for (int64_t n = 0; n < 66; ++n) ASSERT_EQ(std::isnan(out.at(r, n)), r == 4) << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cachedit::test
