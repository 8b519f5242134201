// What a BlockAdapter refuses, and in which words.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cache/block_adapter_toy.h"
#include "cachedit/block_adapter.h"
#include "cachedit/error.h"
#include "support/expect_error.h"

namespace cachedit {
namespace {

using test::expect_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

const EnableCacheOptions kOneBlock{.cache_config = DBCacheConfig{.Fn_compute_blocks = 1}};

void expect_refused(const BlockAdapter& adapter, const char* text) {
  expect_error<ConfigError>([&] { CachedBlocks(adapter, kOneBlock); }, HasSubstr(text));
}

TEST(BlockAdapterErrors, AdaptersThatCannotRun) {
  expect_refused({}, "at least one block list");
  expect_refused({.lists = {{.name = "empty"}}}, "'empty' has no blocks");
  BlockAdapter adapter = test::toy_adapter(0);
  adapter.lists.push_back(adapter.lists.front());
  expect_refused(adapter, "names of their own: got 'blocks' twice");
  adapter = test::toy_adapter(0);
  adapter.lists[0].blocks[2] = nullptr;
  expect_refused(adapter, "block 2 of 'blocks' is empty");
  adapter = test::toy_adapter(0);
  adapter.lists[0].forward_pattern = static_cast<ForwardPattern>(6);
  const nn::Streams s = test::toy_start();
  expect_error<ConfigError>(
      [&] {
        CachedBlocks(adapter, kOneBlock)
            .forward({.hidden_states = s.hidden, .encoder_hidden_states = s.encoder});
      },
      HasSubstr("forward_pattern"));
}

TEST(BlockAdapterErrors, OptionsThatDoNotFit) {
  const BlockAdapter adapter = test::toy_adapter(0);
  const auto refused = [&](const DBCacheConfig& config, const auto& text) {
    expect_error<ConfigError>([&] { CachedBlocks(adapter, {.cache_config = config}); }, text);
  };
  refused({.Fn_compute_blocks = 3, .Bn_compute_blocks = 3},
          AllOf(HasSubstr("the 5 blocks of blocks"), HasSubstr("got 3 + 3")));
  refused({}, HasSubstr("got 8 + 0"));
  refused({.Fn_compute_blocks = 0}, HasSubstr("Fn_compute_blocks must be at least 1"));
  refused(
      {.Fn_compute_blocks = 1, .residual_diff_threshold = std::numeric_limits<double>::quiet_NaN()},
      HasSubstr("residual_diff_threshold"));
  EnableCacheOptions options = kOneBlock;
  options.params_modifiers.resize(2);
  expect_error<ConfigError>([&] { CachedBlocks(adapter, options); },
                            HasSubstr("must not outnumber the 1 block lists: got 2"));
  options = kOneBlock;
  options.parallelism_config.attention_backend = "flash";
  expect_error<InputError>([&] { CachedBlocks(adapter, options); },
                           HasSubstr("got backend 'flash'"));
  options = kOneBlock;
  options.calibrator_config = {.calibrator_type = CalibratorType::kLinear,
                               .linear_coefficients_path = "some.safetensors"};
  expect_error<UnsupportedError>([&] { CachedBlocks(adapter, options); },
                                 HasSubstr("fitted for pipelines"));
  options = kOneBlock;
  options.steps_mask_policy = "turbo";
  expect_error<InputError>([&] { CachedBlocks(adapter, options); }, HasSubstr("got 'turbo'"));
  options.steps_mask_policy = "fast";
  std::get<DBCacheConfig>(options.cache_config).steps_computation_mask = {1, 0};
  expect_error<ConfigError>([&] { CachedBlocks(adapter, options); },
                            HasSubstr("exclude each other"));
  options.steps_mask_policy.clear();
  std::get<DBCacheConfig>(options.cache_config).steps_computation_policy =
      StepsComputationPolicy::kStatic;
  std::get<DBCacheConfig>(options.cache_config).static_skips_Fn_blocks = true;
  expect_error<ConfigError>([&] { CachedBlocks(test::toy_adapter(4), options); },
                            AllOf(HasSubstr("static_skips_Fn_blocks"), HasSubstr("pattern 4")));
  options = kOneBlock;
  options.calibrator_config = {.taylorseer_order = -1};
  expect_error<ConfigError>([&] { CachedBlocks(adapter, options); },
                            HasSubstr("taylorseer_order must be 0 to 4: got -1"));
}

TEST(BlockAdapterErrors, ListsAndStepsThatDoNotExist) {
  CachedBlocks cached(test::toy_adapter(3), kOneBlock);
  const BlockInputs inputs{.hidden_states = test::toy_start().hidden};
  expect_error<InputError>([&] { cached.forward(inputs, 1); }, HasSubstr("got number 1 of 1"));
  expect_error<InputError>([&] { cached.forward(inputs, -1); }, HasSubstr("got number -1"));
  expect_error<InputError>([&] { cached.forward(inputs, "block"); },
                           HasSubstr("got 'block'; there is blocks"));
  expect_error<InputError>([&] { cached.refresh_context("x"); }, HasSubstr("got 'x'"));
  BlockInputs late = inputs;
  late.step = RequestStep{.step = 4, .num_steps = 4};
  expect_error<InputError>([&] { cached.forward(late); }, HasSubstr("got 4 of 4 steps"));
  late.step = RequestStep{.step = -1, .num_steps = 4};
  expect_error<InputError>([&] { cached.forward(late); }, HasSubstr("got -1 of 4 steps"));
}

TEST(BlockAdapterErrors, InputsThatAreNotThePatterns) {
  const nn::Streams s = test::toy_start();
  CachedBlocks two(test::toy_adapter(1), kOneBlock);
  CachedBlocks one(test::toy_adapter(4), kOneBlock);
  expect_error<ConfigError>([&] { two.forward({.hidden_states = s.hidden}); },
                            AllOf(HasSubstr("ForwardPattern mismatch"), HasSubstr("'blocks'"),
                                  HasSubstr("pattern 1"), HasSubstr("got hidden_states only")));
  expect_error<ConfigError>(
      [&] { one.forward({.hidden_states = s.hidden, .encoder_hidden_states = s.encoder}); },
      AllOf(HasSubstr("ForwardPattern mismatch"), HasSubstr("pattern 4"),
            HasSubstr("Float[2, 3, 8] as well")));
  expect_error<ConfigError>([&] { one.forward({}); }, HasSubstr("got an undefined tensor"));
}

/// Pattern `pattern` with a third block that returns `outputs` of what it takes.
void expect_mismatch(int64_t pattern, const BlockFunction& outputs,
                     const ::testing::Matcher<std::string>& text) {
  for (const bool caches : {true, false}) {
    BlockAdapter adapter = test::toy_adapter(pattern);
    adapter.lists[0].blocks[2] = outputs;
    CachedBlocks cached(adapter, kOneBlock);
    if (!caches) cached.disable();
    const nn::Streams s = test::for_pattern(pattern, test::toy_start());
    expect_error<ConfigError>(
        [&] { cached.forward({.hidden_states = s.hidden, .encoder_hidden_states = s.encoder}); },
        AllOf(HasSubstr("ForwardPattern mismatch"), HasSubstr("block 2 of 'blocks'"),
              HasSubstr("(pattern " + std::to_string(pattern) + ")"), text));
  }
}

TEST(BlockAdapterErrors, OutputsThatAreNotThePatterns) {
  using Tensors = std::vector<at::Tensor>;
  const auto one = [](const Tensors& in) { return Tensors{in.at(0)}; };
  const auto two = [](const Tensors& in) { return Tensors{in.at(0), in.at(0)}; };
  const auto none = [](const Tensors&) { return Tensors{}; };
  expect_mismatch(0, one, HasSubstr("must return (hidden_states, encoder_hidden_states)"));
  expect_mismatch(1, one, HasSubstr("got 1 tensor: Float[2, 6, 8]"));
  expect_mismatch(2, two, HasSubstr("must return hidden_states (pattern 2)"));
  expect_mismatch(3, two, HasSubstr("got 2 tensors: Float[2, 6, 8], Float[2, 6, 8]"));
  expect_mismatch(4, one, HasSubstr("must return (hidden_states, encoder_hidden_states)"));
  expect_mismatch(5, none, HasSubstr("must return (encoder_hidden_states, hidden_states)"));
  // The two streams in the wrong order.
  expect_mismatch(
      0,
      [](const Tensors& in) {
        return Tensors{in.at(1), in.at(0)};
      },
      HasSubstr("must keep shape, dtype and device of hidden_states, Float[2, 6, 8]"));
  expect_mismatch(
      3, [](const Tensors& in) { return Tensors{in.at(0).to(at::kDouble)}; },
      HasSubstr("got 1 tensor: Double[2, 6, 8]"));
  expect_mismatch(
      3, [](const Tensors&) { return Tensors{at::Tensor()}; },
      HasSubstr("must return defined hidden_states"));
}

TEST(BlockAdapterErrors, ChecksSwitchedOffTakeOneOutputOrTwo) {
  using Tensors = std::vector<at::Tensor>;
  BlockAdapter adapter = test::toy_adapter(0);
  adapter.check_num_outputs = false;
  adapter.lists[0].blocks[2] = [](const Tensors& in) { return Tensors{in.at(0) + 1}; };
  CachedBlocks cached(adapter, kOneBlock);
  const nn::Streams s = test::toy_start();
  const auto out = cached.forward({.hidden_states = s.hidden, .encoder_hidden_states = s.encoder});
  EXPECT_EQ(out.at(0).sizes(), s.hidden.sizes());
  EXPECT_EQ(out.at(1).sizes(), s.encoder.sizes());

  const auto three = [](const Tensors& in) { return Tensors{in.at(0), in.at(0), in.at(0)}; };
  adapter.lists[0].blocks[2] = three;
  CachedBlocks too_many(adapter, kOneBlock);
  expect_error<ConfigError>(
      [&] { too_many.forward({.hidden_states = s.hidden, .encoder_hidden_states = s.encoder}); },
      HasSubstr("got 3 tensors"));

  const auto hidden_only = [](const Tensors& in) {
    return Tensors{in.at(1).defined() ? in.at(1) : in.at(0) * 2};
  };
  CachedBlocks unchecked({.lists = {{.blocks = {hidden_only}}}, .check_forward_pattern = false},
                         kOneBlock);
  const auto doubled = unchecked.forward({.hidden_states = s.hidden});
  EXPECT_TRUE(doubled.at(0).equal(s.hidden * 2));
  EXPECT_FALSE(doubled.at(1).defined());
}

}  // namespace
}  // namespace cachedit
