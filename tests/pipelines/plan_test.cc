#include "cachedit/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "cachedit/error.h"
#include "cachedit/parallel.h"
#include "cachedit/pipeline.h"
#include "comm/communicator.h"
#include "io/weight_store.h"
#include "models/flux/flux_transformer.h"
#include "parallel/layout.h"
#include "pipelines/flux_shape.h"
#include "pipelines/parallel_choice.h"
#include "quantize_types.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/tiny_weights.h"

namespace cachedit {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A machine that is not measured.
PlanRequest request(int64_t world) {
  PlanRequest r;
  r.world = world;
  r.device_flops = 1e12;
  r.attention_flops = 5e11;
  r.memory_bandwidth = 1e11;
  r.bandwidth = 1e10;
  r.latency = 1e-5;
  r.overlap = true;
  return r;
}

ParallelPlan plan(const PlanRequest& r) { return plan_layouts(test::demo_model().string(), r); }

const LayoutPlan& find(const ParallelPlan& plan, const std::string& name) {
  for (const LayoutPlan& layout : plan.layouts) {
    if (layout.name == name) return layout;
  }
  throw std::runtime_error("no layout " + name);
}

TEST(Plan, DescribesTheWorkOfTheDemoModel) {
  const ParallelPlan p = plan(request(1));
  EXPECT_EQ(p.width, 128);
  EXPECT_EQ(p.image_tokens, 64);
  EXPECT_EQ(p.text_tokens, 24);
  EXPECT_EQ(p.branches, 1);
  EXPECT_EQ(p.dtype, "bf16");
  EXPECT_THAT(p.assumptions, IsEmpty());
  ASSERT_EQ(p.layouts.size(), 1u);
  const LayoutPlan& single = p.layouts[0];
  EXPECT_EQ(single.name, "single");
  EXPECT_TRUE(single.best);
  EXPECT_EQ(single.options, "");
  EXPECT_EQ(single.bytes_sent, 0);
  EXPECT_GE(single.compute_seconds, p.gemm_operations / 1e12 + p.attention_operations / 5e11);
  EXPECT_GT(single.activation_bytes, 0);
}

TEST(Plan, OperationsFollowFromTheWidthAndTheBlocks) {
  PlanRequest r = request(2);
  r.batch = 3;
  r.true_cfg = true;
  r.height = 256;
  r.width = 64;
  r.text_tokens = 10;
  const ParallelPlan p = plan(r);
  EXPECT_EQ(p.image_tokens, 64);
  EXPECT_EQ(p.text_tokens, 10);
  io::JsonConfig json = io::JsonConfig::read(test::demo_model() / "transformer" / "config.json");
  const auto c = models::FluxConfig::parse(json);
  const auto w = static_cast<double>(c.width());
  const auto blocks = static_cast<double>(c.num_layers + c.num_single_layers);
  const double image = 64 * 2 * w * static_cast<double>(c.in_channels + c.out_channels);
  EXPECT_DOUBLE_EQ(p.gemm_operations, 2 * 3 * (74 * 24 * w * w * blocks + image));
  EXPECT_DOUBLE_EQ(p.attention_operations, 2 * 3 * 4 * 74.0 * 74 * w * blocks);
}

/// A group in name only: loading asks for its size and its rank.
class Empty final : public comm::Communicator {
 public:
  explicit Empty(int64_t size) : size_(size) {}
  int64_t rank() const override { return 0; }
  int64_t size() const override { return size_; }

 protected:
  comm::Pending start(std::vector<comm::Part>, std::vector<comm::Part>, std::string_view) override {
    throw CommError("nobody is there");
  }

 private:
  int64_t size_;
};

// The shape's count of what tensor parallelism shares out, against the loader's rules.
TEST(Plan, WeightBytesAreThoseThatALoadedRankHolds) {
  test::TempDir folder;
  test::make_tiny_checkpoint("flux_guidance", folder / "guided");
  for (const auto& model : {test::demo_model(), folder / "guided"}) {
    const auto store = io::WeightStore::open(model / "transformer");
    io::JsonConfig json = io::JsonConfig::read(model / "transformer" / "config.json");
    const auto config = models::FluxConfig::parse(json);
    const parallel::TransformerShape shape = pipelines::flux_shape(config, store.parameters());
    for (int64_t tp = 1; tp <= config.num_attention_heads; ++tp) {
      if (config.num_attention_heads % tp != 0) continue;
      Empty group(tp);
      const models::FluxTransformer loaded(config, store,
                                           {.dtype = at::kFloat, .tensor_parallel = {&group}});
      EXPECT_EQ(4 * (shape.shared_weights / tp + shape.whole_weights), loaded.parameter_bytes())
          << "tp " << tp;
    }
  }
}

TEST(Plan, WeightsOfAllComponentsCount) {
  int64_t parameters = 0;
  for (const char* name : {"transformer", "text_encoder", "text_encoder_2", "vae"}) {
    parameters += io::WeightStore::open(test::demo_model() / name).parameters();
  }
  PlanRequest r = request(2);
  EXPECT_EQ(find(plan(r), "ulysses 2").weight_bytes, 2 * parameters);
  r.dtype = "fp32";
  const ParallelPlan p = plan(r);
  EXPECT_EQ(p.dtype, "fp32");
  EXPECT_EQ(find(p, "ring 2").weight_bytes, 4 * parameters);
  EXPECT_LT(find(p, "tp 2").weight_bytes, 4 * parameters);
}

TEST(Plan, QuantizedWeightsCountAsTheyAreHeld) {
  const test::TempDir folder;
  for (const char* type : test::kQuantizeTypes) {
    const QuantizeConfig config{.quant_type = type};
    const std::filesystem::path model = folder.path() / type;
    quantize_checkpoint(test::demo_model().string(), model, {.config = config});
    const auto pipeline = load_pipeline(model.string());
    int64_t others = 0;
    for (const char* name : {"text_encoder", "text_encoder_2", "vae"}) {
      others += io::WeightStore::open(test::demo_model() / name).bytes();
    }
    PlanRequest r = request(1);
    const int64_t stored = plan_layouts(model.string(), r).layouts.at(0).weight_bytes;
    r.quantize_config = config;
    const LayoutPlan at_load = plan(r).layouts.at(0);
    EXPECT_EQ(stored, at_load.weight_bytes) << type;
    EXPECT_EQ(at_load.options, std::string("--quantize-type ") + type);
    // Kernels pad some weights; the pipeline knows of its transformer only.
    const auto held = static_cast<double>(pipeline->transformer_bytes() + others);
    EXPECT_NEAR(static_cast<double>(stored), held, 0.03 * held) << type;
  }
}

/// Whether a pipeline of that layout would take the request.
bool loads(const parallel::Layout& layout, int64_t heads, const parallel::Workload& work) {
  const ParallelismConfig config = {.ulysses_size = layout.ulysses,
                                    .ring_size = layout.ring,
                                    .tp_size = layout.tp,
                                    .ulysses_anything = work.ulysses.anything,
                                    .ulysses_float8 = work.ulysses.float8};
  try {
    const World world(std::make_shared<Empty>(layout.world()));
    const pipelines::ParallelChoice choice(world, config, {.attention_heads = heads});
    choice.check_tokens(work.text_tokens, work.image_tokens);
  } catch (const Error&) {
    return false;
  }
  return true;
}

TEST(Plan, WhatItTakesIsWhatAPipelineTakes) {
  int64_t taken = 0, refused = 0;
  for (const int64_t heads : {3, 4, 24}) {
    for (const bool anything : {false, true}) {
      for (const bool float8 : {false, true}) {
        parallel::TransformerShape shape;
        shape.heads = heads;
        const parallel::Workload work = {.image_tokens = 64,
                                         .text_tokens = 26,
                                         .ulysses = {.anything = anything, .float8 = float8}};
        for (int64_t i = 0; i < 6 * 6 * 6; ++i) {
          const parallel::Layout layout = {
              .ring = 1 + i / 36, .ulysses = 1 + i / 6 % 6, .tp = 1 + i % 6};
          // A pipeline refuses these switches where there is no Ulysses; the plan leaves them out.
          if (layout.ulysses == 1 && (anything || float8)) continue;
          const std::string reason = parallel::why_not(shape, work, layout);
          const bool loaded = loads(layout, heads, work);
          EXPECT_EQ(reason.empty(), loaded) << heads << " heads, " << to_string(layout) << reason;
          ++(loaded ? taken : refused);
        }
      }
    }
  }
  EXPECT_GT(taken, 50);
  EXPECT_GT(refused, 50);
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// The printed options, read as the command line reads them, give the layout again.
TEST(Plan, OptionsStartTheLayout) {
  PlanRequest r = request(16);
  r.true_cfg = true;
  r.ulysses_anything = r.ulysses_float8 = r.ulysses_async = true;
  r.ring_rotate_method = "allgather";
  r.ring_convert_to_fp32 = false;
  for (const LayoutPlan& layout : plan(r).layouts) {
    ParallelismConfig config;
    std::string type;
    const std::vector<std::string> options = words(layout.options);
    for (size_t i = 0; i < options.size(); ++i) {
      const std::string& name = options[i];
      if (name == "--parallel-type") type = options[++i];
      if (name == "--cfg-size") config.cfg_size = std::stoll(options[++i]);
      if (name == "--ring-size") config.ring_size = std::stoll(options[++i]);
      if (name == "--ulysses-size") config.ulysses_size = std::stoll(options[++i]);
      if (name == "--tp-size") config.tp_size = std::stoll(options[++i]);
    }
    if (!type.empty()) config = parallel_layout(type, 16, config);
    const parallel::Layout got = {.cfg = config.cfg_size.value_or(1),
                                  .ring = config.ring_size.value_or(1),
                                  .ulysses = config.ulysses_size.value_or(1),
                                  .tp = config.tp_size.value_or(1)};
    EXPECT_EQ(parallel::to_string(got), layout.name) << layout.options;
    for (const char* option : {"--ulysses-anything", "--ulysses-float8", "--ulysses-async"}) {
      EXPECT_EQ(layout.options.find(option) != std::string::npos, layout.ulysses > 1);
    }
    for (const char* option : {"--ring-rotate-method allgather", "--ring-no-convert-to-fp32"}) {
      EXPECT_EQ(layout.options.find(option) != std::string::npos, layout.ring > 1);
    }
  }
}

TEST(Plan, NamesWhyALayoutCannotRun) {
  PlanRequest r = request(3);
  const ParallelPlan p = plan(r);
  EXPECT_FALSE(find(p, "tp 3").fits);
  EXPECT_THAT(find(p, "tp 3").reason, HasSubstr("heads"));
  EXPECT_FALSE(find(p, "ulysses 3").fits);
  EXPECT_TRUE(find(p, "ring 3").fits);
  EXPECT_TRUE(find(p, "ring 3").best);
  EXPECT_FALSE(find(plan(request(2)), "cfg 2").fits);
  r.memory = 1000;
  for (const LayoutPlan& layout : plan(r).layouts) EXPECT_FALSE(layout.fits || layout.best);
}

TEST(Plan, TakesABackendThatThisMachineLacksWhereNothingIsMeasured) {
  PlanRequest r = request(2);
  r.attention_backend = "_native_npu";
  EXPECT_THAT(plan(r).layouts.at(0).options, HasSubstr("--attn _native_npu"));
  r.device_flops.reset();
  EXPECT_THROW(plan(r), UnsupportedError);
}

TEST(Plan, SaysWhatItMeasuredAndAssumed) {
  PlanRequest r;
  r.world = 2;
  const ParallelPlan measured = plan(r);
  EXPECT_GT(measured.device_flops, 0);
  EXPECT_GT(measured.attention_flops, 0);
  EXPECT_GT(measured.memory_bandwidth, 0);
  EXPECT_THAT(measured.assumptions, ElementsAre(HasSubstr("threads"), HasSubstr("GB/s"),
                                                HasSubstr("MPI"), HasSubstr("message")));
  EXPECT_FALSE(measured.overlap);
  r.device_flops = 1e12;
  r.bandwidth = 1e9;
  const ParallelPlan given = plan(r);
  EXPECT_EQ(given.device_flops, 1e12);
  EXPECT_EQ(given.attention_flops, 1e12);
  EXPECT_EQ(given.memory_bandwidth, 0);
  EXPECT_EQ(given.bandwidth, 1e9);
  EXPECT_THAT(given.assumptions, ElementsAre(HasSubstr("attention"), HasSubstr("left out"),
                                             HasSubstr("travels"), HasSubstr("message")));
  EXPECT_TRUE(given.overlap);
  r.overlap = false;
  EXPECT_FALSE(plan(r).overlap);
}

TEST(Plan, RefusesWhatMakesNoSense) {
  const auto refuse = [](const auto& change, const auto&... says) {
    PlanRequest r = request(2);
    change(r);
    test::expect_error<InputError>([&] { plan(r); }, AllOf(HasSubstr(says)...));
  };
  refuse([](PlanRequest& r) { r.world = 0; }, "[plan] world", "0");
  refuse([](PlanRequest& r) { r.world = 4097; }, "world", "4097");
  refuse([](PlanRequest& r) { r.batch = 0; }, "batch", "0");
  refuse([](PlanRequest& r) { r.height = 8; }, "height", "8");
  refuse([](PlanRequest& r) { r.text_tokens = 513; }, "max_sequence_length", "513");
  refuse([](PlanRequest& r) { r.dtype = "fp9"; }, "fp9", "bf16");
  refuse([](PlanRequest& r) { r.device_flops = 0; }, "device_flops", "0");
  refuse([](PlanRequest& r) { r.attention_backend = "flush"; }, "unknown backend", "flush");
  refuse([](PlanRequest& r) { r.attention_flops = -1; }, "attention_flops", "-1");
  refuse([](PlanRequest& r) { r.memory_bandwidth = 0; }, "memory_bandwidth");
  refuse([](PlanRequest& r) { r.bandwidth = INFINITY; }, "bandwidth", "inf");
  refuse([](PlanRequest& r) { r.latency = -1e-6; }, "latency");
  refuse([](PlanRequest& r) { r.memory = NAN; }, "memory", "nan");
  refuse([](PlanRequest& r) { r.ring_rotate_method = "push"; }, "push", "allgather");
  PlanRequest r = request(2);
  r.latency = 0;
  EXPECT_NO_THROW(plan(r));
}

TEST(Plan, FindsADamagedCheckpoint) {
  test::TempDir folder;
  const std::filesystem::path model = folder / "model";
  std::filesystem::copy(test::demo_model(), model, std::filesystem::copy_options::recursive);
  const std::filesystem::path config = model / "transformer" / "config.json";
  std::string text = test::read_bytes(config);
  const size_t at = text.find("\"num_layers\": ");
  ASSERT_NE(at, std::string::npos);
  text.insert(at + 14, "1");  // 4 layers become 14
  std::ofstream(config) << text;
  test::expect_error<WeightError>([&] { plan_layouts(model.string(), request(2)); },
                                  HasSubstr("transformer_blocks.4.norm1"));
  EXPECT_THROW(plan_layouts((folder / "absent").string(), request(2)), IoError);
}

}  // namespace
}  // namespace cachedit
