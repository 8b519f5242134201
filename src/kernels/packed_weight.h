// Weights of linear layers as the GEMM kernels read them: packed into panels once, from
// floating-point weights that are quantized on the way or from weights that already are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu_isa.h"
#include "kernels/element_type.h"
#include "kernels/parallel.h"

namespace cachedit::kernels {

/// How W is stored, and so what the products are.
enum class WeightForm {
  kFloat32,
  kBFloat16,
  kInt8,            ///< W8A8: activations are quantized per call; K is at most 65536
  kInt8WeightOnly,  ///< -127..127 times a scale
  kInt4WeightOnly,  ///< -8..7 times the scale of a group along K
  kE4M3WeightOnly,  ///< OCP float8 e4m3 (no infinities, up to 448) times a scale
};

/// What one scale of W [N, K] covers. Of a fused weight each source has its own scales, so that it
/// equals its parts.
enum class WeightScale {
  kPerChannel,  ///< a row of W: scales [N]. kInt8, kInt8WeightOnly, kE4M3WeightOnly
  kPerTensor,   ///< all of a source: scales [1]. The same forms
  kPerGroup,    ///< `group` elements of a row: scales [N, ceil(K / group)]. kInt4WeightOnly
  kPerBlock,    ///< 128 x 128: scales [ceil(N / 128), ceil(K / 128)]. kE4M3WeightOnly
};

struct WeightSpec {
  WeightForm form = WeightForm::kFloat32;
  int64_t outputs = 0;                           ///< N, at least 1
  int64_t inputs = 0;                            ///< K, at least 1
  WeightScale scale = WeightScale::kPerChannel;  ///< of the quantized forms
  int64_t group = 64;                            ///< of kPerGroup: 32, 64 or 128
  /// What the scales of groups and blocks are kept as: kFloat32 or kBFloat16. Scales of channels
  /// and tensors are fp32.
  ElementType group_scale = ElementType::kFloat32;
};

enum class SourceType {
  kFloat32,
  kBFloat16,
  kFloat16,
  kInt8,  ///< with scales, for kInt8 and kInt8WeightOnly
  kInt4,  ///< two's complement, two in a byte, the lower one first; with scales, kInt4WeightOnly
  kE4M3,  ///< with scales, for kE4M3WeightOnly
};

/// One matrix [rows, K] of those that form W one below the other (a fused QKV has three).
struct WeightSource {
  SourceType type = SourceType::kFloat32;
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;  ///< elements between rows; even for kInt4
  /// Of quantized types: fp32, contiguous, shaped as the spec's WeightScale says for this source.
  const float* scales = nullptr;
};

/// Bytes of the packed form on this level; 64-byte aligned memory, which huge pages speed up.
size_t packed_weight_bytes(const WeightSpec& spec, CpuIsa isa);

/// Writes W, the `count` sources one below the other, to `packed`. Floating-point sources are
/// quantized as by quantize_weight(). NaN and infinity among quantized weights make NaN of the
/// outputs that read them.
void pack_weight(const WeightSpec& spec, const WeightSource* sources, int count, void* packed,
                 const Parallel& parallel, CpuIsa isa);

/// Bytes of a row that quantize_weight() writes, and the number of scales of a matrix of `rows`.
int64_t quantized_row_bytes(const WeightSpec& spec);
int64_t weight_scale_count(const WeightSpec& spec, int64_t rows);

/// Quantizes one floating-point source, symmetrically, as a checkpoint stores it: values
/// [rows, quantized_row_bytes()] and weight_scale_count() scales. scale = amax / 127, 7 or 448 (1
/// where amax < 1e-30; rounded to spec.group_scale for groups and blocks), value = nearest of
/// w / scale, ties to even, saturating.
void quantize_weight(const WeightSpec& spec, const WeightSource& source, void* values,
                     float* scales, const Parallel& parallel, CpuIsa isa);

}  // namespace cachedit::kernels
