// Scaled dot-product attention on CPU tensors that the caller describes with pointers and strides.
// One tiled online-softmax skeleton for every element format; nothing here knows of tensors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu_isa.h"
#include "kernels/element_type.h"
#include "kernels/parallel.h"

namespace cachedit::kernels {

/// Which number formats the two products use. All accumulate in fp32 (integers in int32) and keep
/// the running maximum, the running sum and the output in fp32.
enum class AttentionScheme {
  /// The element type's own products: bf16 dot products where the CPU has them, else fp32
  /// (FlashAttention-2, arXiv 2307.08691). Head dimensions 1 to 1024, worked through in slices
  /// once they no longer fit the cache.
  kExact,
  /// SageAttention 2 (arXiv 2411.10958): K minus its mean over tokens, Q and K in INT8 with one
  /// scale per token group, P in 8 bits per key block, V in INT8 with per-channel scales.
  kSage,
  /// As kSage without the smoothing of K: what smoothing is worth is a test.
  kSageUnsmoothed,
  /// INT8 QK with per-token scales, K and V smoothed, V and P in e4m3, V's scale per channel; the
  /// first 256 query rows (128 when causal) are computed by kExact.
  kFp8,
  /// INT8 QK with one scale per block of tokens, V and P in e4m3 with one scale per block.
  kFp8PerBlock,
  /// NVFP4: e2m1 values with an e4m3 scale per 16 along the contracted dimension, for Q, K, P, V.
  kFp4,
};

/// Elements of a [batch, tokens, heads, head_dim] array; strides count elements and the last
/// dimension has stride 1.
struct AttentionOperand {
  const void* data = nullptr;
  int64_t stride_batch = 0;
  int64_t stride_token = 0;
  int64_t stride_head = 0;
};

struct AttentionOutput {
  void* data = nullptr;
  int64_t stride_batch = 0;
  int64_t stride_token = 0;
  int64_t stride_head = 0;
};

enum class MaskType { kNone, kBool, kFloat32, kBFloat16, kFloat16 };

/// [batch, heads, queries, keys] with stride 0 along broadcast dimensions; strides count elements.
/// kBool is one byte an element, nonzero takes part; the float kinds are added to the logits.
struct AttentionMask {
  MaskType type = MaskType::kNone;
  const void* data = nullptr;
  int64_t stride_batch = 0;
  int64_t stride_head = 0;
  int64_t stride_query = 0;
  int64_t stride_key = 0;
};

struct AttentionProblem {
  AttentionScheme scheme = AttentionScheme::kExact;
  ElementType type = ElementType::kFloat32;  ///< of query, key, value and output
  int64_t batch = 0;
  int64_t heads = 0;     ///< of the query
  int64_t kv_heads = 0;  ///< divides heads; query head h reads key head h / (heads / kv_heads)
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t head_dim = 0;
  AttentionOperand query, key, value;
  AttentionOutput out;
  AttentionMask mask;
  float scale = 1.0f;
  /// With `causal`, query i sees key j where j <= i + causal_offset: 0 aligns the first rows
  /// (PyTorch), keys - queries the last rows (FlashAttention).
  bool causal = false;
  int64_t causal_offset = 0;
  /// Natural-log sum of exponentials, [batch, heads, queries] contiguous, or null.
  float* lse = nullptr;
};

/// Bytes of scratch that attention() needs for this problem with this many threads:
/// O(threads x (keys x head_dim + block)), never O(queries x keys).
size_t attention_scratch_bytes(const AttentionProblem& problem, int threads, CpuIsa isa);

/// Computes out (and lse). Rows that no key takes part in give zeros and lse = -inf; keys == 0 is
/// all such rows. `scratch` is 64-byte aligned and of attention_scratch_bytes(problem,
/// parallel.threads, isa) bytes. The caller has checked the problem; `isa` must be supported here.
void attention(const AttentionProblem& problem, void* scratch, const Parallel& parallel,
               CpuIsa isa);

}  // namespace cachedit::kernels
