// What gemm() asks for as scratch: some megabytes, and no more for more rows and outputs.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kernels/gemm_runner.h"
#include "kernels/kernel_runner.h"

namespace cachedit::test {
namespace {

using kernels::ActivationScale;
using kernels::CpuIsa;
using kernels::ElementType;
using kernels::WeightForm;
using kernels::WeightScale;

struct Layout {
  const char* name;
  WeightForm form;
  WeightScale scale = WeightScale::kPerChannel;
  ActivationScale activation_scale = ActivationScale::kPerRow;
};

constexpr Layout kLayouts[] = {
    {"Float32", WeightForm::kFloat32},
    {"BFloat16", WeightForm::kBFloat16},
    {"Int8", WeightForm::kInt8},
    {"Int8PerTensor", WeightForm::kInt8, WeightScale::kPerTensor, ActivationScale::kPerTensor},
    {"Int8WeightOnly", WeightForm::kInt8WeightOnly},
    {"Int4WeightOnly", WeightForm::kInt4WeightOnly, WeightScale::kPerGroup},
    {"E4M3WeightOnly", WeightForm::kE4M3WeightOnly},
    {"E4M3PerBlock", WeightForm::kE4M3WeightOnly, WeightScale::kPerBlock},
};

constexpr double kMiB = 1 << 20;
constexpr ElementType kInputTypes[] = {ElementType::kFloat32, ElementType::kBFloat16,
                                       ElementType::kFloat16};

struct Size {
  int64_t rows;
  int64_t outputs;
  int64_t inputs;
  int64_t second = 0;  ///< of the inputs: those of a second segment
};

double scratch(const Layout& layout, const Size& size, ElementType input, int threads, CpuIsa isa) {
  kernels::GemmProblem p{.rows = size.rows,
                         .input_type = input,
                         .weight = {.form = layout.form,
                                    .outputs = size.outputs,
                                    .inputs = size.inputs,
                                    .scale = layout.scale},
                         .activation_scale = layout.activation_scale,
                         .out_type = ElementType::kBFloat16,
                         .out_stride = size.outputs};
  p.input[0] = {.columns = size.inputs - size.second, .stride = size.inputs - size.second};
  p.input[1] = {.columns = size.second, .stride = size.second};
  return static_cast<double>(kernels::gemm_scratch_bytes(p, threads, isa));
}

class GemmMemory : public ::testing::TestWithParam<Layout> {
 protected:
  template <class Check>
  void for_each_level_and_input(const Check& check) const {
    for (const CpuIsa isa : kernels_on_this_machine_) {
      for (const ElementType input : kInputTypes) {
        SCOPED_TRACE(testing::Message()
                     << kernels::isa_name(isa) << ", input " << static_cast<int>(input));
        check(input, isa);
      }
    }
  }

 private:
  std::vector<CpuIsa> kernels_on_this_machine_ = supported_isas();
};

/// At FLUX.1's shapes. A whole A in fp32 would take 54 to 270 MiB, the sums of all outputs 216.
TEST_P(GemmMemory, ScratchIsSomeMegabytes) {
  for_each_level_and_input([](ElementType input, CpuIsa isa) {
    for (const Size& size : {Size{4608, 3072, 3072}, Size{4608, 12288, 3072},
                             Size{4608, 3072, 15360, 12288}, Size{4608, 9216, 3072}}) {
      for (const int threads : {1, 2, 16}) {
        EXPECT_LE(scratch(GetParam(), size, input, threads, isa), (8 + 2 * threads) * kMiB)
            << size.outputs << " x " << size.inputs << ", " << threads << " threads";
      }
    }
  });
}

/// Where A is packed by chunks the scales of its rows are kept, 4 bytes each, and nothing else.
TEST_P(GemmMemory, ScratchDoesNotGrowWithRowsTimesOutputs) {
  for_each_level_and_input([](ElementType input, CpuIsa isa) {
    for (const int threads : {1, 4}) {
      const auto bytes = [&](int64_t rows, int64_t outputs) {
        return scratch(GetParam(), {rows, outputs, 3072}, input, threads, isa);
      };
      const double few = bytes(4096, 3072);
      EXPECT_LE(bytes(4096, 3072 * 64), few + kMiB);
      EXPECT_LE(bytes(4096 * 64, 3072), few + kMiB + 4096.0 * 64 * 4);
      // Their product grew by 4096: 12 TiB if all sums were kept.
      EXPECT_LE(bytes(4096 * 64, 3072 * 64), few + kMiB + 4096.0 * 64 * 4);
    }
  });
}

TEST_P(GemmMemory, ScratchOfOneThreadIsWhatEveryFurtherOneAdds) {
  for_each_level_and_input([](ElementType input, CpuIsa isa) {
    const auto bytes = [&](int threads) {
      return scratch(GetParam(), {4608, 3072, 3072}, input, threads, isa);
    };
    for (const int threads : {2, 8, 64, 256}) {
      EXPECT_LE(bytes(threads), bytes(1) + 2 * kMiB * (threads - 1)) << threads;
    }
  });
}

/// Small batches, which the weight-only forms are for.
TEST_P(GemmMemory, FewRowsTakeLittle) {
  for_each_level_and_input([](ElementType input, CpuIsa isa) {
    for (const int64_t rows : {0, 1, 16}) {
      EXPECT_LE(scratch(GetParam(), {rows, 12288, 3072}, input, 2, isa), 2 * kMiB) << rows;
    }
  });
}

/// What is promised is enough: run_gemm() gives that much between guard bytes, and fails where they
/// are written. Rows of several chunks, with a rest; K and N that end within a block.
TEST_P(GemmMemory, ScratchIsEnoughWhereRowsAreChunked) {
  std::mt19937 random(5);
  LinearCase c;
  c.spec = {.form = GetParam().form,
            .outputs = 70,
            .inputs = 2200,
            .scale = GetParam().scale,
            .group = 64};
  c.activation_scale = GetParam().activation_scale;
  c.weights.push_back(random_matrix(ElementType::kFloat32, 70, 2200, random));
  TypedMatrix& input = c.input.emplace_back(ElementType::kFloat16, 4100, 2200);
  std::memset(input.data(), 0, input.bytes().size());  // 8 million random numbers take seconds
  for (int64_t r = 0; r < input.rows(); r += 13) input.set(r, r % 2200, 1.0);
  for (const CpuIsa isa : supported_isas()) {
    SCOPED_TRACE(kernels::isa_name(isa));
    const TypedMatrix one = run_gemm(c, isa, 1);
    EXPECT_TRUE(same_bytes(run_gemm(c, isa, 3), one));
    EXPECT_EQ(one.at(1, 0), 0.0);
    EXPECT_NE(one.at(4095 / 13 * 13, 0), 0.0) << "a row of the last chunk";
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, GemmMemory, ::testing::ValuesIn(kLayouts),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cachedit::test
