#include "pipelines/attention_choice.h"

#include "attention/registry.h"
#include "attention/select.h"
#include "base/fail.h"
#include "base/stopwatch.h"

namespace cachedit::pipelines {

AttentionChoice::AttentionChoice(at::Device device, const std::string& fallback)
    : device_(device), fallback_(fallback.empty() ? attention::kDefault : fallback) {
  const attention::Registry& registry = attention::builtin_registry();
  if (fallback_ != attention::kAuto && !registry.contains(fallback_)) {
    fail<ConfigError>("CACHE_DIT_ATTN_BACKEND", "unknown backend: got '", fallback_, "'; use ",
                      registry.names());
  }
}

void AttentionChoice::choose(const std::string& name, AttentionSource source) {
  attention::make_attention(name, device_);  // refuses what cannot run here
  (source == AttentionSource::kExplicit ? explicit_ : config_) = name;
}

const std::string& AttentionChoice::name() const {
  if (!explicit_.empty()) return explicit_;
  return config_.empty() ? fallback_ : config_;
}

std::unique_ptr<attention::Attention> AttentionChoice::make() const {
  return attention::make_attention(name(), device_);
}

std::string configured_attention(const EnableCacheOptions& options) {
  const std::string& own = options.attention_backend;
  const std::string& parallel = options.parallelism_config.attention_backend;
  if (!own.empty() && !parallel.empty() && own != parallel) {
    fail<InputError>("enable_cache",
                     "attention_backend and parallelism_config.attention_backend must agree: got '",
                     own, "' and '", parallel, "'; give one of them");
  }
  return own.empty() ? parallel : own;
}

attention::Result RecordingAttention::operator()(const attention::Inputs& inputs) const {
  const Stopwatch watch;
  attention::Result result = inner_(inputs);
  seen_.emplace(result.backend);
  if (profile_ != nullptr) {
    profile_->attention_seconds += watch.seconds();
    profile_->attention_operations +=
        4.0 * static_cast<double>(inputs.query.numel()) * static_cast<double>(inputs.key.size(1));
  }
  return result;
}

std::string join_names(const std::set<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ", ") + name;
  return joined;
}

}  // namespace cachedit::pipelines
