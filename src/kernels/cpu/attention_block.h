// One block of query rows against one block of keys: QK, masking, online softmax, PV.
#pragma once

#include "kernels/cpu/attention_mask.h"
#include "kernels/cpu/attention_pack.h"
#include "kernels/cpu/attention_queries.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// What stays the same for all key blocks of a block of rows.
struct RowBlock {
  int64_t batch;
  int64_t head;   ///< of the query
  int64_t first;  ///< query row
  int64_t count;
  int64_t padded;     ///< count rounded up to kRows
  int64_t mask_base;  ///< index of the mask's element for this batch and head
  /// Logits are kept in natural units rather than as sums of products: where a float mask is added.
  bool natural;
};

/// Logits of `groups` register blocks of rows with one panel of keys. The running lane maxima are
/// updated; `bias` (of the panel) may be null. Sums over slices of the depth pass through the
/// logits' memory.
template <class Scheme>
inline void multiply_panel(const Plan<Scheme>& plan, const HeadArea<Scheme>& head, int64_t key,
                           int64_t column, const float* bias, const RowBlock& rows,
                           ThreadArea<Scheme>& thread) {
  using Dot = typename Scheme::QK;
  using Acc = typename Dot::Acc;
  const int32_t* panel = head.keys + key / kPanel * plan.qk_steps * kPanel;
  for (int64_t begin = 0; begin < plan.qk_steps; begin += plan.qk_slice) {
    const int64_t steps =
        plan.qk_steps - begin < plan.qk_slice ? plan.qk_steps - begin : plan.qk_slice;
    const bool first = begin == 0;
    const bool last = begin + steps == plan.qk_steps;
    for (int64_t r = 0; r < rows.padded; r += kRows) {
      Tile<Dot, kVecs> tile;
      float* logits = thread.logits + r * Scheme::kKeyBlock + column;
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          if (!first) {
            const F32 partial = load(logits + i * Scheme::kKeyBlock + v * kLanes);
            tile.at[i][v] = reinterpret_cast<const Acc&>(partial);
          } else if constexpr (kIntegerKeys<Scheme>) {
            tile.at[i][v] = load(head.key_offsets + key + v * kLanes);
          } else {
            tile.at[i][v] = Acc{};
          }
        }
      }
      multiply<Dot, kVecs>(tile, thread.q + r * plan.qk_steps + begin, plan.qk_steps,
                           panel + begin * kPanel, steps);
      if (!last) {
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) {
            store(logits + i * Scheme::kKeyBlock + v * kLanes,
                  reinterpret_cast<const F32&>(tile.at[i][v]));
          }
        }
        continue;
      }
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        float* lane_max = thread.lane_max + (r + i) * kLanes;
        F32 largest = column == 0 ? splat(-kInfinity) : load(lane_max);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          F32 s;
          if constexpr (kIntegerKeys<Scheme>) {
            s = to_float(tile.at[i][v]);
          } else {
            s = tile.at[i][v];
          }
          if constexpr (kQuantized<Scheme>) s = s * load(head.key_scales + key + v * kLanes);
          if (bias != nullptr) {
            const F32 b = load(bias + v * kLanes);
            s = rows.natural ? fma(s, splat(thread.logit_scale[r + i]), b) : s + b;
          }
          store(logits + i * Scheme::kKeyBlock + v * kLanes, s);
          largest = max(largest, s);
        }
        store(lane_max, largest);
      }
    }
  }
}

/// Adds each row's own bias and finds the lane maxima anew.
template <class Scheme>
inline void mask_rows(const AttentionProblem& p, const RowBlock& rows, int64_t key, int64_t keys,
                      int64_t padded_keys, ThreadArea<Scheme>& thread) {
  for (int64_t r = 0; r < rows.padded; ++r) {
    // Rows that only pad the block repeat the last one, so that no memory outside the mask is read.
    const int64_t row = rows.first + (r < rows.count ? r : rows.count - 1);
    load_row_bias(p, rows.mask_base, row, key, keys, padded_keys, thread.bias);
    float* logits = thread.logits + r * Scheme::kKeyBlock;
    const F32 scale = splat(rows.natural ? thread.logit_scale[r] : 1.0f);
    F32 largest = splat(-kInfinity);
    for (int64_t i = 0; i < padded_keys; i += kLanes) {
      const F32 bias = load(thread.bias + i);
      // Selected, not added: NaN in a key that the row does not see stays out of it.
      const F32 s = select(bias == -kInfinity, bias, fma(load(logits + i), scale, bias));
      store(logits + i, s);
      largest = max(largest, s);
    }
    store(thread.lane_max + r * kLanes, largest);
  }
}

/// New running maxima, and the factors that follow from them, for all rows at once.
template <class Scheme>
inline void update_maxima(const RowBlock& rows, float value_scale, ThreadArea<Scheme>& thread) {
  constexpr ExpAccuracy kFine = ExpAccuracy::kFine;
  for (int64_t r = 0; r < rows.padded; ++r) {
    thread.block_max[r] = reduce_max(load(thread.lane_max + r * kLanes));
  }
  for (int64_t r = 0; r < rows.padded; r += kLanes) {
    const F32 block = load(thread.block_max + r);
    const F32 before = load(thread.row_max + r);
    const F32 now = max(before, block);
    const F32 exponent = load(thread.exponent + r);
    // A row without any key so far keeps -infinity; subtracting 0 instead avoids inf - inf.
    const F32 anchor = select(now == -kInfinity, F32{}, now);
    store(thread.row_max + r, now);
    store(thread.rescale + r, exp2<kFine>((before - anchor) * exponent));
    F32 reference = anchor;
    F32 product = splat(value_scale);
    if constexpr (Scheme::kWeights == Weights::kByte) {
      reference = select(block == -kInfinity, F32{}, block);
      product = exp2<kFine>((block - anchor) * exponent) * splat(1.0f / 255.0f);
    }
    store(thread.reference + r, reference);
    store(thread.product_scale + r, product);
  }
}

/// Weights of one row as PV's elements; returns their sum per lane in the stored scale.
template <class Scheme>
CACHEDIT_INLINE F32 softmax_row(const float* logits, int64_t keys, F32 reference, F32 exponent,
                                int32_t* units) {
  constexpr Weights kWeights = Scheme::kWeights;
  const F32 shift = splat(kWeightLog2<kWeights>);
  const auto weight = [&](int64_t i) {
    return exp2<Scheme::kExp>(fma(load(logits + i) - reference, exponent, shift));
  };
  if constexpr (kWeights == Weights::kByte) {
    auto* out = reinterpret_cast<typename Scheme::PV::ElementA*>(units);
    I32 sum{};
#pragma GCC unroll 4
    for (int64_t i = 0; i < keys; i += kLanes) {
      const I32 q = round_to_int(weight(i));
      sum += q;
      store_low(out + i, q);
    }
    return to_float(sum);
  } else {
    auto* out = reinterpret_cast<typename Scheme::PV::Element*>(units);
    F32 sum{};
    if constexpr (kWeights == Weights::kFp4) {
      constexpr int kVectors = kFp4Group / kLanes;
      for (int64_t i = 0; i < keys; i += kFp4Group) {
        F32 v[kVectors];
        for (int k = 0; k < kVectors; ++k) {
          v[k] = weight(i + k * kLanes);
          sum = sum + v[k];
        }
        const F32 scale = splat(round_nvfp4_group(v));
        for (int k = 0; k < kVectors; ++k) store_elements(out + i + k * kLanes, v[k] * scale);
      }
    } else {
#pragma GCC unroll 4
      for (int64_t i = 0; i < keys; i += kLanes) {
        F32 w = weight(i);
        sum = sum + w;
        if constexpr (kWeights == Weights::kE4M3) w = round_e4m3_magnitude(w);
        store_elements(out + i, w);
      }
    }
    return sum;
  }
}

template <class Scheme>
inline void softmax_block(const RowBlock& rows, int64_t keys, ThreadArea<Scheme>& thread) {
  for (int64_t r = 0; r < rows.padded; ++r) {
    F32 sum = softmax_row<Scheme>(thread.logits + r * Scheme::kKeyBlock, keys,
                                  splat(thread.reference[r]), splat(thread.exponent[r]),
                                  thread.weights + r * Plan<Scheme>::kValueSteps);
    if constexpr (Scheme::kWeights == Weights::kByte) sum = sum * splat(thread.product_scale[r]);
    float* total = thread.lane_sum + r * kLanes;
    store(total, fma(load(total), splat(thread.rescale[r]), sum));
  }
}

/// out = out * rescale + weights * values, for `vecs` vectors of columns.
template <class Scheme, int vecs>
inline void accumulate_panel(const Plan<Scheme>& plan, const int32_t* panel, int64_t column,
                             int64_t steps, const RowBlock& rows, ThreadArea<Scheme>& thread) {
  using Dot = typename Scheme::PV;
  using Acc = typename Dot::Acc;
  for (int64_t r = 0; r < rows.padded; r += kRows) {
    Tile<Dot, vecs> tile;
    float* out = thread.out + r * plan.columns + column;
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const F32 rescale = splat(thread.rescale[r + i]);
#pragma GCC unroll 4
      for (int v = 0; v < vecs; ++v) {
        if constexpr (kScaledProducts<Scheme>) {
          tile.at[i][v] = Acc{};
        } else {
          tile.at[i][v] = load(out + i * plan.columns + v * kLanes) * rescale;
        }
      }
    }
    multiply<Dot, vecs>(tile, thread.weights + r * Plan<Scheme>::kValueSteps,
                        Plan<Scheme>::kValueSteps, panel, steps);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < vecs; ++v) {
        float* target = out + i * plan.columns + v * kLanes;
        if constexpr (kScaledProducts<Scheme>) {
          F32 product;
          if constexpr (__is_same(Acc, I32)) {
            product = to_float(tile.at[i][v]);
          } else {
            product = tile.at[i][v];
          }
          const F32 kept = load(target) * splat(thread.rescale[r + i]);
          store(target, fma(product, splat(thread.product_scale[r + i]), kept));
        } else {
          store(target, tile.at[i][v]);
        }
      }
    }
  }
}

template <class Scheme>
inline void accumulate_block(const Plan<Scheme>& plan, const HeadArea<Scheme>& head, int64_t block,
                             int64_t keys, const RowBlock& rows, ThreadArea<Scheme>& thread) {
  const int32_t* panels = head.values + block * Plan<Scheme>::kValueSteps * plan.columns;
  const int64_t steps = round_up(keys, kFp4Group) / Scheme::PV::kPack;
  for (int64_t c = 0; c < plan.columns; c += kPanel) {
    const int32_t* panel = panels + c * Plan<Scheme>::kValueSteps;
    const int64_t vecs = (plan.columns - c) / kLanes;
    if (vecs >= kVecs) {
      accumulate_panel<Scheme, kVecs>(plan, panel, c, steps, rows, thread);
    } else if (kVecs > 2 && vecs == 3) {
      accumulate_panel<Scheme, kVecs == 4 ? 3 : 1>(plan, panel, c, steps, rows, thread);
    } else if (kVecs > 2 && vecs == 2) {
      accumulate_panel<Scheme, kVecs == 4 ? 2 : 1>(plan, panel, c, steps, rows, thread);
    } else {
      accumulate_panel<Scheme, 1>(plan, panel, c, steps, rows, thread);
    }
  }
}

/// Adds the keys of `block` to the running softmax of the rows.
template <class Scheme>
inline void attend_block(const AttentionProblem& p, const Plan<Scheme>& plan,
                         const HeadArea<Scheme>& head, int64_t block, const RowBlock& rows,
                         ThreadArea<Scheme>& thread) {
  const int64_t key = block * Scheme::kKeyBlock;
  const int64_t keys = p.keys - key < Scheme::kKeyBlock ? p.keys - key : int64_t{Scheme::kKeyBlock};
  const int64_t padded = round_up(keys, kKeyPadding);
  const BlockMask mask =
      classify_block(p, rows.mask_base, rows.first, rows.count, key, keys, padded, thread.bias);
  if (mask == BlockMask::kClosed) return;
  const bool biased = mask == BlockMask::kPerKey || (rows.natural && mask == BlockMask::kOpen);
  if (biased && mask == BlockMask::kOpen) {
    for (int64_t i = 0; i < padded; i += kLanes) store(thread.bias + i, F32{});
  }
  for (int64_t c = 0; c < padded; c += kPanel) {
    multiply_panel(plan, head, key + c, c, biased ? thread.bias + c : nullptr, rows, thread);
  }
  if (mask == BlockMask::kPerRow) mask_rows(p, rows, key, keys, padded, thread);
  constexpr bool kBlockScales = Scheme::kValueBlockScale == Granularity::kBlock;
  update_maxima<Scheme>(rows, kBlockScales ? head.block_scales[block] : 1.0f, thread);
  softmax_block(rows, padded, thread);
  accumulate_block(plan, head, block, keys, rows, thread);
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
