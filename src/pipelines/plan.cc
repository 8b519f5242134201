#include "cachedit/plan.h"

#include <c10/core/InferenceMode.h>

#include <cmath>
#include <cstdio>
#include <utility>

#include "attention/registry.h"
#include "base/dtype_name.h"
#include "base/environment.h"
#include "base/fail.h"
#include "io/weight_store.h"
#include "models/flux/flux_transformer.h"
#include "models/vae/autoencoder_kl.h"
#include "pipelines/attention_choice.h"
#include "pipelines/checkpoint.h"
#include "pipelines/device.h"
#include "pipelines/flux_request.h"
#include "pipelines/flux_shape.h"
#include "pipelines/machine_rates.h"
#include "pipelines/quantize_choice.h"
#include "pipelines/weight_sizes.h"
#include "text/tokenizer.h"

namespace cachedit {
namespace pipelines {
namespace {

constexpr const char* kWhere = "plan";
constexpr int64_t kMaxWorld = 4096, kMaxBatch = 1024, kMaxSequenceLength = 512;
/// Between ranks of one machine, through shared memory. Bytes are copied in and out of it.
constexpr double kLocalBandwidth = 4e9;
constexpr double kLocalLatency = 50e-6;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", value);
  return text;
}

void check_positive(const std::optional<double>& value, const char* name, bool zero = false) {
  if (!value || (std::isfinite(*value) && (*value > 0 || (zero && *value == 0)))) return;
  fail<InputError>(kWhere, name, " must be finite and ", zero ? "at least" : "above", " 0: got ",
                   *value);
}

void check_request(const PlanRequest& r) {
  if (r.world < 1 || r.world > kMaxWorld) {
    fail<InputError>(kWhere, "world must lie in 1..", kMaxWorld, ": got ", r.world);
  }
  if (r.batch < 1 || r.batch > kMaxBatch) {
    fail<InputError>(kWhere, "batch must lie in 1..", kMaxBatch, ": got ", r.batch);
  }
  if (!r.attention_backend.empty() && r.attention_backend != attention::kAuto) {
    attention::builtin_registry().find(r.attention_backend);  // refuses an unknown one
  }
  check_positive(r.device_flops, "device_flops");
  check_positive(r.attention_flops, "attention_flops");
  check_positive(r.memory_bandwidth, "memory_bandwidth");
  check_positive(r.bandwidth, "bandwidth");
  check_positive(r.latency, "latency", true);
  check_positive(r.memory, "memory");
  if (r.ring_rotate_method != "p2p" && r.ring_rotate_method != "allgather") {
    fail<InputError>(kWhere, "ring_rotate_method must be p2p or allgather: got '",
                     r.ring_rotate_method, "'");
  }
}

/// What of a FLUX checkpoint the plan depends on.
struct FluxCheckpoint {
  models::FluxConfig config;
  at::ScalarType dtype = at::kFloat;
  WeightSizes transformer;
  int64_t group_size = 64;  ///< of int4 weights
  int64_t other_bytes = 0;
  FluxLimits limits;
};

FluxCheckpoint read_flux(const CheckpointIndex& index, const std::string& dtype,
                         const QuantizeChoice& quantize) {
  FluxCheckpoint flux;
  const auto folder = index.component("transformer", "FluxTransformer2DModel");
  io::JsonConfig json = io::JsonConfig::read(folder / "config.json");
  flux.config = models::FluxConfig::parse(json);
  const auto store = io::WeightStore::open(folder);
  flux.dtype = parse_dtype(dtype, store.floating_dtype(), at::kCPU);
  // Binding the weights without their bytes finds out whether they fit the config, and what becomes
  // of each layer.
  std::vector<nn::QuantizedLayer> layers;
  nn::WeightOptions options{.dtype = flux.dtype, .list_only = true};
  options.quantization = quantize.plan("transformer", store);
  options.on_linear_layer = [&](const nn::QuantizedLayer& layer) { layers.push_back(layer); };
  models::FluxTransformer(flux.config, store, options);
  flux.group_size = options.quantization.group_size;
  flux.transformer = weight_sizes(store, flux.dtype, layers, flux.group_size);

  const auto vae = index.component("vae", "AutoencoderKL");
  io::JsonConfig vae_json = io::JsonConfig::read(vae / "config.json");
  const auto vae_config = models::AutoencoderKlConfig::parse(vae_json);
  const auto clip_store = io::WeightStore::open(
      index.component("text_encoder", "CLIPTextModel|CLIPTextModelWithProjection"));
  const auto t5_store = io::WeightStore::open(index.component("text_encoder_2", "T5EncoderModel"));
  const auto vae_store = io::WeightStore::open(vae);
  quantize.warn_of_unmet(
      {{"transformer", &store}, {"text_encoder", &clip_store}, {"text_encoder_2", &t5_store}});
  for (const io::WeightStore* other : {&vae_store, &clip_store, &t5_store}) {
    flux.other_bytes += weight_sizes(*other, flux.dtype).bytes;
  }
  const auto tokenizer =
      text::load_t5_tokenizer(index.component("tokenizer_2", "T5Tokenizer|T5TokenizerFast"));
  flux.limits = {
      .vae_scale_factor = vae_config.scale_factor(),
      .sample_size = vae_config.sample_size,
      .default_sequence_length = std::min(tokenizer->model_max_length(), kMaxSequenceLength),
      .guidance_embeds = flux.config.guidance_embeds};
  return flux;
}

/// The tokens that `generate` would have for such a request, with its checks and warnings.
FluxPlan plan_tokens(const PlanRequest& r, const FluxLimits& limits) {
  GenerateRequest request;
  request.prompt = {""};
  request.num_images_per_prompt = r.batch;
  request.height = r.height;
  request.width = r.width;
  request.max_sequence_length = r.text_tokens;
  request.num_inference_steps = r.steps;
  return plan_flux_request(request, limits);
}

parallel::Workload workload_of(const PlanRequest& r, const FluxCheckpoint& flux,
                               const FluxPlan& tokens) {
  parallel::Workload work;
  work.image_tokens = tokens.grid_height * tokens.grid_width;
  work.text_tokens = tokens.max_sequence_length;
  work.batch = r.batch;
  work.branches = r.true_cfg ? 2 : 1;
  work.steps = tokens.num_inference_steps;
  work.element_size = static_cast<int64_t>(c10::elementSize(flux.dtype));
  work.weight_size = static_cast<double>(flux.transformer.bytes) /
                     static_cast<double>(flux.transformer.parameters);
  work.resident_bytes = flux.other_bytes;
  work.ulysses = {
      .anything = r.ulysses_anything, .float8 = r.ulysses_float8, .async = r.ulysses_async};
  work.ring = {.rotate_method = r.ring_rotate_method == "p2p"
                                    ? parallel::RingRotateMethod::kP2P
                                    : parallel::RingRotateMethod::kAllGather,
               .convert_to_fp32 = r.ring_convert_to_fp32};
  return work;
}

/// What is not given is measured or assumed, and said in `assumptions`.
parallel::Machine machine_of(const PlanRequest& r, const parallel::TransformerShape& shape,
                             const parallel::Workload& work, const FluxCheckpoint& flux,
                             std::vector<std::string>& assumptions) {
  parallel::Machine machine;
  const auto assume = [&](const std::string& text) { assumptions.push_back(text); };
  if (r.device_flops) {
    machine.gemm_flops = *r.device_flops;
    machine.attention_flops = r.attention_flops.value_or(*r.device_flops);
    machine.memory_bandwidth = r.memory_bandwidth.value_or(0);
    if (!r.attention_flops) assume("attention computes at the rate of matrix products");
    if (!r.memory_bandwidth) assume("norms, activations and other memory-bound work are left out");
  } else {
    AttentionChoice backend(at::kCPU, environment().attention_backend);
    if (!r.attention_backend.empty()) {
      backend.choose(r.attention_backend, AttentionSource::kExplicit);
    }
    const MachineRates rates = measure_rates({.heads = shape.heads,
                                              .head_dim = shape.head_dim,
                                              .tokens = work.image_tokens + work.text_tokens,
                                              .dtype = flux.dtype,
                                              .type = flux.transformer.type,
                                              .group_size = flux.group_size},
                                             *backend.make());
    machine.gemm_flops = rates.gemm_flops;
    machine.attention_flops = r.attention_flops.value_or(rates.attention_flops);
    machine.memory_bandwidth = r.memory_bandwidth.value_or(rates.memory_bandwidth);
    assume("each rank computes as this machine does with the threads of this process");
  }
  machine.bandwidth = r.bandwidth.value_or(kLocalBandwidth);
  machine.latency = r.latency.value_or(kLocalLatency);
  machine.memory = r.memory.value_or(0);
  machine.overlap = r.overlap.value_or(r.device_flops.has_value());
  if (!r.bandwidth) {
    assume("ranks of one machine: " + number(kLocalBandwidth / 1e9) + " GB/s between them");
  }
  if (!r.overlap) {
    assume(machine.overlap ? "data travels while ranks compute"
                           : "MPI moves data while ranks wait: nothing is hidden");
  }
  if (!r.latency) {
    assume("ranks of one machine: " + number(kLocalLatency * 1e6) + " us a message");
  }
  return machine;
}

/// The layout as options of `cachedit generate`.
std::string options_of(const parallel::Layout& layout, const PlanRequest& r) {
  std::string type, options;
  if (!r.attention_backend.empty()) options += " --attn " + r.attention_backend;
  if (r.quantize_config) options += " --quantize-type " + r.quantize_config->quant_type;
  const auto size = [&](const char* name, int64_t value) {
    if (value > 1) options += c10::str(" --", name, "-size ", value);
  };
  if (layout.ulysses > 1) type = layout.ring > 1 ? "usp" : "ulysses";
  if (layout.ring > 1 && type.empty()) type = "ring";
  if (layout.tp > 1) type += type.empty() ? "tp" : "_tp";
  size("cfg", layout.cfg);
  size("ulysses", layout.ulysses);
  size("ring", layout.ring);
  size("tp", layout.tp);
  if (layout.ulysses > 1) {
    if (r.ulysses_anything) options += " --ulysses-anything";
    if (r.ulysses_float8) options += " --ulysses-float8";
    if (r.ulysses_async) options += " --ulysses-async";
  }
  if (layout.ring > 1) {
    if (r.ring_rotate_method != "p2p") options += " --ring-rotate-method " + r.ring_rotate_method;
    if (!r.ring_convert_to_fp32) options += " --ring-no-convert-to-fp32";
  }
  if (!type.empty()) return "--parallel-type " + type + options;
  return options.empty() ? options : options.substr(1);
}

LayoutPlan to_plan(const parallel::LayoutCost& cost, const PlanRequest& request) {
  const parallel::Layout& layout = cost.layout;
  return {.cfg = layout.cfg,
          .ring = layout.ring,
          .ulysses = layout.ulysses,
          .tp = layout.tp,
          .name = parallel::to_string(layout),
          .fits = cost.infeasible.empty(),
          .reason = cost.infeasible,
          .best = cost.best,
          .seconds = cost.seconds,
          .compute_seconds = cost.compute_seconds,
          .communication_seconds = cost.communication_seconds,
          .exposed_seconds = cost.exposed_seconds,
          .bytes_sent = cost.bytes_sent,
          .messages = cost.messages,
          .bytes_once = cost.bytes_once,
          .messages_once = cost.messages_once,
          .weight_bytes = cost.weight_bytes,
          .activation_bytes = cost.activation_bytes,
          .options = options_of(layout, request)};
}

ParallelPlan plan_flux(const CheckpointIndex& index, const PlanRequest& request) {
  const QuantizeChoice quantize(request.quantize_config, at::kCPU);
  const FluxCheckpoint flux = read_flux(index, request.dtype, quantize);
  const FluxPlan tokens = plan_tokens(request, flux.limits);
  const parallel::TransformerShape shape = flux_shape(flux.config, flux.transformer.parameters);
  const parallel::Workload work = workload_of(request, flux, tokens);
  ParallelPlan plan;
  const parallel::Machine machine = machine_of(request, shape, work, flux, plan.assumptions);
  for (const auto& cost : parallel::compare_layouts(shape, work, machine, request.world)) {
    plan.layouts.push_back(to_plan(cost, request));
  }
  plan.height = tokens.height;
  plan.width = tokens.width;
  plan.image_tokens = work.image_tokens;
  plan.text_tokens = work.text_tokens;
  plan.batch = work.batch;
  plan.branches = work.branches;
  plan.steps = work.steps;
  plan.dtype = dtype_name(flux.dtype);
  plan.gemm_operations = parallel::gemm_flops(shape, work);
  plan.attention_operations = parallel::attention_flops(shape, work);
  plan.device_flops = machine.gemm_flops;
  plan.attention_flops = machine.attention_flops;
  plan.memory_bandwidth = machine.memory_bandwidth;
  plan.bandwidth = machine.bandwidth;
  plan.latency = machine.latency;
  plan.overlap = machine.overlap;
  return plan;
}

}  // namespace
}  // namespace pipelines

ParallelPlan plan_layouts(const std::string& model, const PlanRequest& request) {
  const c10::InferenceMode inference;
  pipelines::check_request(request);
  const pipelines::CheckpointIndex index = pipelines::read_checkpoint_index(model);
  if (index.class_name == "FluxPipeline" || index.class_name == "FluxImg2ImgPipeline") {
    return pipelines::plan_flux(index, request);
  }
  fail<UnsupportedError>((index.folder / "model_index.json").string(),
                         "this version runs FluxPipeline and FluxImg2ImgPipeline: got ",
                         index.class_name);
}

}  // namespace cachedit
