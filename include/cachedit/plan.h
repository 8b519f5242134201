// Which parallel layout to take: what each is predicted to cost, before any process is started.
// docs/parallelism.md explains the cost model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/export.h"
#include "cachedit/quantize.h"

namespace cachedit {

struct PlanRequest {
  int64_t world = 1;  ///< ranks, 1 to 4096
  /// Pixels; default and flooring as in GenerateRequest.
  std::optional<int64_t> height;
  std::optional<int64_t> width;
  int64_t batch = 1;                   ///< pictures at a time
  std::optional<int64_t> text_tokens;  ///< default: GenerateRequest's max_sequence_length
  bool true_cfg = false;               ///< two guidance branches a step
  std::optional<int64_t> steps;        ///< of a run; default as in GenerateRequest
  std::string dtype = "auto";          ///< as in LoadOptions
  /// Whose attention is measured, as in set_attn_backend(); empty: the environment's, or "native".
  std::string attention_backend;
  /// As in LoadOptions: what weights take and how fast their products are. A checkpoint that is
  /// quantized already needs none.
  std::optional<QuantizeConfig> quantize_config;

  /// Rates of one rank. Those of computation are measured on this machine's CPU, with the threads
  /// of set_num_threads(), where device_flops is not given; then the others have defaults, too:
  /// attention_flops is device_flops, and the time of memory-bound operations is left out.
  std::optional<double> device_flops;      ///< matrix products, operations a second
  std::optional<double> attention_flops;   ///< the same within attention
  std::optional<double> memory_bandwidth;  ///< bytes a second of element-wise operations
  /// Bytes a second that a rank sends to others while it receives as many, and seconds a message.
  /// Defaults are for ranks that share one machine's memory.
  std::optional<double> bandwidth;
  std::optional<double> latency;
  std::optional<double> memory;  ///< bytes a rank; without it, everything fits
  /// Whether data travels while a rank computes, as with NCCL. Default: exactly where device_flops
  /// is given, since MPI mostly moves data within its own calls.
  std::optional<bool> overlap;

  /// As in ParallelismConfig.
  bool ulysses_anything = false;
  bool ulysses_float8 = false;
  bool ulysses_async = false;
  std::string ring_rotate_method = "p2p";
  bool ring_convert_to_fp32 = true;
};

/// Of one rank and one denoising step, computed in full (no caching).
struct LayoutPlan {
  int64_t cfg = 1, ring = 1, ulysses = 1, tp = 1;
  std::string name;    ///< "ulysses 2 x tp 2"; "single" for one rank
  bool fits = false;   ///< it can run
  std::string reason;  ///< why it cannot
  bool best = false;   ///< the fastest that can
  double seconds = 0;  ///< compute and exposed communication
  double compute_seconds = 0;
  double communication_seconds = 0;
  double exposed_seconds = 0;  ///< communication that no computation hides
  int64_t bytes_sent = 0;
  int64_t messages = 0;
  int64_t bytes_once = 0;  ///< in the whole run, besides
  int64_t messages_once = 0;
  int64_t weight_bytes = 0;      ///< of all components
  int64_t activation_bytes = 0;  ///< estimate for the transformer
  std::string options;           ///< of `cachedit generate`: "--parallel-type ulysses ..."
};

struct ParallelPlan {
  /// What can run comes first, the fastest first.
  std::vector<LayoutPlan> layouts;
  int64_t height = 0, width = 0;  ///< pixels, after flooring
  int64_t image_tokens = 0, text_tokens = 0;
  int64_t batch = 1;
  int64_t branches = 1;
  int64_t steps = 1;  ///< of a run
  std::string dtype;
  /// Operations of a step on one rank alone.
  double gemm_operations = 0, attention_operations = 0;
  /// The rates that the predictions are made with; memory_bandwidth 0: left out.
  double device_flops = 0, attention_flops = 0, memory_bandwidth = 0, bandwidth = 0, latency = 0;
  bool overlap = true;
  std::vector<std::string> assumptions;  ///< what was measured or taken by default, a line each
};

/// Reads the configs and weight headers of the checkpoint `model` (as in load_pipeline), not the
/// weights. Throws InputError naming the field of the request, and what load_pipeline throws for
/// damaged checkpoints.
CACHEDIT_API ParallelPlan plan_layouts(const std::string& model, const PlanRequest& request);

}  // namespace cachedit
