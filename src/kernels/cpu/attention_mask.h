// Masks as additive biases: per key where all rows of a block share them, else per row.
#pragma once

#include "kernels/cpu/attention_plan.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// One element as a bias. -infinity: does not take part.
CACHEDIT_INLINE float mask_element(const AttentionMask& mask, int64_t index) {
  switch (mask.type) {
    case MaskType::kBool:
      return static_cast<const uint8_t*>(mask.data)[index] ? 0.0f : -kInfinity;
    case MaskType::kFloat32:
      return static_cast<const float*>(mask.data)[index];
    case MaskType::kBFloat16: {
      const uint32_t u = static_cast<uint32_t>(static_cast<const uint16_t*>(mask.data)[index])
                         << 16;
      float f = 0;
      __builtin_memcpy(&f, &u, sizeof(f));
      return f;
    }
    case MaskType::kFloat16:
      return half_to_float(static_cast<const uint16_t*>(mask.data)[index]);
    case MaskType::kNone:
      break;
  }
  return 0.0f;
}

/// Whether any row of the key head sees the key, as far as a mask that all its rows share tells.
/// Keys that none sees must not shift the means and scales of quantized schemes.
CACHEDIT_INLINE bool takes_part(const AttentionProblem& p, int64_t batch, int64_t kv_head,
                                int64_t key) {
  const AttentionMask& mask = p.mask;
  if (mask.type == MaskType::kNone || mask.stride_query != 0) return true;
  if (mask.stride_head != 0 && p.heads != p.kv_heads) return true;
  return mask_element(mask, batch * mask.stride_batch + kv_head * mask.stride_head +
                                key * mask.stride_key) != -kInfinity;
}

/// kLanes elements from `index` with stride 1.
CACHEDIT_INLINE F32 mask_vector(const AttentionMask& mask, int64_t index) {
  switch (mask.type) {
    case MaskType::kBool: {
      typedef uint8_t U8 __attribute__((vector_size(kLanes), may_alias));
      U8 bytes;
      __builtin_memcpy(&bytes, static_cast<const uint8_t*>(mask.data) + index, sizeof(bytes));
      return select(__builtin_convertvector(bytes, I32) != 0, F32{}, splat(-kInfinity));
    }
    case MaskType::kFloat32:
      return load_as_float(mask.data, ElementType::kFloat32, index);
    case MaskType::kBFloat16:
      return load_as_float(mask.data, ElementType::kBFloat16, index);
    case MaskType::kFloat16:
      return load_as_float(mask.data, ElementType::kFloat16, index);
    case MaskType::kNone:
      break;
  }
  return F32{};
}

CACHEDIT_INLINE int64_t mask_index(const AttentionMask& mask, int64_t batch, int64_t head,
                                   int64_t query, int64_t key) {
  return batch * mask.stride_batch + head * mask.stride_head + query * mask.stride_query +
         key * mask.stride_key;
}

/// bias[0, count) of the keys from `index` on, -infinity up to `padded`.
inline void load_bias(const AttentionMask& mask, int64_t index, int64_t count, int64_t padded,
                      float* bias) {
  int64_t i = 0;
  if (mask.stride_key == 1 || mask.type == MaskType::kNone) {
    for (; i + kLanes <= count; i += kLanes) store(bias + i, mask_vector(mask, index + i));
  }
  for (; i < count; ++i) bias[i] = mask_element(mask, index + i * mask.stride_key);
  for (; i < padded; ++i) bias[i] = -kInfinity;
}

/// What the keys of a block need.
enum class BlockMask {
  kOpen,    ///< every key takes part in every row
  kClosed,  ///< none does
  kPerKey,  ///< bias[] holds what is added
  kPerRow,  ///< rows differ
};

inline bool is_per_row(const AttentionMask& mask) {
  return mask.type != MaskType::kNone && mask.stride_query != 0;
}
inline bool is_float(const AttentionMask& mask) {
  return mask.type != MaskType::kNone && mask.type != MaskType::kBool;
}

/// Rows [row, row + rows) and keys [key, key + keys) of one head; fills `bias` for kPerKey.
inline BlockMask classify_block(const AttentionProblem& p, int64_t mask_base, int64_t row,
                                int64_t rows, int64_t key, int64_t keys, int64_t padded,
                                float* bias) {
  if (p.causal) {
    const int64_t last_of_first_row = row + p.causal_offset;
    if (key > last_of_first_row + rows - 1) return BlockMask::kClosed;
    if (key + keys - 1 > last_of_first_row) return BlockMask::kPerRow;
  }
  if (is_per_row(p.mask)) return BlockMask::kPerRow;
  if (p.mask.type == MaskType::kNone && keys == padded) return BlockMask::kOpen;
  load_bias(p.mask, mask_base + key * p.mask.stride_key, keys, padded, bias);
  bool open = true;
  bool closed = true;
  for (int64_t i = 0; i < padded; ++i) {
    open = open && bias[i] == 0.0f;
    closed = closed && bias[i] == -kInfinity;
  }
  return closed ? BlockMask::kClosed : open ? BlockMask::kOpen : BlockMask::kPerKey;
}

/// bias of one row: keys [key, key + keys), -infinity up to `padded`.
inline void load_row_bias(const AttentionProblem& p, int64_t mask_base, int64_t row, int64_t key,
                          int64_t keys, int64_t padded, float* bias) {
  int64_t visible = keys;
  if (p.causal) {
    visible = row + p.causal_offset + 1 - key;
    visible = visible < 0 ? 0 : visible < keys ? visible : keys;
  }
  const int64_t index = mask_base + row * p.mask.stride_query + key * p.mask.stride_key;
  load_bias(p.mask, index, visible, padded, bias);
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
