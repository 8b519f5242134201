// Packs and quantizes weights (packed_weight.h).
#include "kernels/cpu/gemm_quantize.h"
#include "kernels/cpu/transpose.h"
#include "kernels/packed_weight.h"

namespace cachedit::kernels::CACHEDIT_ISA {
namespace {

/// Nibbles in the order of Int4Format from the order of a row.
CACHEDIT_INLINE uint32_t order_nibbles(uint32_t word) {
  if (Int4Format::Dot::kPack == 1) return word;
  const auto compress = [](uint32_t w) {  // the even nibbles
    w &= 0x0f0f0f0fu;
    w = (w | w >> 4) & 0x00ff00ffu;
    return (w | w >> 8) & 0xffffu;
  };
  return compress(word) | compress(word >> 4) << 16;
}

struct Column {
  const WeightSource* source = nullptr;  ///< null behind the last column
  int64_t row = 0;                       ///< of the source
};

inline Column find_column(const WeightSource* sources, int count, int64_t n) {
  for (int i = 0; i < count; ++i) {
    if (n < sources[i].rows) return {sources + i, n};
    n -= sources[i].rows;
  }
  return {};
}

/// Moves words of kPanel rows that lie `stride` bytes apart to [words][kPanel].
template <class Format>
void interleave(const char* rows, int64_t stride, int64_t words, char* out) {
  if constexpr (Format::kWordBytes == 4) {
    for (int64_t n = 0; n < kPanel; n += kLanes) {
      const int32_t* units[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        units[l] = reinterpret_cast<const int32_t*>(rows + (n + l) * stride);
      }
      transpose_into_panel(units, words, reinterpret_cast<int32_t*>(out) + n, kPanel);
    }
  } else {
    constexpr int64_t kBytes = Format::kWordBytes;
    for (int64_t w = 0; w < words; ++w) {
      for (int64_t n = 0; n < kPanel; ++n) {
        __builtin_memcpy(out + (w * kPanel + n) * kBytes, rows + n * stride + w * kBytes, kBytes);
      }
    }
  }
}

template <class Format>
class Packer {
 public:
  Packer(const WeightSpec& spec, const WeightSource* sources, int count, void* packed)
      : spec_(spec), shape_(spec), sources_(sources), count_(count), layout_(spec, packed) {}

  void pack_panel(int64_t panel) const {
    Column columns[kPanel];
    int32_t sums[kPanel] = {};
    bool has_nan[kPanel] = {};
    for (int64_t n = 0; n < kPanel; ++n) {
      columns[n] = find_column(sources_, count_, panel * kPanel + n);
    }
    constexpr int64_t kRowBytes = kChunk * 4;
    alignas(64) char rows[kPanel * kRowBytes];
    __builtin_memset(rows, 0, sizeof(rows));
    for (int64_t k = 0; k < spec_.inputs; k += kChunk) {
      const int64_t left = spec_.inputs - k;
      const int64_t count = left < kChunk ? left : kChunk;
      for (int64_t n = 0; n < kPanel; ++n) {
        const Column& column = columns[n];
        if (column.source == nullptr) continue;
        char* row = rows + n * kRowBytes;
        encode_chunk(spec_, *column.source, column.row, k, count, column.source->scales, row);
        if (kDynamic<Format>) sums[n] += sum_of(row);
        if (spec_.form == WeightForm::kE4M3WeightOnly) has_nan[n] |= finds_nan(row);
        if (spec_.form == WeightForm::kInt4WeightOnly) reorder(row);
      }
      const int64_t words = divide_up(count, kWordElements<Format>);
      interleave<Format>(rows, kRowBytes, words, layout_.word(panel, k / kWordElements<Format>));
    }
    for (int64_t n = 0; n < kPanel; ++n) {
      write_scales(panel, n, columns[n], has_nan[n]);
      if (kDynamic<Format>) layout_.offsets[panel * kPanel + n] = -128 * sums[n];
    }
  }

  int64_t panels() const { return layout_.panels; }

 private:
  static int32_t sum_of(const char* row) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kChunk; ++i) sum += static_cast<signed char>(row[i]);
    return sum;
  }
  static bool finds_nan(const char* row) {
    bool found = false;
    for (int64_t i = 0; i < kChunk; ++i) found |= (row[i] & 0x7f) == 0x7f;
    return found;
  }
  static void reorder(char* row) {
    for (int64_t i = 0; i < kChunk / 2; i += 4) {
      uint32_t word = 0;
      __builtin_memcpy(&word, row + i, 4);
      word = order_nibbles(word);
      __builtin_memcpy(row + i, &word, 4);
    }
  }

  void write_scales(int64_t panel, int64_t n, const Column& column, bool has_nan) const {
    layout_.scales[panel * kPanel + n] = 1.0f;
    if (column.source == nullptr) {
      for (int64_t g = 0; g < layout_.groups; ++g) write_group_scale(panel, g, n, 1.0f);
      return;
    }
    const float* scales = column.source->scales;
    const float poison = has_nan ? __builtin_nanf("") : 0.0f;
    for (int64_t g = 0; g < layout_.groups; ++g) {
      write_group_scale(panel, g, n,
                        scales[shape_.index(column.row, g * shape_.elements)] + poison);
    }
    if (has_column_scales(spec_)) {
      layout_.scales[panel * kPanel + n] = scales[shape_.index(column.row, 0)] + poison;
    }
  }

  void write_group_scale(int64_t panel, int64_t g, int64_t n, float scale) const {
    const int64_t at = (panel * layout_.groups + g) * kPanel + n;
    alignas(64) const float lanes[kLanes] = {scale};
    store_row(lanes, offset(layout_.group_scales, spec_.group_scale, at), spec_.group_scale, 1);
  }

  const WeightSpec& spec_;
  ScaleShape shape_;
  const WeightSource* sources_;
  int count_;
  PackedLayout<Format> layout_;
};

}  // namespace

size_t packed_weight_bytes(const WeightSpec& spec) {
  int64_t bytes = 0;
  visit_format(spec.form,
               [&](auto format) { bytes = PackedLayout<decltype(format)>(spec, nullptr).bytes; });
  return static_cast<size_t>(bytes);
}

void pack_weight(const WeightSpec& spec, const WeightSource* sources, int count, void* packed,
                 const Parallel& parallel) {
  visit_format(spec.form, [&](auto format) {
    const Packer<decltype(format)> packer(spec, sources, count, packed);
    for_each_item(parallel, packer.panels(), [&](int64_t i, int) { packer.pack_panel(i); });
  });
}

void choose_weight_scales(const WeightSpec& spec, const WeightSource& source, float* scales,
                          const Parallel& parallel) {
  const ScaleShape shape(spec);
  const int64_t block = shape.rows < source.rows ? shape.rows : source.rows;
  for_each_item(parallel, divide_up(source.rows, block), [&](int64_t i, int) {
    const int64_t row = i * block;
    const int64_t rows = source.rows - row < block ? source.rows - row : block;
    for (int64_t g = 0; g < shape.groups; ++g) {
      const int64_t begin = g * shape.elements;
      const int64_t left = spec.inputs - begin;
      const int64_t count = left < shape.elements ? left : shape.elements;
      scales[i * shape.groups + g] = choose_scale(spec, source, row, rows, begin, begin + count);
    }
  });
}

void encode_weight(const WeightSpec& spec, const WeightSource& source, void* values,
                   const float* scales, const Parallel& parallel) {
  for_each_item(parallel, source.rows, [&](int64_t row, int) {
    alignas(64) char chunk[kChunk * 4];
    char* out = static_cast<char*>(values) + row * form_bytes(spec.form, spec.inputs);
    for (int64_t k = 0; k < spec.inputs; k += kChunk) {
      const int64_t left = spec.inputs - k;
      const int64_t count = left < kChunk ? left : kChunk;
      encode_chunk(spec, source, row, k, count, scales, chunk);
      __builtin_memcpy(out + form_bytes(spec.form, k), chunk,
                       static_cast<size_t>(form_bytes(spec.form, count)));
    }
  });
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
