// RMS norm of query and key heads and their rotary embedding, a token at a time while it is in L1.
#include "kernels/cpu/operators_rows.h"

namespace cachedit::kernels::CACHEDIT_ISA {
namespace {

// Lane 2i or 2i + 1 of each pair in both lanes, and the lanes of each pair exchanged.
#if defined(__AVX512F__)
CACHEDIT_INLINE F32 even_lanes(F32 v) { return _mm512_moveldup_ps(v); }
CACHEDIT_INLINE F32 odd_lanes(F32 v) { return _mm512_movehdup_ps(v); }
CACHEDIT_INLINE F32 exchanged(F32 v) { return _mm512_permute_ps(v, 0xb1); }
/// a * b - c in even lanes, a * b + c in odd ones.
CACHEDIT_INLINE F32 multiply_add_signed(F32 a, F32 b, F32 c) { return _mm512_fmaddsub_ps(a, b, c); }
#elif defined(__AVX2__)
CACHEDIT_INLINE F32 even_lanes(F32 v) { return _mm256_moveldup_ps(v); }
CACHEDIT_INLINE F32 odd_lanes(F32 v) { return _mm256_movehdup_ps(v); }
CACHEDIT_INLINE F32 exchanged(F32 v) { return _mm256_permute_ps(v, 0xb1); }
CACHEDIT_INLINE F32 multiply_add_signed(F32 a, F32 b, F32 c) { return _mm256_fmaddsub_ps(a, b, c); }
#else
CACHEDIT_INLINE F32 even_lanes(F32 v) { return F32{v[0], v[0], v[2], v[2]}; }
CACHEDIT_INLINE F32 odd_lanes(F32 v) { return F32{v[1], v[1], v[3], v[3]}; }
CACHEDIT_INLINE F32 exchanged(F32 v) { return F32{v[1], v[0], v[3], v[2]}; }
CACHEDIT_INLINE F32 multiply_add_signed(F32 a, F32 b, F32 c) {
  return a * b + c * F32{-1, 1, -1, 1};
}
#endif

template <class X>
CACHEDIT_INLINE float inverse_rms(const void* x, int64_t head_dim, float eps) {
  F32 squares[kSlots] = {};
  const auto add = [&](F32 v, int slot) __attribute__((always_inline)) {
    squares[slot] = fma(v, v, squares[slot]);
  };
  const int64_t i = full_vectors(
      head_dim, [&](int64_t at, int slot)
                    __attribute__((always_inline)) { add(X::load(x, at), slot); });
  if (i < head_dim) add(X::load_tail(x, i, head_dim - i), 1);
  return 1.0f / __builtin_sqrtf(reduce_slots(squares) / static_cast<float>(head_dim) + eps);
}

/// What a vector of a head is multiplied with, the same for all heads of a token.
struct Coefficients {
  F32 weight, cosine, sine;
};

template <class X, bool kNorm, bool kRotate>
CACHEDIT_INLINE F32 transformed(F32 v, float factor, const Coefficients& c) {
  if constexpr (kNorm) v = v * factor * c.weight;
  // The checkpoint's model has a tensor of the activations' type between norm and rotation.
  if constexpr (kNorm && kRotate) v = X::round(v);
  if constexpr (kRotate) v = multiply_add_signed(v, c.cosine, exchanged(v) * c.sine);
  return v;
}

/// Heads that are worked on together: their factors first, then vector after vector of all, so that
/// coefficients are expanded once and no head waits for its own factor.
constexpr int64_t kHeadGroup = 32;

template <class X, class W, bool kNorm, bool kRotate>
void transform_heads(const HeadNormProblem& p, int64_t heads, const void* x, void* out,
                     const float* turns) {
  using Turns = Elements<ElementType::kFloat32>;
  const int64_t head_dim = p.head_dim, stride = p.x_strides.head, out_stride = p.out_strides.head;
  const void* weights = p.weight;
  float factors[kHeadGroup] = {};
  for (int64_t h = 0; kNorm && h < heads; ++h) {
    factors[h] = inverse_rms<X>(X::at(x, h * stride), head_dim, p.eps);
  }
  const int64_t i = full_vectors(
      head_dim, [&](int64_t at, int) __attribute__((always_inline)) {
        Coefficients c{};
        if constexpr (kNorm) c.weight = W::load(weights, at);
        if constexpr (kRotate) {
          c.cosine = even_lanes(Turns::load(turns, at));
          c.sine = odd_lanes(Turns::load(turns, at));
        }
        for (int64_t h = 0; h < heads; ++h) {
          const F32 v = X::load(x, h * stride + at);
          X::store(out, h * out_stride + at, transformed<X, kNorm, kRotate>(v, factors[h], c));
        }
      });
  if (i == head_dim) return;
  const int64_t left = head_dim - i;
  Coefficients c{};
  if constexpr (kNorm) c.weight = W::load_tail(weights, i, left);
  if constexpr (kRotate) {
    c.cosine = even_lanes(Turns::load_tail(turns, i, left));
    c.sine = odd_lanes(Turns::load_tail(turns, i, left));
  }
  for (int64_t h = 0; h < heads; ++h) {
    const F32 v = X::load_tail(x, h * stride + i, left);
    X::store_tail(out, h * out_stride + i, left, transformed<X, kNorm, kRotate>(v, factors[h], c));
  }
}

using TransformHeads = void (*)(const HeadNormProblem& p, int64_t heads, const void* x, void* out,
                                const float* turns);

TransformHeads heads_function(const HeadNormProblem& p) {
  const bool norm = p.weight != nullptr, rotates = p.rotary != nullptr;
  TransformHeads run = nullptr;
  with_types(p.type, norm ? p.weight_type : p.type, [&]<class X, class W>(X, W) {
    if (norm) {
      run = rotates ? transform_heads<X, W, true, true> : transform_heads<X, W, true, false>;
    } else {
      run = rotates ? transform_heads<X, X, false, true> : transform_heads<X, X, false, false>;
    }
  });
  return run;
}

}  // namespace

void norm_and_rotate(const HeadNormProblem& p, const Parallel& parallel) {
  const TransformHeads run = heads_function(p);
  const int64_t token_bytes = p.heads * p.head_dim * element_size(p.type);
  for_each_row(parallel, p.batch * p.tokens, token_bytes, [&](int64_t i) {
    const int64_t item = i / p.tokens, token = i % p.tokens;
    const int64_t from = item * p.x_strides.batch + token * p.x_strides.token;
    const int64_t to = item * p.out_strides.batch + token * p.out_strides.token;
    const float* turns = p.rotary == nullptr ? nullptr : p.rotary + token * p.rotary_stride;
    for (int64_t h = 0; h < p.heads; h += kHeadGroup) {
      const int64_t heads = p.heads - h < kHeadGroup ? p.heads - h : kHeadGroup;
      run(p, heads, offset(p.x, p.type, from + h * p.x_strides.head),
          offset(p.out, p.type, to + h * p.out_strides.head), turns);
    }
  });
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
