// The options of `cachedit generate` that choose and show block caching, under cache-dit's names.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/enable_cache.h"

namespace cachedit::cli {

class CacheOptions {
 public:
  /// Registers the options; `this` outlives the parse.
  void add_to(CLI::App& command);

  /// What enable_cache() should get; none: nothing was asked for. The options of --config-path,
  /// then --cache, then the single ones. Throws InputError naming an option that has no effect or
  /// contradicts another, and what load_configs() throws.
  std::optional<EnableCacheOptions> make() const;

  bool reads_file() const { return !config_path_.empty(); }
  bool summary() const { return summary_; }
  /// Draw every picture without caching, too, and compare.
  bool compare() const { return compare_; }

 private:
  /// EnableCacheOptions with the fields of both cache types side by side.
  struct Draft {
    bool caches = false;
    CacheType type = CacheType::kDBCache;
    DBPruneConfig config;
    EnableCacheOptions rest;
  };
  struct Edit {
    std::string option;
    std::function<void(Draft&)> apply;
  };

  template <class T, class Field>
  CLI::Option* add(CLI::App& command, const std::string& names, const char* help, Field field);
  template <class Field>
  void add_flag(CLI::App& command, const std::string& names, const char* help, Field field);
  void add_limits(CLI::App& command);
  void add_mask(CLI::App& command);
  void add_skip(CLI::App& command);
  void add_calibrators(CLI::App& command);
  void add_prune(CLI::App& command);
  void add_calibrator(CLI::App& command, const std::string& flag, const std::string& name,
                      const char* help);
  void choose_calibrator(const std::string& option, const std::string& name);
  Draft base() const;

  std::vector<Edit> edits_;
  std::vector<Edit> calibrators_;
  std::optional<std::string> compact_;  ///< "": --cache alone
  std::string config_path_;
  bool summary_ = false;
  bool compare_ = false;
};

}  // namespace cachedit::cli
