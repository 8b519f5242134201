#include "cachedit/enable_cache.h"

#include "base/fail.h"

namespace cachedit {

void enable_cache(Pipeline& pipeline, const EnableCacheOptions& options) {
  const std::string& own = options.attention_backend;
  const std::string& parallel = options.parallelism_config.attention_backend;
  if (!own.empty() && !parallel.empty() && own != parallel) {
    fail<InputError>("enable_cache",
                     "attention_backend and parallelism_config.attention_backend must agree: got '",
                     own, "' and '", parallel, "'; give one of them");
  }
  const std::string& name = own.empty() ? parallel : own;
  if (!name.empty()) pipeline.choose_attention(name, AttentionSource::kConfig);
}

void set_attn_backend(Pipeline& pipeline, const std::string& name) {
  pipeline.choose_attention(name, AttentionSource::kExplicit);
}

std::string attn_backend(const Pipeline& pipeline) { return pipeline.attention_backend(); }

}  // namespace cachedit
