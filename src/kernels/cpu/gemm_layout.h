// Where the parts of a packed weight lie: scales and sums per column, scales per group, and panels
// of kPanel columns (outputs), each [K / word][kPanel] words of the format.
#pragma once

#include "kernels/cpu/gemm_formats.h"
#include "kernels/cpu/work.h"

namespace cachedit::kernels::CACHEDIT_ISA {

inline constexpr int64_t kScaleBlock = 128;  ///< of WeightScale::kPerBlock

CACHEDIT_INLINE int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

/// Elements of K that share a scale with their column; 0 where the whole column does.
CACHEDIT_INLINE int64_t group_elements(const WeightSpec& spec) {
  if (spec.form == WeightForm::kInt4WeightOnly) return spec.group;
  const bool blocks =
      spec.form == WeightForm::kE4M3WeightOnly && spec.scale == WeightScale::kPerBlock;
  return blocks ? kScaleBlock : 0;
}

CACHEDIT_INLINE bool has_column_scales(const WeightSpec& spec) {
  return spec.form != WeightForm::kFloat32 && spec.form != WeightForm::kBFloat16 &&
         group_elements(spec) == 0;
}

template <class Format>
struct PackedLayout {
  int64_t panels = 0;
  int64_t words = 0;             ///< along K
  int64_t panel_bytes = 0;       ///< of one panel
  int64_t groups = 0;            ///< scales of a column along K, 0 without groups
  float* scales = nullptr;       ///< [panels * kPanel], ones without column scales
  int32_t* offsets = nullptr;    ///< [panels * kPanel] of kInt8: undoes the shift of A to 1..255
  char* group_scales = nullptr;  ///< [panels][groups][kPanel] of the spec's group_scale
  char* data = nullptr;          ///< [panels][panel_bytes]
  int64_t bytes = 0;

  /// `packed` may be null, to count bytes. What is const in the caller stays so.
  PackedLayout(const WeightSpec& spec, const void* packed) {
    panels = divide_up(spec.outputs, kPanel);
    words = divide_up(spec.inputs, kWordElements<Format>);
    panel_bytes = words * kPanel * Format::kWordBytes;
    const int64_t group = group_elements(spec);
    groups = group == 0 ? 0 : divide_up(spec.inputs, group);
    Carver carver{static_cast<char*>(const_cast<void*>(packed))};
    scales = carver.take<float>(panels * kPanel);
    offsets = carver.take<int32_t>(kDynamic<Format> ? panels * kPanel : 0);
    group_scales = carver.take<char>(panels * groups * kPanel * element_size(spec.group_scale));
    data = carver.take<char>(panels * panel_bytes);
    bytes = carver.used;
  }

  char* panel(int64_t p) const { return data + p * panel_bytes; }
  /// The words of one panel from `word` on.
  char* word(int64_t p, int64_t word) const {
    return panel(p) + word * kPanel * Format::kWordBytes;
  }
};

}  // namespace cachedit::kernels::CACHEDIT_ISA
