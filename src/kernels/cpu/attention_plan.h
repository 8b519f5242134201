// Block sizes and the layout of scratch memory for one attention call: an area per head of the
// group that is worked on (packed keys and values), and an area per thread (one block of rows).
#pragma once

#include "kernels/cpu/attention_scheme.h"
#include "kernels/cpu/work.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Query rows [begin, begin + count) of a problem: hybrid schemes split them.
struct RowRange {
  int64_t begin = 0;
  int64_t count = 0;
};

template <class Scheme>
struct Plan {
  int64_t depth;     ///< head_dim rounded up to 16: a row in fp32
  int64_t qk_steps;  ///< units of a query or key row
  int64_t qk_slice;  ///< units of a row that QK takes at a time
  int64_t columns;   ///< channels of V, rounded up to whole vectors
  int64_t key_blocks;
  int64_t padded_keys;  ///< rounded up to whole key blocks
  int64_t row_block;    ///< rows of an item, a multiple of kRows
  int64_t row_blocks;   ///< items of a head
  int64_t group_heads;  ///< key heads packed at a time
  int64_t chunks;       ///< of keys, for means and ranges of channels

  static constexpr int64_t kValueSteps = Scheme::kKeyBlock / Scheme::PV::kPack;
  static constexpr int64_t kChunk = 1024;

  Plan(const AttentionProblem& p, RowRange rows, int threads) {
    depth = round_up(p.head_dim, kFp4Group);
    constexpr int64_t kQuantum = Scheme::kWeights == Weights::kFp4 ? kFp4Group : Scheme::QK::kPack;
    qk_steps = round_up(p.head_dim, kQuantum) / Scheme::QK::kPack;
    // Slices of 64 KiB of panel: it stays in L2 beside the rows for any head dimension.
    constexpr int64_t kSliceUnits = 65536 / (kPanel * 4);
    const int64_t slices = (qk_steps + kSliceUnits - 1) / kSliceUnits;
    qk_slice = (qk_steps + slices - 1) / slices;
    columns = round_up(p.head_dim, kLanes);
    key_blocks = (p.keys + Scheme::kKeyBlock - 1) / Scheme::kKeyBlock;
    padded_keys = key_blocks * Scheme::kKeyBlock;
    chunks = (p.keys + kChunk - 1) / kChunk;
    group_heads = heads_at_a_time(p, threads);
    row_block = rows_at_a_time(p, rows, threads);
    row_blocks = (rows.count + row_block - 1) / row_block;
  }

  /// One head per thread, or as many as stay in 8 MiB: small problems then need few phases.
  int64_t heads_at_a_time(const AttentionProblem& p, int threads) const {
    const int64_t all = p.batch * p.kv_heads;
    const int64_t bytes = padded_keys * (qk_steps + columns / Scheme::PV::kPack) * 4;
    int64_t heads = (int64_t{8} << 20) / (bytes > 0 ? bytes : 1);
    if (heads < threads) heads = threads;
    return heads < all ? heads : all;
  }

  /// Smaller blocks where few heads and rows would leave threads idle. A scale of a block of rows
  /// may not depend on the number of threads.
  int64_t rows_at_a_time(const AttentionProblem& p, RowRange rows, int threads) const {
    if constexpr (Scheme::kScales == Granularity::kBlock) return kRowBlock;
    // Queries and output of a block take at most a quarter of a 1 MiB L2.
    const int64_t row_bytes = (qk_steps + columns) * 4;
    const int64_t most = row_bytes * kRowBlock > (int64_t{256} << 10) ? kRowBlock / 2 : kRowBlock;
    if (threads == 1) return most;
    const int64_t heads = group_heads * (p.heads / p.kv_heads);
    const int64_t wanted = round_up(heads * rows.count / (2 * threads) + 1, kRows);
    return wanted < most ? wanted : most;
  }
};

/// One packed head.
template <class Scheme>
struct HeadArea {
  int32_t* keys;         ///< [padded_keys / kPanel][qk_steps][kPanel] units
  int32_t* values;       ///< [key_blocks][columns / kPanel][kValueSteps][kPanel] units
  int32_t* key_offsets;  ///< [padded_keys] start of integer sums: undoes the shift of Q to 0..255
  float* key_scales;     ///< [padded_keys]
  float* value_scales;   ///< [columns]
  float* block_scales;   ///< [key_blocks], of V
  float* key_mean;       ///< [depth]
  float* value_mean;     ///< [columns]
  float* partials;       ///< [chunks][4][depth]: sums of K and V, minima and maxima of V

  HeadArea(const Plan<Scheme>& plan, Carver& carver) {
    keys = carver.take<int32_t>(plan.padded_keys * plan.qk_steps);
    values = carver.take<int32_t>(plan.key_blocks * Plan<Scheme>::kValueSteps * plan.columns);
    key_offsets = carver.take<int32_t>(kQuantized<Scheme> ? plan.padded_keys : 0);
    key_scales = carver.take<float>(kQuantized<Scheme> ? plan.padded_keys : 0);
    value_scales = carver.take<float>(plan.columns);
    block_scales = carver.take<float>(plan.key_blocks);
    key_mean = carver.take<float>(plan.depth);
    value_mean = carver.take<float>(plan.columns);
    partials = carver.take<float>(kQuantized<Scheme> ? plan.chunks * 4 * plan.depth : 0);
  }
};

/// What a thread works with: one block of rows, and rows being converted.
template <class Scheme>
struct ThreadArea {
  int32_t* q;        ///< [row_block][qk_steps] units
  float* logits;     ///< [row_block][kKeyBlock]
  int32_t* weights;  ///< [row_block][kValueSteps] units
  float* out;        ///< [row_block][columns]
  float* lane_max;   ///< [row_block][kLanes]
  float* lane_sum;   ///< [row_block][kLanes]
  float* bias;       ///< [kKeyBlock]
  float* rows;       ///< [kKeyBlock][depth]
  int32_t* units;    ///< [kLanes][depth], rows as units while they are packed
  // Per row; arrays are padded to whole vectors.
  float* row_max;        ///< running maximum
  float* block_max;      ///< of this key block
  float* reference;      ///< subtracted before the exponential
  float* rescale;        ///< of what is summed so far
  float* product_scale;  ///< of PV's product
  float* exponent;       ///< logits to powers of two
  float* logit_scale;    ///< sums of products to natural logits
  float* mean_logit;     ///< natural logit of the key mean

  static constexpr int64_t kPaddedRows = 64;

  ThreadArea(const Plan<Scheme>& plan, Carver& carver) {
    q = carver.take<int32_t>(kRowBlock * plan.qk_steps + kFp4Group);  // rows are written whole
    logits = carver.take<float>(kRowBlock * Scheme::kKeyBlock);
    weights = carver.take<int32_t>(kRowBlock * Plan<Scheme>::kValueSteps);
    out = carver.take<float>(kRowBlock * plan.columns);
    lane_max = carver.take<float>(kRowBlock * kLanes);
    lane_sum = carver.take<float>(kRowBlock * kLanes);
    bias = carver.take<float>(Scheme::kKeyBlock);
    rows = carver.take<float>(Scheme::kKeyBlock * plan.depth);
    units = carver.take<int32_t>(kLanes * plan.depth);
    row_max = carver.take<float>(kPaddedRows);
    block_max = carver.take<float>(kPaddedRows);
    reference = carver.take<float>(kPaddedRows);
    rescale = carver.take<float>(kPaddedRows);
    product_scale = carver.take<float>(kPaddedRows);
    exponent = carver.take<float>(kPaddedRows);
    logit_scale = carver.take<float>(kPaddedRows);
    mean_logit = carver.take<float>(kPaddedRows);
  }
};

}  // namespace cachedit::kernels::CACHEDIT_ISA
