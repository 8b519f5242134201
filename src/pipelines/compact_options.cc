// The compact form of cache options, as strify() writes it: parts between underscores.
#include <charconv>
#include <set>
#include <sstream>
#include <string_view>

#include "base/fail.h"
#include "cachedit/enable_cache.h"

namespace cachedit {
namespace {

constexpr const char* kWhere = "cache options";

[[noreturn]] void refuse(const std::string& part, const std::string& why) {
  fail<InputError>(kWhere, why, ": got '", part, "'; the form is F8B0_W8I1M0MC0_R0.08_T1O1");
}

/// Reads a number off the front of `text`; false if there is none.
template <class T>
bool take_number(std::string_view& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

class CompactReader {
 public:
  EnableCacheOptions read(const std::string& compact) {
    std::istringstream parts(compact);
    std::string part;
    while (std::getline(parts, part, '_')) read_part(part);
    if (compact.empty() || compact.back() == '_') refuse(compact, "a part is empty");
    if (type_ == CacheType::kDBPrune) {
      options_.cache_config = config_;
    } else {
      options_.cache_config = static_cast<const DBCacheConfig&>(config_);
    }
    return options_;
  }

 private:
  void once(const std::string& name, const std::string& part) {
    if (!seen_.insert(name).second) refuse(part, name + " may be given once");
  }

  void read_part(const std::string& part) {
    const bool known = read_word(part) || read_calibrator(part) || read_steps(part) ||
                       read_tail(part) || read_limits(part);
    if (!known) refuse(part, "unknown part");
    last_ = part;
  }

  bool read_word(const std::string& part) {
    if (part == "DBCache" || part == "DBPrune") {
      once("the cache's type", part);
      type_ = part == "DBPrune" ? CacheType::kDBPrune : CacheType::kDBCache;
      return true;
    }
    if (part == "dynamic" || part == "static") {
      if (!last_.starts_with("SCM")) refuse(part, "must follow the mask (SCM)");
      config_.steps_computation_policy =
          part == "static" ? StepsComputationPolicy::kStatic : StepsComputationPolicy::kDynamic;
      return true;
    }
    if (part == "once" || part == "repeat") {
      if (!last_.starts_with("FR")) refuse(part, "must follow the refreshed step (FR)");
      config_.force_refresh_step_policy =
          part == "repeat" ? ForceRefreshStepPolicy::kRepeat : ForceRefreshStepPolicy::kOnce;
      return true;
    }
    if (part == "CFG0" || part == "CFG1") {
      once("CFG", part);
      config_.enable_separate_cfg = part == "CFG1";
      return true;
    }
    return false;
  }

  CalibratorConfig& calibrator(const std::string& part, CalibratorType type) {
    once("the calibrator", part);
    options_.calibrator_config.emplace();
    options_.calibrator_config->calibrator_type = type;
    return *options_.calibrator_config;
  }

  bool read_calibrator(const std::string& part) {
    std::string_view text = part;
    if (part == "T0O0") {
      once("the calibrator", part);
    } else if (part == "NONE") {
      calibrator(part, CalibratorType::kTaylorSeer).taylorseer_order = 0;
    } else if (part == "FoCa") {
      calibrator(part, CalibratorType::kFoCa);
    } else if (part == "LIN") {
      calibrator(part, CalibratorType::kLinear);
    } else if (take_prefix(text, "T1O")) {
      int64_t order = 0;
      if (!take_number(text, order) || !text.empty())
        refuse(part, "TaylorSeer is T1O and an order");
      calibrator(part, CalibratorType::kTaylorSeer).taylorseer_order = order;
    } else if (take_prefix(text, "DMDH")) {
      CalibratorConfig& dmd = calibrator(part, CalibratorType::kDMD);
      if (!take_number(text, dmd.dmd_history) || (text != "" && text != "l" && text != "h")) {
        refuse(part, "DMD is DMDH and a history, l or h behind for low or high precision");
      }
      if (!text.empty()) dmd.dmd_svd_precision = text == "l" ? "low" : "high";
    } else {
      return false;
    }
    return true;
  }

  bool read_steps(const std::string& part) {
    std::string_view text = part;
    if (take_prefix(text, "SCM")) {
      once("SCM", part);
      for (const char bit : text) {
        if (bit != '0' && bit != '1') refuse(part, "a mask is 0 (cache) and 1 (compute) only");
        config_.steps_computation_mask.push_back(bit - '0');
      }
      if (text.empty()) refuse(part, "a mask needs one bit per step");
      return true;
    }
    int64_t value = 0;
    if (take_prefix(text, "FR")) {
      if (!take_number(text, value) || !text.empty()) refuse(part, "FR needs a step");
      once("FR", part);
      config_.force_refresh_step_hint = value;
      return true;
    }
    if (take_prefix(text, "N")) {
      if (!take_number(text, value) || !text.empty()) refuse(part, "N needs a number of steps");
      once("N", part);
      config_.num_inference_steps = value;
      return true;
    }
    return false;
  }

  /// Results that brief_summary() appends: cached steps and the part of pruned blocks.
  bool read_tail(const std::string& part) {
    std::string_view text = part;
    double value = 0;
    if (!take_prefix(text, "S") && !take_prefix(text, "P")) return false;
    return take_number(text, value) && text.empty();
  }

  /// F8B0, W8I1M0MC0 and R0.08, also run together.
  bool read_limits(const std::string& part) {
    std::string_view text = part;
    if (text.empty()) refuse(part, "a part is empty");
    while (!text.empty()) {
      if (!read_limit(text, part)) return false;
    }
    return true;
  }

  bool read_limit(std::string_view& text, const std::string& part) {
    struct Field {
      const char* name;
      int64_t* value;
      bool zero_is_none;
    };
    const Field fields[] = {{"F", &config_.Fn_compute_blocks, false},
                            {"B", &config_.Bn_compute_blocks, false},
                            {"W", &config_.max_warmup_steps, false},
                            {"I", &config_.warmup_interval, false},
                            {"MC", &config_.max_continuous_cached_steps, true},
                            {"M", &config_.max_cached_steps, true}};
    for (const Field& field : fields) {
      if (!take_prefix(text, field.name)) continue;
      if (!take_number(text, *field.value)) {
        refuse(part, std::string(field.name) + " needs a whole number");
      }
      if (field.zero_is_none && *field.value == 0) *field.value = -1;
      once(field.name, part);
      return true;
    }
    if (!take_prefix(text, "R")) return false;
    if (!take_number(text, config_.residual_diff_threshold)) refuse(part, "R needs a number");
    once("R", part);
    return true;
  }

  EnableCacheOptions options_;
  CacheType type_ = CacheType::kDBCache;
  DBPruneConfig config_;
  std::set<std::string> seen_;
  std::string last_;
};

}  // namespace

EnableCacheOptions parse_cache_options(const std::string& compact) {
  return CompactReader().read(compact);
}

}  // namespace cachedit
