// Damaged configuration files: each is read, or refused with an error of ours.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cachedit/cachedit.h"
#include "io/safetensors.h"
#include "io/weight_store.h"
#include "pipelines/quantize_file.h"
#include "support/temp_dir.h"
#include "support/text_mutator.h"

namespace cachedit {
namespace {

constexpr const char* kYaml = R"(cache_config:
  Fn_compute_blocks: 1
  max_warmup_steps: 3
  residual_diff_threshold: 0.35
  steps_computation_mask: [1, 0, 1]
  steps_computation_policy: static
  enable_taylorseer: true
  taylorseer_order: 1
parallelism_config:
  ulysses_size: 2
  ring_size: auto
  tp_size: null
  attention_backend: native
  parallel_kwargs:
    experimental_ulysses_anything: true
    extra_parallel_modules: ["vae", text_encoder]
quantize_config:
  quant_type: int8_per_row
  exclude_layers: [norm, "to_q"]
  group_size: 128
  precision_plan: {attn.to_out: float8_per_tensor, ff: none, proj_mlp: ~}
  components_to_quantize:
    transformer: {quant_type: int4_weight_only}
attention_backend: sage
)";

constexpr const char* kJson = R"({"quant_method": "cachedit", "quant_type": "int8_per_row",
 "group_size": 64, "exclude_layers": ["norm"], "regional_quantize": true, "precision_plan": {},
 "layers": {"a.to_q": "int8_per_row", "a.to_k": "float8_per_block"}, "excluded": {"x": "why"}})";

struct Counts {
  int accepted = 0;
  int refused = 0;
};

class DamagedConfigs : public ::testing::Test {
 protected:
  // A damaged name is worth a warning to a user, not hundreds of them here.
  void SetUp() override { set_log_level(LogLevel::kError); }
  void TearDown() override { set_log_level(LogLevel::kWarning); }
  test::TempDir folder_;
};

Counts feed(const char* seed, int runs, const std::function<void(const std::string&)>& read) {
  read(seed);  // sound
  test::TextMutator mutator(1);
  Counts counts;
  for (int run = 0; run < runs; ++run) {
    const std::string text = mutator.mutate(seed);
    SCOPED_TRACE(text);
    try {
      read(text);
      ++counts.accepted;
    } catch (const Error&) {
      ++counts.refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  return counts;
}

TEST_F(DamagedConfigs, OfEverySectionAreReadOrRefused) {
  const Counts counts = feed(
      kYaml, 3000, [&](const std::string& text) { load_configs(folder_.write("c.yaml", text)); });
  EXPECT_GT(counts.accepted, 100);
  EXPECT_GT(counts.refused, 1000);
}

TEST_F(DamagedConfigs, OfQuantizedCheckpointsAreReadOrRefused) {
  io::write_safetensors(folder_ / "model.safetensors",
                        {{"a.to_q.weight", at::zeros({2, 2}, at::kChar)},
                         {"a.to_k.weight", at::zeros({2, 2}, at::kFloat8_e4m3fn)}});
  const auto store = io::WeightStore::open(folder_.path());
  const Counts counts = feed(kJson, 3000, [&](const std::string& text) {
    folder_.write("quantization_config.json", text);
    pipelines::read_stored_quantization(store);
  });
  EXPECT_GT(counts.accepted, 100);
  EXPECT_GT(counts.refused, 1000);
}

}  // namespace
}  // namespace cachedit
