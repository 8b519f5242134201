#include "models/text_encoders/clip_text_model.h"

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
/// Two roundings to 8 bits a layer, for two layers; the peer's own bf16 is 5e-3 from its fp32.
constexpr double kBf16 = 1e-2;

const attention::Attention& kAttention = attention::native_attention();

ClipTextModel load(const TinyCheckpoint& checkpoint) {
  return ClipTextModel(checkpoint.config<ClipTextConfig>(), checkpoint.store(), {});
}

ClipTextModel load_demo(const nn::WeightOptions& options) {
  const std::filesystem::path folder = test::demo_model() / "text_encoder";
  io::JsonConfig json = io::JsonConfig::read(folder / "config.json");
  return ClipTextModel(ClipTextConfig::parse(json), io::WeightStore::open(folder), options);
}

/// One row of ids.
at::Tensor row(at::ArrayRef<int64_t> ids) { return at::tensor(ids, at::kLong).unsqueeze(0); }

void expect_outputs(const ClipTextOutput& got, const Tensors& want, const std::string& name,
                    double tolerance) {
  EXPECT_LE(test::relative_error(got.last_hidden_state, want.at(name + ".last_hidden_state")),
            tolerance);
  EXPECT_LE(test::relative_error(got.pooler_output, want.at(name + ".pooler_output")), tolerance);
}

struct Golden {
  const char* name;
  const char* ids;
};

class ClipTextModelGolden : public testing::TestWithParam<Golden> {};

TEST_P(ClipTextModelGolden, AgreesWithTransformers) {
  const auto [name, ids] = GetParam();
  const Tensors want = read_expected(name);
  const ClipTextModel model = load(TinyCheckpoint(name, "text_encoder"));
  expect_outputs(model(want.at(std::string(ids) + ".ids"), kAttention), want, ids, kFp32);
}

INSTANTIATE_TEST_SUITE_P(Tiny, ClipTextModelGolden,
                         testing::Values(Golden{"clip_eos2", "full"}, Golden{"clip_eos2", "one"},
                                         Golden{"clip_gelu", "rows"}, Golden{"clip_gelu", "full"},
                                         Golden{"clip_gelu", "one"}),
                         [](const auto& test) {
                           return std::string(test.param.name) + "_" + test.param.ids;
                         });

TEST(ClipTextModel, AgreesWithTransformersOnTheDemoModel) {
  const Tensors want = read_expected("clip_demo");
  expect_outputs(load_demo({.dtype = at::kFloat})(want.at("ids"), kAttention), want, "fp32", kFp32);
}

TEST(ClipTextModel, KeepsTheStoredDtypeUnlessAsked) {
  const Tensors want = read_expected("clip_demo");
  const ClipTextModel model = load_demo({});
  EXPECT_EQ(model.dtype(), at::kBFloat16);
  const ClipTextOutput got = model(want.at("ids"), kAttention);
  EXPECT_EQ(got.last_hidden_state.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.pooler_output.scalar_type(), at::kBFloat16);
  expect_outputs(got, want, "bf16", kBf16);
}

TEST(ClipTextModel, ReadsNamesWithThePrefixOfOlderCheckpoints) {
  const TinyCheckpoint checkpoint("clip_eos2", "text_encoder");
  Tensors prefixed;
  for (const auto& [name, tensor] : checkpoint.tensors()) prefixed["text_model." + name] = tensor;
  prefixed["text_model.embeddings.position_ids"] = at::zeros({1, 9}, at::kLong);
  prefixed["text_projection.weight"] = at::zeros({16, 16});
  prefixed["vision_model.post_layernorm.weight"] = at::zeros({4});
  checkpoint.replace(prefixed);
  const Tensors want = read_expected("clip_eos2");
  expect_outputs(load(checkpoint)(want.at("full.ids"), kAttention), want, "full", kFp32);
}

TEST(ClipTextModel, IgnoresThePositionIdsBuffer) {
  const TinyCheckpoint checkpoint("clip_eos2", "text_encoder");
  Tensors tensors = checkpoint.tensors();
  tensors["embeddings.position_ids"] = at::zeros({1, 9}, at::kLong);
  checkpoint.replace(tensors);
  EXPECT_NO_THROW(load(checkpoint));
}

int64_t pooled_position(const ClipTextModel& model, at::ArrayRef<int64_t> ids) {
  const ClipTextOutput out = model(row(ids), kAttention);
  for (int64_t i = 0; i < out.last_hidden_state.size(1); ++i) {
    if (out.last_hidden_state.select(1, i).equal(out.pooler_output)) return i;
  }
  return -1;
}

TEST(ClipTextModel, PoolsAtTheFirstEndToken) {
  const ClipTextModel model = load(TinyCheckpoint("clip_gelu", "text_encoder"));  // eos 5
  EXPECT_EQ(pooled_position(model, {9, 8, 5, 47, 5, 5}), 2);
  EXPECT_EQ(pooled_position(model, {5, 8, 5, 47, 5, 5}), 0);
  EXPECT_EQ(pooled_position(model, {9, 8, 7, 47, 6, 5}), 5);
  EXPECT_EQ(pooled_position(model, {9, 8, 7, 47, 6, 4}), 0) << "no end token: the first position";
}

TEST(ClipTextModel, PoolsAtTheLargestIdWhereTheConfigHasTheOldEndToken) {
  const ClipTextModel model = load(TinyCheckpoint("clip_eos2", "text_encoder"));  // eos 2
  EXPECT_EQ(pooled_position(model, {9, 2, 5, 47, 5, 2}), 3);
  EXPECT_EQ(pooled_position(model, {1, 46, 5, 46, 2, 46}), 1);
}

TEST(ClipTextModel, NoTokenSeesLaterOnes) {
  const ClipTextModel model = load(TinyCheckpoint("clip_gelu", "text_encoder"));
  const at::Tensor a = model(row({1, 2, 3, 4, 5, 6}), kAttention).last_hidden_state;
  const at::Tensor b = model(row({1, 2, 3, 4, 40, 41}), kAttention).last_hidden_state;
  EXPECT_LE(test::relative_error(a.narrow(1, 0, 4), b.narrow(1, 0, 4)), 1e-6);
  EXPECT_GE(test::relative_error(a.narrow(1, 4, 2), b.narrow(1, 4, 2)), 1e-2);
}

TEST(ClipTextModel, RefusesIdsThatDoNotFit) {
  const ClipTextModel model = load(TinyCheckpoint("clip_eos2", "text_encoder"));
  const auto run = [&model](const at::Tensor& ids) { model(ids, kAttention); };
  EXPECT_THAT(
      [&] {
        run(row({1, 2, 48}));
      },
      ThrowsMessage<InputError>(AllOf(HasSubstr("[CLIPTextModel]"), HasSubstr("0 to 47"),
                                      HasSubstr("got 48 in row 0 at position 2"))));
  EXPECT_THAT([&] { run(row({1, -1})); }, ThrowsMessage<InputError>(HasSubstr("got -1")));
  EXPECT_THAT(
      [&] {
        run(at::zeros({1, 10}, at::kLong));
      },
      ThrowsMessage<InputError>(
          AllOf(HasSubstr("max_position_embeddings = 9"), HasSubstr("got 10"))));
  EXPECT_THAT(
      [&] {
        run(at::zeros({1, 3}, at::kInt));
      },
      ThrowsMessage<InputError>(HasSubstr("int64 [batch, tokens]")));
  EXPECT_THAT([&] { run(at::zeros({3}, at::kLong)); }, ThrowsMessage<InputError>(HasSubstr("[3]")));
  EXPECT_THAT(
      [&] {
        run(at::zeros({1, 0}, at::kLong));
      },
      ThrowsMessage<InputError>(HasSubstr("[1, 0]")));
  EXPECT_THAT([&] { run(at::Tensor()); }, ThrowsMessage<InputError>(HasSubstr("got nothing")));
}

TEST(ClipTextModel, NamesEveryWeightThatDoesNotFit) {
  const TinyCheckpoint checkpoint("clip_eos2", "text_encoder");
  Tensors tensors = checkpoint.tensors();
  tensors.erase("encoder.layers.1.mlp.fc1.bias");
  tensors.erase("final_layer_norm.weight");
  tensors["encoder.layers.0.self_attn.q_proj.weight"] = at::zeros({16, 15});
  tensors["encoder.layers.2.mlp.fc1.bias"] = at::zeros({24});
  checkpoint.replace(tensors);
  EXPECT_THAT(
      [&] { load(checkpoint); },
      ThrowsMessage<WeightError>(
          AllOf(HasSubstr("encoder.layers.1.mlp.fc1.bias [24]"),
                HasSubstr("final_layer_norm.weight [16]"),
                HasSubstr("encoder.layers.0.self_attn.q_proj.weight: the config asks for [16, 16]"),
                HasSubstr("encoder.layers.2.mlp.fc1.bias"), Not(HasSubstr("fc2")))));
}

TEST(ClipTextConfig, ReadsTheConfigOfFlux1) {
  io::JsonConfig json = json_config(R"({
    "_name_or_path": "openai/clip-vit-large-patch14", "architectures": ["CLIPTextModel"],
    "attention_dropout": 0.0, "bos_token_id": 0, "dropout": 0.0, "eos_token_id": 2,
    "hidden_act": "quick_gelu", "hidden_size": 768, "initializer_factor": 1.0,
    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 77, "model_type": "clip_text_model", "num_attention_heads": 12,
    "num_hidden_layers": 12, "pad_token_id": 1, "projection_dim": 768, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.3", "vocab_size": 49408})");
  const ClipTextConfig c = ClipTextConfig::parse(json);
  EXPECT_EQ(c.vocab_size, 49408);
  EXPECT_EQ(c.hidden_size, 768);
  EXPECT_EQ(c.intermediate_size, 3072);
  EXPECT_EQ(c.num_hidden_layers, 12);
  EXPECT_EQ(c.num_attention_heads, 12);
  EXPECT_EQ(c.max_position_embeddings, 77);
  EXPECT_EQ(c.eos_token_id, 2);
  EXPECT_EQ(c.layer_norm_eps, 1e-5);
  EXPECT_EQ(c.hidden_act, nn::Activation::kQuickGelu);
}

TEST(ClipTextConfig, ReadsTheTextHalfOfAJointConfig) {
  io::JsonConfig json = json_config(R"({
    "architectures": ["CLIPModel"], "model_type": "clip", "projection_dim": 64,
    "logit_scale_init_value": 2.6592, "initializer_factor": 1.0, "torch_dtype": "float32",
    "text_config": {"_name_or_path": "", "architectures": null, "model_type": "clip_text_model",
      "add_cross_attention": false, "bad_words_ids": null, "diversity_penalty": 0.0,
      "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "length_penalty": 1.0,
      "max_length": 20, "num_beams": 1, "pruned_heads": {}, "return_dict": true, "top_k": 50,
      "hidden_act": "gelu", "hidden_size": 96, "num_attention_heads": 4},
    "text_config_dict": {"hidden_size": 96}, "vision_config": {"hidden_size": 1024}})");
  const ClipTextConfig c = ClipTextConfig::parse(json);
  EXPECT_EQ(c.hidden_size, 96);
  EXPECT_EQ(c.num_attention_heads, 4);
  EXPECT_EQ(c.hidden_act, nn::Activation::kGelu);
  EXPECT_EQ(c.eos_token_id, 49407) << "keys left out take transformers' defaults";
}

TEST(ClipTextConfig, AcceptsTheProjectingClassWhosePooledStateIsTheSame) {
  io::JsonConfig json = json_config(R"({"architectures": ["CLIPTextModelWithProjection"]})");
  EXPECT_EQ(ClipTextConfig::parse(json).hidden_size, 512);
}

struct BadConfig {
  const char* name;
  const char* json;
  const char* message;
};

class ClipTextConfigRefusal : public testing::TestWithParam<BadConfig> {};

TEST_P(ClipTextConfigRefusal, NamesTheKey) {
  EXPECT_THAT(
      [] {
        io::JsonConfig json = json_config(GetParam().json);
        ClipTextConfig::parse(json);
      },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("[config.json"), HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    All, ClipTextConfigRefusal,
    testing::Values(
        BadConfig{"OtherClass", R"({"architectures": ["T5EncoderModel"]})", "CLIPTextModel"},
        BadConfig{"OtherType", R"({"model_type": "t5"})", "'t5'"},
        BadConfig{"NoClass", R"({"hidden_size": 64})", "architectures"},
        BadConfig{"OtherTextHalf",
                  R"({"model_type": "clip", "text_config": {"model_type": "bert"}})", "'bert'"},
        BadConfig{"Activation", R"({"model_type": "clip_text_model", "hidden_act": "mish"})",
                  "mish"},
        BadConfig{
            "Heads",
            R"({"model_type": "clip_text_model", "hidden_size": 96, "num_attention_heads": 5})",
            "num_attention_heads: got 96 and 5"},
        BadConfig{"NoLayers", R"({"model_type": "clip_text_model", "num_hidden_layers": 0})",
                  "num_hidden_layers"},
        BadConfig{"ManyLayers",
                  R"({"model_type": "clip_text_model", "num_hidden_layers": 2000000})",
                  "num_hidden_layers"},
        BadConfig{"NegativeWidth", R"({"model_type": "clip_text_model", "hidden_size": -8})",
                  "hidden_size"},
        BadConfig{"HugeVocabulary",
                  R"({"model_type": "clip_text_model", "vocab_size": 9000000000000000000})",
                  "vocab_size"},
        BadConfig{"Epsilon", R"({"model_type": "clip_text_model", "layer_norm_eps": -1e-5})",
                  "layer_norm_eps"},
        BadConfig{"EndTokens", R"({"model_type": "clip_text_model", "eos_token_id": [1, 2]})",
                  "eos_token_id"},
        BadConfig{"UnknownKey", R"({"model_type": "clip_text_model", "rope_theta": 1e4})",
                  "rope_theta"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cachedit::models
