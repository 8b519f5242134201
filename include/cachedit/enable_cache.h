// Switches of a loaded pipeline, in the shape of cache-dit's enable_cache(). Today they choose the
// attention backend of the transformer; text encoders and the VAE keep `native`.
//
// The backend is the first of these that is given, whatever the order of the calls:
//   1. set_attn_backend()
//   2. enable_cache()'s options: attention_backend, or parallelism_config.attention_backend
//   3. the environment variable CACHE_DIT_ATTN_BACKEND
//   4. "native"
#pragma once

#include <string>

#include "cachedit/export.h"
#include "cachedit/pipeline.h"

namespace cachedit {

struct ParallelismConfig {
  /// A backend's name, or "auto"; empty: not given.
  std::string attention_backend;
};

/// Only what is given is applied; an earlier call's setting stays otherwise.
struct EnableCacheOptions {
  /// A backend's name, or "auto"; empty: not given.
  std::string attention_backend;
  ParallelismConfig parallelism_config;
};

/// Throws InputError for an unknown backend or where the two fields name different ones,
/// UnsupportedError where the backend is not available on the pipeline's device; the pipeline is
/// then as before.
CACHEDIT_API void enable_cache(Pipeline& pipeline, const EnableCacheOptions& options);

/// Chooses the backend, over every configuration. Throws as enable_cache().
CACHEDIT_API void set_attn_backend(Pipeline& pipeline, const std::string& name);

/// The name that the next generate() will use: a backend's, or "auto".
CACHEDIT_API std::string attn_backend(const Pipeline& pipeline);

}  // namespace cachedit
