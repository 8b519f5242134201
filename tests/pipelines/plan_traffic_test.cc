// What the cost model says that ranks send, against what they do send.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "cachedit/parallel.h"
#include "cachedit/pipeline.h"
#include "io/json_config.h"
#include "io/weight_store.h"
#include "pipelines/flux_shape.h"
#include "support/rank_threads.h"
#include "support/temp_dir.h"
#include "support/tiny_weights.h"

namespace cachedit {
namespace {

constexpr int64_t kSteps = 2, kBatch = 2, kTextTokens = 7;
constexpr int64_t kHeight = 48, kWidth = 80;

struct Case {
  const char* name;
  const char* model;  ///< of tests/goldens, or "demo"
  parallel::Layout layout;
  bool true_cfg = false;
  parallel::UlyssesOptions ulysses = {};
  parallel::RingOptions ring = {};
};

ParallelismConfig config_of(const Case& c) {
  ParallelismConfig config;
  config.cfg_size = c.layout.cfg;
  config.ring_size = c.layout.ring;
  config.ulysses_size = c.layout.ulysses;
  config.tp_size = c.layout.tp;
  config.ulysses_anything = c.ulysses.anything;
  config.ulysses_float8 = c.ulysses.float8;
  config.ulysses_async = c.ulysses.async;
  const bool p2p = c.ring.rotate_method == parallel::RingRotateMethod::kP2P;
  config.ring_rotate_method = p2p ? "p2p" : "allgather";
  return config;
}

GenerateRequest request_of(const Case& c) {
  GenerateRequest r;
  r.prompt = {"a"};
  r.num_images_per_prompt = kBatch;
  r.height = kHeight;
  r.width = kWidth;
  r.num_inference_steps = kSteps;
  r.max_sequence_length = kTextTokens;
  r.seed = 1;
  r.output_type = OutputType::kLatent;
  if (c.true_cfg) {
    r.negative_prompt = {"b"};
    r.true_cfg_scale = 2;
  }
  return r;
}

class PlanTraffic : public ::testing::TestWithParam<Case> {
 protected:
  test::TempDir folder_;
};

TEST_P(PlanTraffic, IsWhatTheRanksSend) {
  const Case& c = GetParam();
  const std::filesystem::path model = folder_ / "model";
  if (std::string(c.model) == "demo") {
    std::filesystem::create_symlink(test::demo_model(), model);
  } else {
    test::make_tiny_checkpoint(c.model, model);
  }
  io::JsonConfig json = io::JsonConfig::read(model / "transformer" / "config.json");
  const auto shape = pipelines::flux_shape(
      models::FluxConfig::parse(json), io::WeightStore::open(model / "transformer").parameters());
  std::vector<ParallelStats> sent(static_cast<size_t>(c.layout.world()));
  std::vector<int64_t> latent_tokens(sent.size());
  test::run_ranks(c.layout.world(), [&](comm::Communicator& world) {
    const std::shared_ptr<comm::Communicator> shared(&world, [](comm::Communicator*) {});
    LoadOptions options;
    options.dtype = "bf16";
    options.world = World(shared);
    options.parallelism_config = config_of(c);
    const auto pipeline = load_pipeline(model.string(), options);
    const GenerateResult result = pipeline->generate(request_of(c));
    sent[static_cast<size_t>(world.rank())] = result.parallel;
    latent_tokens[static_cast<size_t>(world.rank())] = result.latents.size(1);
  });
  const parallel::Workload work = {.image_tokens = latent_tokens[0],
                                   .text_tokens = kTextTokens,
                                   .batch = kBatch,
                                   .branches = c.true_cfg ? 2 : 1,
                                   .steps = kSteps,
                                   .element_size = 2,
                                   .ulysses = c.ulysses,
                                   .ring = c.ring};
  ASSERT_EQ(parallel::why_not(shape, work, c.layout), "");
  for (int64_t rank = 0; rank < c.layout.world(); ++rank) {
    const comm::Traffic step = parallel::predict_traffic(shape, work, c.layout, rank);
    const comm::Traffic once = parallel::predict_once(shape, work, c.layout, rank);
    const ParallelStats& got = sent[static_cast<size_t>(rank)];
    EXPECT_EQ(kSteps * step.bytes_sent + once.bytes_sent, got.bytes_sent) << "rank " << rank;
    EXPECT_EQ(kSteps * step.messages_sent + once.messages_sent, got.messages_sent)
        << "rank " << rank;
  }
}

constexpr parallel::UlyssesOptions kAnything = {.anything = true};
constexpr parallel::RingOptions kAllGather = {.rotate_method =
                                                  parallel::RingRotateMethod::kAllGather};

INSTANTIATE_TEST_SUITE_P(
    Layouts, PlanTraffic,
    ::testing::Values(
        Case{"Ulysses2", "flux_plain", {.ulysses = 2}, false, kAnything},
        Case{"Ulysses3Async",
             "flux_plain",
             {.ulysses = 3},
             false,
             {.anything = true, .async = true}},
        Case{"Ring3", "flux_plain", {.ring = 3}},
        Case{"Ring2AllGather", "flux_plain", {.ring = 2}, true, {}, kAllGather},
        Case{"Usp6", "flux_plain", {.ring = 3, .ulysses = 2}, false, kAnything},
        Case{"Tp5", "flux_plain", {.tp = 5}}, Case{"Cfg2", "flux_plain", {.cfg = 2}, true},
        Case{"Cfg2Ring2", "flux_plain", {.cfg = 2, .ring = 2}, true},
        Case{"Ulysses3ThreeHeads", "flux_guidance", {.ulysses = 3}, false, kAnything},
        Case{"Ulysses4", "demo", {.ulysses = 4}, true, kAnything},
        Case{"Ulysses2Float8", "demo", {.ulysses = 2}, false, {.anything = true, .float8 = true}},
        Case{"Tp2", "demo", {.tp = 2}, true}, Case{"Tp4", "demo", {.tp = 4}},
        Case{"Ulysses2Tp2", "demo", {.ulysses = 2, .tp = 2}, false, kAnything},
        Case{"Ring2Tp2", "demo", {.ring = 2, .tp = 2}},
        Case{"Cfg2Ring2Ulysses2", "demo", {.cfg = 2, .ring = 2, .ulysses = 2}, true, kAnything},
        Case{"Ring2Ulysses2Tp2", "demo", {.ring = 2, .ulysses = 2, .tp = 2}, true, kAnything}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace cachedit
