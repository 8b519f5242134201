#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "models/text_encoder_checkpoint.h"
#include "models/text_encoders/t5_encoder_model.h"

namespace cachedit::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

T5EncoderConfig parse(const std::string& text) {
  io::JsonConfig json = json_config(text);
  return T5EncoderConfig::parse(json);
}

TEST(T5EncoderConfig, ReadsTheConfigOfFlux1) {
  const T5EncoderConfig c = parse(R"({
    "_name_or_path": "google/t5-v1_1-xxl", "architectures": ["T5EncoderModel"],
    "classifier_dropout": 0.0, "d_ff": 10240, "d_kv": 64, "d_model": 4096,
    "decoder_start_token_id": 0, "dense_act_fn": "gelu_new", "dropout_rate": 0.1,
    "eos_token_id": 1, "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0,
    "is_encoder_decoder": true, "is_gated_act": true, "layer_norm_epsilon": 1e-06,
    "model_type": "t5", "num_decoder_layers": 24, "num_heads": 64, "num_layers": 24,
    "output_past": true, "pad_token_id": 0, "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.43.3", "use_cache": true,
    "vocab_size": 32128})");
  EXPECT_EQ(c.vocab_size, 32128);
  EXPECT_EQ(c.d_model, 4096);
  EXPECT_EQ(c.d_kv, 64);
  EXPECT_EQ(c.d_ff, 10240);
  EXPECT_EQ(c.num_layers, 24);
  EXPECT_EQ(c.num_heads, 64);
  EXPECT_EQ(c.relative_attention_num_buckets, 32);
  EXPECT_EQ(c.relative_attention_max_distance, 128);
  EXPECT_EQ(c.layer_norm_epsilon, 1e-6);
  EXPECT_TRUE(c.is_gated_act);
  EXPECT_EQ(c.activation, nn::Activation::kGeluTanh);
}

TEST(T5EncoderConfig, ReadsTheConfigOfAFullOriginalT5) {
  const T5EncoderConfig c = parse(R"({
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "n_positions": 512,
    "d_model": 768, "num_heads": 12, "num_layers": 12, "output_past": true,
    "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}}})");
  EXPECT_EQ(c.d_model, 768);
  EXPECT_FALSE(c.is_gated_act);
  EXPECT_EQ(c.activation, nn::Activation::kRelu);
}

struct FeedForward {
  const char* name;
  const char* keys;
  bool gated;
  nn::Activation activation;
};

class T5FeedForwardKeys : public testing::TestWithParam<FeedForward> {};

TEST_P(T5FeedForwardKeys, MeanWhatTheyMeanInTransformers) {
  const T5EncoderConfig c =
      parse(std::string(R"({"architectures": ["T5EncoderModel"])") + GetParam().keys + "}");
  EXPECT_EQ(c.is_gated_act, GetParam().gated);
  EXPECT_EQ(c.activation, GetParam().activation);
}

INSTANTIATE_TEST_SUITE_P(
    All, T5FeedForwardKeys,
    testing::Values(
        FeedForward{"None", "", false, nn::Activation::kRelu},
        FeedForward{"Relu", R"(, "feed_forward_proj": "relu")", false, nn::Activation::kRelu},
        FeedForward{"Gelu", R"(, "feed_forward_proj": "gelu")", false, nn::Activation::kGelu},
        FeedForward{"GatedGelu", R"(, "feed_forward_proj": "gated-gelu")", true,
                    nn::Activation::kGeluTanh},
        FeedForward{"GatedSilu", R"(, "feed_forward_proj": "gated-silu")", true,
                    nn::Activation::kSilu},
        FeedForward{"DerivedActivationWins",
                    R"(, "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu")", true,
                    nn::Activation::kGelu},
        FeedForward{"DerivedGateWins",
                    R"(, "feed_forward_proj": "gated-gelu", "is_gated_act": false)", false,
                    nn::Activation::kGeluTanh}),
    [](const auto& test) { return std::string(test.param.name); });

struct BadConfig {
  const char* name;
  const char* keys;
  const char* message;
};

class T5EncoderConfigRefusal : public testing::TestWithParam<BadConfig> {};

TEST_P(T5EncoderConfigRefusal, NamesTheKey) {
  EXPECT_THAT(
      [] { parse(std::string("{") + GetParam().keys + "}"); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("[config.json"), HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    All, T5EncoderConfigRefusal,
    testing::Values(
        BadConfig{"OtherClass", R"("architectures": ["UMT5EncoderModel"])", "UMT5EncoderModel"},
        BadConfig{"OtherType", R"("model_type": "umt5")", "'umt5'"},
        BadConfig{"Decoder", R"("model_type": "t5", "is_decoder": true)", "is_decoder"},
        BadConfig{"Activation", R"("model_type": "t5", "feed_forward_proj": "gated-mish")", "mish"},
        BadConfig{"Gate", R"("model_type": "t5", "feed_forward_proj": "scaled-gelu")",
                  "'scaled-gelu'"},
        BadConfig{"GateTwice", R"("model_type": "t5", "feed_forward_proj": "gated-gated-gelu")",
                  "'gated-gated-gelu'"},
        BadConfig{"FewBuckets", R"("model_type": "t5", "relative_attention_num_buckets": 3)",
                  "relative_attention_num_buckets"},
        BadConfig{"ShortDistance", R"("model_type": "t5", "relative_attention_max_distance": 8)",
                  "relative_attention_max_distance"},
        BadConfig{"NoHeads", R"("model_type": "t5", "num_heads": 0)", "num_heads"},
        BadConfig{"Epsilon", R"("model_type": "t5", "layer_norm_epsilon": 0)",
                  "layer_norm_epsilon"},
        BadConfig{"Fraction", R"("model_type": "t5", "d_model": 12.5)", "d_model"},
        BadConfig{"UnknownKey", R"("model_type": "t5", "scale_embeddings": true)",
                  "scale_embeddings"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cachedit::models
