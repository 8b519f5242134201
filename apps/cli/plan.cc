// `cachedit plan`: what each parallel layout of a number of ranks is predicted to cost.
#include "cachedit/plan.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cachedit/files.h"
#include "cachedit/pipeline.h"
#include "commands.h"
#include "generate_options.h"
#include "report.h"

namespace cachedit::cli {
namespace {

struct PlanOptions {
  PlanRequest what;
  std::string quantize_type;
  std::string model_path;
  std::optional<int64_t> threads;
  std::string json;
};

/// 80e9, "80G" or "74.5Gi", rewritten as a plain number.
CLI::Validator quantity() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        static constexpr std::pair<const char*, double> kUnits[] = {
            {"", 1},     {"K", 1e3},     {"M", 1e6},     {"G", 1e9},     {"T", 1e12},
            {"P", 1e15}, {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}};
        double value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        for (const auto& [unit, factor] : kUnits) {
          if (error != std::errc() || std::string(stop, end) != unit) continue;
          char plain[64];
          std::snprintf(plain, sizeof(plain), "%.17g", value * factor);
          text = plain;
          return "";
        }
        return "must be a number, with K, M, G, T, P, Ki, Mi, Gi or Ti behind it or not: got '" +
               text + "'";
      },
      "", "quantity");
}

nlohmann::ordered_json to_json(const LayoutPlan& p) {
  return {{"layout", p.name},
          {"cfg", p.cfg},
          {"ring", p.ring},
          {"ulysses", p.ulysses},
          {"tp", p.tp},
          {"fits", p.fits},
          {"reason", p.reason},
          {"best", p.best},
          {"seconds", p.seconds},
          {"compute_seconds", p.compute_seconds},
          {"communication_seconds", p.communication_seconds},
          {"exposed_seconds", p.exposed_seconds},
          {"bytes_sent", p.bytes_sent},
          {"messages", p.messages},
          {"bytes_once", p.bytes_once},
          {"messages_once", p.messages_once},
          {"weight_bytes", p.weight_bytes},
          {"activation_bytes", p.activation_bytes},
          {"options", p.options}};
}

nlohmann::ordered_json to_json(const ParallelPlan& plan, const std::string& model, int64_t world) {
  nlohmann::ordered_json layouts = nlohmann::ordered_json::array();
  for (const LayoutPlan& layout : plan.layouts) layouts.push_back(to_json(layout));
  return {{"model", model},
          {"world", world},
          {"height", plan.height},
          {"width", plan.width},
          {"image_tokens", plan.image_tokens},
          {"text_tokens", plan.text_tokens},
          {"batch", plan.batch},
          {"branches", plan.branches},
          {"steps", plan.steps},
          {"dtype", plan.dtype},
          {"gemm_operations", plan.gemm_operations},
          {"attention_operations", plan.attention_operations},
          {"device_flops", plan.device_flops},
          {"attention_flops", plan.attention_flops},
          {"memory_bandwidth", plan.memory_bandwidth},
          {"bandwidth", plan.bandwidth},
          {"latency", plan.latency},
          {"overlap", plan.overlap},
          {"assumptions", plan.assumptions},
          {"layouts", layouts}};
}

/// The number with three digits, and the unit that suits it: "412 G".
std::string scaled(double value) {
  const char* units[] = {"", " K", " M", " G", " T", " P", " E"};
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(units); ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g%s", value, units[unit]);
  return text;
}

void print_head(const ParallelPlan& plan) {
  std::printf(
      "%lld x %lld pixels (width x height): %lld image and %lld text tokens, batch %lld, "
      "%lld guidance %s, %s\n",
      static_cast<long long>(plan.width), static_cast<long long>(plan.height),
      static_cast<long long>(plan.image_tokens), static_cast<long long>(plan.text_tokens),
      static_cast<long long>(plan.batch), static_cast<long long>(plan.branches),
      plan.branches == 1 ? "branch" : "branches", plan.dtype.c_str());
  std::printf("A step: %sFLOP in matrix products, %sFLOP in attention\n",
              scaled(plan.gemm_operations).c_str(), scaled(plan.attention_operations).c_str());
  std::printf("A rank: %sFLOP/s and %sFLOP/s, %s%sB/s and %s s a message to other ranks\n",
              scaled(plan.device_flops).c_str(), scaled(plan.attention_flops).c_str(),
              plan.memory_bandwidth > 0
                  ? ("memory " + scaled(plan.memory_bandwidth) + "B/s, ").c_str()
                  : "",
              scaled(plan.bandwidth).c_str(), scaled(plan.latency).c_str());
  for (const std::string& text : plan.assumptions) std::printf("Assumed: %s\n", text.c_str());
  std::printf("\n");
}

void print_layouts(const ParallelPlan& plan) {
  size_t width = 6;
  for (const LayoutPlan& p : plan.layouts) width = std::max(width, p.name.size());
  const int column = static_cast<int>(width);
  std::printf("  %-*s %10s %10s %10s %10s %10s %9s %8s %8s  %s\n", column, "layout", "s/step",
              "compute", "comm.", "exposed", "MB sent", "messages", "weights", "activ.", "fits");
  constexpr double kGib = 1 << 30;
  for (const LayoutPlan& p : plan.layouts) {
    std::printf("%c %-*s ", p.best ? '*' : ' ', column, p.name.c_str());
    if (p.seconds == 0) {
      std::printf("%10s %10s %10s %10s %10s %9s %8s %8s", "-", "-", "-", "-", "-", "-", "-", "-");
    } else {
      std::printf("%10.4g %10.4g %10.4g %10.4g %10.4g %9lld %8.3f %8.3f", p.seconds,
                  p.compute_seconds, p.communication_seconds, p.exposed_seconds,
                  static_cast<double>(p.bytes_sent) / 1e6, static_cast<long long>(p.messages),
                  static_cast<double>(p.weight_bytes) / kGib,
                  static_cast<double>(p.activation_bytes) / kGib);
    }
    std::printf("  %s\n", p.fits ? "yes" : ("no: " + p.reason).c_str());
  }
  std::printf(
      "\nSeconds, megabytes and messages of a rank and step, GiB a rank (activations: an "
      "estimate for the transformer).\n");
}

/// How to start the best layout.
void print_command(const ParallelPlan& plan, const PlanOptions& options) {
  if (plan.layouts.empty() || !plan.layouts[0].best) {
    std::printf("No layout of %lld ranks fits.\n", static_cast<long long>(options.what.world));
    return;
  }
  std::string command;
  if (options.what.world > 1) command = "mpirun -n " + std::to_string(options.what.world) + " ";
  command += "cachedit generate";
  if (!options.model_path.empty()) command += " --model-path " + options.model_path;
  command += " --height " + std::to_string(plan.height);
  command += " --width " + std::to_string(plan.width);
  if (options.what.dtype != "auto") command += " --dtype " + options.what.dtype;
  if (!plan.layouts[0].options.empty()) command += " " + plan.layouts[0].options;
  std::printf("The best: %s\n", command.c_str());
}

void run(PlanOptions& options) {
  if (!options.quantize_type.empty()) {
    options.what.quantize_config = QuantizeConfig{.quant_type = options.quantize_type};
  }
  if (!options.json.empty()) check_writable(options.json);
  if (options.threads) set_num_threads(*options.threads);
  const std::string model =
      options.model_path.empty() ? default_model_path().string() : options.model_path;
  const ParallelPlan plan = plan_layouts(model, options.what);
  print_head(plan);
  print_layouts(plan);
  print_command(plan, options);
  if (!options.json.empty()) {
    write_file(options.json, to_text(to_json(plan, model, options.what.world)));
  }
}

void add_work_options(CLI::App& command, PlanOptions& o) {
  PlanRequest& r = o.what;
  const auto integer = [&](const char* names, auto& value, const char* help) {
    return command.add_option(names, value, help)->check(whole_number());
  };
  command
      .add_option("--model-path", o.model_path,
                  "Folder in diffusers' layout, or a hub name in the local Hugging Face cache "
                  "(default: the shipped model); weights are not read")
      ->check(not_empty());
  integer("--world", r.world, "Ranks (processes)")->required();
  integer("--height", r.height, "Pixels (default: the checkpoint's size)");
  integer("--width", r.width, "Pixels (default: the checkpoint's size)");
  integer("--batch", r.batch, "Pictures at a time (default 1)");
  integer("--text-tokens,--max-sequence-length", r.text_tokens,
          "T5 tokens, at most 512 (default: tokenizer_2's limit)");
  integer("--steps,--num-inference-steps", r.steps, "Steps of a run (default 28)");
  command.add_flag("--true-cfg", r.true_cfg, "Two guidance branches a step");
  command.add_option("--dtype", r.dtype, "auto, fp32, bf16 or fp16")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
  command.add_option("--attn,--attention-backend", r.attention_backend, "As in generate");
  command.add_option("--quantize-type", o.quantize_type, "As in generate")->check(not_empty());
}

void add_machine_options(CLI::App& command, PlanOptions& o) {
  PlanRequest& r = o.what;
  const auto number = [&](const char* name, std::optional<double>& value, const char* help) {
    command.add_option(name, value, help)->transform(quantity());
  };
  number("--device-flops", r.device_flops,
         "Operations a second that a rank reaches in matrix products, as in 200T (default: "
         "measured on this CPU)");
  number("--attention-flops", r.attention_flops,
         "The same in attention (default: measured, or --device-flops)");
  number("--memory-bandwidth", r.memory_bandwidth,
         "Bytes a second of norms and the like (default: measured, or left out)");
  number("--bandwidth", r.bandwidth,
         "Bytes a second that a rank sends (default: ranks of one machine)");
  number("--latency", r.latency, "Seconds a message (default: ranks of one machine)");
  number("--memory", r.memory, "Bytes that a rank has, as in 80G or 64Gi (default: no limit)");
  // CLI11 would set a flag's std::optional even where the flag is not given.
  CLI::Option* overlap = command.add_flag_callback(
      "--overlap", [&r] { r.overlap = true; },
      "Data travels while ranks compute (default with --device-flops)");
  command
      .add_flag_callback(
          "--no-overlap", [&r] { r.overlap = false; }, "It does not (default without)")
      ->excludes(overlap);
  command.add_option("--threads", o.threads, "CPU threads of a rank, for what is measured")
      ->check(whole_number());
}

void add_layout_options(CLI::App& command, PlanRequest& r) {
  command.add_flag("--ulysses-anything", r.ulysses_anything, "As in generate");
  command.add_flag("--ulysses-float8", r.ulysses_float8, "As in generate");
  command.add_flag("--ulysses-async", r.ulysses_async, "As in generate");
  command.add_option("--ring-rotate-method", r.ring_rotate_method, "p2p or allgather")
      ->check(CLI::IsMember({"p2p", "allgather"}));
  command.add_flag("!--ring-no-convert-to-fp32", r.ring_convert_to_fp32, "As in generate");
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "Predict time, traffic and memory of every parallel layout, and mark the best");
  add_work_options(*command, *options);
  add_machine_options(*command, *options);
  add_layout_options(*command, options->what);
  command->add_option("--json", options->json, "Also write the plan to this file")
      ->check(not_empty());
  command->callback([options] { run(*options); });
}

}  // namespace cachedit::cli
