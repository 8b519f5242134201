// Packing of keys and values into the units that the products read, quantizing on the way; done
// once per call. Rows that already have the product's element type are read where they lie.
#pragma once

#include "kernels/cpu/attention_mask.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/transpose.h"

namespace cachedit::kernels::CACHEDIT_ISA {

CACHEDIT_INLINE const void* row_of(const AttentionOperand& t, ElementType type, int64_t batch,
                                   int64_t head, int64_t token) {
  return offset(t.data, type,
                batch * t.stride_batch + head * t.stride_head + token * t.stride_token);
}

/// Asks for a row some tokens ahead of its use: rows of one head lie a whole token apart, which
/// hardware prefetchers do not follow. Reading past the last token asks for nothing harmful.
CACHEDIT_INLINE void prefetch_row(const AttentionProblem& p, const void* row,
                                  int64_t stride_token) {
  constexpr int64_t kAhead = 16;
  const char* bytes = static_cast<const char*>(offset(row, p.type, kAhead * stride_token));
  for (int64_t i = 0; i < p.head_dim * element_size(p.type); i += 64) {
    __builtin_prefetch(bytes + i);
  }
}

/// Keys of one block, or of the last one.
template <class Scheme>
CACHEDIT_INLINE int64_t keys_of_block(const AttentionProblem& p, int64_t block) {
  const int64_t left = p.keys - block * Scheme::kKeyBlock;
  return left < Scheme::kKeyBlock ? left : int64_t{Scheme::kKeyBlock};
}

/// Whether rows of the inputs are already streams of the product's units, with no partial vector.
template <class Scheme>
CACHEDIT_INLINE bool reads_in_place(const AttentionProblem& p) {
  if constexpr (Scheme::kWeights != Weights::kPlain) return false;
  const bool same = __is_same(typename Scheme::QK, DotF32) ? p.type == ElementType::kFloat32
                                                           : p.type == ElementType::kBFloat16;
  return same && p.head_dim * element_size(p.type) % (kLanes * 4) == 0;
}

CACHEDIT_INLINE void clear_row(float* row, int64_t depth) {
  for (int64_t i = 0; i < depth; i += kLanes) store(row + i, F32{});
}

/// A row in fp32, zero up to `depth`.
inline void load_padded_row(const AttentionProblem& p, const AttentionOperand& operand,
                            const void* in, int64_t depth, float* row) {
  prefetch_row(p, in, operand.stride_token);
  load_row(in, p.type, p.head_dim, row);
  for (int64_t i = round_up(p.head_dim, kLanes); i < depth; i += kLanes) store(row + i, F32{});
}

/// K of one block in fp32, minus the mean over tokens if the scheme smooths.
template <class Scheme>
inline void load_keys(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                      int64_t head, int64_t block, const float* mean, float* rows) {
  const int64_t first = block * Scheme::kKeyBlock;
  for (int64_t t = 0; t < keys_of_block<Scheme>(p, block); ++t) {
    float* row = rows + t * plan.depth;
    if (kQuantized<Scheme> && !takes_part(p, batch, head, first + t)) {
      clear_row(row, plan.depth);
      continue;
    }
    load_padded_row(p, p.key, row_of(p.key, p.type, batch, head, first + t), plan.depth, row);
    if constexpr (Scheme::kSmoothKeys) {
      for (int64_t i = 0; i < plan.depth; i += kLanes) {
        store(row + i, load(row + i) - load(mean + i));
      }
    }
  }
}

template <class Scheme>
inline void pack_keys(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                      int64_t head, int64_t block, HeadArea<Scheme>& area,
                      ThreadArea<Scheme>& thread) {
  const int64_t first = block * Scheme::kKeyBlock;
  const int64_t count = keys_of_block<Scheme>(p, block);
  const bool in_place = reads_in_place<Scheme>(p);
  if (!in_place) load_keys(p, plan, batch, head, block, area.key_mean, thread.rows);
  if constexpr (kQuantized<Scheme>) {
    choose_scales<Scheme>(thread.rows, count, plan.depth, kKeysPerScale<Scheme>,
                          area.key_scales + first);
  }
  for (int64_t t = 0; t < round_up(count, kKeyPadding); t += kLanes) {
    const int32_t* units[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      int32_t* buffer = thread.units + i * plan.depth;
      units[i] = buffer;
      const int64_t key = first + t + i;
      if (t + i >= count) {
        clear_row(reinterpret_cast<float*>(buffer), plan.depth);
        if constexpr (kQuantized<Scheme>) area.key_scales[key] = 1.0f;
        if constexpr (kQuantized<Scheme>) area.key_offsets[key] = 0;
      } else if (in_place) {
        units[i] = static_cast<const int32_t*>(row_of(p.key, p.type, batch, head, key));
        prefetch_row(p, units[i], p.key.stride_token);
      } else if constexpr (kIntegerKeys<Scheme>) {
        const float* row = thread.rows + (t + i) * plan.depth;
        area.key_offsets[key] =
            -128 * encode_int8_key(row, plan.depth, area.key_scales[key], buffer);
      } else {
        float* row = thread.rows + (t + i) * plan.depth;
        encode_float<Scheme>(row, plan.depth, kQuantized<Scheme> ? area.key_scales[key] : 1.0f,
                             buffer);
      }
    }
    const int64_t key = first + t;
    transpose_into_panel(units, plan.qk_steps,
                         area.keys + key / kPanel * plan.qk_steps * kPanel + key % kPanel, kPanel);
  }
}

/// V of one block in fp32 and as the scheme stores it: centred, divided by the channel's scale;
/// zero rows up to `padded`.
template <class Scheme>
inline void load_values(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                        int64_t head, int64_t block, int64_t padded, const HeadArea<Scheme>& area,
                        float* rows) {
  const int64_t count = keys_of_block<Scheme>(p, block);
  for (int64_t t = 0; t < padded; ++t) {
    float* row = rows + t * plan.depth;
    const bool used = t < count && (!kQuantized<Scheme> ||
                                    takes_part(p, batch, head, block * Scheme::kKeyBlock + t));
    if (!used) {
      clear_row(row, plan.depth);
      continue;
    }
    load_padded_row(p, p.value, row_of(p.value, p.type, batch, head, block * Scheme::kKeyBlock + t),
                    plan.depth, row);
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

/// Rounds the rows of a block to the scheme's format of V.
template <class Scheme>
inline void round_values(const Plan<Scheme>& plan, int64_t count, int64_t padded,
                         float* block_scale, float* rows) {
  if constexpr (Scheme::kValueBlockScale == Granularity::kBlock) {
    const float scale = scale_of(largest_magnitude(rows, count * plan.depth), kMaxE4M3);
    *block_scale = scale;
    for (int64_t i = 0; i < count * plan.depth; i += kLanes) {
      store(rows + i, load(rows + i) / splat(scale));
    }
  }
  if constexpr (Scheme::kWeights == Weights::kE4M3) {
    for (int64_t i = 0; i < count * plan.depth; i += kLanes) {
      store(rows + i, round_e4m3(load(rows + i)));
    }
  }
  if constexpr (Scheme::kWeights == Weights::kFp4) {
    round_columns_fp4(rows, padded, plan.columns, plan.depth);
  }
}

/// Units of kPack consecutive keys at kLanes columns; rows[k] is key k at the first of them.
template <class Dot>
CACHEDIT_INLINE I32 value_units(const float* const (&rows)[Dot::kPack]) {
  if constexpr (__is_same(Dot, DotF32)) {
    return bits(load(rows[0]));
  } else if constexpr (__is_same(Dot, DotBF16)) {
    alignas(64) uint16_t pair[2][kLanes];
    store_bf16(pair[0], load(rows[0]));
    store_bf16(pair[1], load(rows[1]));
    return ((bits(load_bf16(pair[0])) >> 16) & 0xffff) | bits(load_bf16(pair[1]));
  } else {
    constexpr int kBits = 32 / Dot::kPack;
    constexpr int32_t kMask = Dot::kPack == 4 ? 0xff : 0xffff;
    I32 units{};
    for (int k = 0; k < Dot::kPack; ++k) {
      units |= (round_to_int(load(rows[k])) & kMask) << (k * kBits);
    }
    return units;
  }
}

/// The same for rows that already hold the product's elements.
template <class Dot>
CACHEDIT_INLINE I32 value_units_in_place(const void* const (&rows)[Dot::kPack], int64_t column) {
  if constexpr (__is_same(Dot, DotF32)) {
    return load(static_cast<const int32_t*>(rows[0]) + column);
  } else {
    const I32 low = bits(load_bf16(static_cast<const uint16_t*>(rows[0]) + column));
    const I32 high = bits(load_bf16(static_cast<const uint16_t*>(rows[1]) + column));
    return ((low >> 16) & 0xffff) | high;
  }
}

template <class Scheme>
inline void pack_values(const AttentionProblem& p, const Plan<Scheme>& plan, int64_t batch,
                        int64_t head, int64_t block, HeadArea<Scheme>& area,
                        ThreadArea<Scheme>& thread) {
  using Dot = typename Scheme::PV;
  constexpr int kPack = Dot::kPack;
  const int64_t count = keys_of_block<Scheme>(p, block);
  const int64_t padded = round_up(count, kFp4Group);
  // Blocks with padding go through fp32 rows, where padding is zero.
  const bool in_place = reads_in_place<Scheme>(p) && count == padded;
  if (!in_place) {
    load_values(p, plan, batch, head, block, padded, area, thread.rows);
    round_values(plan, count, padded, area.block_scales + block, thread.rows);
  }
  int32_t* panels = area.values + block * Plan<Scheme>::kValueSteps * plan.columns;
  for (int64_t step = 0; step * kPack < padded; ++step) {
    const void* raw[kPack];
    const float* converted[kPack];
    for (int64_t k = 0; k < kPack; ++k) {
      const int64_t t = step * kPack + k;
      converted[k] = thread.rows + t * plan.depth;
      raw[k] = in_place ? row_of(p.value, p.type, batch, head, block * Scheme::kKeyBlock + t)
                        : converted[k];
      if (in_place) prefetch_row(p, raw[k], p.value.stride_token);
    }
    for (int64_t c = 0; c < plan.columns; c += kLanes) {
      const int64_t panel = c / kPanel * kPanel;
      const int64_t width = plan.columns - panel < kPanel ? plan.columns - panel : int64_t{kPanel};
      int32_t* out = panels + panel * Plan<Scheme>::kValueSteps + step * width + (c - panel);
      if constexpr (Scheme::kWeights == Weights::kPlain) {
        if (in_place) {
          store(out, value_units_in_place<Dot>(raw, c));
          continue;
        }
      }
      const float* at[kPack];
      for (int64_t k = 0; k < kPack; ++k) at[k] = converted[k] + c;
      store(out, value_units<Dot>(at));
    }
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
