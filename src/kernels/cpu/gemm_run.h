// Drives one GEMM: packs A where needed, then works through items of rows and panels, each over
// blocks of K, spread over the threads.
#pragma once

#include "kernels/cpu/gemm_epilogue.h"
#include "kernels/cpu/gemm_plan.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Units of `words` words of a panel, times the scales of their groups if there are any.
template <class Format>
void decode_block(const PackedLayout<Format>& layout, const WeightSpec& spec, int64_t panel,
                  int64_t first, int64_t count, int32_t* units) {
  const int64_t group = group_elements(spec);
  const int64_t word_elements = kWordElements<Format>;
  const int64_t stride = kPanel * Format::kWordBytes;
  for (int64_t done = 0; done < count;) {
    const int64_t begin = first + done;
    int64_t end = first + count;
    F32 scales[kVecs];
    if (group > 0) {
      const int64_t g = begin / group;
      if ((g + 1) * group < end) end = (g + 1) * group;
      for (int v = 0; v < kVecs; ++v) {
        scales[v] = load_as_float(layout.group_scales, spec.group_scale,
                                  (panel * layout.groups + g) * kPanel + v * kLanes);
      }
    }
    const char* word = layout.word(panel, begin / word_elements);
    for (int64_t k = begin; k < end; k += word_elements, word += stride) {
#pragma GCC unroll 8
      for (int s = 0; s < Format::kSteps; ++s) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          I32 unit = Format::decode(word + v * kLanes * Format::kWordBytes, s);
          if constexpr (!kDynamic<Format>) {
            if (group > 0) unit = scale_unit(unit, scales[v]);
          }
          store(units + v * kLanes, unit);
        }
        units += kPanel;
      }
    }
    done = end - first;
  }
}

template <class Format>
class GemmRun {
  using Dot = typename Format::Dot;

 public:
  GemmRun(const GemmProblem& problem, int threads)
      : p_(problem),
        plan_(problem, threads),
        layout_(problem.weight, problem.packed),
        threads_(threads) {
    Carver shared;
    SharedArea unused_shared(p_, plan_, shared);
    Carver thread;
    ThreadSums<Format> unused_thread(plan_, thread);
    shared_bytes_ = shared.used;
    thread_bytes_ = thread.used;
  }

  int64_t scratch_bytes() const { return shared_bytes_ + threads_ * thread_bytes_; }

  void run(void* scratch, const Parallel& all) {
    scratch_ = static_cast<char*>(scratch);
    // Waking threads takes some microseconds.
    const bool tiny = p_.rows * p_.weight.inputs * p_.weight.outputs < kTinyProducts;
    const Parallel parallel = tiny ? Parallel{} : all;
    Carver carver{scratch_};
    const SharedArea shared(p_, plan_, carver);
    if constexpr (kDynamic<Format>) {
      if (p_.activation_scale == ActivationScale::kPerTensor) choose_tensor_scale(shared, parallel);
    }
    for (int64_t first = 0; first < p_.rows; first += plan_.chunk_rows) {
      const int64_t left = p_.rows - first;
      const int64_t rows = left < plan_.chunk_rows ? left : plan_.chunk_rows;
      if (plan_.packs) pack(shared, first, rows, parallel);
      const int64_t row_blocks = divide_up(rows, plan_.block_rows);
      const int64_t column_blocks = divide_up(plan_.panels, plan_.block_panels);
      for_each_item(parallel, row_blocks * column_blocks, [&](int64_t i, int thread) {
        const int64_t row = first + i % row_blocks * plan_.block_rows;
        const int64_t end = first + rows;
        const int64_t count = end - row < plan_.block_rows ? end - row : plan_.block_rows;
        compute(shared, {first, row, count, i / row_blocks * plan_.block_panels}, thread);
      });
    }
  }

 private:
  /// Rows [row, row + rows) of the chunk that starts at row `chunk`, panels from `panel` on.
  struct Item {
    int64_t chunk;
    int64_t row;
    int64_t rows;
    int64_t panel;
  };
  /// Elements [first, first + count) of K, which lie in one segment of A that is read in place.
  struct Range {
    int64_t first;
    int64_t count;
    bool is_last;
  };

  static constexpr int64_t kRowsPerTask = 16;
  static constexpr int64_t kTinyProducts = 1 << 18;

  void choose_tensor_scale(const SharedArea& shared, const Parallel& parallel) const {
    for_each_item(parallel, divide_up(p_.rows, kRowsPerTask), [&](int64_t i, int) {
      for (int64_t r = i * kRowsPerTask; r < (i + 1) * kRowsPerTask && r < p_.rows; ++r) {
        shared.scales[r] = row_magnitude(p_, r);
      }
    });
    float largest = 0.0f;
    for (int64_t r = 0; r < p_.rows; ++r) {
      const float m = shared.scales[r];
      if (m > largest || m != m) largest = m;  // once NaN, it stays
    }
    for (int64_t r = 0; r < p_.rows; ++r) shared.scales[r] = scale_of(largest, 127.0f);
  }

  void pack(const SharedArea& shared, int64_t first, int64_t rows, const Parallel& parallel) const {
    for_each_item(parallel, divide_up(rows, kRowsPerTask), [&](int64_t i, int) {
      for (int64_t r = i * kRowsPerTask; r < (i + 1) * kRowsPerTask && r < rows; ++r) {
        float scale = 1.0f;
        if constexpr (kDynamic<Format>) {
          float& kept = shared.scales[first + r];
          if (p_.activation_scale == ActivationScale::kPerRow) {
            kept = scale_of(row_magnitude(p_, first + r), 127.0f);
          }
          scale = kept;
        }
        pack_row<Format>(p_, first + r, scale, shared.rows + r * plan_.row_bytes);
      }
    });
  }

  void compute(const SharedArea& shared, const Item& item, int thread) const {
    Carver carver{scratch_ + shared_bytes_ + thread * thread_bytes_};
    const ThreadSums<Format> area(plan_, carver);
    const int64_t left = plan_.panels - item.panel;
    const int64_t panels = left < plan_.block_panels ? left : plan_.block_panels;
    for (int64_t first = 0; first < plan_.inputs;) {
      const Range range = range_from(first);
      for (int64_t n = 0; n < panels; ++n) {
        multiply_panel(shared, item, range, n, n + 1 < panels, area);
      }
      first += range.count;
    }
  }

  Range range_from(int64_t first) const {
    const int64_t begin = p_.input[0].columns;
    const bool in_first = !plan_.packs && first < begin;
    const int64_t end = in_first ? begin : plan_.inputs;
    // Blocks are whole from the start of their segment.
    const int64_t left = end - first;
    const int64_t count = left < plan_.block_elements ? left : plan_.block_elements;
    return {first, count, first + count == plan_.inputs};
  }

  /// Address of element `k` of a row, and the bytes to the next row.
  const char* row_data(const SharedArea& shared, const Item& item, int64_t k,
                       int64_t& stride) const {
    constexpr int64_t kElement = 4 / Dot::kPack;
    if (plan_.packs) {
      stride = plan_.row_bytes;
      return shared.rows + (item.row - item.chunk) * stride + k * kElement;
    }
    const int64_t begin = p_.input[0].columns;
    const int s = k < begin ? 0 : 1;
    stride = p_.input[s].stride * kElement;
    return static_cast<const char*>(p_.input[s].data) + item.row * stride +
           (s == 0 ? k : k - begin) * kElement;
  }

  /// One panel of an item over a range of K, and the output if the range is the last.
  void multiply_panel(const SharedArea& shared, const Item& item, const Range& range, int64_t n,
                      bool more, const ThreadSums<Format>& area) const {
    const int64_t panel = item.panel + n;
    const int64_t words = divide_up(range.count, kWordElements<Format>);
    BlockCall<Dot> call{};
    call.a = row_data(shared, item, range.first, call.a_stride);
    call.panel = layout_.word(panel, range.first / kWordElements<Format>);
    call.steps = words * Format::kSteps;
    call.ahead = more ? layout_.word(panel + 1, range.first / kWordElements<Format>) : call.panel;
    if constexpr (!kDirect<Format>) {
      if (plan_.decoding == Decoding::kByBlock) {
        decode_block(layout_, p_.weight, panel, range.first, range.count, area.decoded);
        call.panel = reinterpret_cast<const char*>(area.decoded);
      }
    }
    const PanelEpilogue epilogue = panel_epilogue(panel, area);
    const int64_t block_bytes = words * kPanel * Format::kWordBytes;
    const char* ahead_end = call.ahead + block_bytes;
    for (int64_t r = 0; r < item.rows; r += kRows) {
      const int64_t rows = item.rows - r < kRows ? item.rows - r : int64_t{kRows};
      call.to = area.sums + (plan_.one_block ? 0 : (n * plan_.block_rows + r) * kPanel);
      start_sums(panel, range.first == 0, call);
      if (range.is_last) prefetch_outputs(p_, epilogue, item.row + r, rows);
      multiply(call, rows, panel, range);
      if (range.is_last) finish(shared, epilogue, item.row + r, rows, call.to);
      call.a += kRows * call.a_stride;
      call.ahead += call.steps * 16;
      if (call.ahead > ahead_end) call.ahead = ahead_end;
    }
  }

  void start_sums(int64_t panel, bool first, BlockCall<Dot>& call) const {
    alignas(64) static constexpr Sum<Dot> kZeros[kPanel] = {};
    call.from = call.to;
    call.from_stride = kPanel;
    if (!first) return;
    call.from_stride = 0;
    if constexpr (kDynamic<Format>) {
      call.from = layout_.offsets + panel * kPanel;
    } else {
      call.from = kZeros;
    }
  }

  void multiply(const BlockCall<Dot>& call, int64_t rows, int64_t panel, const Range& range) const {
    if constexpr (kDirect<Format>) {
      multiply_block<Format>(rows, call);
    } else if (plan_.decoding == Decoding::kByBlock) {
      multiply_block<PlainFormat<Dot>>(rows, call);
    } else if (layout_.groups == 0) {
      multiply_block<Format>(rows, call);
    } else if constexpr (!kDynamic<Format>) {
      const int64_t group = group_elements(p_.weight);
      multiply_groups<Format>(rows, call,
                              {.data = layout_.group_scales,
                               .type = p_.weight.group_scale,
                               .first = (panel * layout_.groups + range.first / group) * kPanel,
                               .words = group / kWordElements<Format>});
    }
  }

  PanelEpilogue panel_epilogue(int64_t panel, const ThreadSums<Format>& area) const {
    PanelEpilogue e;
    e.column = panel * kPanel;
    const int64_t left = p_.weight.outputs - e.column;
    e.count = left < kPanel ? left : int64_t{kPanel};
    if (has_column_scales(p_.weight)) e.scales = layout_.scales + e.column;
    e.bias = whole_panel(p_.bias, e, area.bias);
    e.gate = whole_panel(p_.gate, e, area.gate);
    return e;
  }

  /// Where kPanel elements of the array can be read: in place, or in `copy` for the last panel.
  static const float* whole_panel(const float* array, const PanelEpilogue& e, float* copy) {
    if (array == nullptr) return nullptr;
    if (e.count == kPanel) return array + e.column;
    for (int64_t i = 0; i < kPanel; ++i) copy[i] = i < e.count ? array[e.column + i] : 0.0f;
    return copy;
  }

  void finish(const SharedArea& shared, const PanelEpilogue& e, int64_t row, int64_t rows,
              const Sum<Dot>* sums) const {
    for (int64_t r = 0; r < rows; ++r) {
      const float scale = kDynamic<Format> ? shared.scales[row + r] : 1.0f;
      finish_row(p_, e, row + r, scale, sums + r * kPanel);
    }
  }

  const GemmProblem& p_;
  GemmPlan<Format> plan_;
  PackedLayout<Format> layout_;
  int threads_;
  int64_t shared_bytes_ = 0;
  int64_t thread_bytes_ = 0;
  char* scratch_ = nullptr;
};

}  // namespace cachedit::kernels::CACHEDIT_ISA
