// Packing of queries, keys and values into the units that the products read, quantizing on the way.
// Keys and values are packed once per call, queries once per block of rows.
#pragma once

#include "kernels/cpu/attention_plan.h"

namespace cachedit::kernels::CACHEDIT_ISA {

CACHEDIT_INLINE const void* row_of(const AttentionOperand& t, ElementType type, int64_t batch,
                                   int64_t head, int64_t token) {
  return offset(t.data, type,
                batch * t.stride_batch + head * t.stride_head + token * t.stride_token);
}

/// Largest magnitude of `count` rows of [.., depth]; NaN if one of them holds NaN or infinity, so
/// that a quantized row cannot turn them into ordinary numbers.
inline float largest_magnitude(const float* rows, int64_t count, int64_t depth) {
  F32 largest{};
  F32 poison{};
  for (int64_t i = 0; i < count * depth; i += kLanes) {
    const F32 v = load(rows + i);
    largest = max(largest, abs(v));
    poison = fma(v, F32{}, poison);
  }
  return reduce_max(largest) + reduce_add(poison);
}

/// Scale of a group whose largest magnitude is `largest`; 1 for all zeros, never subnormal.
CACHEDIT_INLINE float scale_of(float largest, float format_max) {
  return largest < 1e-30f ? 1.0f : largest / format_max;
}

/// -127..127 of in * inverse; with NaN scales the integers do not matter.
CACHEDIT_INLINE I32 quantize(const float* in, F32 inverse) {
  return round_to_int(load(in) * inverse);
}

/// Writes a row [depth] as qk units of `Dot`, contiguous.
template <class Scheme>
inline void encode_row(float* row, int64_t depth, float scale, int32_t* units) {
  if constexpr (Scheme::kWeights == Weights::kFp4) {
    constexpr int kVectors = kFp4Group / kLanes;
    for (int64_t i = 0; i < depth; i += kFp4Group) {
      F32 v[kVectors];
      for (int k = 0; k < kVectors; ++k) v[k] = load(row + i + k * kLanes) / splat(scale);
      const F32 group_scale = splat(round_nvfp4_group(v));
      for (int k = 0; k < kVectors; ++k) store(row + i + k * kLanes, v[k] * group_scale);
    }
  }
  auto* elements = reinterpret_cast<typename Scheme::QK::Element*>(units);
  for (int64_t i = 0; i < depth; i += kLanes) store_elements(elements + i, load(row + i));
}

/// Copies the units of one row to its lane of a panel.
CACHEDIT_INLINE void scatter_units(const int32_t* units, int64_t steps, int32_t* lane) {
  for (int64_t k = 0; k < steps; ++k) lane[k * kPanel] = units[k];
}

// ---- keys ----

/// Rows [first, first + count) of K in fp32 minus `mean` into `rows`.
template <class Scheme>
inline void load_keys(const AttentionProblem& p, int64_t batch, int64_t head, int64_t first,
                      int64_t count, const float* mean, const Plan<Scheme>& plan, float* rows) {
  for (int64_t t = 0; t < count; ++t) {
    float* row = rows + t * plan.depth;
    load_row(row_of(p.key, p.type, batch, head, first + t), p.type, p.head_dim, row);
    for (int64_t i = round_up(p.head_dim, kLanes); i < plan.depth; i += kLanes)
      store(row + i, F32{});
    if constexpr (Scheme::kSmoothKeys) {
      for (int64_t i = 0; i < plan.depth; i += kLanes)
        store(row + i, load(row + i) - load(mean + i));
    }
  }
}

/// One scale per token, group or block for `count` rows, written per row.
template <class Scheme>
inline void choose_scales(const float* rows, int64_t count, int64_t depth, int64_t group,
                          float* scales) {
  constexpr float kMax = Scheme::kWeights == Weights::kFp4 ? kMaxE4M3 * kMaxE2M1 : 127.0f;
  if constexpr (Scheme::kScales == Granularity::kToken) group = 1;
  for (int64_t first = 0; first < count; first += group) {
    const int64_t n = count - first < group ? count - first : group;
    const float scale = scale_of(largest_magnitude(rows + first * depth, n, depth), kMax);
    for (int64_t t = 0; t < n; ++t) scales[first + t] = scale;
  }
}

/// Integer units of one key and the sum of its elements.
inline int32_t encode_int8_key(const float* row, int64_t depth, int64_t steps, float scale,
                               int32_t* units) {
  const F32 inverse = splat(1.0f / scale);
  auto* elements = reinterpret_cast<DotInt8::Element*>(units);
  I32 sum{};
  for (int64_t i = 0; i < depth; i += kLanes) {
    const I32 q = quantize(row + i, inverse);
    sum += q;
    alignas(64) int32_t lanes[kLanes];
    store(lanes, q);
    for (int l = 0; l < kLanes; ++l) {
      if (i + l < steps * DotInt8::kPack) {
        elements[i + l] = static_cast<DotInt8::Element>(lanes[l]);
      }
    }
  }
  int32_t total = 0;
  for (int l = 0; l < kLanes; ++l) total += sum[l];
  return total;
}

template <class Scheme>
inline void pack_keys(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                      int64_t head, int64_t block, HeadArea<Scheme>& area,
                      ThreadArea<Scheme>& thread) {
  const int64_t first = block * Scheme::kKeyBlock;
  const int64_t count =
      p.keys - first < Scheme::kKeyBlock ? p.keys - first : int64_t{Scheme::kKeyBlock};
  load_keys(p, batch, head, first, count, area.key_mean, plan, thread.rows);
  if constexpr (kQuantized<Scheme>) {
    constexpr int64_t kGroup =
        Scheme::kScales == Granularity::kGroup ? kKeyGroup : Scheme::kKeyBlock;
    choose_scales<Scheme>(thread.rows, count, plan.depth, kGroup, area.key_scales + first);
  }
  int32_t* units = thread.q;  // free while keys are packed
  for (int64_t t = 0; t < round_up(count, kKeyPadding); ++t) {
    const int64_t key = first + t;
    int32_t* lane = area.keys + key / kPanel * plan.qk_steps * kPanel + key % kPanel;
    if (t >= count) {
      for (int64_t k = 0; k < plan.qk_steps; ++k) lane[k * kPanel] = 0;
      if constexpr (kQuantized<Scheme>) area.key_scales[key] = 1.0f;
      if constexpr (kQuantized<Scheme>) area.key_offsets[key] = 0;
      continue;
    }
    float* row = thread.rows + t * plan.depth;
    if constexpr (kIntegerKeys<Scheme>) {
      const int32_t sum =
          encode_int8_key(row, plan.depth, plan.qk_steps, area.key_scales[key], units);
      area.key_offsets[key] = -128 * sum;
    } else {
      encode_row<Scheme>(row, plan.depth, kQuantized<Scheme> ? area.key_scales[key] : 1.0f, units);
    }
    scatter_units(units, plan.qk_steps, lane);
  }
}

// ---- values ----

/// `count` rows of V (zero from there to `padded`) as the scheme stores them, still in fp32:
/// centred, divided by the channel's or the block's scale, rounded to the format.
template <class Scheme>
inline void load_values(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                        int64_t head, int64_t first, int64_t count, int64_t padded,
                        HeadArea<Scheme>& area, float* rows) {
  for (int64_t t = 0; t < padded; ++t) {
    float* row = rows + t * plan.depth;
    if (t >= count) {
      for (int64_t i = 0; i < plan.depth; i += kLanes) store(row + i, F32{});
      continue;
    }
    load_row(row_of(p.value, p.type, batch, head, first + t), p.type, p.head_dim, row);
    for (int64_t i = plan.columns; i < plan.depth; i += kLanes) store(row + i, F32{});
    if constexpr (Scheme::kChannelScales) {
      for (int64_t i = 0; i < plan.columns; i += kLanes) {
        F32 v = load(row + i);
        if constexpr (Scheme::kSmoothValues) v = v - load(area.value_mean + i);
        store(row + i, v / load(area.value_scales + i));
      }
    }
  }
}

/// Rounds each group of 16 rows of a column to NVFP4 (the contracted dimension of PV is keys).
inline void round_columns_fp4(float* rows, int64_t count, int64_t columns, int64_t depth) {
  constexpr int kVectors = kFp4Group / kLanes;
  for (int64_t t = 0; t < count; t += kFp4Group) {
    for (int64_t c = 0; c < columns; ++c) {
      alignas(64) float group[kFp4Group];
      for (int k = 0; k < kFp4Group; ++k) group[k] = rows[(t + k) * depth + c];
      F32 v[kVectors];
      for (int k = 0; k < kVectors; ++k) v[k] = load(group + k * kLanes);
      const F32 scale = splat(round_nvfp4_group(v));
      for (int k = 0; k < kVectors; ++k) store(group + k * kLanes, v[k] * scale);
      for (int k = 0; k < kFp4Group; ++k) rows[(t + k) * depth + c] = group[k];
    }
  }
}

/// Unit of kPack consecutive keys at kLanes columns.
template <class Dot>
CACHEDIT_INLINE I32 value_units(const float* rows, int64_t depth) {
  if constexpr (__is_same(Dot, DotF32)) {
    return bits(load(rows));
  } else if constexpr (__is_same(Dot, DotBF16)) {
    alignas(64) uint16_t pair[2][kLanes];
    store_bf16(pair[0], load(rows));
    store_bf16(pair[1], load(rows + depth));
    const I32 low = __builtin_convertvector(*reinterpret_cast<const U16u*>(pair[0]), I32);
    const I32 high = __builtin_convertvector(*reinterpret_cast<const U16u*>(pair[1]), I32);
    return low | (high << 16);
  } else {
    I32 units{};
    constexpr int kBits = 32 / Dot::kPack;
    constexpr int32_t kMask = Dot::kPack == 4 ? 0xff : 0xffff;
    for (int k = 0; k < Dot::kPack; ++k) {
      units |= (round_to_int(load(rows + k * depth)) & kMask) << (k * kBits);
    }
    return units;
  }
}

template <class Scheme>
inline void pack_values(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                        int64_t head, int64_t block, HeadArea<Scheme>& area,
                        ThreadArea<Scheme>& thread) {
  using Dot = typename Scheme::PV;
  const int64_t first = block * Scheme::kKeyBlock;
  const int64_t count =
      p.keys - first < Scheme::kKeyBlock ? p.keys - first : int64_t{Scheme::kKeyBlock};
  const int64_t padded = round_up(count, kFp4Group);
  load_values(p, plan, batch, head, first, count, padded, area, thread.rows);
  if constexpr (Scheme::kValueBlockScale == Granularity::kBlock) {
    const float scale = scale_of(largest_magnitude(thread.rows, count, plan.depth), kMaxE4M3);
    area.block_scales[block] = scale;
    for (int64_t i = 0; i < count * plan.depth; i += kLanes) {
      store(thread.rows + i, load(thread.rows + i) / splat(scale));
    }
  }
  if constexpr (Scheme::kWeights == Weights::kE4M3) {
    for (int64_t i = 0; i < count * plan.depth; i += kLanes) {
      store(thread.rows + i, round_e4m3(load(thread.rows + i)));
    }
  }
  if constexpr (Scheme::kWeights == Weights::kFp4) {
    round_columns_fp4(thread.rows, padded, plan.columns, plan.depth);
  }
  int32_t* panels = area.values + block * Plan<Scheme>::kValueSteps * plan.columns;
  for (int64_t c = 0; c < plan.columns; c += kLanes) {
    const int64_t panel = c / kPanel * kPanel;
    const int64_t width = plan.columns - panel < kPanel ? plan.columns - panel : int64_t{kPanel};
    int32_t* out = panels + panel * Plan<Scheme>::kValueSteps + (c - panel);
    for (int64_t step = 0; step * Dot::kPack < padded; ++step) {
      const float* rows = thread.rows + step * Dot::kPack * plan.depth + c;
      store(out + step * width, value_units<Dot>(rows, plan.depth));
    }
  }
}

// ---- queries ----

/// Packs `count` rows from query row `first` (of head `head`), zero rows up to a multiple of kRows,
/// and sets what turns sums of products into logits: exponent, logit_scale, mean_logit.
template <class Scheme>
inline void pack_queries(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                         int64_t head, int64_t first, int64_t count, bool natural_logits,
                         const HeadArea<Scheme>& area, ThreadArea<Scheme>& thread) {
  constexpr float kLog2E = 1.44269504f;
  const float scale = p.scale < 0 ? -p.scale : p.scale;
  const F32 sign = splat(p.scale < 0 ? -1.0f : 1.0f);
  const int64_t padded = round_up(count, kRows);
  for (int64_t t = 0; t < padded; ++t) {
    float* row = thread.rows + t * plan.depth;
    for (int64_t i = 0; i < plan.depth; i += kLanes) store(row + i, F32{});
    if (t >= count) continue;
    load_row(row_of(p.query, p.type, batch, head, first + t), p.type, p.head_dim, row);
    F32 dot{};
    for (int64_t i = 0; i < plan.depth; i += kLanes) {
      store(row + i, load(row + i) * sign);
      if constexpr (Scheme::kSmoothKeys) dot = fma(load(row + i), load(area.key_mean + i), dot);
    }
    thread.mean_logit[t] = Scheme::kSmoothKeys ? reduce_add(dot) * scale : 0.0f;
  }
  alignas(64) float scales[kRowBlock];
  for (int64_t t = 0; t < padded; ++t) scales[t] = 1.0f;
  if constexpr (kQuantized<Scheme>) {
    constexpr int64_t kGroup = Scheme::kScales == Granularity::kGroup ? kQueryGroup : kRowBlock;
    choose_scales<Scheme>(thread.rows, padded, plan.depth, kGroup, scales);
  }
  for (int64_t t = 0; t < padded; ++t) {
    float* row = thread.rows + t * plan.depth;
    int32_t* units = thread.q + t * plan.qk_steps;
    thread.logit_scale[t] = scale * scales[t];
    const float exponent = natural_logits ? kLog2E : scale * scales[t] * kLog2E;
    thread.exponent[t] = exponent < 1e-37f ? 1e-37f : exponent;
    if constexpr (kIntegerKeys<Scheme>) {
      const F32 inverse = splat(1.0f / scales[t]);
      auto* elements = reinterpret_cast<DotInt8::ElementA*>(units);
      for (int64_t i = 0; i < plan.depth; i += kLanes) {
        alignas(64) int32_t lanes[kLanes];
        store(lanes, quantize(row + i, inverse) + 128);
        for (int l = 0; l < kLanes && i + l < plan.qk_steps * DotInt8::kPack; ++l) {
          elements[i + l] = static_cast<DotInt8::ElementA>(lanes[l]);
        }
      }
    } else {
      // Rows follow each other without gaps, so the last vector of one is overwritten by the next.
      encode_row<Scheme>(row, plan.depth, scales[t], units);
    }
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
