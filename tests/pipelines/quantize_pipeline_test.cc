// Quantization through a pipeline: at load, by enable_cache(), from stored checkpoints, on ranks.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "cachedit/cachedit.h"
#include "io/safetensors.h"
#include "io/weight_store.h"
#include "parallel_support.h"
#include "quantize_types.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"

namespace cachedit {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

GenerateRequest latents_request(int64_t steps = 4) {
  return {.prompt = {"a red heart"},
          .num_inference_steps = steps,
          .seed = 3,
          .output_type = OutputType::kLatent};
}

std::unique_ptr<Pipeline> load(const fs::path& model, std::optional<QuantizeConfig> config = {},
                               const std::string& dtype = "auto") {
  return load_pipeline(model.string(),
                       {.dtype = dtype, .device = "cpu", .quantize_config = std::move(config)});
}

at::Tensor draw(const Pipeline& pipeline) { return pipeline.generate(latents_request()).latents; }

ComponentQuantization of(const Pipeline& pipeline, const std::string& component) {
  for (const ComponentQuantization& c : pipeline.quantization()) {
    if (c.component == component) return c;
  }
  return {};
}

QuantizeConfig whole_model(const std::string& type) {
  return {.quant_type = type,
          .components_to_quantize = {
              {"transformer", {}}, {"text_encoder", {}}, {"text_encoder_2", {}}}};
}

/// How far the latents of latents_request() go from those without quantization, as measured with
/// AVX-512 and bf16 products, in the transformer alone or in the text encoders as well.
double measured(const std::string& type) {
  static const std::map<std::string, double> distances = {
      {"int8_per_row", 0.013},     {"int8_per_tensor", 0.019},   {"int8_weight_only", 0.009},
      {"int4_weight_only", 0.092}, {"float8_per_row", 0.030},    {"float8_per_tensor", 0.032},
      {"float8_per_block", 0.032}, {"float8_weight_only", 0.023}};
  return distances.at(type);
}

TEST(QuantizedPipeline, EveryTypeQuantizesTheBlocksAndStaysClose) {
  const auto plain = load(test::demo_model());
  const at::Tensor want = draw(*plain);
  EXPECT_EQ(quantization_summary(plain->quantization()), "");
  for (const char* type : test::kQuantizeTypes) {
    const auto pipeline = load(test::demo_model(), {{.quant_type = type}});
    const ComponentQuantization record = of(*pipeline, "transformer");
    // 4 double blocks of 14 layers, 8 single ones of 6; embedders, norm_out, proj_out stay.
    EXPECT_EQ(record.quantized_layers(), 4 * 14 + 8 * 6);
    EXPECT_EQ(static_cast<int64_t>(record.layers.size()), 4 * 14 + 8 * 6 + 8);
    EXPECT_LT(pipeline->transformer_bytes(), plain->transformer_bytes() * 7 / 10) << type;
    const at::Tensor got = draw(*pipeline);
    EXPECT_GT(test::relative_error(got, want), 1e-4) << type << " rounded nothing";
    EXPECT_LT(test::relative_error(got, want), 2 * measured(type)) << type;
    EXPECT_THAT(quantization_summary(pipeline->quantization()),
                AllOf(HasSubstr("transformer: 104 of 112 linear layers quantized"),
                      HasSubstr(std::string(type) + " 104"), HasSubstr("8 outside of the blocks")));
  }
}

TEST(QuantizedPipeline, TextEncodersAreQuantizedWhereTheyAreNamed) {
  const auto pipeline = load(test::demo_model(), whole_model("int8_per_row"));
  EXPECT_EQ(of(*pipeline, "text_encoder").quantized_layers(), 2 * 6);
  EXPECT_EQ(of(*pipeline, "text_encoder_2").quantized_layers(), 2 * 7);
  EXPECT_LT(test::relative_error(draw(*pipeline), draw(*load(test::demo_model()))),
            2 * measured("int8_per_row"));
}

TEST(QuantizedPipeline, EnableCacheQuantizesAndChangesNothingElse) {
  const auto pipeline = load(test::demo_model());
  enable_cache(*pipeline, {.quantize_config = QuantizeConfig{.quant_type = "int8_per_row"}});
  EXPECT_EQ(cache_summary_name(*pipeline), "");
  const at::Tensor at_load = draw(*load(test::demo_model(), {{.quant_type = "int8_per_row"}}));
  EXPECT_TRUE(test::same_values(draw(*pipeline), at_load));
  enable_cache(*pipeline, {.quantize_config = QuantizeConfig{.quant_type = "none"}});
  EXPECT_TRUE(test::same_values(draw(*pipeline), draw(*load(test::demo_model()))));
  test::expect_error<ConfigError>(
      [&] { enable_cache(*pipeline, {.quantize_config = QuantizeConfig{.quant_type = "fp9"}}); },
      HasSubstr("fp9"));
}

TEST(QuantizedPipeline, WorksWithCaching) {
  const auto draw_cached = [](const Pipeline& pipeline) {
    return pipeline.generate(latents_request(10));
  };
  const auto pipeline = load(test::demo_model(), {{.quant_type = "int8_per_row"}});
  const auto plain = load(test::demo_model());
  for (Pipeline* each : {pipeline.get(), plain.get()}) {
    enable_cache(*each, parse_cache_options("F1B0_W2_R0.5"));
  }
  const GenerateResult cached = draw_cached(*pipeline), want = draw_cached(*plain);
  EXPECT_FALSE(cached.cache.at(0).conditional.cached_steps.empty());
  EXPECT_EQ(cached.cache.at(0).conditional.cached_steps, want.cache.at(0).conditional.cached_steps);
  // Measured: 0.010; caching itself is 0.05 away from the whole computation.
  EXPECT_LT(test::relative_error(cached.latents, want.latents), 0.021);
}

TEST(QuantizedPipeline, TensorParallelRanksGiveTheLatentsOfOne) {
  const at::Tensor exact = draw(*load(test::demo_model(), std::nullopt, "fp32"));
  for (const char* type : test::kQuantizeTypes) {
    QuantizeConfig config{.quant_type = type};
    if (config.quant_type == "int4_weight_only") config.group_size = 32;
    const at::Tensor alone = draw(*load(test::demo_model(), config, "fp32"));
    for (const ParallelismConfig& layout :
         {ParallelismConfig{.tp_size = 2}, ParallelismConfig{.ring_size = 2}}) {
      if (layout.ring_size && std::string(type).ends_with("per_tensor")) continue;  // own tokens
      at::Tensor got;
      std::string summary;
      test::run_ranks(2, [&](comm::Communicator& rank) {
        const World world(std::shared_ptr<comm::Communicator>(&rank, [](comm::Communicator*) {}));
        const auto pipeline =
            load_pipeline(test::demo_model().string(), {.dtype = "fp32",
                                                        .device = "cpu",
                                                        .world = world,
                                                        .parallelism_config = layout,
                                                        .quantize_config = config});
        const at::Tensor own = draw(*pipeline);
        if (rank.rank() == 0) {
          got = own;
          summary = quantization_summary(pipeline->quantization());
        }
      });
      // Blocks of 128 do not fit shares of 64: those layers become float8_per_tensor.
      const bool other = summary.find("of another type") != std::string::npos;
      EXPECT_EQ(other, layout.tp_size && std::string(type) == "float8_per_block") << summary;
      // A sum in another order moves some activations over a rounding boundary; a dozen layers
      // later all roundings are others. One layer alone is equal: see
      // tests/nn/linear_shards_test.cc.
      const double rounding = test::relative_error(alone, exact);
      EXPECT_LE(test::relative_error(got, alone), 1.5 * rounding + 1e-4) << type;
    }
  }
}

TEST(QuantizedPipeline, RanksThatDisagreeAreRefused) {
  std::vector<std::string> texts(2);
  test::run_ranks(2, [&](comm::Communicator& rank) {
    const World world(std::shared_ptr<comm::Communicator>(&rank, [](comm::Communicator*) {}));
    try {
      load_pipeline(test::demo_model().string(),
                    {.world = world,
                     .parallelism_config = {.tp_size = 2},
                     .quantize_config = QuantizeConfig{
                         .quant_type = rank.rank() == 0 ? "int8_per_row" : "int8_weight_only"}});
    } catch (const CommError& error) {
      texts[static_cast<size_t>(rank.rank())] = error.what();
    }
  });
  EXPECT_THAT(texts[0], AllOf(HasSubstr("same quantize_config"), HasSubstr("int8_weight_only")));
  EXPECT_EQ(texts[1], texts[0]);
}

/// The demo model with one component's two-dimensional weights replaced.
class StoredFloat8 : public ::testing::Test {
 protected:
  using Change = std::function<void(std::map<std::string, at::Tensor>&, const std::string& layer)>;

  fs::path make(const std::string& component, const Change& change) {
    const fs::path model = folder_.path() / "model";
    fs::remove_all(model);
    fs::copy(test::demo_model(), model, fs::copy_options::recursive);
    const fs::path file =
        model / component /
        (component == "transformer" ? "diffusion_pytorch_model.safetensors" : "model.safetensors");
    std::map<std::string, at::Tensor> tensors;
    {
      const io::SafetensorsFile source(file);
      for (const auto& [name, entry] : source.header().tensors) {
        tensors[name] = source.tensor(name).clone();
      }
    }
    std::vector<std::string> layers;
    for (const auto& [name, tensor] : tensors) {
      const bool linear = tensor.dim() == 2 && name.ends_with(".weight") &&
                          name.find("shared") == std::string::npos &&
                          name.find("embed_tokens") == std::string::npos &&
                          name.find("embedding") == std::string::npos &&
                          name.find("relative_attention") == std::string::npos;
      if (linear) layers.push_back(name.substr(0, name.size() - 7));
    }
    layers_ = static_cast<int64_t>(layers.size());
    for (const std::string& layer : layers) change(tensors, layer);
    fs::remove(file);
    io::write_safetensors(file, tensors);
    return model;
  }

  int64_t layers_ = 0;
  test::TempDir folder_;
};

TEST_F(StoredFloat8, LoadsAndStaysOneByteAWeightInEveryComponent) {
  const at::Tensor want = draw(*load(test::demo_model()));
  const auto per_row = [](std::map<std::string, at::Tensor>& tensors, const std::string& layer) {
    at::Tensor& weight = tensors[layer + ".weight"];
    const at::Tensor wide = weight.to(at::kFloat);
    const at::Tensor scale = wide.abs().amax(1, true).clamp_min(1e-12) / 448;
    weight = (wide / scale).to(at::kFloat8_e4m3fn);
    tensors[layer + ".weight_scale"] = scale;
  };
  const auto per_tensor = [](std::map<std::string, at::Tensor>& tensors, const std::string& layer) {
    at::Tensor& weight = tensors[layer + ".weight"];
    const at::Tensor wide = weight.to(at::kFloat);
    const at::Tensor scale = wide.abs().max() / 448;
    weight = (wide / scale).to(at::kFloat8_e4m3fn);
    tensors[layer + ".scale_weight"] = scale;
    tensors[layer + ".scale_input"] = scale;
  };
  const auto unscaled = [](std::map<std::string, at::Tensor>& tensors, const std::string& layer) {
    at::Tensor& weight = tensors[layer + ".weight"];
    weight = weight.to(at::kFloat8_e4m3fn);
  };
  const auto int8 = [](std::map<std::string, at::Tensor>& tensors, const std::string& layer) {
    at::Tensor& weight = tensors[layer + ".weight"];
    const at::Tensor wide = weight.to(at::kFloat);
    const at::Tensor scale = wide.abs().amax(1).clamp_min(1e-12) / 127;
    weight = (wide / scale.unsqueeze(1)).round().to(at::kChar);
    tensors[layer + ".weight_scale"] = scale;
  };
  // The largest measured: 0.035 of unscaled values, 0.010 of int8; the prompt's roundings change
  // latents by 0.008.
  for (const auto& [component, bound] :
       {std::pair("transformer", 0.07), {"text_encoder", 0.016}, {"text_encoder_2", 0.016}}) {
    for (const Change& change :
         {Change(per_row), Change(per_tensor), Change(unscaled), Change(int8)}) {
      const auto pipeline = load(make(component, change));
      EXPECT_EQ(pipeline->dtype(), "bf16");
      const ComponentQuantization record = of(*pipeline, component);
      EXPECT_EQ(record.quantized_layers(), layers_) << component;
      int64_t weights = 0;
      const auto store = io::WeightStore::open(folder_.path() / "model" / component);
      for (const LayerQuantization& layer : record.layers) {
        weights += store.tensor(layer.layer + ".weight").numel();
      }
      EXPECT_LE(record.bytes, weights * 110 / 100) << "scales and padding besides";
      EXPECT_LE(record.stored_bytes, weights * 110 / 100);
      EXPECT_LT(test::relative_error(draw(*pipeline), want), bound) << component;
    }
  }
}

TEST_F(StoredFloat8, TheSummarySaysWhatWasAskedForAndWhatTheFileHas) {
  const fs::path model = make("transformer", [](auto& tensors, const std::string& layer) {
    at::Tensor& weight = tensors[layer + ".weight"];
    weight = weight.to(at::kFloat8_e4m3fn);
  });
  const auto summary = [&](const std::string& type) {
    return quantization_summary(load(model, {{.quant_type = type}})->quantization());
  };
  EXPECT_THAT(summary("float8_weight_only"),
              AllOf(HasSubstr("112 of 112 linear layers quantized (float8_weight_only 112)"),
                    HasSubstr("; quantized in the file, kept so: 8 outside of the blocks"),
                    Not(HasSubstr("of another type"))));
  EXPECT_THAT(summary("int8_per_row"),
              AllOf(HasSubstr("of another type than asked for: 104 stored as fp8_e4m3, kept so"),
                    HasSubstr("; quantized in the file, kept so: 8 outside of the blocks")));
}

TEST_F(StoredFloat8, EmbeddingsInFloat8AreUnderstoodAndE5M2IsRefused) {
  const auto e5m2 = [](std::map<std::string, at::Tensor>& tensors, const std::string& layer) {
    at::Tensor& weight = tensors[layer + ".weight"];
    weight = weight.to(at::kFloat8_e5m2);
  };
  test::expect_error<UnsupportedError>([&] { load(make("transformer", e5m2)); },
                                       AllOf(HasSubstr("fp8_e5m2"), HasSubstr(".weight")));
  const auto everything = [](std::map<std::string, at::Tensor>& tensors, const std::string&) {
    for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kFloat8_e4m3fn);
  };
  const at::Tensor want = draw(*load(test::demo_model()));
  // Measured: 0.011, 0.008.
  for (const auto& [component, bound] :
       {std::pair("text_encoder", 0.022), {"text_encoder_2", 0.017}}) {
    const auto pipeline = load(make(component, everything));
    EXPECT_LT(test::relative_error(draw(*pipeline), want), bound) << component;
  }
}

}  // namespace
}  // namespace cachedit
