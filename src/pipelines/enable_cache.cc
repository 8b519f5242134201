#include "cachedit/enable_cache.h"

namespace cachedit {

void enable_cache(Pipeline& pipeline, const EnableCacheOptions& options) {
  pipeline.enable_caching(options);
}

void disable_cache(Pipeline& pipeline) { pipeline.disable_caching(); }

std::string cache_summary_name(const Pipeline& pipeline) { return pipeline.caching(); }

void set_attn_backend(Pipeline& pipeline, const std::string& name) {
  pipeline.choose_attention(name, AttentionSource::kExplicit);
}

std::string attn_backend(const Pipeline& pipeline) { return pipeline.attention_backend(); }

}  // namespace cachedit
