// Generating with several processes (ranks): which processes there are, and how they share the
// work. docs/parallelism.md says which layout to take when.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/export.h"

namespace cachedit {

namespace comm {
class Communicator;
}

/// The ranks of a run, each a process that executes the same program. Every rank loads the same
/// model and makes the same calls with the same arguments. Latents come back on every rank,
/// pictures on rank 0.
class CACHEDIT_API World {
 public:
  /// This process alone.
  World();
  /// The processes that mpirun (or Slurm with MPI) started together. Initializes MPI at the first
  /// call and ends it with the process. Throws UnsupportedError where this build has no MPI.
  static World mpi();
  /// mpi() where a launcher has started this process as one of several, else this process alone.
  /// Throws UnsupportedError where a launcher has, but this build has no MPI.
  static World from_environment();
  /// A process group that torch.distributed knows by this name (its `group_name`; "0" is the
  /// default group's), NCCL's for ranks on CUDA devices. Throws InputError for an unknown one.
  static World process_group(const std::string& name);
  /// Inside the library and in its tests.
  explicit World(std::shared_ptr<comm::Communicator> communicator);

  int64_t rank() const;
  int64_t size() const;
  /// Ranks on this machine, counted by host name; all ranks must call together.
  int64_t local_size() const;

  /// Throws CommError on every rank, naming `what` and the ranks that differ, unless all ranks call
  /// with the same text.
  void require_equal(const std::string& what, const std::string& text) const;
  /// Tells the other ranks that this one gives up, and why; what they wait for throws CommError
  /// with the text. To be called once, before the process ends.
  void announce_failure(const std::string& text) const noexcept;
  /// After announce_failure() on this or another rank: the texts by rank that have arrived within a
  /// short while, this rank's own not among them; empty texts for ranks that said nothing.
  std::vector<std::string> failures() const;
  /// Returns when all ranks called it.
  void barrier() const;

  comm::Communicator& communicator() const { return *communicator_; }
  const std::shared_ptr<comm::Communicator>& shared_communicator() const { return communicator_; }

 private:
  std::shared_ptr<comm::Communicator> communicator_;
};

/// How ranks share the work, in upstream's terms. Sizes that are not given are 1; their product
/// must be the number of ranks.
struct ParallelismConfig {
  /// Ranks that exchange heads for tokens before attention (DeepSpeed-Ulysses).
  std::optional<int64_t> ulysses_size;
  /// Ranks that pass keys and values on (Ring Attention). With ulysses_size: USP.
  std::optional<int64_t> ring_size;
  /// Ranks that share out the transformer's weights (tensor parallelism).
  std::optional<int64_t> tp_size;
  /// 2: the guidance branches of true CFG are computed at the same time by two groups.
  std::optional<int64_t> cfg_size;
  /// The name of one of these sizes that takes what the others leave of the ranks; empty: none.
  std::string auto_size;
  /// A backend's name, or "auto"; empty: not given.
  std::string attention_backend;
  /// Ulysses with any number of heads and tokens; without it both must divide by ulysses_size
  /// (tokens: by ulysses_size * ring_size).
  bool ulysses_anything = false;
  /// Query, value and output travel as float8.
  bool ulysses_float8 = false;
  /// Value, query and key travel while the next projection is computed.
  bool ulysses_async = false;
  /// "p2p" or "allgather".
  std::string ring_rotate_method = "p2p";
  /// Partial outputs of Ring Attention are merged in fp32.
  bool ring_convert_to_fp32 = true;
  /// Components that all ranks share as well: "text_encoder", "text_encoder_2" (by tensor
  /// parallelism), "vae" (in strips of the picture).
  std::vector<std::string> extra_parallel_modules;

  /// Whether it says anything of several ranks.
  bool enabled() const;
  bool operator==(const ParallelismConfig&) const = default;
};

/// The sizes that upstream's --parallel-type names stand for with that many ranks: "tp", "ulysses",
/// "ring", "usp", "ulysses_tp", "ring_tp", "tp_ulysses", "tp_ring", "usp_tp". Sizes that `given`
/// holds stay, the others follow. Throws InputError for another name, listing these, and where the
/// ranks cannot be shared out so.
CACHEDIT_API ParallelismConfig parallel_layout(const std::string& parallel_type, int64_t world_size,
                                               ParallelismConfig given = {});

}  // namespace cachedit
