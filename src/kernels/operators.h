// The operators between GEMMs and attention, each in one pass over its rows: norms with modulation,
// head norms with rotary embedding, gated residuals and activations. Nothing here knows of tensors.
//
// All compute in fp32 and round once where not said otherwise. Arrays may have any alignment, and
// their last dimension has stride 1; strides count elements. An output may be its input (the same
// pointer and strides), and overlaps no array otherwise. Each row is one thread's, so that results
// do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "kernels/cpu_isa.h"
#include "kernels/element_type.h"
#include "kernels/gemm.h"
#include "kernels/parallel.h"

namespace cachedit::kernels {

/// Where the rows of a [batch, rows, columns] array lie.
struct RowStrides {
  int64_t batch = 0;
  int64_t row = 0;
};

/// One vector of `columns` elements per batch item, of the problem's vector_type.
struct ItemVector {
  const void* data = nullptr;
  int64_t stride_batch = 0;  ///< 0 where all items share the vector
};

/// out = (x - mean) / sqrt(variance + eps) * (scale_offset + scale) + shift over columns.
struct LayerNormProblem {
  ElementType type = ElementType::kFloat32;  ///< of x and out
  int64_t batch = 1;
  int64_t rows = 0;  ///< of a batch item
  int64_t columns = 0;
  const void* x = nullptr;
  RowStrides x_strides;
  void* out = nullptr;
  RowStrides out_strides;
  ElementType vector_type = ElementType::kFloat32;  ///< kFloat32 or `type`
  ItemVector scale;
  ItemVector shift;
  float scale_offset = 1.0f;  ///< 1 for a modulation, 0 for the affine part of a norm
  float eps = 1e-6f;
};

/// The mean is corrected by the mean of what remains after its subtraction, so that rows whose mean
/// is large against their deviation keep their digits. Constant rows give shift.
void layer_norm(const LayerNormProblem& problem, const Parallel& parallel, CpuIsa isa);

/// Where the heads of a [batch, tokens, heads, head_dim] array lie.
struct HeadStrides {
  int64_t batch = 0;
  int64_t token = 0;
  int64_t head = 0;
};

/// Every head of x: y = x / sqrt(mean(x^2) + eps) * weight, rounded to `type`; then each pair of
/// neighbours (a, b) of y becomes (a cos - b sin, b cos + a sin).
struct HeadNormProblem {
  ElementType type = ElementType::kFloat32;  ///< of x and out
  int64_t batch = 1;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;  ///< even where there is a rotation
  const void* x = nullptr;
  HeadStrides x_strides;
  void* out = nullptr;
  HeadStrides out_strides;
  const void* weight = nullptr;                     ///< [head_dim], or null: no norm
  ElementType weight_type = ElementType::kFloat32;  ///< kFloat32 or `type`
  float eps = 1e-6f;
  /// cos and sin of pair after pair, [tokens, head_dim / 2, 2], which the batch shares; or null: no
  /// rotation.
  const float* rotary = nullptr;
  int64_t rotary_stride = 0;  ///< floats between tokens
};

void norm_and_rotate(const HeadNormProblem& problem, const Parallel& parallel, CpuIsa isa);

/// out = residual + gate * x. `out` may be either input.
struct GatedResidualProblem {
  ElementType type = ElementType::kFloat32;  ///< of x, residual and out
  int64_t batch = 1;
  int64_t rows = 0;  ///< of a batch item
  int64_t columns = 0;
  const void* x = nullptr;
  RowStrides x_strides;
  const void* residual = nullptr;
  RowStrides residual_strides;
  void* out = nullptr;
  RowStrides out_strides;
  ElementType vector_type = ElementType::kFloat32;  ///< kFloat32 or `type`
  ItemVector gate;
};

void gated_residual(const GatedResidualProblem& problem, const Parallel& parallel, CpuIsa isa);

/// out = activation(x), with the GEMM epilogue's formulas.
struct ActivationProblem {
  Activation activation = Activation::kNone;
  ElementType type = ElementType::kFloat32;  ///< of x and out
  int64_t rows = 0;
  int64_t columns = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
};

/// Within 4e-7 max(1, |x|) of the exact function.
void activate(const ActivationProblem& problem, const Parallel& parallel, CpuIsa isa);

/// The largest magnitude of every row; NaN for a row that holds NaN or infinity.
struct RowMagnitudeProblem {
  ElementType type = ElementType::kFloat32;
  int64_t batch = 1;
  int64_t rows = 0;  ///< of a batch item
  int64_t columns = 0;
  const void* x = nullptr;
  RowStrides x_strides;
  float* magnitude = nullptr;  ///< [batch * rows]
};

void row_magnitudes(const RowMagnitudeProblem& problem, const Parallel& parallel, CpuIsa isa);

/// out = e4m3(x / scale) * scale, rounded to `type` once more: x as OCP float8 e4m3 with a dynamic
/// scale holds it. scale = magnitude / 448, 1 where the magnitude is below 1e-30.
struct Float8Problem {
  ElementType type = ElementType::kFloat32;  ///< of x and out
  int64_t batch = 1;
  int64_t rows = 0;  ///< of a batch item
  int64_t columns = 0;
  int64_t group = 0;  ///< columns that share a scale (of the last group there may be fewer); 0: all
  const void* x = nullptr;
  RowStrides x_strides;
  void* out = nullptr;
  RowStrides out_strides;
  /// [batch * rows], at least the rows' own, or null: the largest in each group, which is NaN where
  /// it holds NaN or infinity.
  const float* magnitude = nullptr;
};

void round_to_float8(const Float8Problem& problem, const Parallel& parallel, CpuIsa isa);

}  // namespace cachedit::kernels
