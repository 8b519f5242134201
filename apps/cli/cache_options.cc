#include "cache_options.h"

#include <algorithm>

#include "cachedit/error.h"
#include "generate_options.h"

namespace cachedit::cli {
namespace {

constexpr const char* kDefaults = "defaults";

std::string first_name(const std::string& names) { return names.substr(0, names.find(',')); }

CalibratorType calibrator_type(const std::string& name) {
  if (name == "taylorseer") return CalibratorType::kTaylorSeer;
  if (name == "dmd") return CalibratorType::kDMD;
  return name == "foca" ? CalibratorType::kFoCa : CalibratorType::kLinear;
}

bool is_bits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("01") == std::string::npos;
}

}  // namespace

/// `field` gives the place of the value, or null where the option has no effect.
template <class T, class Field>
CLI::Option* CacheOptions::add(CLI::App& command, const std::string& names, const char* help,
                               Field field) {
  const std::string name = first_name(names);
  return command.add_option_function<T>(
      names,
      [this, name, field](const T& value) {
        edits_.push_back(
            {name, [value, field, name](Draft& draft) { field(draft, name) = value; }});
      },
      help);
}

template <class Field>
void CacheOptions::add_flag(CLI::App& command, const std::string& names, const char* help,
                            Field field) {
  const std::string name = first_name(names);
  command.add_flag_callback(
      names,
      [this, name, field] {
        edits_.push_back({name, [field, name](Draft& draft) { field(draft, name) = true; }});
      },
      help);
}

void CacheOptions::add_limits(CLI::App& command) {
  const auto integer = [&](const std::string& names, const char* help,
                           int64_t DBCacheConfig::*member) {
    add<int64_t>(command, names, help, [member](Draft& d, const std::string&) -> int64_t& {
      return d.config.*member;
    })->check(whole_number());
  };
  integer("--Fn-compute-blocks,--Fn", "First blocks, always computed; they decide (default 8)",
          &DBCacheConfig::Fn_compute_blocks);
  integer("--Bn-compute-blocks,--Bn", "Last blocks, always computed (default 0)",
          &DBCacheConfig::Bn_compute_blocks);
  add<double>(
      command, "--residual-diff-threshold,--rdt",
      "A step is cached while its relative difference stays below (default 0.08)",
      [](Draft& d, const std::string&) -> double& { return d.config.residual_diff_threshold; });
  add<double>(command, "--max-accumulated-residual-diff-threshold",
              "No more caching once the differences add up to this (default: no limit)",
              [](Draft& d, const std::string&) -> std::optional<double>& {
                return d.config.max_accumulated_residual_diff_threshold;
              });
  integer("--max-warmup-steps,--ws", "Steps before caching may begin (default 8)",
          &DBCacheConfig::max_warmup_steps);
  integer("--warmup-interval,--wi", "Compute only every n-th step of the warm-up (default 1)",
          &DBCacheConfig::warmup_interval);
  integer("--max-cached-steps,--mc", "Cached steps at most; -1: no limit (default -1)",
          &DBCacheConfig::max_cached_steps);
  integer("--max-continuous-cached-steps,--mcc", "In a row at most; -1: no limit (default -1)",
          &DBCacheConfig::max_continuous_cached_steps);
}

void CacheOptions::add_mask(CLI::App& command) {
  command
      .add_option_function<std::string>(
          "--steps-mask,--scm",
          [this](const std::string& text) {
            edits_.push_back({"--steps-mask", [text](Draft& draft) {
                                draft.config.steps_computation_mask.clear();
                                draft.rest.steps_mask_policy.clear();
                                if (!is_bits(text)) {
                                  draft.rest.steps_mask_policy = text;
                                  return;
                                }
                                for (const char bit : text) {
                                  draft.config.steps_computation_mask.push_back(bit - '0');
                                }
                              }});
          },
          "slow, medium, fast or ultra (ever fewer computed steps), or a bit per step: 1 computes")
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            const bool named =
                text == "slow" || text == "medium" || text == "fast" || text == "ultra";
            return named || is_bits(text)
                       ? ""
                       : "must be slow, medium, fast, ultra or a row of 0 and 1: got '" + text +
                             "'";
          },
          "", "mask"));
  command
      .add_option_function<std::string>(
          "--mask-policy",
          [this](const std::string& word) {
            edits_.push_back(
                {"--mask-policy", [word](Draft& draft) {
                   if (draft.config.steps_computation_mask.empty() &&
                       draft.rest.steps_mask_policy.empty()) {
                     throw InputError(
                         "[generate] --mask-policy has no effect without --steps-mask; give both");
                   }
                   draft.config.steps_computation_policy = word == "static"
                                                               ? StepsComputationPolicy::kStatic
                                                               : StepsComputationPolicy::kDynamic;
                 }});
          },
          "Steps that the mask marks 0 are cached where they are alike (dynamic, the default) or "
          "always (static)")
      ->check(CLI::IsMember({"dynamic", "static"}));
}

void CacheOptions::add_skip(CLI::App& command) {
  add_flag(command, "--static-skips-Fn-blocks",
           "With a static mask, cached steps leave out the first blocks, too",
           [](Draft& d, const std::string&) -> bool& { return d.config.static_skips_Fn_blocks; });
}

void CacheOptions::choose_calibrator(const std::string& option, const std::string& name) {
  calibrators_.push_back({option, [name](Draft& draft) {
                            std::optional<CalibratorConfig>& own = draft.rest.calibrator_config;
                            const CalibratorType type = calibrator_type(name);
                            // The details of a file stay where it names the same kind.
                            if (own && own->calibrator_type == type) return;
                            own.emplace();
                            own->calibrator_type = type;
                          }});
}

void CacheOptions::add_calibrator(CLI::App& command, const std::string& flag,
                                  const std::string& name, const char* help) {
  command.add_flag_callback(
      flag, [this, flag, name] { choose_calibrator(flag, name); }, help);
}

void CacheOptions::add_calibrators(CLI::App& command) {
  add_calibrator(command, "--taylorseer", "taylorseer", "Forecast by Taylor expansion");
  add_calibrator(command, "--dmd", "dmd", "Forecast by dynamic mode decomposition");
  add_calibrator(command, "--foca", "foca", "Forecast by a corrected trapezoidal rule");
  command
      .add_option_function<std::string>(
          "--calibrator",
          [this](const std::string& name) { choose_calibrator("--calibrator " + name, name); },
          "taylorseer, dmd, foca or linear (fitted by `cachedit tune`)")
      ->check(CLI::IsMember({"taylorseer", "dmd", "foca", "linear"}));
  // Details of one kind of calibrator, refused where another one or none is chosen.
  const auto detail = [](CalibratorType type, const char* needed) {
    return [type, needed](Draft& d, const std::string& option) -> CalibratorConfig& {
      std::optional<CalibratorConfig>& own = d.rest.calibrator_config;
      if (own && own->calibrator_type == type) return *own;
      throw InputError("[generate] " + option + " has no effect without " + needed +
                       "; give both or none");
    };
  };
  const auto taylorseer = detail(CalibratorType::kTaylorSeer, "--taylorseer");
  const auto dmd = detail(CalibratorType::kDMD, "--dmd");
  const auto linear = detail(CalibratorType::kLinear, "--calibrator linear");
  add<int64_t>(command, "--taylorseer-order", "0 to 4 (default 1)",
               [taylorseer](Draft& d, const std::string& option) -> int64_t& {
                 return taylorseer(d, option).taylorseer_order;
               })
      ->check(whole_number());
  add<int64_t>(
      command, "--dmd-history", "Snapshots that DMD keeps (default 6)",
      [dmd](Draft& d, const std::string& option) -> int64_t& { return dmd(d, option).dmd_history; })
      ->check(whole_number());
  add<std::string>(command, "--dmd-svd-precision,--dmd-svd", "low, medium (default) or high",
                   [dmd](Draft& d, const std::string& option) -> std::string& {
                     return dmd(d, option).dmd_svd_precision;
                   })
      ->check(CLI::IsMember({"low", "medium", "high"}));
  add<std::string>(command, "--linear-coefficients", "File of the linear calibrator",
                   [linear](Draft& d, const std::string& option) -> std::string& {
                     return linear(d, option).linear_coefficients_path;
                   })
      ->check(not_empty());
}

void CacheOptions::add_prune(CLI::App& command) {
  command
      .add_option_function<std::string>(
          "--cache-type",
          [this](const std::string& name) {
            edits_.push_back({"--cache-type", [name](Draft& draft) {
                                draft.type =
                                    name == "DBPrune" ? CacheType::kDBPrune : CacheType::kDBCache;
                              }});
          },
          "DBCache (default: whole steps), or DBPrune (block by block)")
      ->check(CLI::IsMember({"DBCache", "DBPrune"}));
  const auto prune = [](Draft& d, const std::string& option) -> DBPruneConfig& {
    if (d.type == CacheType::kDBPrune) return d.config;
    throw InputError("[generate] " + option +
                     " has no effect without --cache-type DBPrune; give both or none");
  };
  add_flag(command, "--enable-dynamic-prune-threshold",
           "DBPrune: raise the threshold to the mean of a step's first differences",
           [prune](Draft& d, const std::string& option) -> bool& {
             return prune(d, option).enable_dynamic_prune_threshold;
           });
  add<double>(command, "--max-dynamic-prune-threshold",
              "DBPrune: while it stays below this (default: twice the threshold)",
              [prune](Draft& d, const std::string& option) -> std::optional<double>& {
                return prune(d, option).max_dynamic_prune_threshold;
              });
  add<double>(command, "--dynamic-prune-threshold-relax-ratio",
              "DBPrune: factor of that mean (default 1.25)",
              [prune](Draft& d, const std::string& option) -> double& {
                return prune(d, option).dynamic_prune_threshold_relax_ratio;
              });
  add<std::vector<int64_t>>(command, "--non-prune-block-ids",
                            "DBPrune: blocks that are always computed, comma separated",
                            [prune](Draft& d, const std::string& option) -> std::vector<int64_t>& {
                              return prune(d, option).non_prune_block_ids;
                            })
      ->delimiter(',');
  add_flag(command, "--force-reduce-calibrator-vram",
           "DBPrune with a calibrator: compare every fourth channel only",
           [prune](Draft& d, const std::string& option) -> bool& {
             return prune(d, option).force_reduce_calibrator_vram;
           });
}

void CacheOptions::add_to(CLI::App& command) {
  command
      .add_option_function<std::string>(
          "--cache",
          [this](const std::string& text) {
            // CLI11 runs no check on an empty value where it may be left out.
            if (text.empty()) throw CLI::ValidationError("--cache", "must not be empty");
            compact_ = text == kDefaults ? "" : text;
          },
          "Reuse blocks from step to step: alone with the defaults, or a compact form like "
          "F1B0_W4M0MC0_R0.08_T1O1")
      ->expected(0, 1)
      ->default_str(kDefaults);
  command
      .add_option("--config-path,--config", config_path_,
                  "YAML file of cache options, in cache-dit's format; other options override it")
      ->check(not_empty());
  add_prune(command);
  add_limits(command);
  add_mask(command);
  add_skip(command);
  add_calibrators(command);
  add_flag(command, "--separate-block-lists",
           "Lists of blocks (FLUX's double and single ones) decide apart",
           [](Draft& d, const std::string&) -> bool& { return d.rest.separate_block_lists; });
  command.add_flag("--cache-summary,--summary", summary_,
                   "Show what caching did in each picture, on stderr");
  command.add_flag("--compare-cache", compare_,
                   "Draw every picture without caching, too, and print times, speed-up and PSNR; "
                   "the contact sheet shows both");
}

CacheOptions::Draft CacheOptions::base() const {
  Draft draft;
  if (!config_path_.empty()) {
    draft.rest = load_configs(config_path_);
    draft.caches = !std::holds_alternative<std::monostate>(draft.rest.cache_config);
  }
  if (compact_) {
    const EnableCacheOptions own = compact_->empty() && draft.caches ? draft.rest
                                   : compact_->empty()
                                       ? EnableCacheOptions{.cache_config = DBCacheConfig()}
                                       : parse_cache_options(*compact_);
    draft.rest.cache_config = own.cache_config;
    draft.rest.calibrator_config = own.calibrator_config;
    draft.caches = true;
  }
  if (const auto* prune = std::get_if<DBPruneConfig>(&draft.rest.cache_config)) {
    draft.type = CacheType::kDBPrune;
    draft.config = *prune;
  } else if (const auto* cache = std::get_if<DBCacheConfig>(&draft.rest.cache_config)) {
    static_cast<DBCacheConfig&>(draft.config) = *cache;
  }
  return draft;
}

std::optional<EnableCacheOptions> CacheOptions::make() const {
  Draft draft = base();
  if (!draft.caches) {
    std::string option;
    if (compare_) option = "--compare-cache";
    if (summary_) option = "--cache-summary";
    if (!calibrators_.empty()) option = calibrators_.front().option;
    if (!edits_.empty()) option = edits_.front().option;
    if (!option.empty()) {
      throw InputError("[generate] " + option +
                       " has no effect without --cache; add it, or a --config-path with a "
                       "cache_config");
    }
    return config_path_.empty() ? std::nullopt : std::optional(draft.rest);
  }
  if (calibrators_.size() > 1) {
    throw InputError("[generate] " + calibrators_[0].option + " and " + calibrators_[1].option +
                     " exclude each other: give one of them");
  }
  for (const auto* edits : {&calibrators_, &edits_}) {
    for (const Edit& edit : *edits) edit.apply(draft);
  }
  if (draft.type == CacheType::kDBPrune) {
    draft.rest.cache_config = draft.config;
  } else {
    draft.rest.cache_config = static_cast<const DBCacheConfig&>(draft.config);
  }
  return draft.rest;
}

}  // namespace cachedit::cli
