// From a backend's name to the object that models call; and what `auto` takes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "attention/capability.h"
#include "attention/registry.h"

namespace cachedit::attention {

struct AttentionOptions {
  const Registry* registry = &builtin_registry();
  /// After each call, throws unless the output is finite. Default: CACHE_DIT_ATTN_CHECKS.
  bool check_finite = default_check_finite();

  static bool default_check_finite();
};

/// "1", "true", "yes", "on" or "0", "false", "no", "off", "". Throws ConfigError for other values.
bool parse_attention_checks(const std::string& value);

/// One call of one backend: bad arguments are reported first, then what the backend cannot do, then
/// that it is not available, each with what would do instead.
Result attend(const Backend& backend, const Inputs& inputs, const AttentionOptions& options = {});

/// `name` is a backend's or "auto". Throws InputError for an unknown one, UnsupportedError where it
/// is not available on the device, with the reason, the remedy and what is available.
std::unique_ptr<Attention> make_attention(std::string_view name, at::Device device,
                                          const AttentionOptions& options = {});

struct PassedOver {
  std::string backend;
  std::string reason;
};

/// What `auto` takes: the first backend of Registry::auto_order that can do it and is available. On
/// a CPU: flash, ffpa, native; on CUDA: _flash_3, flash, native; on an NPU: _native_npu, native.
struct Choice {
  const Backend* backend = nullptr;  ///< null where none can
  std::vector<PassedOver> passed_over;
};

Choice choose_automatically(const Registry& registry, const Request& request);

}  // namespace cachedit::attention
