#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cachedit/attention.h"
#include "cachedit/error.h"
#include "commands.h"
#include "generate_options.h"
#include "report.h"

namespace cachedit::cli {
namespace {

using attention::AvailabilityInfo;
using attention::BackendChoice;
using attention::BackendInfo;
using attention::BackendQuery;
using attention::DeviceInfo;

struct BackendsOptions {
  bool json = false;
  std::string shape;
  BackendQuery query;
  std::vector<std::string> op_libraries;
};

/// "1,4608,24,128" as B, N, H, D.
void parse_shape(const std::string& text, BackendQuery& query) {
  int64_t* fields[] = {&query.batch, &query.tokens, &query.heads, &query.head_dim};
  const char* at = text.data();
  const char* end = at + text.size();
  for (size_t i = 0; i < 4; ++i) {
    const auto [stop, error] = std::from_chars(at, end, *fields[i]);
    const bool last = i == 3;
    if (error != std::errc() || (last ? stop != end : stop == end || *stop != ',')) {
      throw InputError("[shape] must be B,N,H,D, four whole numbers: got '" + text +
                       "'; for example 1,4608,24,128");
    }
    at = stop + 1;
  }
}

nlohmann::ordered_json to_json(const DeviceInfo& d) {
  nlohmann::ordered_json json = {
      {"device", d.device},
      {"available", d.availability.available},
      {"reason", d.availability.reason},
      {"remedy", d.availability.remedy},
      {"dtypes", d.dtypes},
      {"head_dim",
       {{"min", d.min_head_dim}, {"max", d.max_head_dim}, {"multiple", d.head_dim_multiple}}},
      {"causal", d.causal},
      {"causal_alignment", d.causal_alignment},
      {"mask", d.mask},
      {"mask_under_context_parallelism", d.mask_under_context_parallelism},
      {"gqa", d.gqa},
      {"lse", d.lse},
      {"compute_capabilities", d.compute_capabilities},
      {"note", d.note}};
  return json;
}

nlohmann::ordered_json to_json(const BackendInfo& backend) {
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const DeviceInfo& d : backend.devices) devices.push_back(to_json(d));
  return {{"name", backend.name}, {"description", backend.description}, {"devices", devices}};
}

nlohmann::ordered_json to_json(const BackendChoice& choice, const BackendQuery& query) {
  nlohmann::ordered_json passed_over = nlohmann::ordered_json::array();
  for (const BackendChoice::PassedOver& p : choice.passed_over) {
    passed_over.push_back({{"name", p.name}, {"reason", p.reason}});
  }
  return {{"shape", {query.batch, query.tokens, query.heads, query.head_dim}},
          {"dtype", query.dtype},
          {"mask", query.mask},
          {"device", choice.device},
          {"backend", choice.name.empty() ? nlohmann::ordered_json(nullptr)
                                          : nlohmann::ordered_json(choice.name)},
          {"why", choice.why},
          {"passed_over", passed_over}};
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

std::string head_dims(const DeviceInfo& d) {
  std::string text = std::to_string(d.min_head_dim) + "-" + std::to_string(d.max_head_dim);
  if (d.head_dim_multiple != 1) text += " by " + std::to_string(d.head_dim_multiple);
  return text;
}

std::string mask_cell(const DeviceInfo& d) {
  if (!d.mask) return "no";
  return d.mask_under_context_parallelism ? "yes, CP" : "yes";
}

void print_table(const std::vector<BackendInfo>& all) {
  std::printf("%-19s %-6s %-10s %-19s %-14s %-11s %-8s %-4s %s\n", "backend", "device", "available",
              "dtypes", "head dim", "causal", "mask", "gqa", "lse");
  for (const BackendInfo& backend : all) {
    for (const DeviceInfo& d : backend.devices) {
      std::printf("%-19s %-6s %-10s %-19s %-14s %-11s %-8s %-4s %s\n", backend.name.c_str(),
                  d.device.c_str(), d.availability.available ? "yes" : "no", join(d.dtypes).c_str(),
                  head_dims(d).c_str(), d.causal ? d.causal_alignment.c_str() : "no",
                  mask_cell(d).c_str(), d.gqa ? "yes" : "no", d.lse ? "yes" : "no");
    }
  }
  std::printf(
      "\nmask: \"yes, CP\" also under context parallelism. causal: which rows line up when "
      "queries and keys differ in number.\n");
  for (const BackendInfo& backend : all) {
    for (const DeviceInfo& d : backend.devices) {
      const AvailabilityInfo& a = d.availability;
      const std::string where = backend.name + " on " + d.device;
      if (!a.available) {
        std::printf("\nnot available: %s: %s\n  %s\n", where.c_str(), a.reason.c_str(),
                    a.remedy.c_str());
      } else if (!d.note.empty()) {
        std::printf("\nnote: %s: %s\n", where.c_str(), d.note.c_str());
      }
    }
  }
}

void print_choice(const BackendChoice& choice, const BackendQuery& query,
                  const std::string& shape) {
  std::printf("\nauto for %s, %s, mask %s on %s: %s (%s)\n", shape.c_str(), query.dtype.c_str(),
              query.mask.c_str(), choice.device.c_str(),
              choice.name.empty() ? "none" : choice.name.c_str(), choice.why.c_str());
  for (const BackendChoice::PassedOver& p : choice.passed_over) {
    std::printf("  not %s: %s\n", p.name.c_str(), p.reason.c_str());
  }
}

void run(BackendsOptions o, bool has_query) {
  if (!o.shape.empty()) parse_shape(o.shape, o.query);
  if (o.shape.empty() && has_query) {
    throw InputError(
        "[backends] --dtype, --mask and --device describe a call: add --shape B,N,H,D");
  }
  for (const std::string& library : o.op_libraries) attention::load_op_library(library);
  const std::vector<BackendInfo> all = attention::list_backends();
  const bool asked = !o.shape.empty();
  const BackendChoice choice = asked ? attention::choose_backend(o.query) : BackendChoice{};
  if (!o.json) {
    print_table(all);
    if (asked) print_choice(choice, o.query, o.shape);
    return;
  }
  nlohmann::ordered_json backends = nlohmann::ordered_json::array();
  for (const BackendInfo& backend : all) backends.push_back(to_json(backend));
  nlohmann::ordered_json json = {{"backends", backends}};
  if (asked) json["auto"] = to_json(choice, o.query);
  std::fputs(to_text(json).c_str(), stdout);
}

}  // namespace

void add_backends(CLI::App& app) {
  auto options = std::make_shared<BackendsOptions>();
  CLI::App* command = app.add_subcommand(
      "backends", "Show the attention backends, and which of them run on this machine");
  command->add_flag("--json", options->json, "Print JSON");
  command
      ->add_option("--shape", options->shape,
                   "B,N,H,D of a call: also show which backend auto would take for it, and why")
      ->check(not_empty());
  command->add_option("--dtype", options->query.dtype, "fp32, bf16 or fp16 (default bf16)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--mask", options->query.mask, "none, bool or float (default none)")
      ->check(CLI::IsMember({"none", "bool", "float"}));
  command->add_option("--device", options->query.device,
                      "auto, cpu, cuda, cuda:N, npu or npu:N (default auto)");
  add_op_library_option(*command, options->op_libraries);
  command->callback([options, command] {
    const bool has_query =
        command->count("--dtype") + command->count("--mask") + command->count("--device") > 0;
    run(*options, has_query);
  });
}

}  // namespace cachedit::cli
