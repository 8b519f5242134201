// Packing of one block of query rows, and the factors that turn its products into logits.
#pragma once

#include "kernels/cpu/attention_pack.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Rows in fp32 with the sign of the scale folded in (maxima need a positive one), zero rows up to
/// `padded`; sets mean_logit where keys are smoothed.
template <class Scheme>
inline void load_queries(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                         int64_t head, int64_t first, int64_t count, int64_t padded,
                         const HeadArea<Scheme>& area, ThreadArea<Scheme>& thread) {
  const F32 sign = splat(p.scale < 0 ? -1.0f : 1.0f);
  for (int64_t t = 0; t < padded; ++t) {
    float* row = thread.rows + t * plan.depth;
    if (t >= count) {
      clear_row(row, plan.depth);
      continue;
    }
    load_padded_row(p, p.query, row_of(p.query, p.type, batch, head, first + t), plan.depth, row);
    F32 dot{};
    for (int64_t i = 0; i < plan.depth; i += kLanes) {
      store(row + i, load(row + i) * sign);
      if constexpr (Scheme::kSmoothKeys) dot = fma(load(row + i), load(area.key_mean + i), dot);
    }
    if constexpr (Scheme::kSmoothKeys) {
      thread.mean_logit[t] = reduce_add(dot) * (p.scale < 0 ? -p.scale : p.scale);
    }
  }
}

/// Rows that already are units, copied.
template <class Scheme>
inline void copy_queries(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                         int64_t head, int64_t first, int64_t count, int64_t padded,
                         ThreadArea<Scheme>& thread) {
  for (int64_t t = 0; t < padded; ++t) {
    int32_t* units = thread.q + t * plan.qk_steps;
    const void* row = t < count ? row_of(p.query, p.type, batch, head, first + t) : nullptr;
    if (row != nullptr) prefetch_row(p, row, p.query.stride_token);
    for (int64_t k = 0; k < plan.qk_steps; k += kLanes) {
      store(units + k, row == nullptr ? I32{} : load(static_cast<const int32_t*>(row) + k));
    }
  }
}

/// Packs `count` rows from query row `first` of head `head`, zero rows up to a multiple of kRows,
/// and sets exponent, logit_scale and mean_logit.
template <class Scheme>
inline void pack_queries(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                         int64_t head, int64_t first, int64_t count, bool natural_logits,
                         const HeadArea<Scheme>& area, ThreadArea<Scheme>& thread) {
  constexpr float kLog2E = 1.44269504f;
  const float scale = p.scale < 0 ? -p.scale : p.scale;
  const int64_t padded = round_up(count, kRows);
  const bool in_place = reads_in_place<Scheme>(p) && p.scale >= 0;
  if (in_place) {
    copy_queries(p, plan, batch, head, first, count, padded, thread);
  } else {
    load_queries(p, plan, batch, head, first, count, padded, area, thread);
  }
  alignas(64) float scales[kRowBlock];
  for (int64_t t = 0; t < padded; ++t) scales[t] = 1.0f;
  if constexpr (kQuantized<Scheme>) {
    choose_scales<Scheme>(thread.rows, padded, plan.depth, kQueriesPerScale<Scheme>, scales);
  }
  for (int64_t t = 0; t < padded; ++t) {
    float* row = thread.rows + t * plan.depth;
    // Rows follow each other without gaps: the vectors beyond one are overwritten by the next.
    int32_t* units = thread.q + t * plan.qk_steps;
    thread.logit_scale[t] = scale * scales[t];
    const float exponent = natural_logits ? kLog2E : scale * scales[t] * kLog2E;
    thread.exponent[t] = exponent < 1e-37f ? 1e-37f : exponent;
    if (in_place) continue;
    if constexpr (kIntegerKeys<Scheme>) {
      encode_int8_query(row, plan.depth, scales[t], units);
    } else {
      encode_float<Scheme>(row, plan.depth, scales[t], units);
    }
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
