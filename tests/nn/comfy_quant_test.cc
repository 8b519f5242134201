// What ComfyUI's files say of quantized layers beside their numbers.
#include "nn/comfy_quant.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cachedit/error.h"
#include "io/safetensors.h"
#include "nn/weight_quantizer.h"
#include "quantized_reference.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::nn {
namespace {

using test::LayerFile;
using test::tiny_weight;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kIn = 256, kOut = 192;

at::Tensor bytes_of(const std::string& text) {
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

/// What ComfyUI writes beside a quantized weight.
class ComfyQuant : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, at::Tensor>;

  static Tensors tensors(QuantType type, const std::string& text) {
    const LinearWeight held = quantized(
        {.values = tiny_weight("w.weight", {kOut, kIn}), .scales = {}, .file = {}}, type, 64);
    Tensors all = {{"layer.weight", held.values}, {"layer.weight_scale", held.scales}};
    if (!text.empty()) all["layer.comfy_quant"] = bytes_of(text);
    return all;
  }
  static at::Tensor compute(const Tensors& all) {
    return LayerFile(all).load(kIn, kOut, std::nullopt)(tiny_weight("x", {1, 5, kIn}));
  }
  static std::string refusal(const Tensors& all) {
    try {
      compute(all);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
};

TEST_F(ComfyQuant, FormatsThatAreHeldAreTaken) {
  const auto expect = [](QuantType type, const std::string& text) {
    EXPECT_TRUE(test::same_values(compute(tensors(type, text)), compute(tensors(type, ""))))
        << text;
  };
  expect(QuantType::kFloat8PerTensor, R"({"format": "float8_e4m3fn"})");
  expect(QuantType::kFloat8PerTensor,
         R"({"format":"float8_e4m3fn","full_precision_matrix_mult":true})");
  expect(QuantType::kFloat8PerRow,
         R"({"format": "float8_e4m3fn_rowwise", "orig_dtype": "torch.bfloat16"})");
  expect(QuantType::kFloat8PerBlock, R"({"format": "float8_e4m3fn_blockwise", "group_size": 128,
                                         "orig_shape": [192, 256]})");
  expect(QuantType::kInt8PerTensor, R"({"format": "int8_tensorwise", "convrot": false})");
  expect(QuantType::kInt8PerRow, R"({"format": "int8_tensorwise", "per_row": true})");
}

TEST_F(ComfyQuant, OtherFormatsAreRefusedByName) {
  for (const char* format : {"nvfp4", "mxfp8", "hybrid_mxfp8", "float8_e5m2", "convrot_w4a4",
                             "int8_blockwise", "asym_w4a8_int8", ""}) {
    EXPECT_THAT(
        refusal(tensors(QuantType::kFloat8PerTensor, c10::str("{\"format\": \"", format, "\"}"))),
        AllOf(HasSubstr("layer.comfy_quant]"), HasSubstr(c10::str("got '", format, "'")),
              HasSubstr("float8_e4m3fn")));
  }
  EXPECT_THAT(refusal(tensors(QuantType::kInt8PerRow, R"({"format": "int8_tensorwise",
                      "convrot": true, "convrot_groupsize": 256})")),
              AllOf(HasSubstr("layer.comfy_quant]"), HasSubstr("rotated")));
  EXPECT_THAT(refusal(tensors(QuantType::kInt8PerRow, R"({"format": "float8_e4m3fn"})")),
              AllOf(HasSubstr("float8_e4m3fn must be fp8_e4m3"), HasSubstr("got int8")));
  EXPECT_THAT(refusal(tensors(QuantType::kFloat8PerTensor,
                              R"({"format": "float8_e4m3fn", "smooth": [1]})")),
              HasSubstr("'smooth' = [1]"));
}

TEST_F(ComfyQuant, DamagedTextIsRefused) {
  const auto type = QuantType::kFloat8PerTensor;
  for (const char* text : {"{", "[]", "{}", R"({"format": 3})", "\xff\xfe"}) {
    EXPECT_THAT(refusal(tensors(type, text)), HasSubstr("layer.comfy_quant]")) << text;
  }
  Tensors all = tensors(type, "");
  all["layer.comfy_quant"] = at::ones({3});
  EXPECT_THAT(refusal(all), HasSubstr("JSON in at most 65536 bytes: got fp32 [3]"));
  all["layer.comfy_quant"] = at::zeros({65537}, at::kByte);
  EXPECT_THAT(refusal(all), HasSubstr("JSON in at most 65536 bytes: got uint8 [65537]"));
}

TEST_F(ComfyQuant, TheFilesMetadataSayItAsWell) {
  const auto load = [](const std::string& text) {
    const test::TempDir folder;
    io::write_safetensors(folder / "model.safetensors", tensors(QuantType::kInt8PerRow, ""),
                          {{"_quantization_metadata", text}});
    const auto store = io::WeightStore::open(folder.path());
    const WeightLoader loader(store, {.dtype = at::kFloat});
    const Linear layer(loader.root() / "layer", kIn, kOut, Bias::kNo);
    loader.finish();
  };
  EXPECT_NO_THROW(load(R"({"format_version": "1.0", "layers":
                           {"layer": {"format": "int8_tensorwise"}, "x": {"format": "nvfp4"}}})"));
  test::expect_error<UnsupportedError>(
      [&] { load(R"({"layers": {"layer": {"format": "int8_tensorwise", "convrot": true}}})"); },
      AllOf(HasSubstr("[layer in _quantization_metadata]"), HasSubstr("rotated")));
  for (const char* text : {"{", "[]", "{}", R"({"layers": []})"}) {
    test::expect_error<ConfigError>(
        [&] { load(text); },
        AllOf(HasSubstr("model.safetensors"), HasSubstr("_quantization_metadata")));
  }
}

}  // namespace
}  // namespace cachedit::nn
