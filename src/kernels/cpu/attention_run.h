// Drives one scheme over a problem: heads in groups; in each, statistics, packing, then blocks of
// rows, each phase spread over the threads.
#pragma once

#include "kernels/cpu/attention_block.h"

namespace cachedit::kernels::CACHEDIT_ISA {

template <class Scheme>
class AttentionRun {
 public:
  AttentionRun(const AttentionProblem& problem, RowRange rows, int threads)
      : p_(problem), rows_(rows), plan_(problem, rows, threads), threads_(threads) {
    Carver head;
    HeadArea<Scheme> unused_head(plan_, head);
    Carver thread;
    ThreadArea<Scheme> unused_thread(plan_, thread);
    head_bytes_ = head.used;
    thread_bytes_ = thread.used;
  }

  int64_t scratch_bytes() const {
    return plan_.group_heads * head_bytes_ + threads_ * thread_bytes_;
  }

  void run(void* scratch, const Parallel& parallel) {
    scratch_ = static_cast<char*>(scratch);
    const int64_t all = p_.batch * p_.kv_heads;
    for (int64_t first = 0; first < all; first += plan_.group_heads) {
      const int64_t heads = all - first < plan_.group_heads ? all - first : plan_.group_heads;
      if constexpr (Scheme::kSmoothKeys || Scheme::kChannelScales) {
        for_each_item(parallel, heads * plan_.chunks, [&](int64_t i, int) {
          collect(first + i / plan_.chunks, i / plan_.chunks, i % plan_.chunks);
        });
        for (int64_t h = 0; h < heads; ++h) combine(first + h, h);
      }
      for_each_item(parallel, heads * plan_.key_blocks, [&](int64_t i, int thread) {
        pack(first + i / plan_.key_blocks, i / plan_.key_blocks, i % plan_.key_blocks, thread);
      });
      const int64_t queries_per_key = p_.heads / p_.kv_heads;
      const int64_t per_head = queries_per_key * plan_.row_blocks;
      for_each_item(parallel, heads * per_head, [&](int64_t i, int thread) {
        const int64_t slot = i / per_head;
        const int64_t query = i % per_head / plan_.row_blocks;
        attend(first + slot, slot, query, i % plan_.row_blocks, thread);
      });
    }
  }

 private:
  HeadArea<Scheme> head_area(int64_t slot) const {
    Carver carver{scratch_ + slot * head_bytes_};
    return HeadArea<Scheme>(plan_, carver);
  }
  ThreadArea<Scheme> thread_area(int thread) const {
    Carver carver{scratch_ + plan_.group_heads * head_bytes_ + thread * thread_bytes_};
    return ThreadArea<Scheme>(plan_, carver);
  }

  /// Sums of K and V and the range of V per channel over one chunk of keys.
  void collect(int64_t head, int64_t slot, int64_t chunk) const {
    const HeadArea<Scheme> area = head_area(slot);
    float* k_sum = area.partials + chunk * 4 * plan_.depth;
    float* v_sum = k_sum + plan_.depth;
    float* v_min = v_sum + plan_.depth;
    float* v_max = v_min + plan_.depth;
    for (int64_t i = 0; i < plan_.depth; i += kLanes) {
      store(k_sum + i, F32{});
      store(v_sum + i, F32{});
      store(v_min + i, splat(kInfinity));
      store(v_max + i, splat(-kInfinity));
    }
    const int64_t begin = chunk * Plan<Scheme>::kChunk;
    const int64_t end =
        p_.keys - begin < Plan<Scheme>::kChunk ? p_.keys : begin + Plan<Scheme>::kChunk;
    alignas(64) float row[kMaxDepth];
    for (int64_t t = begin; t < end; ++t) {
      if (!takes_part(p_, head / p_.kv_heads, head % p_.kv_heads, t)) continue;
      load_row(row_of(p_.key, p_.type, head / p_.kv_heads, head % p_.kv_heads, t), p_.type,
               p_.head_dim, row);
      for (int64_t i = 0; i < plan_.columns; i += kLanes)
        store(k_sum + i, load(k_sum + i) + load(row + i));
      load_row(row_of(p_.value, p_.type, head / p_.kv_heads, head % p_.kv_heads, t), p_.type,
               p_.head_dim, row);
      for (int64_t i = 0; i < plan_.columns; i += kLanes) {
        const F32 v = load(row + i);
        store(v_sum + i, load(v_sum + i) + v);
        store(v_min + i, min(v, load(v_min + i)));
        store(v_max + i, max(v, load(v_max + i)));
      }
    }
  }

  /// Means and channel scales of a head from its chunks. The scale of a channel that holds NaN or
  /// infinity is NaN, so that its outputs are.
  void combine(int64_t head, int64_t slot) const {
    const HeadArea<Scheme> area = head_area(slot);
    int64_t keys = 0;
    for (int64_t t = 0; t < p_.keys; ++t) {
      keys += takes_part(p_, head / p_.kv_heads, head % p_.kv_heads, t) ? 1 : 0;
    }
    const F32 inverse = splat(keys == 0 ? 0.0f : 1.0f / static_cast<float>(keys));
    for (int64_t i = 0; i < plan_.depth; i += kLanes) {
      F32 k_sum{}, v_sum{}, v_min = splat(kInfinity), v_max = splat(-kInfinity);
      for (int64_t chunk = 0; chunk < plan_.chunks; ++chunk) {
        const float* partial = area.partials + chunk * 4 * plan_.depth + i;
        k_sum = k_sum + load(partial);
        v_sum = v_sum + load(partial + plan_.depth);
        v_min = min(v_min, load(partial + 2 * plan_.depth));
        v_max = max(v_max, load(partial + 3 * plan_.depth));
      }
      store(area.key_mean + i, k_sum * inverse);
      if (i >= plan_.columns) continue;
      const F32 mean = Scheme::kSmoothValues ? v_sum * inverse : F32{};
      store(area.value_mean + i, mean);
      const F32 largest = max(v_max - mean, mean - v_min);
      constexpr Weights kWeights = Scheme::kWeights;
      constexpr float kMax = kWeights == Weights::kByte ? 127.0f : kWeightMax<kWeights>;
      const F32 scale = select(largest < 1e-30f, splat(1.0f), largest * splat(1.0f / kMax));
      store(area.value_scales + i, scale + v_sum * F32{});
    }
  }

  void pack(int64_t head, int64_t slot, int64_t block, int thread) const {
    HeadArea<Scheme> area = head_area(slot);
    ThreadArea<Scheme> scratch = thread_area(thread);
    const int64_t batch = head / p_.kv_heads;
    pack_keys(p_, plan_, batch, head % p_.kv_heads, block, area, scratch);
    pack_values(p_, plan_, batch, head % p_.kv_heads, block, area, scratch);
  }

  void attend(int64_t kv_head, int64_t slot, int64_t query, int64_t row_block, int thread) const {
    const HeadArea<Scheme> area = head_area(slot);
    ThreadArea<Scheme> scratch = thread_area(thread);
    RowBlock rows;
    rows.batch = kv_head / p_.kv_heads;
    rows.head = kv_head % p_.kv_heads * (p_.heads / p_.kv_heads) + query;
    rows.first = rows_.begin + row_block * plan_.row_block;
    const int64_t left = rows_.begin + rows_.count - rows.first;
    rows.count = left < plan_.row_block ? left : plan_.row_block;
    rows.padded = round_up(rows.count, kRows);
    rows.mask_base = rows.batch * p_.mask.stride_batch + rows.head * p_.mask.stride_head;
    rows.natural = is_float(p_.mask) || p_.scale == 0.0f;
    pack_queries(p_, plan_, rows.batch, rows.head, rows.first, rows.count, rows.natural, area,
                 scratch);
    for (int64_t r = 0; r < round_up(rows.padded, kLanes); ++r) scratch.row_max[r] = -kInfinity;
    for (int64_t i = 0; i < rows.padded * kLanes; i += kLanes) store(scratch.lane_sum + i, F32{});
    for (int64_t i = 0; i < rows.padded * plan_.columns; i += kLanes) store(scratch.out + i, F32{});
    for (int64_t block = 0; block < plan_.key_blocks; ++block) {
      attend_block(p_, plan_, area, block, rows, scratch);
    }
    finish(rows, area, scratch);
  }

  /// Divides by the sums, undoes the formats' scales, and writes rows and log-sum-exps.
  void finish(const RowBlock& rows, const HeadArea<Scheme>& area,
              ThreadArea<Scheme>& scratch) const {
    constexpr float kStored =
        Scheme::kWeights == Weights::kByte ? 1.0f : kWeightMax<Scheme::kWeights>;
    for (int64_t r = 0; r < rows.count; ++r) {
      const float sum = reduce_add(load(scratch.lane_sum + r * kLanes));
      const bool empty = sum == 0.0f;
      float* row = scratch.out + r * plan_.columns;
      const F32 inverse = splat(empty ? 0.0f : 1.0f / sum);
      for (int64_t i = 0; i < plan_.columns; i += kLanes) {
        F32 v = load(row + i) * inverse;
        if constexpr (Scheme::kChannelScales) v = v * load(area.value_scales + i);
        if constexpr (Scheme::kSmoothValues) v = v + load(area.value_mean + i);
        store(row + i, empty ? F32{} : v);
      }
      const int64_t query = rows.first + r;
      store_row(row,
                offset(p_.out.data, p_.type,
                       rows.batch * p_.out.stride_batch + rows.head * p_.out.stride_head +
                           query * p_.out.stride_token),
                p_.type, p_.head_dim);
      if (p_.lse == nullptr) continue;
      constexpr float kLn2 = 0.693147181f;
      float lse = -kInfinity;
      if (!empty) {
        // The factors first: a row of the most negative finite masks would overflow otherwise.
        lse = scratch.row_max[r] * (scratch.exponent[r] * kLn2) + __builtin_logf(sum / kStored);
        if constexpr (Scheme::kSmoothKeys) lse += scratch.mean_logit[r];
      }
      p_.lse[(rows.batch * p_.heads + rows.head) * p_.queries + query] = lse;
    }
  }

  static constexpr int64_t kMaxDepth = 1024;

  const AttentionProblem& p_;
  RowRange rows_;
  Plan<Scheme> plan_;
  int threads_;
  int64_t head_bytes_ = 0;
  int64_t thread_bytes_ = 0;
  char* scratch_ = nullptr;
};

}  // namespace cachedit::kernels::CACHEDIT_ISA
