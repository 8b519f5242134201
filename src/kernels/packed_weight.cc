#include "kernels/packed_weight.h"

#include <vector>

#include "kernels/cpu/levels.h"

namespace cachedit::kernels {

CACHEDIT_DECLARE_LEVELS(size_t packed_weight_bytes(const WeightSpec& spec))
CACHEDIT_DECLARE_LEVELS(void pack_weight(const WeightSpec& spec, const WeightSource* sources,
                                         int count, void* packed, const Parallel& parallel))
CACHEDIT_DECLARE_LEVELS(void choose_weight_scales(const WeightSpec& spec,
                                                  const WeightSource& source, float* scales,
                                                  const Parallel& parallel))
CACHEDIT_DECLARE_LEVELS(void encode_weight(const WeightSpec& spec, const WeightSource& source,
                                           void* values, const float* scales,
                                           const Parallel& parallel))

namespace {

bool is_float(SourceType type) {
  return type == SourceType::kFloat32 || type == SourceType::kBFloat16 ||
         type == SourceType::kFloat16;
}

void choose_scales(const WeightSpec& spec, const WeightSource& source, float* scales,
                   const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, choose_weight_scales(spec, source, scales, parallel));
}

void pack(const WeightSpec& spec, const WeightSource* sources, int count, void* packed,
          const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, pack_weight(spec, sources, count, packed, parallel));
}

void encode(const WeightSpec& spec, const WeightSource& source, void* values, const float* scales,
            const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, encode_weight(spec, source, values, scales, parallel));
}

}  // namespace

size_t packed_weight_bytes(const WeightSpec& spec, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, packed_weight_bytes(spec));
}

void pack_weight(const WeightSpec& spec, const WeightSource* sources, int count, void* packed,
                 const Parallel& parallel, CpuIsa isa) {
  const bool quantizes = spec.form != WeightForm::kFloat32 && spec.form != WeightForm::kBFloat16;
  std::vector<WeightSource> scaled(sources, sources + count);
  std::vector<std::vector<float>> scales(scaled.size());
  for (size_t i = 0; i < scaled.size(); ++i) {
    if (!quantizes || !is_float(scaled[i].type) || scaled[i].rows == 0) continue;
    scales[i].resize(static_cast<size_t>(weight_scale_count(spec, scaled[i].rows)));
    choose_scales(spec, scaled[i], scales[i].data(), parallel, isa);
    scaled[i].scales = scales[i].data();
  }
  pack(spec, scaled.data(), count, packed, parallel, isa);
}

int64_t quantized_row_bytes(const WeightSpec& spec) {
  return spec.form == WeightForm::kInt4WeightOnly ? (spec.inputs + 1) / 2 : spec.inputs;
}

int64_t weight_scale_count(const WeightSpec& spec, int64_t rows) {
  constexpr int64_t kBlock = 128;
  switch (spec.scale) {
    case WeightScale::kPerTensor:
      return 1;
    case WeightScale::kPerGroup:
      return rows * ((spec.inputs + spec.group - 1) / spec.group);
    case WeightScale::kPerBlock:
      return (rows + kBlock - 1) / kBlock * ((spec.inputs + kBlock - 1) / kBlock);
    case WeightScale::kPerChannel:
      break;
  }
  return rows;
}

void quantize_weight(const WeightSpec& spec, const WeightSource& source, void* values,
                     float* scales, const Parallel& parallel, CpuIsa isa) {
  choose_scales(spec, source, scales, parallel, isa);
  encode(spec, source, values, scales, parallel, isa);
}

}  // namespace cachedit::kernels
