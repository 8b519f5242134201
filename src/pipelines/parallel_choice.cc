#include "pipelines/parallel_choice.h"

#include <algorithm>
#include <numeric>

#include "attention/capability.h"
#include "attention/registry.h"
#include "attention/select.h"
#include "base/divisors.h"
#include "base/fail.h"

namespace cachedit::pipelines {
namespace {

constexpr const char* kWhere = "parallel";

int64_t size_of(const std::optional<int64_t>& size, const char* name) {
  if (size.value_or(1) < 1) {
    fail<InputError>(kWhere, name, " must be at least 1: got ", *size);
  }
  return size.value_or(1);
}

void check_world(const parallel::Layout& layout, int64_t ranks) {
  if (layout.world() == ranks) return;
  fail<InputError>(kWhere,
                   "ulysses_size, ring_size, tp_size and cfg_size must multiply to the "
                   "number of ranks: got ",
                   layout.ulysses, " x ", layout.ring, " x ", layout.tp, " x ", layout.cfg, " = ",
                   layout.world(), " and ", ranks, ranks == 1 ? " rank" : " ranks", "; start ",
                   layout.world(), " ranks (mpirun -n ", layout.world(), "), or change the sizes");
}

void check_options(const ParallelismConfig& config, const parallel::Layout& layout) {
  const auto needs = [&](bool given, const char* option, const char* size, int64_t value) {
    if (!given || value > 1) return;
    fail<InputError>(kWhere, option, " has no effect without ", size, " above 1: got ", value);
  };
  needs(config.ulysses_anything, "ulysses_anything", "ulysses_size", layout.ulysses);
  needs(config.ulysses_float8, "ulysses_float8", "ulysses_size", layout.ulysses);
  needs(config.ulysses_async, "ulysses_async", "ulysses_size", layout.ulysses);
  const std::string& method = config.ring_rotate_method;
  if (method != "p2p" && method != "allgather") {
    fail<InputError>(kWhere, "ring_rotate_method must be p2p or allgather: got '", method, "'");
  }
  if (layout.cfg > 2) {
    fail<InputError>(kWhere, "cfg_size must be 1 or 2, as there are two guidance branches: got ",
                     layout.cfg);
  }
}

/// The heads that each rank of the tensor-parallel group has.
int64_t check_tensor_parallel(int64_t heads, int64_t tp) {
  if (heads % tp == 0) return heads / tp;
  fail<UnsupportedError>(kWhere, "tp_size must divide the transformer's ", heads,
                         " attention heads: got ", tp, "; use ", divisors_text(heads));
}

parallel::UlyssesOptions ulysses_options(const ParallelismConfig& config) {
  return {.anything = config.ulysses_anything,
          .float8 = config.ulysses_float8,
          .async = config.ulysses_async};
}

}  // namespace

ParallelismConfig resolved(ParallelismConfig config, int64_t ranks) {
  if (config.auto_size.empty()) return config;
  std::optional<int64_t>* chosen = nullptr;
  for (const auto& [name, size] :
       {std::pair{"ulysses_size", &config.ulysses_size}, std::pair{"ring_size", &config.ring_size},
        std::pair{"tp_size", &config.tp_size}, std::pair{"cfg_size", &config.cfg_size}}) {
    if (config.auto_size == name) chosen = size;
  }
  if (chosen == nullptr) {
    fail<InputError>(kWhere,
                     "auto_size must name ulysses_size, ring_size, tp_size or cfg_size: got '",
                     config.auto_size, "'");
  }
  chosen->reset();
  const int64_t others = layout_of(config).world();
  if (ranks % others != 0) {
    fail<InputError>(kWhere, "the other sizes leave no whole ", config.auto_size, " of ", ranks,
                     " ranks: got a product of ", others);
  }
  *chosen = ranks / others;
  config.auto_size.clear();
  return config;
}

parallel::Layout layout_of(const ParallelismConfig& config) {
  return {.cfg = size_of(config.cfg_size, "cfg_size"),
          .ring = size_of(config.ring_size, "ring_size"),
          .ulysses = size_of(config.ulysses_size, "ulysses_size"),
          .tp = size_of(config.tp_size, "tp_size")};
}

ParallelChoice::ParallelChoice(World world) : world_(std::move(world)) {
  if (!several())
    mesh_ = std::make_shared<parallel::Mesh>(world_.communicator(), parallel::Layout());
}

ParallelChoice::ParallelChoice(World world, const ParallelismConfig& config,
                               const ParallelLimits& limits)
    : world_(std::move(world)), config_(resolved(config, world_.size())) {
  const parallel::Layout layout = layout_of(config_);
  check_world(layout, world_.size());
  check_options(config, layout);
  parallel::check_ulysses_heads(check_tensor_parallel(limits.attention_heads, layout.tp),
                                layout.ulysses, ulysses_options(config));
  for (const std::string& module : config.extra_parallel_modules) {
    if (std::find(limits.modules.begin(), limits.modules.end(), module) == limits.modules.end()) {
      fail<InputError>(kWhere, "extra_parallel_modules may name ", limits.modules, ": got '",
                       module, "'");
    }
  }
  mesh_ = std::make_shared<parallel::Mesh>(world_.communicator(), layout);
}

comm::Communicator* ParallelChoice::extra(const std::string& module) const {
  const auto& modules = config_.extra_parallel_modules;
  const bool named = std::find(modules.begin(), modules.end(), module) != modules.end();
  return named && several() ? &world_.communicator() : nullptr;
}

comm::Communicator* ParallelChoice::tensor_parallel() const {
  return mesh_ && mesh_->layout().tp > 1 ? &mesh_->tp() : nullptr;
}

void ParallelChoice::require_chosen() const {
  if (mesh_) return;
  fail<InputError>(
      kWhere, "there are ", world_.size(),
      " ranks, but no layout says how they share "
      "the work; choose one (--parallel-type ulysses, or parallelism_config), or start "
      "one process");
}

void ParallelChoice::check_backend(const std::string& backend, at::Device device) const {
  // `auto` looks for a backend that can, call by call.
  if (mesh_->layout().ring == 1 || config_.ring_rotate_method != "p2p" ||
      backend == attention::kAuto) {
    return;
  }
  const attention::Registry& registry = attention::builtin_registry();
  const attention::DeviceSupport* support = registry.find(backend).on(device.type());
  if (support == nullptr || support->can.lse) return;
  std::string able;
  for (const attention::Backend& other : registry.backends()) {
    const attention::DeviceSupport* can = other.on(device.type());
    if (can != nullptr && can->can.lse && attention::availability_on(other, device).available) {
      able += (able.empty() ? "" : ", ") + other.name;
    }
  }
  fail<UnsupportedError>(kWhere,
                         "Ring Attention merges partial results by their log-sum-exps, which "
                         "the attention backend must give: got ",
                         backend, "; use ", able, ", or ring_rotate_method allgather");
}

void ParallelChoice::check_tokens(int64_t text, int64_t image) const {
  const parallel::Layout& layout = mesh_->layout();
  if (layout.ulysses == 1 || config_.ulysses_anything) return;
  const int64_t parts = layout.sequence();
  for (const auto& [name, count] : {std::pair{"text", text}, std::pair{"image", image}}) {
    if (count % parts == 0) continue;
    fail<InputError>(kWhere, "Ulysses needs ", name, " tokens that divide by the ", parts,
                     " parts of the sequence: got ", count,
                     "; use ulysses_anything (--ulysses-anything), which takes any number, or "
                     "another size");
  }
}

ParallelAttention::ParallelAttention(const attention::Attention& backend,
                                     const ParallelChoice& choice,
                                     const std::vector<int64_t>& lengths)
    : outermost_(&backend) {
  const parallel::Mesh& mesh = choice.mesh();
  const parallel::Layout& layout = mesh.layout();
  const ParallelismConfig& config = choice.config();
  // Part s of the sequence is that of ring rank s / ulysses and Ulysses rank s % ulysses.
  const auto row = [&](int64_t ring) {
    const auto begin = lengths.begin() + ring * layout.ulysses;
    return std::vector<int64_t>(begin, begin + layout.ulysses);
  };
  if (layout.ring > 1) {
    std::vector<int64_t> sums;
    for (int64_t r = 0; r < layout.ring; ++r) {
      const std::vector<int64_t> parts = row(r);
      sums.push_back(std::accumulate(parts.begin(), parts.end(), int64_t{0}));
    }
    const bool p2p = config.ring_rotate_method == "p2p";
    ring_ = parallel::make_ring(*outermost_, mesh.ring(), std::move(sums),
                                {.rotate_method = p2p ? parallel::RingRotateMethod::kP2P
                                                      : parallel::RingRotateMethod::kAllGather,
                                 .convert_to_fp32 = config.ring_convert_to_fp32});
    outermost_ = ring_.get();
  }
  if (layout.ulysses > 1) {
    ulysses_ = parallel::make_ulysses(*outermost_, mesh.ulysses(), row(mesh.ring().rank()),
                                      ulysses_options(config));
    outermost_ = ulysses_.get();
  }
}

}  // namespace cachedit::pipelines
