// Switches of a loaded pipeline, in the shape of cache-dit's enable_cache(): block caching and the
// attention backend of the transformer (text encoders and the VAE keep `native`).
//
// The attention backend is the first of these that is given, whatever the order of the calls:
//   1. set_attn_backend()
//   2. enable_cache()'s options: attention_backend, or parallelism_config.attention_backend
//   3. the environment variable CACHE_DIT_ATTN_BACKEND
//   4. "native"
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cachedit/cache_config.h"
#include "cachedit/cache_stats.h"
#include "cachedit/export.h"
#include "cachedit/parallel.h"
#include "cachedit/pipeline.h"
#include "cachedit/quantize.h"

namespace cachedit {

struct EnableCacheOptions {
  /// Not given beside an attention backend, a layout or quantization only: caching stays as it is.
  /// Else not given: DBCacheConfig's defaults.
  std::variant<std::monostate, DBCacheConfig, DBPruneConfig> cache_config;
  std::optional<CalibratorConfig> calibrator_config;
  /// For the first, second... block list of the transformer.
  std::vector<ParamsModifier> params_modifiers;
  /// Block lists that follow each other (FLUX's double and single blocks) decide apart; as one list
  /// otherwise, as cache-dit has it.
  bool separate_block_lists = false;
  /// A policy's name in place of steps_computation_mask: steps_mask() of the steps of each request.
  std::string steps_mask_policy;
  ParallelismConfig parallelism_config;
  /// Loads the components that it names, or named before, again. While that goes on, a component's
  /// old weights and its new ones are in memory: LoadOptions spares that.
  std::optional<QuantizeConfig> quantize_config;
  /// A backend's name, or "auto"; empty: not given.
  std::string attention_backend;
};

/// Replaces an earlier call's caching and configured backend by what is given. Throws ConfigError
/// naming the field for a value out of range or block counts that do not fit the transformer,
/// InputError for an unknown backend or where the two fields name different ones, UnsupportedError
/// where the backend is not available on the pipeline's device; the pipeline is then as before.
CACHEDIT_API void enable_cache(Pipeline& pipeline, const EnableCacheOptions& options = {});

/// generate() computes every block again.
CACHEDIT_API void disable_cache(Pipeline& pipeline);

/// Whether generate() caches, and with what ("DBCache_F8B0_W8I1M0MC0_R0.08_T0O0"; empty: not).
CACHEDIT_API std::string cache_summary_name(const Pipeline& pipeline);

/// Reads cache_config (with cache-dit's flat calibrator keys), parallelism_config, quantize_config
/// and attention_backend from a YAML file as cache-dit's load_configs() does. Throws IoError, or
/// ConfigError naming an unknown key or a value of the wrong kind.
CACHEDIT_API EnableCacheOptions load_configs(const std::filesystem::path& yaml);

/// Writes such a file, whole or not at all; load_configs() gives back equal options, and cache-dit
/// reads it, too, without the linear calibrator. linear_coefficients_path becomes relative to the
/// file's folder where it lies in it. Throws IoError, or ConfigError for what the format cannot
/// hold: params_modifiers, steps_mask_policy, numbers that are not finite.
CACHEDIT_API void write_configs(const std::filesystem::path& yaml,
                                const EnableCacheOptions& options);

/// Reads the compact form "F1B0_W4M0MC0_R0.08_T1O1": parts in any order, what is left out has its
/// default, DBCache or DBPrune may be one of them. What strify() and brief_summary() write reads
/// back; M0 and MC0 are no limit, LIN needs linear_coefficients_path besides. Throws InputError
/// naming the part.
CACHEDIT_API EnableCacheOptions parse_cache_options(const std::string& compact);

/// What caching did in a request, as tables and a strip of steps ("#" computed, "." cached).
/// Empty without caching.
CACHEDIT_API std::string summary(const GenerateResult& result);
/// One line: "DBCache_F1B0_..._T1O1_S19", the cached steps last, as cache-dit's strify().
CACHEDIT_API std::string brief_summary(const GenerateResult& result);

/// Chooses the backend, over every configuration. Throws as enable_cache().
CACHEDIT_API void set_attn_backend(Pipeline& pipeline, const std::string& name);

/// The name that the next generate() will use: a backend's, or "auto".
CACHEDIT_API std::string attn_backend(const Pipeline& pipeline);

}  // namespace cachedit
