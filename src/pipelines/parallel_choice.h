// Which parallel layout a pipeline has: the configuration checked against the ranks and the model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachedit/parallel.h"
#include "parallel/context_parallel.h"
#include "parallel/mesh.h"
#include "parallel/sequence.h"

namespace cachedit::pipelines {

/// What the layout has to fit.
struct ParallelLimits {
  int64_t attention_heads = 1;  ///< of the transformer
  /// Components that extra_parallel_modules may name.
  std::vector<std::string> modules;
};

/// `config` with auto_size resolved for that many ranks. Throws InputError where it cannot be.
ParallelismConfig resolved(ParallelismConfig config, int64_t ranks);

/// The layout that the sizes of a resolved configuration describe. Throws InputError naming the
/// size for one below 1.
parallel::Layout layout_of(const ParallelismConfig& config);

class ParallelChoice {
 public:
  /// One rank's layout until another is chosen; a world of several ranks must choose one before it
  /// generates.
  explicit ParallelChoice(World world);

  /// Throws InputError naming the field, UnsupportedError naming the numbers where the layout does
  /// not fit the ranks or the model.
  ParallelChoice(World world, const ParallelismConfig& config, const ParallelLimits& limits);

  const World& world() const { return world_; }
  const ParallelismConfig& config() const { return config_; }
  const parallel::Mesh& mesh() const { return *mesh_; }
  bool several() const { return world_.size() > 1; }
  /// The ranks that share out a component named in extra_parallel_modules; null: it is whole.
  comm::Communicator* extra(const std::string& module) const;
  /// The ranks that share the transformer's weights out; null: it is whole.
  comm::Communicator* tensor_parallel() const;
  /// Throws UnsupportedError where a world of several ranks has no layout.
  void require_chosen() const;
  /// Throws UnsupportedError where Ring Attention needs more of this attention backend than it
  /// gives.
  void check_backend(const std::string& backend, at::Device device) const;
  /// Throws InputError naming the numbers where plain Ulysses cannot split the tokens.
  void check_tokens(int64_t text, int64_t image) const;

 private:
  World world_;
  ParallelismConfig config_;
  std::shared_ptr<parallel::Mesh> mesh_;
};

/// Attention over the tokens that the ranks of a mesh hold, around `backend`: that itself for one
/// part of the sequence.
class ParallelAttention {
 public:
  /// `lengths`: tokens of each part of the sequence. Everything must outlive the object.
  ParallelAttention(const attention::Attention& backend, const ParallelChoice& choice,
                    const std::vector<int64_t>& lengths);
  const attention::Attention& get() const { return *outermost_; }

 private:
  std::unique_ptr<attention::Attention> ring_, ulysses_;
  const attention::Attention* outermost_;
};

}  // namespace cachedit::pipelines
