#include "parallel_options.h"

#include "generate_options.h"

namespace cachedit::cli {

void ParallelOptions::add_size(CLI::App& command, const char* name, const char* help,
                               std::optional<int64_t> ParallelismConfig::*size) {
  command
      .add_option_function<int64_t>(
          name,
          [this, size](int64_t value) {
            edits_.emplace_back([size, value](ParallelismConfig& config) { config.*size = value; });
          },
          help)
      ->check(whole_number());
}

void ParallelOptions::add_switch(CLI::App& command, const char* name, const char* help,
                                 std::function<void(ParallelismConfig&)> apply) {
  command.add_flag_callback(
      name, [this, apply] { edits_.push_back(apply); }, help);
}

void ParallelOptions::add_to(CLI::App& command) {
  command.add_option("--parallel-type,--parallel", type_,
                     "How the ranks that mpirun started share the work: tp, ulysses, ring, usp, "
                     "ulysses_tp, ring_tp, tp_ulysses, tp_ring or usp_tp");
  add_size(command, "--ulysses-size", "Ranks that exchange heads for tokens",
           &ParallelismConfig::ulysses_size);
  add_size(command, "--ring-size", "Ranks that pass keys and values on",
           &ParallelismConfig::ring_size);
  add_size(command, "--tp-size", "Ranks that share the transformer's weights out",
           &ParallelismConfig::tp_size);
  add_size(command, "--cfg-size", "2: the branches of true CFG at the same time",
           &ParallelismConfig::cfg_size);
  add_switch(command, "--ulysses-anything,--uaa", "Ulysses with any number of heads and tokens",
             [](ParallelismConfig& c) { c.ulysses_anything = true; });
  add_switch(command, "--ulysses-float8,--ufp8", "Ulysses sends query, value and output as float8",
             [](ParallelismConfig& c) { c.ulysses_float8 = true; });
  add_switch(command, "--ulysses-async,--uaqkv",
             "Ulysses sends while the next projection is computed",
             [](ParallelismConfig& c) { c.ulysses_async = true; });
  command
      .add_option_function<std::string>(
          "--ring-rotate-method,--rotate",
          [this](const std::string& method) {
            edits_.emplace_back([method](ParallelismConfig& c) { c.ring_rotate_method = method; });
          },
          "p2p (default) or allgather")
      ->check(CLI::IsMember({"p2p", "allgather"}));
  add_switch(command, "--ring-no-convert-to-fp32,--ring-no-fp32,--no-fp32",
             "Ring merges partial outputs in the activations' dtype",
             [](ParallelismConfig& c) { c.ring_convert_to_fp32 = false; });
  add_switch(command, "--parallel-text-encoder,--parallel-text",
             "All ranks share the large text encoder's weights out",
             [](ParallelismConfig& c) { c.extra_parallel_modules.emplace_back("text_encoder_2"); });
  add_switch(command, "--parallel-vae", "All ranks share the VAE's picture out, in strips",
             [](ParallelismConfig& c) { c.extra_parallel_modules.emplace_back("vae"); });
}

ParallelismConfig ParallelOptions::make(ParallelismConfig base, int64_t ranks) const {
  for (const auto& edit : edits_) edit(base);
  return type_.empty() ? base : parallel_layout(type_, ranks, std::move(base));
}

}  // namespace cachedit::cli
