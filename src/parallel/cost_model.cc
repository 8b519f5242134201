#include "parallel/cost_model.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "parallel/sequence.h"

namespace cachedit::parallel {
namespace {

/// all_reduce_sum() sends whole tensors up to this size, slices above (comm/collectives.cc).
constexpr int64_t kSmallBytes = 16 << 10;
/// A float8 Ulysses part carries an fp32 scale for each token and head.
constexpr int64_t kScaleBytes = 4;

struct Sent {
  int64_t bytes = 0;
  int64_t messages = 0;

  /// Nothing is sent for parts without elements.
  void add(int64_t part_bytes, int64_t copies = 1) {
    if (part_bytes == 0) return;
    bytes += part_bytes * copies;
    messages += copies;
  }
  Sent& operator+=(const Sent& other) {
    bytes += other.bytes;
    messages += other.messages;
    return *this;
  }
};

comm::Traffic to_traffic(const Sent& sent) {
  comm::Traffic traffic;
  traffic.bytes_sent = sent.bytes;
  traffic.messages_sent = sent.messages;
  return traffic;
}

Sent operator*(Sent sent, int64_t times) { return {sent.bytes * times, sent.messages * times}; }

double seconds_of(const Sent& sent, const Machine& machine) {
  return static_cast<double>(sent.messages) * machine.latency +
         static_cast<double>(sent.bytes) / machine.bandwidth;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

size_t index(int64_t i) { return static_cast<size_t>(i); }

/// The share of the work that one rank of a layout has.
class Share {
 public:
  Share(const TransformerShape& shape, const Workload& work, const Layout& layout, int64_t rank)
      : work_(work),
        layout_(layout),
        head_dim_(shape.head_dim),
        tp_(rank % layout.tp),
        ulysses_(rank / layout.tp % layout.ulysses),
        ring_(rank / layout.tp / layout.ulysses % layout.ring),
        image_(split_lengths(work.image_tokens, layout.sequence())),
        text_(split_lengths(work.text_tokens, layout.sequence())),
        heads_(split_lengths(shape.heads / layout.tp, layout.ulysses)) {
    for (int64_t ring = 0; ring < layout.ring; ++ring) {
      int64_t tokens = 0;
      for (int64_t u = 0; u < layout.ulysses; ++u) tokens += joint(ring * layout.ulysses + u);
      ring_tokens_.push_back(tokens);
    }
  }

  int64_t tokens(Tokens kind) const {
    const int64_t part = ring_ * layout_.ulysses + ulysses_;
    if (kind == Tokens::kJoint) return joint(part);
    return (kind == Tokens::kImage ? image_ : text_)[index(part)];
  }
  /// Of attention, once heads were exchanged for tokens.
  int64_t heads() const { return heads_[index(ulysses_)]; }
  int64_t queries() const { return ring_tokens_[index(ring_)]; }
  int64_t keys() const { return sum(ring_tokens_); }

  /// One of query, key and value to the ranks of the Ulysses group.
  Sent ulysses_input(bool float8) const {
    Sent sent;
    for (int64_t u = 0; u < layout_.ulysses; ++u) {
      if (u != ulysses_) sent.add(part_bytes(tokens(Tokens::kJoint), heads_[index(u)], float8));
    }
    return sent;
  }
  Sent ulysses_output(bool float8) const {
    Sent sent;
    for (int64_t u = 0; u < layout_.ulysses; ++u) {
      if (u != ulysses_) {
        sent.add(part_bytes(joint(ring_ * layout_.ulysses + u), heads(), float8));
      }
    }
    return sent;
  }

  /// Key and value of the part that is passed on in the given round of the ring.
  Sent ring_round(int64_t round) const {
    const int64_t part = (ring_ + layout_.ring - round) % layout_.ring;
    Sent sent;
    sent.add(part_bytes(ring_tokens_[index(part)], heads(), false), 2);
    return sent;
  }
  Sent ring_all_gather() const {
    Sent sent;
    sent.add(part_bytes(queries(), heads(), false), 2 * (layout_.ring - 1));
    return sent;
  }

  Sent all_reduce(int64_t elements) const {
    const int64_t n = layout_.tp, size = work_.element_size;
    Sent sent;
    if (n == 1) return sent;
    if (elements * size <= kSmallBytes) {
      sent.add(elements * size, n - 1);
      return sent;
    }
    const auto slice = [&](int64_t r) { return elements / n + (r < elements % n ? 1 : 0); };
    for (int64_t r = 0; r < n; ++r) {
      if (r != tp_) sent.add(slice(r) * size);
    }
    sent.add(slice(tp_) * size, n - 1);
    return sent;
  }
  /// This rank's image tokens.
  int64_t latent_bytes(int64_t channels) const {
    return work_.batch * tokens(Tokens::kImage) * channels * work_.element_size;
  }

  Sent all_gather(int64_t elements) const {
    Sent sent;
    sent.add(elements / layout_.tp * work_.element_size, layout_.tp - 1);
    return sent;
  }

 private:
  int64_t joint(int64_t part) const { return image_[index(part)] + text_[index(part)]; }
  int64_t part_bytes(int64_t tokens, int64_t heads, bool float8) const {
    const int64_t rows = work_.batch * tokens * heads;
    return rows * (float8 ? head_dim_ + kScaleBytes : head_dim_ * work_.element_size);
  }

  const Workload& work_;
  Layout layout_;
  int64_t head_dim_, tp_, ulysses_, ring_;
  std::vector<int64_t> image_, text_, heads_;
  std::vector<int64_t> ring_tokens_;  ///< joint tokens of each member of the ring
};

/// What one attention call sends, and how many seconds of that nothing hides.
struct AttentionTraffic {
  Sent sent;
  double seconds = 0;
  double exposed = 0;
};

/// `tensor` is hidden behind as many seconds of computation.
void add(AttentionTraffic& total, const Sent& tensor, const Machine& machine, double hidden) {
  const double seconds = seconds_of(tensor, machine);
  total.sent += tensor;
  total.seconds += seconds;
  total.exposed += machine.overlap ? std::max(0.0, seconds - hidden) : seconds;
}

/// Seconds that computations take which communication can hide behind.
struct Cover {
  double projection = 0;
  double meanwhile = 0;
  double ring_round = 0;
};

AttentionTraffic attention_traffic(const Share& share, const Workload& work, const Layout& layout,
                                   const Machine& machine, const Cover& cover) {
  AttentionTraffic total;
  if (layout.ulysses > 1) {
    const UlyssesOptions& options = work.ulysses;
    const double projection = options.async ? cover.projection : 0;
    add(total, share.ulysses_input(options.float8), machine, projection);  // value
    add(total, share.ulysses_input(options.float8), machine, projection);  // query
    add(total, share.ulysses_input(false), machine, 0);                    // key, sent last
    add(total, share.ulysses_output(options.float8), machine, options.async ? cover.meanwhile : 0);
  }
  if (layout.ring > 1) {
    if (work.ring.rotate_method == RingRotateMethod::kAllGather) {
      add(total, share.ring_all_gather(), machine, 0);
    } else {
      for (int64_t round = 0; round + 1 < layout.ring; ++round) {
        add(total, share.ring_round(round), machine, cover.ring_round);
      }
    }
  }
  return total;
}

/// What tensor parallelism sends in one block.
Sent block_sums(const BlockShape& block, const TransformerShape& shape, const Workload& work,
                const Share& share) {
  Sent sent;
  for (const Tokens kind : block.sums) {
    sent += share.all_reduce(work.batch * share.tokens(kind) * shape.width());
  }
  return sent;
}

/// What collecting the vectors of all steps of a run sends.
Sent gathered_vectors(const TransformerShape& shape, const Workload& work, const Layout& layout,
                      const Share& share) {
  Sent sent;
  for (const BlockShape& block : shape.blocks) {
    for (const int64_t width : block.gathered) {
      for (int64_t step = 0; step < work.steps; step += shape.vector_steps) {
        const int64_t steps = std::min(shape.vector_steps, work.steps - step);
        sent += share.all_gather(steps * work.batch * width) * block.count;
      }
    }
  }
  return sent * (work.branches / layout.cfg);
}

double weight_size(const Workload& work) {
  return work.weight_size > 0 ? work.weight_size : static_cast<double>(work.element_size);
}

/// What a step reads of so many weights of such vectors, in elements of activations.
double vector_elements(const TransformerShape& shape, const Workload& work, double weights) {
  return weights * weight_size(work) / static_cast<double>(work.element_size) /
         static_cast<double>(std::min(shape.vector_steps, work.steps));
}

/// What a step sends outside the blocks: the branch's velocity to the rank of the other branch, and
/// to all ranks whether the caller wants to stop.
Sent step_end(const TransformerShape& shape, const Layout& layout, const Share& share) {
  constexpr int64_t kWordBytes = sizeof(double);
  Sent sent;
  sent.add(share.latent_bytes(shape.latent_channels), layout.cfg - 1);
  sent.add(kWordBytes, layout.world() - 1);
  return sent;
}

double attention_seconds(const TransformerShape& shape, const Workload& work, const Share& share,
                         const Machine& machine) {
  const auto pairs = static_cast<double>(work.batch * share.heads() * share.queries()) *
                     static_cast<double>(share.keys());
  return 4 * pairs * static_cast<double>(shape.head_dim) / machine.attention_flops;
}

/// Seconds to read and write that many elements.
double moving_seconds(double elements, const Workload& work, const Machine& machine) {
  if (machine.memory_bandwidth == 0) return 0;
  return elements * static_cast<double>(work.element_size) / machine.memory_bandwidth;
}

double shared_out(const PerToken& value, int64_t tp) {
  return value.whole + value.shared / static_cast<double>(tp);
}

/// Elements that merging a token's partial results moves: each partial output is read, and added to
/// a sum that is read and written.
double merged_elements(const TransformerShape& shape, const Workload& work, const Layout& layout) {
  if (layout.ring == 1 || work.ring.rotate_method == RingRotateMethod::kAllGather) return 0;
  const double fp32 = work.ring.convert_to_fp32 ? 4.0 / static_cast<double>(work.element_size) : 1;
  return static_cast<double>(layout.ring) * static_cast<double>(shape.width()) /
         static_cast<double>(layout.tp) * (1 + 2 * fp32);
}

/// Adds the blocks of one kind, for one guidance branch.
void add_blocks(const BlockShape& block, const TransformerShape& shape, const Workload& work,
                const Share& share, const Machine& machine, LayoutCost& cost) {
  const Layout& layout = cost.layout;
  const auto tp = static_cast<double>(layout.tp);
  const auto count = static_cast<double>(block.count);
  const auto rows = static_cast<double>(work.batch * share.tokens(Tokens::kJoint));
  const auto gemm = [&](double flops) { return rows * flops / tp / machine.gemm_flops; };
  const double attention = attention_seconds(shape, work, share, machine);
  const double of_token = shared_out(block.moved, layout.tp) + merged_elements(shape, work, layout);
  const double moved = rows * of_token +
                       vector_elements(shape, work, static_cast<double>(block.vector_weights) / tp);
  cost.compute_seconds +=
      count * (gemm(block.token_flops) + attention + moving_seconds(moved, work, machine));

  const AttentionTraffic exchange =
      attention_traffic(share, work, layout, machine,
                        {.projection = gemm(block.projection_flops),
                         .meanwhile = gemm(block.meanwhile_flops),
                         .ring_round = attention / static_cast<double>(layout.ring)});
  const double sums = seconds_of(block_sums(block, shape, work, share), machine);
  cost.communication_seconds += count * (exchange.seconds + sums);
  cost.exposed_seconds += count * (exchange.exposed + sums);
}

int64_t activation_bytes(const TransformerShape& shape, const Workload& work, const Layout& layout,
                         const Share& share) {
  // The wrappers' buffers, in rows of the rank's own heads for each of its own tokens.
  double buffers = 0;
  if (layout.ulysses > 1) buffers += 4;  // query, key, value as received; the output
  if (layout.ring > 1) {
    const bool gather = work.ring.rotate_method == RingRotateMethod::kAllGather;
    // Keys and values: all, or those in use and those on their way, with the sum and a part of it.
    buffers +=
        gather ? 2.0 * static_cast<double>(layout.ring)
               : 4 + 2 * (work.ring.convert_to_fp32 ? 4.0 / static_cast<double>(work.element_size)
                                                    : 1);
  }
  PerToken attention = shape.attention_peak;
  attention.shared += buffers * static_cast<double>(shape.width());
  const double elements =
      std::max(shared_out(attention, layout.tp), shared_out(shape.mlp_peak, layout.tp));
  return static_cast<int64_t>(
      elements *
      static_cast<double>(work.batch * share.tokens(Tokens::kJoint) * work.element_size));
}

std::string gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f GiB", bytes / (1 << 30));
  return text;
}

std::string why_not_ulysses(const TransformerShape& shape, const Workload& work,
                            const Layout& layout) {
  const int64_t heads = shape.heads / layout.tp;
  const std::string counted = c10::str(heads, layout.tp > 1 ? " heads of a tp rank" : " heads");
  if (heads < layout.ulysses) {
    return c10::str("ulysses ", layout.ulysses, " is more than the ", counted);
  }
  if (heads % layout.ulysses != 0 && (!work.ulysses.anything || work.ulysses.float8)) {
    return c10::str(counted, " do not divide by ulysses ", layout.ulysses,
                    work.ulysses.float8 ? ", as float8 needs" : "; --ulysses-anything takes them");
  }
  if (work.ulysses.anything) return "";
  for (const auto& [name, tokens] :
       {std::pair{"text", work.text_tokens}, std::pair{"image", work.image_tokens}}) {
    if (tokens % layout.sequence() == 0) continue;
    return c10::str(tokens, " ", name, " tokens do not divide by ", layout.sequence(),
                    " ranks; --ulysses-anything takes them");
  }
  return "";
}

std::vector<Layout> layouts_of(int64_t world) {
  std::vector<Layout> layouts;
  for (int64_t cfg = 1; cfg <= 2; ++cfg) {
    for (int64_t ring = 1; ring <= world / cfg; ++ring) {
      for (int64_t ulysses = 1; ulysses <= world / cfg / ring; ++ulysses) {
        const int64_t tp = world / (cfg * ring * ulysses);
        const Layout layout = {.cfg = cfg, .ring = ring, .ulysses = ulysses, .tp = tp};
        if (layout.world() == world) layouts.push_back(layout);
      }
    }
  }
  return layouts;
}

}  // namespace

double gemm_flops(const TransformerShape& shape, const Workload& work) {
  const auto tokens = static_cast<double>(work.text_tokens + work.image_tokens);
  double flops = static_cast<double>(work.image_tokens) * shape.image_flops;
  for (const BlockShape& block : shape.blocks) {
    flops += static_cast<double>(block.count) * tokens * block.token_flops;
  }
  return flops * static_cast<double>(work.batch * work.branches);
}

double attention_flops(const TransformerShape& shape, const Workload& work) {
  const auto tokens = static_cast<double>(work.text_tokens + work.image_tokens);
  double blocks = 0;
  for (const BlockShape& block : shape.blocks) blocks += static_cast<double>(block.count);
  return 4 * tokens * tokens * static_cast<double>(shape.width()) * blocks *
         static_cast<double>(work.batch * work.branches);
}

std::string why_not(const TransformerShape& shape, const Workload& work, const Layout& layout) {
  if (layout.cfg > 1 && work.branches < layout.cfg) {
    return c10::str("cfg ", layout.cfg, " needs true CFG: there is one guidance branch");
  }
  if (shape.heads % layout.tp != 0) {
    return c10::str(shape.heads, " heads do not divide by tp ", layout.tp);
  }
  return layout.ulysses > 1 ? why_not_ulysses(shape, work, layout) : "";
}

comm::Traffic predict_traffic(const TransformerShape& shape, const Workload& work,
                              const Layout& layout, int64_t rank) {
  const Share share(shape, work, layout, rank);
  const Machine any = {.gemm_flops = 1, .attention_flops = 1, .bandwidth = 1};
  Sent branch;
  for (const BlockShape& block : shape.blocks) {
    Sent sent = attention_traffic(share, work, layout, any, {}).sent;
    sent += block_sums(block, shape, work, share);
    branch += sent * block.count;
  }
  Sent step = branch * (work.branches / layout.cfg);
  step += step_end(shape, layout, share);
  return to_traffic(step);
}

comm::Traffic predict_once(const TransformerShape& shape, const Workload& work,
                           const Layout& layout, int64_t rank) {
  const Share share(shape, work, layout, rank);
  Sent sent = gathered_vectors(shape, work, layout, share);
  sent.add(share.latent_bytes(shape.latent_channels), layout.sequence() - 1);
  return to_traffic(sent);
}

LayoutCost cost_of(const TransformerShape& shape, const Workload& work, const Layout& layout,
                   const Machine& machine) {
  LayoutCost cost;
  cost.layout = layout;
  cost.infeasible = why_not(shape, work, layout);
  if (!cost.infeasible.empty()) return cost;

  const Share share(shape, work, layout, 0);
  for (const BlockShape& block : shape.blocks) {
    add_blocks(block, shape, work, share, machine, cost);
  }
  const auto image_rows = static_cast<double>(work.batch * share.tokens(Tokens::kImage));
  cost.compute_seconds +=
      image_rows * shape.image_flops / machine.gemm_flops +
      moving_seconds(vector_elements(shape, work, static_cast<double>(shape.vector_weights)), work,
                     machine);
  const auto passes = static_cast<double>(work.branches / layout.cfg);
  const double end = seconds_of(step_end(shape, layout, share), machine) +
                     seconds_of(gathered_vectors(shape, work, layout, share), machine) /
                         static_cast<double>(work.steps);
  cost.compute_seconds *= passes;
  cost.communication_seconds = cost.communication_seconds * passes + end;
  cost.exposed_seconds = cost.exposed_seconds * passes + end;
  cost.seconds = cost.compute_seconds + cost.exposed_seconds;

  const comm::Traffic traffic = predict_traffic(shape, work, layout, 0);
  cost.bytes_sent = traffic.bytes_sent;
  cost.messages = traffic.messages_sent;
  const comm::Traffic once = predict_once(shape, work, layout, 0);
  cost.bytes_once = once.bytes_sent;
  cost.messages_once = once.messages_sent;
  const int64_t weights = shape.shared_weights / layout.tp + shape.whole_weights;
  cost.weight_bytes =
      std::llround(static_cast<double>(weights) * weight_size(work)) + work.resident_bytes;
  cost.activation_bytes = activation_bytes(shape, work, layout, share);
  const auto needed = static_cast<double>(cost.weight_bytes + cost.activation_bytes);
  if (machine.memory > 0 && needed > machine.memory) {
    cost.infeasible = "needs " + gib(needed) + " a rank, which has " + gib(machine.memory);
  }
  return cost;
}

std::vector<LayoutCost> compare_layouts(const TransformerShape& shape, const Workload& work,
                                        const Machine& machine, int64_t world) {
  std::vector<LayoutCost> costs;
  for (const Layout& layout : layouts_of(world)) {
    costs.push_back(cost_of(shape, work, layout, machine));
  }
  std::stable_sort(costs.begin(), costs.end(), [](const LayoutCost& a, const LayoutCost& b) {
    if (a.infeasible.empty() != b.infeasible.empty()) return a.infeasible.empty();
    if (!a.infeasible.empty()) return false;
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.bytes_sent < b.bytes_sent;
  });
  if (!costs.empty()) costs[0].best = costs[0].infeasible.empty();
  return costs;
}

}  // namespace cachedit::parallel
