// Text encoders whose weights several ranks share give what one process gives.
#include <ATen/ops/isfinite.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "models/text_encoder_checkpoint.h"
#include "models/text_encoders/clip_text_model.h"
#include "models/text_encoders/t5_encoder_model.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"

namespace cachedit::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kFp32 = 1e-5;
/// Ranks round their parts of a sum to 8 bits before these are added, one process only the sum;
/// the results are therefore as far apart as each is from fp32 (5e-3 and 1.4e-2, see the tests of
/// one process).
constexpr double kBf16 = 1.5e-2;
constexpr double kFp16 = 2e-3;

const attention::Attention& kAttention = attention::native_attention();

nn::WeightOptions shared(comm::Communicator& group,
                         std::optional<at::ScalarType> dtype = std::nullopt) {
  return {.dtype = dtype, .tensor_parallel = {.group = &group}};
}

/// What every rank gets; checks that all get the same bits.
at::Tensor on_ranks(int64_t ranks, const std::function<at::Tensor(comm::Communicator&)>& work) {
  std::vector<at::Tensor> results(static_cast<size_t>(ranks));
  test::run_ranks(ranks, [&](comm::Communicator& group) {
    results[static_cast<size_t>(group.rank())] = work(group);
  });
  for (const at::Tensor& result : results) EXPECT_TRUE(result.equal(results[0]));
  return results[0];
}

/// A T5 of 4 heads with a plain feed-forward part.
class TinyT5 {
 public:
  TinyT5() {
    Tensors tensors = checkpoint_.tensors();
    tensors[kTable] = test::tiny_weight(kTable, {32, 4});
    checkpoint_.replace(tensors);
    config_ = checkpoint_.config<T5EncoderConfig>();
    config_.num_heads = 4;
    config_.d_kv = 4;
  }
  T5EncoderModel load(const nn::WeightOptions& options = {}) const {
    return {config_, checkpoint_.store(), options};
  }
  const TinyCheckpoint& checkpoint() const { return checkpoint_; }
  static at::Tensor ids(const std::string& name = "t7") {
    return read_expected("t5_relu").at(name + ".ids");
  }

 private:
  static constexpr const char* kTable =
      "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
  TinyCheckpoint checkpoint_{"t5_relu", "text_encoder_2"};
  T5EncoderConfig config_;
};

/// A CLIP of 4 heads.
class TinyClip {
 public:
  TinyClip() : config_(checkpoint_.config<ClipTextConfig>()) { config_.num_attention_heads = 4; }
  ClipTextModel load(const nn::WeightOptions& options = {}) const {
    return {config_, checkpoint_.store(), options};
  }
  const TinyCheckpoint& checkpoint() const { return checkpoint_; }
  static at::Tensor ids() { return read_expected("clip_eos2").at("full.ids"); }

 private:
  TinyCheckpoint checkpoint_{"clip_eos2", "text_encoder"};
  ClipTextConfig config_;
};

T5EncoderModel load_demo_t5(const nn::WeightOptions& options) {
  const std::filesystem::path folder = test::demo_model() / "text_encoder_2";
  io::JsonConfig json = io::JsonConfig::read(folder / "config.json");
  return {T5EncoderConfig::parse(json), io::WeightStore::open(folder), options};
}

ClipTextModel load_demo_clip(const nn::WeightOptions& options) {
  const std::filesystem::path folder = test::demo_model() / "text_encoder";
  io::JsonConfig json = io::JsonConfig::read(folder / "config.json");
  return {ClipTextConfig::parse(json), io::WeightStore::open(folder), options};
}

class TextEncoderShards : public testing::TestWithParam<int64_t> {};

TEST_P(TextEncoderShards, T5GivesWhatOneProcessGives) {
  const TinyT5 t5;
  for (const char* name : {"t1", "t7", "t300"}) {
    const at::Tensor ids = TinyT5::ids(name);
    const at::Tensor got = on_ranks(GetParam(), [&](comm::Communicator& group) {
      return t5.load(shared(group))(ids, kAttention);
    });
    EXPECT_LE(test::relative_error(got, t5.load()(ids, kAttention)), kFp32) << name;
  }
}

TEST_P(TextEncoderShards, GatedT5GivesWhatOneProcessGives) {
  const at::Tensor ids = read_expected("t5_demo").at("ids");
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kFloat, kFp32}, {at::kBFloat16, kBf16}, {at::kHalf, kFp16}}) {
    const at::Tensor got = on_ranks(GetParam(), [&](comm::Communicator& group) {
      return load_demo_t5(shared(group, dtype))(ids, kAttention);
    });
    EXPECT_EQ(got.scalar_type(), dtype);
    const at::Tensor want = load_demo_t5({.dtype = dtype})(ids, kAttention);
    EXPECT_LE(test::relative_error(got, want), tolerance) << dtype;
  }
}

TEST_P(TextEncoderShards, ClipGivesWhatOneProcessGives) {
  const TinyClip clip;
  const ClipTextOutput want = clip.load()(TinyClip::ids(), kAttention);
  for (auto member : {&ClipTextOutput::last_hidden_state, &ClipTextOutput::pooler_output}) {
    const at::Tensor got = on_ranks(GetParam(), [&](comm::Communicator& group) {
      return clip.load(shared(group))(TinyClip::ids(), kAttention).*member;
    });
    EXPECT_LE(test::relative_error(got, want.*member), kFp32);
  }
}

/// The bytes that a rank of several should hold: fp32, its part of every tensor whose layer ends so
/// (weight and bias) and of every weight whose layer ends so, all of the others.
int64_t expected_bytes(const Tensors& tensors, int64_t ranks,
                       std::initializer_list<std::string_view> columns,
                       std::initializer_list<std::string_view> rows) {
  int64_t elements = 0;
  for (const auto& [name, tensor] : tensors) {
    bool cut = false;
    for (const std::string_view layer : columns) {
      cut |= name.ends_with(std::string(layer) + ".weight") ||
             name.ends_with(std::string(layer) + ".bias");
    }
    for (const std::string_view layer : rows) {
      cut |= name.ends_with(std::string(layer) + ".weight");
    }
    elements += tensor.numel() / (cut ? ranks : 1);
  }
  return 4 * elements;
}

TEST_P(TextEncoderShards, EachRankHoldsItsShareOnly) {
  const TinyT5 t5;
  const TinyClip clip;
  const int64_t t5_bytes =
      expected_bytes(t5.checkpoint().tensors(), GetParam(),
                     {"Attention.q", "Attention.k", "Attention.v", "attention_bias", "Dense.wi"},
                     {"Attention.o", "Dense.wo"});
  const int64_t clip_bytes =
      expected_bytes(clip.checkpoint().tensors(), GetParam(),
                     {"q_proj", "k_proj", "v_proj", "mlp.fc1"}, {"out_proj", "mlp.fc2"});
  if (GetParam() > 1) {
    EXPECT_LT(t5_bytes, t5.load().parameter_bytes());
  }
  test::run_ranks(GetParam(), [&](comm::Communicator& group) {
    EXPECT_EQ(t5.load(shared(group)).parameter_bytes(), t5_bytes);
    EXPECT_EQ(clip.load(shared(group)).parameter_bytes(), clip_bytes);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TextEncoderShards, testing::Values(1, 2, 4),
                         [](const auto& test) { return std::to_string(test.param); });

TEST(TextEncoderShards, HeadsThatOnlyThreeRanksDivide) {
  const TinyCheckpoint checkpoint("t5_gated_gelu", "text_encoder_2");  // 3 heads
  const auto load = [&](const nn::WeightOptions& options) {
    return T5EncoderModel(checkpoint.config<T5EncoderConfig>(), checkpoint.store(), options);
  };
  const Tensors want = read_expected("t5_gated_gelu");
  const at::Tensor got = on_ranks(3, [&](comm::Communicator& group) {
    return load(shared(group))(want.at("t7.ids"), kAttention);
  });
  EXPECT_LE(test::relative_error(got, want.at("t7.last_hidden_state")), kFp32);
}

TEST(TextEncoderShards, ClipOfTheDemoModelInBf16) {
  const at::Tensor ids = read_expected("clip_demo").at("ids");
  const ClipTextOutput want = load_demo_clip({})(ids, kAttention);
  const at::Tensor got = on_ranks(2, [&](comm::Communicator& group) {
    return load_demo_clip(shared(group))(ids, kAttention).pooler_output;
  });
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_LE(test::relative_error(got, want.pooler_output), kBf16);
}

TEST(TextEncoderShards, ClipWithPrefixedNamesIsSharedOut) {
  const TinyClip clip;
  const at::Tensor want = clip.load()(TinyClip::ids(), kAttention).last_hidden_state;
  int64_t bytes = 0;
  test::run_ranks(2, [&](comm::Communicator& group) {
    const int64_t held = clip.load(shared(group)).parameter_bytes();
    if (group.rank() == 0) bytes = held;
  });
  Tensors prefixed;
  for (const auto& [name, tensor] : clip.checkpoint().tensors()) {
    prefixed["text_model." + name] = tensor.clone();
  }
  clip.checkpoint().replace(prefixed);
  const at::Tensor got = on_ranks(2, [&](comm::Communicator& group) {
    const ClipTextModel model = clip.load(shared(group));
    EXPECT_EQ(model.parameter_bytes(), bytes);
    return model(TinyClip::ids(), kAttention).last_hidden_state;
  });
  EXPECT_LE(test::relative_error(got, want), kFp32);
}

TEST(TextEncoderShards, RanksThatDoNotDivideAreRefusedAtLoad) {
  const TinyT5 t5;
  const TinyClip clip;
  test::run_ranks(3, [&](comm::Communicator& group) {
    test::expect_error<UnsupportedError>(
        [&] { t5.load(shared(group)); },
        AllOf(HasSubstr("[T5EncoderModel]"), HasSubstr("num_heads 4 and d_ff 24"),
              HasSubstr("got 3; use 2, 4")));
    test::expect_error<UnsupportedError>(
        [&] { clip.load(shared(group)); },
        AllOf(HasSubstr("[CLIPTextModel]"),
              HasSubstr("num_attention_heads 4 and intermediate_size 24"),
              HasSubstr("got 3; use 2, 4")));
  });
}

TEST(TextEncoderShards, FaultsOfTheFileAreListedForSharesToo) {
  const TinyT5 t5;
  Tensors tensors = t5.checkpoint().tensors();
  tensors.erase("encoder.block.1.layer.1.DenseReluDense.wo.weight");
  tensors["encoder.block.0.layer.0.SelfAttention.q.weight"] = test::tiny_weight("q", {16, 12});
  t5.checkpoint().replace(tensors);
  test::run_ranks(2, [&](comm::Communicator& group) {
    test::expect_error<WeightError>(
        [&] { t5.load(shared(group)); },
        AllOf(HasSubstr("encoder.block.1.layer.1.DenseReluDense.wo.weight [16, 24]"),
              HasSubstr("SelfAttention.q.weight: the config asks for [16, 16]")));
  });
}

TEST(TextEncoderShards, PartsOfASumMayOverflowHalfPrecision) {
  // Each head's contribution is beyond float16. With one process they cancel or are clamped; their
  // parts by rank must not become infinity minus infinity.
  const TinyT5 t5;
  Tensors tensors;
  for (const auto& [name, tensor] : t5.checkpoint().tensors()) {
    tensors[name] = name.ends_with("block.0.layer.0.SelfAttention.o.weight") ? tensor.mul(150000.0)
                                                                             : tensor.clone();
  }
  t5.checkpoint().replace(tensors);
  const at::Tensor want = t5.load({.dtype = at::kHalf})(TinyT5::ids(), kAttention);
  ASSERT_TRUE(at::isfinite(want).all().item<bool>());
  for (const int64_t ranks : {2, 4}) {
    const at::Tensor got = on_ranks(ranks, [&](comm::Communicator& group) {
      return t5.load(shared(group, at::kHalf))(TinyT5::ids(), kAttention);
    });
    EXPECT_TRUE(at::isfinite(got).all().item<bool>());
    EXPECT_LE(test::relative_error(got, want), kFp16);
  }
}

}  // namespace
}  // namespace cachedit::models
