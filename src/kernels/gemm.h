// Linear layers on CPU arrays: out = epilogue(A W^T), with W packed once at load in one of several
// number formats. Nothing here knows of tensors; packed_weight.h makes the packed form.
//
// The loops are those of Goto and van de Geijn ("Anatomy of high-performance matrix
// multiplication", ACM TOMS 34, 2008): a register block over the contracted dimension, operands
// blocked for the caches. Results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu_isa.h"
#include "kernels/element_type.h"
#include "kernels/packed_weight.h"
#include "kernels/parallel.h"

namespace cachedit::kernels {

/// Columns [first, first + columns) of A, as rows of `columns` elements that lie `stride` elements
/// apart.
struct GemmSegment {
  const void* data = nullptr;
  int64_t columns = 0;
  int64_t stride = 0;
};

/// What one scale of the dynamically quantized activations covers (WeightForm::kInt8 only).
enum class ActivationScale { kPerRow, kPerTensor };

enum class Activation {
  kNone,
  kGeluTanh,  ///< x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  kGeluErf,   ///< x / 2 (1 + erf(x / sqrt(2)))
  kSilu,      ///< x / (1 + exp(-x))
};

/// What happens to the value of an element once it is complete.
enum class Combine {
  kStore,          ///< out = value
  kGatedResidual,  ///< out = residual + gate[n] * value
  kMultiply,       ///< out = residual * value, as gated MLPs (SwiGLU, GEGLU) have it
};

/// One product: A [rows, K] times the transpose of W [N, K] gives [rows, N]. Arrays need their
/// elements' alignment only; rows, K and N are at least 0, 1 and 1.
///
/// In fp32 per element: value = sum, times the weight's scales and, for kInt8, the row's scale;
/// plus bias[n]; then the activation; then `combine`, which rounds once to the output's type.
struct GemmProblem {
  int64_t rows = 0;
  /// Rows of a batch item; 0: all. How W is decoded depends on these alone, so that an item's
  /// result does not depend on how many there are.
  int64_t item_rows = 0;
  ElementType input_type = ElementType::kFloat32;
  /// A, as up to two segments along K; the second may be empty. Their columns add up to K.
  GemmSegment input[2];
  WeightSpec weight;             ///< as it was packed
  const void* packed = nullptr;  ///< what pack_weight() wrote, on the same instruction level
  ActivationScale activation_scale = ActivationScale::kPerRow;
  /// [rows] or null. For kInt8, the magnitudes that A's scales are taken from in place of its rows'
  /// own: those of whole rows of which A has a part. At least as large as the rows' own.
  const float* input_magnitude = nullptr;

  const float* bias = nullptr;  ///< [N] or null
  Activation activation = Activation::kNone;
  Combine combine = Combine::kStore;
  const void* residual = nullptr;  ///< [rows, N] of the output's type; may be `out` itself
  int64_t residual_stride = 0;
  const float* gate = nullptr;  ///< [N], or null for ones

  ElementType out_type = ElementType::kFloat32;
  void* out = nullptr;  ///< [rows, N]; overlaps no input but as `residual`
  int64_t out_stride = 0;
};

/// Bytes of scratch that gemm() needs with this many threads: O(threads) megabyte, and some
/// megabytes of A where A is not read in place; for kInt8 also 4 bytes a row. It never grows with
/// rows x N.
size_t gemm_scratch_bytes(const GemmProblem& problem, int threads, CpuIsa isa);

/// Computes out. Sums are fp32; for kInt8 they are int32 and exact.
///
/// A is rounded to what the weight's form multiplies with: fp32 for kFloat32, bfloat16 for
/// kBFloat16 and the weight-only forms (kept in fp32 on levels without bfloat16 products), and for
/// kInt8 to integers of -127..127, nearest with ties to even, with scale = amax / 127 (1 where amax
/// < 1e-30, so that rows of zeros give zeros). A row of A that holds NaN or infinity has NaN as its
/// kInt8 scale, hence as its outputs.
///
/// `scratch` is 64-byte aligned and of gemm_scratch_bytes(problem, parallel.threads, isa) bytes.
/// The caller has checked the problem; `isa` must be supported here.
void gemm(const GemmProblem& problem, void* scratch, const Parallel& parallel, CpuIsa isa);

}  // namespace cachedit::kernels
