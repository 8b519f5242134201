// Block sizes of one GEMM call and the layout of its scratch memory.
#pragma once

#include "kernels/cpu/gemm_activations.h"
#include "kernels/cpu/gemm_kernel.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// How the words of a panel become the units of the product.
enum class Decoding {
  kNone,      ///< they are units already
  kInKernel,  ///< in registers, for every register block: few rows, where reading W is the cost
  kByBlock,   ///< into a block in the L2 cache, which all rows of an item then use
};

template <class Format>
struct GemmPlan {
  using Dot = typename Format::Dot;

  int64_t inputs;      ///< K
  bool packs;          ///< whether A is packed
  int64_t row_bytes;   ///< of a packed row
  int64_t chunk_rows;  ///< rows of A that are packed at a time, whole items
  Decoding decoding;
  int64_t block_elements;  ///< of K that are worked on at a time: the panel's block stays in L2
  int64_t block_rows;      ///< of an item
  int64_t block_panels;    ///< of an item
  int64_t panels;
  bool one_block;  ///< whether K is one block, so that sums need no room between blocks

  GemmPlan(const GemmProblem& p, int threads) {
    inputs = p.weight.inputs;
    panels = divide_up(p.weight.outputs, kPanel);
    packs = !reads_in_place<Format>(p);
    row_bytes = packed_row_bytes<Format>(inputs);
    const int64_t item_rows = p.item_rows > 0 ? p.item_rows : p.rows;
    decoding = kDirect<Format>         ? Decoding::kNone
               : item_rows <= kFewRows ? Decoding::kInKernel
                                       : Decoding::kByBlock;
    choose_block_elements(p);
    choose_item(p, threads);
    // Rows in whole items, as many as fit 8 MiB.
    chunk_rows = p.rows;
    if (packs && p.rows * row_bytes > kChunkBytes) {
      const int64_t items = kChunkBytes / (row_bytes * block_rows);
      chunk_rows = (items > 1 ? items : 1) * block_rows;
    }
  }

 private:
  static constexpr int64_t kFewRows = 3 * kRows;
  static constexpr int64_t kChunkBytes = int64_t{8} << 20;
  /// Units along K of a block of a panel, and of a block that is decoded first: 384 and 128 KiB of
  /// W. On Zen 4 with 1 MiB of L2 products run at 94 to 96 % of the arithmetic units' rate.
  static constexpr int64_t kBlockUnits = 1536 * 256 / (kPanel * 4);
  static constexpr int64_t kDecodedUnits = 512 * 256 / (kPanel * 4);
  /// A block of A takes about this part of L2.
  static constexpr int64_t kBlockBytes = int64_t{300} << 10;

  void choose_block_elements(const GemmProblem& p) {
    if (decoding == Decoding::kInKernel && group_elements(p.weight) > 0) {
      block_elements = round_up(inputs, kScaleBlock);  // one pass over the panel, read once
    } else {
      const int64_t most =
          (decoding == Decoding::kByBlock ? kDecodedUnits : kBlockUnits) * Dot::kPack;
      const int64_t blocks = divide_up(inputs, most);
      block_elements = round_up(divide_up(inputs, blocks), kScaleBlock);
    }
    const bool two = !packs && p.input[1].columns > 0;
    one_block = !two && inputs <= block_elements;
  }

  /// Items as large as the cache allows, or small enough that every thread gets some.
  void choose_item(const GemmProblem& p, int threads) {
    const int64_t units = divide_up(inputs < block_elements ? inputs : block_elements, Dot::kPack);
    block_rows = kBlockBytes / (units * 4) / kRows * kRows;
    if (block_rows < 8 * kRows) block_rows = 8 * kRows;
    if (block_rows > 32 * kRows) block_rows = 32 * kRows;
    const int64_t rows = round_up(p.rows > 0 ? p.rows : 1, kRows);
    // Blocks of equal size, so that the last one is no rest.
    block_rows = round_up(divide_up(rows, divide_up(rows, block_rows)), kRows);
    block_panels = decoding == Decoding::kInKernel ? 1 : 8;
    if (block_panels > panels) block_panels = panels;
    while (divide_up(p.rows, block_rows) * divide_up(panels, block_panels) < 4 * threads) {
      if (block_panels > 1 && (block_panels * kPanel > block_rows || block_rows <= 4 * kRows)) {
        block_panels = (block_panels + 1) / 2;
      } else if (block_rows > kRows) {
        block_rows = round_up(block_rows / 2, kRows);
      } else {
        break;
      }
    }
  }
};

/// What all threads share: packed rows and their scales.
struct SharedArea {
  char* rows;
  float* scales;  ///< [rows] of kInt8

  template <class Format>
  SharedArea(const GemmProblem& p, const GemmPlan<Format>& plan, Carver& carver) {
    rows = carver.take<char>(plan.packs ? plan.chunk_rows * plan.row_bytes : 0);
    scales = carver.take<float>(kDynamic<Format> ? p.rows : 0);
  }
};

template <class Format>
struct ThreadSums {
  using Dot = typename Format::Dot;
  Sum<Dot>* sums;    ///< [block_panels][block_rows][kPanel], or one register block
  int32_t* decoded;  ///< [block_elements / kPack][kPanel] units
  float* bias;       ///< [kPanel] of the last panel
  float* gate;

  ThreadSums(const GemmPlan<Format>& plan, Carver& carver) {
    const int64_t blocks = plan.one_block ? 1 : plan.block_panels * plan.block_rows / kRows;
    sums = carver.take<Sum<Dot>>(blocks * kRows * kPanel);
    const bool decodes = plan.decoding == Decoding::kByBlock;
    decoded =
        carver.take<int32_t>(decodes ? divide_up(plan.block_elements, Dot::kPack) * kPanel : 0);
    bias = carver.take<float>(kPanel);
    gate = carver.take<float>(kPanel);
  }
};

}  // namespace cachedit::kernels::CACHEDIT_ISA
