#include "models/text_encoders/t5_encoder_model.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "models/text_encoder_checkpoint.h"
#include "support/tensor_compare.h"

namespace cachedit::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

constexpr double kFp32 = 1e-5;
/// The peer's own bf16 is 1.4e-2 from its fp32 on the demo model, and its fp16 1.5e-3.
constexpr double kBf16 = 1.4e-2;
constexpr double kFp16 = 2e-3;

const attention::Attention& kAttention = attention::native_attention();

T5EncoderModel load(const TinyCheckpoint& checkpoint, const nn::WeightOptions& options = {}) {
  return T5EncoderModel(checkpoint.config<T5EncoderConfig>(), checkpoint.store(), options);
}

at::Tensor run_demo(const nn::WeightOptions& options) {
  const std::filesystem::path folder = test::demo_model() / "text_encoder_2";
  io::JsonConfig json = io::JsonConfig::read(folder / "config.json");
  const T5EncoderModel model(T5EncoderConfig::parse(json), io::WeightStore::open(folder), options);
  return model(read_expected("t5_demo").at("ids"), kAttention);
}

struct Golden {
  const char* name;
  const char* ids;
};

class T5EncoderModelGolden : public testing::TestWithParam<Golden> {};

TEST_P(T5EncoderModelGolden, AgreesWithTransformers) {
  const auto [name, ids] = GetParam();
  const Tensors want = read_expected(name);
  const T5EncoderModel model = load(TinyCheckpoint(name, "text_encoder_2"));
  const at::Tensor got = model(want.at(std::string(ids) + ".ids"), kAttention);
  EXPECT_LE(test::relative_error(got, want.at(std::string(ids) + ".last_hidden_state")), kFp32);
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, T5EncoderModelGolden,
    testing::Values(Golden{"t5_relu", "t1"}, Golden{"t5_relu", "t7"}, Golden{"t5_relu", "t300"},
                    Golden{"t5_gated_gelu", "t1"}, Golden{"t5_gated_gelu", "t7"},
                    Golden{"t5_gated_gelu", "t300"}, Golden{"t5_gated_silu", "t1"},
                    Golden{"t5_gated_silu", "t7"}, Golden{"t5_gated_silu", "t300"}),
    [](const auto& test) { return std::string(test.param.name) + "_" + test.param.ids; });

TEST(T5EncoderModel, AgreesWithTransformersOnTheDemoModel) {
  const Tensors want = read_expected("t5_demo");
  EXPECT_LE(
      test::relative_error(run_demo({.dtype = at::kFloat}), want.at("fp32.last_hidden_state")),
      kFp32);
}

TEST(T5EncoderModel, KeepsTheStoredDtypeUnlessAsked) {
  const Tensors want = read_expected("t5_demo");
  const at::Tensor got = run_demo({});
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_LE(test::relative_error(got, want.at("bf16.last_hidden_state")), kBf16);
}

TEST(T5EncoderModel, AgreesWithTransformersInHalfPrecision) {
  const Tensors want = read_expected("t5_demo");
  const at::Tensor got = run_demo({.dtype = at::kHalf});
  EXPECT_EQ(got.scalar_type(), at::kHalf);
  EXPECT_LE(test::relative_error(got, want.at("fp16.last_hidden_state")), kFp16);
}

/// The tensors of `checkpoint` with those whose name ends in `suffix` multiplied by `factor`.
void scale(const TinyCheckpoint& checkpoint, std::string_view suffix, double factor) {
  Tensors tensors;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    tensors[name] = name.ends_with(suffix) ? tensor.mul(factor) : tensor.clone();
  }
  checkpoint.replace(tensors);
}

TEST(T5EncoderModel, ClampsAttentionOutputsThatOverflowHalfPrecision) {
  const TinyCheckpoint checkpoint("t5_relu", "text_encoder_2");
  scale(checkpoint, "block.0.layer.0.SelfAttention.o.weight", 150000.0);
  const Tensors want = read_expected("t5_relu");
  const at::Tensor got = load(checkpoint, {.dtype = at::kHalf})(want.at("t7.ids"), kAttention);
  EXPECT_TRUE(at::isfinite(got).all().item<bool>());
  EXPECT_LE(test::relative_error(got, want.at("overflow.last_hidden_state")), kFp16);
}

TEST(T5EncoderModel, StaysFiniteWhereALaterAttentionOverflowsHalfPrecision) {
  const TinyCheckpoint checkpoint("t5_relu", "text_encoder_2");
  scale(checkpoint, "block.1.layer.0.SelfAttention.o.weight", 150000.0);
  const at::Tensor ids = read_expected("t5_relu").at("t7.ids");
  const at::Tensor got = load(checkpoint, {.dtype = at::kHalf})(ids, kAttention);
  EXPECT_TRUE(at::isfinite(got).all().item<bool>());
}

TEST(T5EncoderModel, FeedForwardOutputsBeyondHalfPrecisionSurvive) {
  const TinyCheckpoint checkpoint("t5_relu", "text_encoder_2");
  scale(checkpoint, "wo.weight", 60000.0);
  const at::Tensor ids = read_expected("t5_relu").at("t7.ids");
  const at::Tensor want = load(checkpoint, {.dtype = at::kFloat})(ids, kAttention);
  const at::Tensor got = load(checkpoint, {.dtype = at::kHalf})(ids, kAttention);
  EXPECT_LE(test::relative_error(got, want), 1e-2);
}

TEST(T5EncoderModel, ReadsTheEmbeddingUnderEitherName) {
  const TinyCheckpoint checkpoint("t5_relu", "text_encoder_2");
  const Tensors want = read_expected("t5_relu");
  Tensors tensors = checkpoint.tensors();
  const auto error = [&] {
    checkpoint.replace(tensors);
    return test::relative_error(load(checkpoint)(want.at("t7.ids"), kAttention),
                                want.at("t7.last_hidden_state"));
  };
  tensors["encoder.embed_tokens.weight"] = tensors.at("shared.weight").clone();
  EXPECT_LE(error(), kFp32) << "both";
  tensors["shared.weight"] = at::zeros({48, 16});
  EXPECT_LE(error(), kFp32) << "both, but different: the encoder's own counts, as in transformers";
  tensors.erase("shared.weight");
  EXPECT_LE(error(), kFp32) << "only the encoder's own";
}

TEST(T5EncoderModel, IgnoresTheDecoderOfAFullCheckpoint) {
  const TinyCheckpoint checkpoint("t5_relu", "text_encoder_2");
  Tensors tensors = checkpoint.tensors();
  tensors["decoder.block.0.layer.0.SelfAttention.q.weight"] = at::zeros({16, 16});
  tensors["decoder.embed_tokens.weight"] = at::zeros({48, 16});
  tensors["lm_head.weight"] = at::zeros({48, 16});
  checkpoint.replace(tensors);
  EXPECT_NO_THROW(load(checkpoint));
}

TEST(T5EncoderModel, NamesEveryWeightThatDoesNotFit) {
  const TinyCheckpoint checkpoint("t5_gated_gelu", "text_encoder_2");
  Tensors tensors = checkpoint.tensors();
  tensors.erase("shared.weight");
  tensors.erase("encoder.block.1.layer.1.DenseReluDense.wi_1.weight");
  tensors["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] =
      at::zeros({32, 3});
  tensors["encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"] =
      at::zeros({8, 3});
  tensors["encoder.block.2.layer.1.DenseReluDense.wo.weight"] = at::zeros({16, 24});
  checkpoint.replace(tensors);
  EXPECT_THAT([&] { load(checkpoint); },
              ThrowsMessage<WeightError>(AllOf(
                  HasSubstr("shared.weight [48, 16]"),
                  HasSubstr("encoder.block.1.layer.1.DenseReluDense.wi_1.weight [24, 16]"),
                  HasSubstr("relative_attention_bias.weight: the config asks for [8, 3]"),
                  HasSubstr("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"),
                  HasSubstr("encoder.block.2.layer.1.DenseReluDense.wo.weight"),
                  Not(HasSubstr("layer_norm")))));
}

TEST(T5EncoderModel, RefusesIdsThatDoNotFit) {
  const T5EncoderModel model = load(TinyCheckpoint("t5_relu", "text_encoder_2"));
  const auto run = [&model](const at::Tensor& ids) { model(ids, kAttention); };
  at::Tensor ids = at::zeros({2, 4}, at::kLong);
  ids[1][3] = 48;
  EXPECT_THAT([&] { run(ids); },
              ThrowsMessage<InputError>(AllOf(HasSubstr("[T5EncoderModel]"), HasSubstr("0 to 47"),
                                              HasSubstr("got 48 in row 1 at position 3"))));
  EXPECT_THAT(
      [&] {
        run(at::zeros({0, 4}, at::kLong));
      },
      ThrowsMessage<InputError>(HasSubstr("[0, 4]")));
}

}  // namespace
}  // namespace cachedit::models
