#include "pipelines/device.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"

namespace cachedit::pipelines {
namespace {

TEST(Device, NamesAreChecked) {
  EXPECT_EQ(parse_device("cpu"), at::Device(at::kCPU));
  for (const char* name :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999", "cpu:0", "npu:", "npu:x", "npux"}) {
    EXPECT_THROW(parse_device(name), InputError) << name;
  }
}

TEST(Device, CudaIsRefusedWhereThereIsNone) {
  if (at::hasCUDA()) {
    EXPECT_EQ(parse_device("auto"), at::Device(at::kCUDA, 0));
    EXPECT_EQ(parse_device("cuda"), at::Device(at::kCUDA, 0));
  } else {
    EXPECT_EQ(parse_device("auto"), at::Device(at::kCPU));
    EXPECT_THROW(parse_device("cuda"), UnsupportedError);
    EXPECT_THROW(parse_device("cuda:1"), UnsupportedError);
  }
}

TEST(Device, AnNpuNeedsTorchNpu) {
  EXPECT_THROW(parse_device("npu"), UnsupportedError);
  EXPECT_THROW(parse_device("npu:1"), UnsupportedError);
}

TEST(Dtype, AutoKeepsWhatIsStoredExceptSlowHalf) {
  const at::Device cpu = at::kCPU, cuda(at::kCUDA, 0);
  EXPECT_EQ(parse_dtype("auto", at::kBFloat16, cpu), at::kBFloat16);
  EXPECT_EQ(parse_dtype("auto", at::kFloat, cpu), at::kFloat);
  EXPECT_EQ(parse_dtype("auto", at::kHalf, cpu), at::kBFloat16);
  EXPECT_EQ(parse_dtype("auto", at::kHalf, cuda), at::kHalf);
  EXPECT_EQ(parse_dtype("auto", at::kDouble, cpu), at::kFloat);
  EXPECT_EQ(parse_dtype("fp16", at::kFloat, cpu), at::kHalf);
  EXPECT_EQ(parse_dtype("fp32", at::kHalf, cpu), at::kFloat);
  EXPECT_EQ(parse_dtype("bf16", at::kHalf, cpu), at::kBFloat16);
  EXPECT_THROW(parse_dtype("int8", at::kFloat, cpu), InputError);
}

}  // namespace
}  // namespace cachedit::pipelines
