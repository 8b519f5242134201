#include "pipelines/attention_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cachedit/cachedit.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit {
namespace {

using pipelines::AttentionChoice;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AttentionChoice, ExplicitBeatsConfigBeatsEnvironmentBeatsNative) {
  EXPECT_EQ(AttentionChoice(at::kCPU, "").name(), "native");
  AttentionChoice choice(at::kCPU, "ffpa");
  EXPECT_EQ(choice.name(), "ffpa");
  choice.choose("flash", AttentionSource::kConfig);
  EXPECT_EQ(choice.name(), "flash");
  choice.choose("sage", AttentionSource::kExplicit);
  EXPECT_EQ(choice.name(), "sage");
  choice.choose("native", AttentionSource::kConfig);
  EXPECT_EQ(choice.name(), "sage") << "a later config does not undo an explicit choice";
  choice.choose("auto", AttentionSource::kExplicit);
  EXPECT_EQ(choice.name(), "auto");
}

TEST(AttentionChoice, TheEnvironmentsNameIsChecked) {
  EXPECT_EQ(AttentionChoice(at::kCPU, "auto").name(), "auto");
  test::expect_error<ConfigError>([] { AttentionChoice(at::kCPU, "bogus"); },
                                  AllOf(HasSubstr("CACHE_DIT_ATTN_BACKEND"), HasSubstr("'bogus'"),
                                        HasSubstr("auto, native, _sdpa_cudnn")));
  // One that cannot run here is an error only where nothing else was chosen.
  AttentionChoice choice(at::kCPU, "_flash_3");
  EXPECT_THROW(choice.make(), UnsupportedError);
  choice.choose("native", AttentionSource::kConfig);
  EXPECT_NO_THROW(choice.make());
}

TEST(AttentionChoice, ARefusedChoiceChangesNothing) {
  AttentionChoice choice(at::kCPU, "");
  choice.choose("flash", AttentionSource::kExplicit);
  EXPECT_THROW(choice.choose("bogus", AttentionSource::kExplicit), InputError);
  EXPECT_THROW(choice.choose("", AttentionSource::kExplicit), InputError);
  EXPECT_THROW(choice.choose("_npu_fia", AttentionSource::kExplicit), UnsupportedError);
  EXPECT_EQ(choice.name(), "flash");
}

class EnableCache : public ::testing::Test {
 protected:
  std::unique_ptr<Pipeline> pipeline_ =
      load_pipeline(test::demo_model().string(), {.dtype = "fp32", .device = "cpu"});
};

TEST_F(EnableCache, AppliesWhatItsOptionsHold) {
  EXPECT_EQ(attn_backend(*pipeline_), "native");
  enable_cache(*pipeline_, {.attention_backend = "flash"});
  EXPECT_EQ(attn_backend(*pipeline_), "flash");
  enable_cache(*pipeline_, {});
  EXPECT_EQ(attn_backend(*pipeline_), "flash") << "what is not given stays";
  EnableCacheOptions parallel;
  parallel.parallelism_config.attention_backend = "ffpa";
  enable_cache(*pipeline_, parallel);
  EXPECT_EQ(attn_backend(*pipeline_), "ffpa");
  parallel.attention_backend = "ffpa";
  EXPECT_NO_THROW(enable_cache(*pipeline_, parallel)) << "both name one";
}

TEST_F(EnableCache, AnExplicitChoiceWinsInEitherOrder) {
  set_attn_backend(*pipeline_, "sage");
  enable_cache(*pipeline_, {.attention_backend = "flash"});
  EXPECT_EQ(attn_backend(*pipeline_), "sage");
}

TEST_F(EnableCache, TwoDifferentNamesAreRefused) {
  EnableCacheOptions options;
  options.attention_backend = "flash";
  options.parallelism_config.attention_backend = "sage";
  test::expect_error<InputError>([&] { enable_cache(*pipeline_, options); },
                                 AllOf(HasSubstr("'flash'"), HasSubstr("'sage'")));
  EXPECT_EQ(attn_backend(*pipeline_), "native");
  EXPECT_THROW(set_attn_backend(*pipeline_, "bogus"), InputError);
  EXPECT_THROW(set_attn_backend(*pipeline_, "_flash_3"), UnsupportedError);
}

// FR-32: the selected backend is what runs.
TEST_F(EnableCache, TheResultNamesWhatRan) {
  GenerateRequest request;
  request.prompt = {"red apple"};
  request.num_inference_steps = 2;
  request.height = request.width = 32;
  request.seed = 7;
  for (const char* name : {"native", "flash", "ffpa", "sage"}) {
    set_attn_backend(*pipeline_, name);
    EXPECT_EQ(pipeline_->generate(request).attention_backend, name);
  }
  set_attn_backend(*pipeline_, "auto");
  EXPECT_EQ(pipeline_->generate(request).attention_backend, "flash");
}

TEST(ListBackends, IsWhatTheRegistryHolds) {
  const std::vector<attention::BackendInfo> all = attention::list_backends();
  ASSERT_GE(all.size(), 12u);
  const auto flash = std::find_if(all.begin(), all.end(),
                                  [](const auto& backend) { return backend.name == "flash"; });
  ASSERT_NE(flash, all.end());
  ASSERT_EQ(flash->devices.size(), 2u);
  const attention::DeviceInfo& cpu = flash->devices[0];
  EXPECT_EQ(cpu.device, "cpu");
  EXPECT_TRUE(cpu.availability.available);
  EXPECT_THAT(cpu.dtypes, ElementsAre("fp32", "bf16", "fp16"));
  EXPECT_EQ(cpu.min_head_dim, 1);
  EXPECT_EQ(cpu.max_head_dim, 256);
  EXPECT_EQ(cpu.causal_alignment, "last rows");
  EXPECT_FALSE(cpu.mask);
  EXPECT_FALSE(cpu.gqa);
  EXPECT_TRUE(cpu.lse);
  EXPECT_EQ(flash->devices[1].device, "cuda");
  EXPECT_EQ(flash->devices[1].head_dim_multiple, 8);
  EXPECT_NO_THROW(attention::check_backend_name("auto"));
  EXPECT_NO_THROW(attention::check_backend_name("ffpa_fp4"));
  EXPECT_THROW(attention::check_backend_name("flash2"), InputError);
}

TEST(ChooseBackend, SaysWhatAndWhyAndWhatWasPassedOver) {
  attention::BackendQuery query{
      .batch = 1, .tokens = 4608, .heads = 24, .head_dim = 128, .device = "cpu"};
  EXPECT_EQ(attention::choose_backend(query).name, "flash");
  query.mask = "bool";
  const attention::BackendChoice choice = attention::choose_backend(query);
  EXPECT_EQ(choice.name, "ffpa");
  EXPECT_FALSE(choice.why.empty());
  ASSERT_EQ(choice.passed_over.size(), 1u);
  EXPECT_EQ(choice.passed_over[0].name, "flash");
  EXPECT_THAT(choice.passed_over[0].reason, HasSubstr("no mask"));
  query.head_dim = 70000;
  EXPECT_EQ(attention::choose_backend(query).name, "");
  EXPECT_EQ(attention::choose_backend(query).passed_over.size(), 3u);
}

TEST(ChooseBackend, RefusesWhatIsNoCall) {
  const attention::BackendQuery good{.batch = 1, .tokens = 8, .heads = 2, .head_dim = 8};
  EXPECT_NO_THROW(attention::choose_backend(good));
  const auto refused = [&](auto&& change) {
    attention::BackendQuery query = good;
    change(query);
    EXPECT_THROW(attention::choose_backend(query), InputError);
  };
  refused([](auto& q) { q.tokens = 0; });
  refused([](auto& q) { q.head_dim = -1; });
  refused([](auto& q) { q.key_tokens = 0; });
  refused([](auto& q) { q.dtype = "fp9"; });
  refused([](auto& q) { q.dtype = "auto"; });
  refused([](auto& q) { q.mask = "maybe"; });
  refused([](auto& q) { q.device = "tpu"; });
}

}  // namespace
}  // namespace cachedit
