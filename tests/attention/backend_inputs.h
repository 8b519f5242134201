// Inputs of the attention tests.
#pragma once

#include <string>

#include "attention/contract.h"
#include "attention/registry.h"
#include "support/attention_reference.h"

namespace cachedit::attention {

/// The suite's inputs as a backend takes them. Where fewer key heads ask for it, enable_gqa is set.
inline Inputs to_inputs(const test::AttentionInputs& in) {
  return {.query = in.query,
          .key = in.key,
          .value = in.value,
          .mask = in.mask,
          .is_causal = in.causal,
          .scale = in.scale,
          .enable_gqa = in.query.size(2) != in.key.size(2)};
}

inline Inputs random_inputs(const test::AttentionShape& shape, at::ScalarType dtype = at::kFloat) {
  return to_inputs(test::random_attention_inputs(shape, dtype, /*seed=*/7));
}

/// The definition in float64; `offset` is where the causal mask begins.
inline test::AttentionOutputs reference(const Inputs& in, int64_t offset = 0) {
  const Inputs n = normalise("test", in);
  return test::reference_attention({.query = n.query,
                                    .key = n.key,
                                    .value = n.value,
                                    .mask = n.mask,
                                    .causal = n.is_causal,
                                    .causal_offset = offset,
                                    .scale = n.scale});
}

inline const Backend& backend(const std::string& name) { return builtin_registry().find(name); }

}  // namespace cachedit::attention
