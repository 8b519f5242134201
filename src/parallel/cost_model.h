// What a layout costs: seconds, traffic and memory of one denoising step, from the transformer's
// shape. The formulas follow what the code sends and computes; docs/parallelism.md explains them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "parallel/context_parallel.h"
#include "parallel/layout.h"

namespace cachedit::parallel {

enum class Tokens { kImage, kText, kJoint };

/// A number for every token: what all ranks of a tensor-parallel group have or do, and what they
/// share out.
struct PerToken {
  double whole = 0;
  double shared = 0;
};

/// Blocks of one kind. Attention runs over the joint tokens, once in each block.
struct BlockShape {
  int64_t count = 0;
  double token_flops = 0;       ///< matrix products of one token, shared out by tp
  double projection_flops = 0;  ///< of these, one of query, key and value
  double meanwhile_flops = 0;   ///< of these, what may run while the attention's output travels
  /// Tensors [B, tokens, width] that the ranks of tp add up (Shard::kRows), in order.
  std::vector<Tokens> sums = {};
  /// Widths of the vectors [steps, B, width] that they collect (Shard::kGatheredColumns).
  std::vector<int64_t> gathered = {};
  int64_t vector_weights = 0;  ///< weights that project these, shared out by tp
  PerToken moved;              ///< elements that norms, gates and activations read and write
};

struct TransformerShape {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t latent_channels = 0;  ///< of an image token outside the blocks
  std::vector<BlockShape> blocks = {};
  double image_flops = 0;      ///< of one image token outside the blocks, the same with tp
  int64_t vector_weights = 0;  ///< as in BlockShape, outside the blocks: whole on every rank
  int64_t vector_steps = 1;    ///< steps whose vectors are projected together
  int64_t shared_weights = 0;  ///< elements of all weights that tp shares out
  int64_t whole_weights = 0;   ///< and of all others
  /// Elements alive at a block's two peaks: while attention runs, and while the MLP does.
  PerToken attention_peak, mlp_peak;

  int64_t width() const { return heads * head_dim; }
};

/// What a step has to do, and how.
struct Workload {
  int64_t image_tokens = 0;
  int64_t text_tokens = 0;
  int64_t batch = 1;
  int64_t branches = 1;        ///< 2 with true CFG
  int64_t steps = 1;           ///< of the run
  int64_t element_size = 2;    ///< bytes of an activation
  double weight_size = 0;      ///< bytes that a weight takes on average; 0: element_size
  int64_t resident_bytes = 0;  ///< of the other models, whole on every rank
  UlyssesOptions ulysses = {};
  RingOptions ring = {};
};

/// One rank's processor and its connection. Rates are what is reached, not what is advertised.
struct Machine {
  double gemm_flops = 0;
  double attention_flops = 0;
  double memory_bandwidth = 0;  ///< bytes a second; 0: norms, gates and the like cost nothing
  double bandwidth = 0;         ///< bytes a second that a rank sends while it receives as many
  double latency = 0;           ///< seconds a message
  double memory = 0;            ///< bytes a rank; 0: no limit
  bool overlap = true;          ///< data travels while the processor computes
};

/// Of rank 0, which has the most tokens and heads, for one step.
struct LayoutCost {
  Layout layout;
  std::string infeasible;  ///< why this layout cannot run; empty where it can
  bool best = false;       ///< the fastest that can
  double seconds = 0;      ///< compute and exposed communication
  double compute_seconds = 0;
  double communication_seconds = 0;
  double exposed_seconds = 0;  ///< communication that no computation hides
  int64_t bytes_sent = 0;
  int64_t messages = 0;
  int64_t bytes_once = 0;  ///< in the whole run, besides
  int64_t messages_once = 0;
  int64_t weight_bytes = 0;
  int64_t activation_bytes = 0;  ///< estimate of the most that the transformer holds at one time
};

/// Floating-point operations of a step on one rank alone.
double gemm_flops(const TransformerShape& shape, const Workload& work);
double attention_flops(const TransformerShape& shape, const Workload& work);

/// Why the layout cannot run, whatever the machine; empty where it can.
std::string why_not(const TransformerShape& shape, const Workload& work, const Layout& layout);

/// bytes_sent and messages_sent of one step of that rank, exactly; the layout must be able to run.
comm::Traffic predict_traffic(const TransformerShape& shape, const Workload& work,
                              const Layout& layout, int64_t rank);

/// What a run sends besides: the vectors of its steps, and behind the last step the latents to all
/// parts of the sequence.
comm::Traffic predict_once(const TransformerShape& shape, const Workload& work,
                           const Layout& layout, int64_t rank);

/// Figures are 0 where the layout cannot run for another reason than memory.
LayoutCost cost_of(const TransformerShape& shape, const Workload& work, const Layout& layout,
                   const Machine& machine);

/// All layouts of that many ranks, cfg 1 and 2: first those that can run, the fastest first (of
/// equals the one that sends less), then the others.
std::vector<LayoutCost> compare_layouts(const TransformerShape& shape, const Workload& work,
                                        const Machine& machine, int64_t world);

}  // namespace cachedit::parallel
