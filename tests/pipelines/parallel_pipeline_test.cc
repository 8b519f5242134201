// What several ranks do together besides denoising: options, errors, extra modules, stopping.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "parallel_support.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

GenerateRequest demo_request() {
  GenerateRequest r;
  r.prompt = {"a red heart"};
  r.num_inference_steps = 6;
  r.seed = 3;
  return r;
}

GenerateRequest demo_latents() {
  GenerateRequest r = demo_request();
  r.output_type = OutputType::kLatent;
  return r;
}

std::filesystem::path demo() { return test::demo_model(); }

/// The text of what one of the ranks throws.
std::string failure_of(int64_t ranks, const ParallelismConfig& config,
                       const GenerateRequest& request,
                       const std::function<void(Pipeline&)>& prepare = {}) {
  try {
    test::generate_on(demo(), ranks, config, request, prepare);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

int max_difference(const Image& a, const Image& b) {
  if (a.pixels.size() != b.pixels.size()) return 256;
  int most = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) {
    most = std::max(most, std::abs(int{a.pixels[i]} - int{b.pixels[i]}));
  }
  return most;
}

TEST(ParallelPipeline, EveryUlyssesAndRingOptionGivesTheSameLatents) {
  const at::Tensor alone = test::generate_on(demo(), 1, {}, demo_latents()).latents;
  const auto expect_same = [&](const char* name, int64_t ranks, const ParallelismConfig& config) {
    SCOPED_TRACE(name);
    const GenerateResult got = test::generate_on(demo(), ranks, config, demo_latents());
    EXPECT_LE(test::relative_error(got.latents, alone), 1e-4);
  };
  expect_same("even Ulysses", 2, {.ulysses_size = 2});
  expect_same("async Ulysses", 2, {.ulysses_size = 2, .ulysses_async = true});
  expect_same("Ring, all-gather", 2, {.ring_size = 2, .ring_rotate_method = "allgather"});
  expect_same("Ring without fp32", 2, {.ring_size = 2, .ring_convert_to_fp32 = false});
  expect_same("async USP", 4, {.ulysses_size = 2, .ring_size = 2, .ulysses_async = true});
  expect_same("async uneven Ulysses under tp", 3,
              {.ulysses_size = 3, .ulysses_anything = true, .ulysses_async = true});
}

double psnr_of_latents(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor error = (got - want).square().mean();
  const double peak = want.abs().max().item<double>();
  return 10 * std::log10(4 * peak * peak / error.item<double>());
}

TEST(ParallelPipeline, Float8UlyssesStaysCloseToTheSingleProcess) {
  const GenerateResult alone = test::generate_on(demo(), 1, {}, demo_request());
  const ParallelismConfig config{.ulysses_size = 2, .ulysses_float8 = true};
  const GenerateResult got = test::generate_on(demo(), 2, config, demo_request());
  EXPECT_GE(compare_images(got.images.at(0), alone.images.at(0)).psnr, 35);
  const GenerateResult latents = test::generate_on(demo(), 2, config, demo_latents());
  const GenerateResult exact = test::generate_on(demo(), 1, {}, demo_latents());
  EXPECT_GT(test::relative_error(latents.latents, exact.latents), 1e-6) << "nothing was rounded";
  EXPECT_GE(psnr_of_latents(latents.latents, exact.latents), 35);
}

TEST(ParallelPipeline, PicturesComeOnRankZeroAndLatentsOnAll) {
  test::with_pipelines(demo(), 2, {.ring_size = 2}, [](Pipeline& pipeline) {
    const GenerateResult picture = pipeline.generate(demo_request());
    EXPECT_EQ(picture.images.size(), pipeline.world().rank() == 0 ? 1u : 0u);
    EXPECT_TRUE(pipeline.generate(demo_latents()).latents.defined());
  });
}

TEST(ParallelPipeline, ExtraModulesGiveTheSamePicture) {
  const GenerateResult alone = test::generate_on(demo(), 1, {}, demo_request());
  const auto expect_same = [&](int64_t ranks, const std::vector<std::string>& modules) {
    const ParallelismConfig config{.ring_size = ranks, .extra_parallel_modules = modules};
    const GenerateResult got = test::generate_on(demo(), ranks, config, demo_request());
    EXPECT_LE(max_difference(got.images.at(0), alone.images.at(0)), 1) << ranks;
  };
  expect_same(2, {"text_encoder", "text_encoder_2", "vae"});
  expect_same(4, {"text_encoder_2", "vae"});
  expect_same(3, {"vae"});
}

TEST(ParallelPipeline, ImageToImageStartsFromTheSameLatents) {
  GenerateRequest request = demo_latents();
  Image image{.width = 64, .height = 64, .pixels = std::vector<uint8_t>(64 * 64 * 3)};
  for (size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<uint8_t>(i * 7);
  request.image = image;
  request.strength = 0.7;
  const at::Tensor alone = test::generate_on(demo(), 1, {}, request).latents;
  const GenerateResult got =
      test::generate_on(demo(), 2, {.tp_size = 2, .extra_parallel_modules = {"vae"}}, request);
  EXPECT_LE(test::relative_error(got.latents, alone), 1e-4);
}

TEST(ParallelPipeline, ALayoutMayBeChosenAndChangedAfterLoading) {
  const at::Tensor alone = test::generate_on(demo(), 1, {}, demo_latents()).latents;
  test::run_ranks(2, [&](comm::Communicator& rank) {
    const World world(std::shared_ptr<comm::Communicator>(&rank, [](comm::Communicator*) {}));
    const auto pipeline = load_pipeline(demo().string(), {.dtype = "fp32", .world = world});
    for (const ParallelismConfig& config :
         {ParallelismConfig{.tp_size = 2}, ParallelismConfig{.ulysses_size = 2},
          ParallelismConfig{.tp_size = 2, .extra_parallel_modules = {"text_encoder_2"}},
          ParallelismConfig{.ring_size = 2}}) {
      enable_cache(*pipeline, {.parallelism_config = config});
      EXPECT_EQ(pipeline->parallelism(), config);
      EXPECT_TRUE(pipeline->caching().empty()) << "a layout alone chooses no caching";
      EXPECT_LE(test::relative_error(pipeline->generate(demo_latents()).latents, alone), 1e-4);
    }
  });
}

TEST(ParallelPipeline, TensorParallelRanksHoldTheirShareOfTheWeightsOnly) {
  // The demo transformer's sharded layers are nearly all of it.
  const auto bytes = [](int64_t ranks) {
    int64_t sent = 0;
    const ParallelismConfig config =
        ranks == 1 ? ParallelismConfig() : ParallelismConfig{.tp_size = ranks};
    test::with_pipelines(demo(), ranks, config, [&](Pipeline& pipeline) {
      if (pipeline.world().rank() == ranks - 1) sent = pipeline.transformer_bytes();
    });
    return sent;
  };
  const int64_t whole = bytes(1);
  EXPECT_GT(whole, 0);
  EXPECT_LT(static_cast<double>(bytes(2)), 0.53 * static_cast<double>(whole));
  EXPECT_LT(static_cast<double>(bytes(4)), 0.31 * static_cast<double>(whole));
}

TEST(ParallelPipeline, AutoSizeTakesWhatIsLeft) {
  const GenerateResult got =
      test::generate_on(demo(), 4, {.tp_size = 2, .auto_size = "ring_size"}, demo_latents());
  EXPECT_EQ(got.parallel.layout, "ring 2 x tp 2");
}

TEST(ParallelPipeline, RanksDrawOneSeedTogether) {
  std::vector<uint64_t> seeds(2);
  test::with_pipelines(demo(), 2, {.ring_size = 2}, [&](Pipeline& pipeline) {
    GenerateRequest request = demo_latents();
    request.seed.reset();
    seeds[static_cast<size_t>(pipeline.world().rank())] = pipeline.generate(request).seed;
  });
  EXPECT_EQ(seeds[0], seeds[1]);
}

TEST(ParallelPipeline, StoppingOnOneRankStopsAll) {
  std::vector<std::string> texts(2);
  test::with_pipelines(demo(), 2, {.ring_size = 2}, [&](Pipeline& pipeline) {
    const auto rank = static_cast<size_t>(pipeline.world().rank());
    GenerateRequest request = demo_latents();
    if (rank == 1) request.on_step = [](const StepProgress& p) { return p.step < 2; };
    try {
      pipeline.generate(request);
    } catch (const Cancelled& error) {
      texts[rank] = error.what();
    }
  });
  EXPECT_EQ(texts[0], "[generate] stopped after step 2 of 6");
  EXPECT_EQ(texts[1], texts[0]);
}

TEST(ParallelPipeline, DifferentRequestsAreRefusedOnEveryRank) {
  std::vector<std::string> texts(3);
  test::with_pipelines(demo(), 3, {.ring_size = 3}, [&](Pipeline& pipeline) {
    const auto rank = static_cast<size_t>(pipeline.world().rank());
    GenerateRequest request = demo_latents();
    if (rank == 2) request.prompt = {"a blue heart"};
    try {
      pipeline.generate(request);
    } catch (const CommError& error) {
      texts[rank] = error.what();
    }
  });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, AllOf(HasSubstr("same request"), HasSubstr("rank 2 has '  a blue heart'"),
                            HasSubstr("rank 0 has '  a red heart'")));
  }
}

TEST(ParallelPipeline, DifferentCheckpointsAreRefused) {
  const test::TempDir folder;
  test::make_flux_with_heads(5, folder.path() / "a");
  test::make_flux_with_heads(3, folder.path() / "b");
  std::vector<std::string> texts(2);
  test::run_ranks(2, [&](comm::Communicator& rank) {
    const World world(std::shared_ptr<comm::Communicator>(&rank, [](comm::Communicator*) {}));
    const auto model = folder.path() / (rank.rank() == 0 ? "a" : "b");
    try {
      load_pipeline(model.string(), {.dtype = "fp32", .world = world});
    } catch (const CommError& error) {
      texts[static_cast<size_t>(rank.rank())] = error.what();
    }
  });
  EXPECT_THAT(texts[0], AllOf(HasSubstr("same checkpoint"), HasSubstr("rank 1 has 'transformer:")));
  EXPECT_EQ(texts[1], texts[0]);
}

TEST(ParallelPipeline, LayoutsThatDoNotFitAreRefusedBeforeTheFirstStep) {
  const auto refused = [](int64_t ranks, const ParallelismConfig& config) {
    return failure_of(ranks, config, demo_latents());
  };
  EXPECT_THAT(refused(3, {.tp_size = 3}),
              AllOf(HasSubstr("tp_size must divide"), HasSubstr("4 attention heads: got 3"),
                    HasSubstr("use 2, 4")));
  EXPECT_THAT(refused(2, {.tp_size = 0}), HasSubstr("tp_size must be at least 1: got 0"));
  EXPECT_THAT(refused(2, {.tp_size = -1}), HasSubstr("tp_size must be at least 1: got -1"));
  EXPECT_THAT(
      refused(3, {.ulysses_size = 3}),
      AllOf(HasSubstr("heads must divide by the ranks: got 4 heads and 3 ranks"),
            HasSubstr("add --ulysses-anything, or take ulysses sizes that divide 4: 2, 4")));
  EXPECT_THAT(refused(3, {.ulysses_size = 3, .ulysses_anything = true, .ulysses_float8 = true}),
              AllOf(HasSubstr("float8"), HasSubstr("got 4 heads and 3 ranks")));
  EXPECT_THAT(refused(8, {.ulysses_size = 8, .ulysses_anything = true}),
              AllOf(HasSubstr("each rank needs a head"), HasSubstr("got 4 heads and 8 ranks")));
  EXPECT_THAT(refused(3, {.ulysses_size = 2}),
              AllOf(HasSubstr("2 x 1 x 1 x 1 = 2 and 3 ranks"), HasSubstr("mpirun -n 2")));
  EXPECT_THAT(refused(2, {.ring_size = 2, .ulysses_async = true}),
              HasSubstr("ulysses_async has no effect without ulysses_size above 1"));
  EXPECT_THAT(refused(2, {.ring_size = 2, .ring_rotate_method = "mesh"}),
              HasSubstr("ring_rotate_method must be p2p or allgather: got 'mesh'"));
  EXPECT_THAT(refused(3, {.cfg_size = 3}), HasSubstr("cfg_size must be 1 or 2"));
  EXPECT_THAT(refused(2, {.ring_size = 2, .extra_parallel_modules = {"unet"}}),
              AllOf(HasSubstr("extra_parallel_modules may name"), HasSubstr("got 'unet'")));
  EXPECT_THAT(refused(2, {}), HasSubstr("there are 2 ranks, but no layout"));
  EXPECT_THAT(refused(2, {.cfg_size = 2}), HasSubstr("cfg_size 2 shares out the two branches"));
}

TEST(ParallelPipeline, PlainUlyssesRefusesTokensThatDoNotDivide) {
  GenerateRequest request = demo_latents();
  request.height = 144;  // 9 x 9 = 81 tokens
  request.width = 144;
  EXPECT_THAT(failure_of(2, {.ulysses_size = 2}, request),
              AllOf(HasSubstr("image tokens that divide by the 2 parts"), HasSubstr("got 81"),
                    HasSubstr("--ulysses-anything")));
  const at::Tensor alone = test::generate_on(demo(), 1, {}, request).latents;
  const GenerateResult any =
      test::generate_on(demo(), 2, {.ulysses_size = 2, .ulysses_anything = true}, request);
  ASSERT_EQ(any.latents.sizes(), alone.sizes());
  EXPECT_LE(test::relative_error(any.latents, alone), 1e-4);
}

TEST(ParallelPipeline, RingNeedsABackendWithLogSumExps) {
  const auto choose = [](const char* backend) {
    return [backend](Pipeline& pipeline) { set_attn_backend(pipeline, backend); };
  };
  const at::Tensor alone = test::generate_on(demo(), 1, {}, demo_latents()).latents;
  for (const char* backend : {"flash", "auto"}) {
    const GenerateResult got =
        test::generate_on(demo(), 2, {.ring_size = 2}, demo_latents(), choose(backend));
    EXPECT_LE(test::relative_error(got.latents, alone), 1e-4) << backend;
  }
}

TEST(ParallelPipeline, SharingGuidanceBranchesRefusesCachingThatNeedsBoth) {
  GenerateRequest request = demo_latents();
  request.negative_prompt = {"blue"};
  request.true_cfg_scale = 2;
  const auto refused = [&](const DBCacheConfig& config) {
    return failure_of(2, {.cfg_size = 2}, request, [&](Pipeline& pipeline) {
      enable_cache(pipeline, {.cache_config = config});
    });
  };
  DBCacheConfig shared;
  shared.enable_separate_cfg = false;
  EXPECT_THAT(refused(shared), HasSubstr("enable_separate_cfg: false"));
  DBCacheConfig one_diff;
  one_diff.cfg_diff_compute_separate = false;
  EXPECT_THAT(refused(one_diff), HasSubstr("cfg_diff_compute_separate: false"));
  DBCacheConfig odd;
  odd.force_refresh_step_hint = 3;
  EXPECT_THAT(refused(odd), HasSubstr("odd force_refresh_step_hint"));
}

}  // namespace
}  // namespace cachedit
