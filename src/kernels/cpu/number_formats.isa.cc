#include "kernels/number_formats.h"

#include "kernels/cpu/convert.h"
#include "kernels/cpu/low_bit.h"

namespace cachedit::kernels::CACHEDIT_ISA {

void round_to_e4m3(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i < kLanes ? count - i : kLanes;
    alignas(64) float lanes[kLanes];
    load_row(in + i, ElementType::kFloat32, n, lanes);
    store(lanes, round_e4m3(load(lanes)));
    store_row(lanes, out + i, ElementType::kFloat32, n);
  }
}

void round_to_nvfp4(const float* in, float* values, float* scales, int64_t count) {
  constexpr int kVectors = kFp4Group / kLanes;
  for (int64_t group = 0; group * kFp4Group < count; ++group) {
    F32 v[kVectors];
    for (int i = 0; i < kVectors; ++i) v[i] = load(in + group * kFp4Group + i * kLanes);
    scales[group] = round_nvfp4_group(v);
    for (int i = 0; i < kVectors; ++i) store(values + group * kFp4Group + i * kLanes, v[i]);
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
