// The weight seam: layers bind their tensors through a scope by checkpoint name. It checks shapes,
// converts dtype and device, and records use, so that loading can end with the list of every
// missing, left-over and wrong-shaped tensor. Tensor parallelism and quantization hook in here.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cachedit/step_profile.h"
#include "io/weight_store.h"
#include "nn/quantization.h"
#include "nn/shard.h"

namespace cachedit::nn {

struct WeightOptions {
  /// Converts floating-point tensors; std::nullopt keeps the stored dtype.
  std::optional<at::ScalarType> dtype;
  at::Device device = at::kCPU;
  TensorParallel tensor_parallel = {};
  /// Linear layers pack their weights for the CPU's kernels where there are any for the type: a
  /// copy at load, faster calls. Quantized layers always do.
  bool pack_linear = false;
  /// Given: linear layers add up their times in it.
  std::shared_ptr<StepProfile> profile = nullptr;
  QuantizationPlan quantization = {};
  /// Linear layers are checked and recorded with what they would become, and hold nothing: for
  /// programs that only want to know. Nothing may be computed then.
  bool list_only = false;
  /// Told of every linear layer, in the order of loading.
  std::function<void(const QuantizedLayer&)> on_linear_layer = {};
};

/// A prefix of tensor names. Cheap to copy; valid as long as its WeightLoader.
class WeightScope {
 public:
  /// scope / "attn" / "to_q" names "<prefix>attn.to_q.". Parts may hold dots themselves.
  WeightScope operator/(std::string_view part) const;
  WeightScope operator/(int64_t index) const;

  /// The tensor "<prefix><name>" with exactly this shape. A missing or wrong-shaped one is recorded
  /// and a placeholder of that shape on the meta device comes back, so that one load reports all
  /// faults; WeightLoader::finish throws before anybody computes with it.
  at::Tensor take(std::string_view name, at::IntArrayRef shape) const;
  /// The same, kept in `dtype` whatever the options say.
  at::Tensor take_as(std::string_view name, at::IntArrayRef shape, at::ScalarType dtype) const;

  /// This rank's share of dimension `dim` of the tensor "<prefix><name>", which has `shape` as a
  /// whole; the rule's parts, or the dimension, must divide by the ranks (UnsupportedError naming
  /// both). Copies where the share does not lie in one piece.
  at::Tensor take_share(std::string_view name, at::IntArrayRef shape, int64_t dim,
                        const ShardRule& rule, at::ScalarType dtype) const;

  /// The same of the type that the file has, a view of the file where it can be; `dim` < 0: all of
  /// it. Not counted in WeightLoader::bytes().
  at::Tensor take_stored(std::string_view name, at::IntArrayRef shape, int64_t dim,
                         const ShardRule* rule) const;
  /// Throws UnsupportedError naming both unless the ranks divide a dimension of `size`, or the
  /// parts that the rule says it has.
  void check_share(std::string_view name, int64_t size, const ShardRule& rule) const;
  /// Of a tensor in the file; none: it is not there.
  std::optional<at::ScalarType> stored_dtype(std::string_view name) const;
  std::vector<int64_t> stored_shape(std::string_view name) const;
  /// What the files' metadata say of this layer's quantization (comfy_quant.h); null: nothing.
  const std::string* description() const;
  /// For files that hold a tensor that this version does not need.
  void mark_used(std::string_view name) const;
  /// The bytes of `tensors` in the file are not needed any more: gives their pages back.
  void release_pages(const std::vector<at::Tensor>& tensors) const;

  const WeightOptions& options() const;
  /// Notes a linear layer of this prefix, and its bytes.
  void record(const QuantizedLayer& layer) const;

  /// The rule for the layer of this prefix; null: whole, as it always is with one rank.
  const ShardRule* shard_rule() const;
  /// The ranks that share weights out.
  comm::Communicator* shard_group() const;

  bool contains(std::string_view name) const;
  /// The tensor's file and whole name, for errors.
  std::string place(std::string_view name) const;
  const std::string& prefix() const { return prefix_; }
  /// The prefix without its last dot: a layer's name.
  std::string layer() const;
  /// What the component's parameters become: the option's dtype, or the stored dtype of its first
  /// floating-point tensor.
  at::ScalarType dtype() const;
  at::Device device() const;

 private:
  friend class WeightLoader;
  struct State;
  WeightScope(std::shared_ptr<State> state, std::string prefix)
      : state_(std::move(state)), prefix_(std::move(prefix)) {}

  std::shared_ptr<State> state_;
  std::string prefix_;
};

/// One component's load: hands out the root scope, then checks that everything fitted.
class WeightLoader {
 public:
  /// `store` must outlive the loader, not the tensors.
  WeightLoader(const io::WeightStore& store, const WeightOptions& options);

  WeightScope root() const;

  /// Bytes of all tensors that were taken, as this rank holds them.
  int64_t bytes() const;
  /// The linear layers, in the order of loading.
  const std::vector<QuantizedLayer>& linear_layers() const;

  /// Throws WeightError listing every missing, wrong-shaped and left-over tensor. Left-overs whose
  /// name starts with one of `ignored_prefixes` are known to be unused and pass in silence.
  void finish(const std::vector<std::string>& ignored_prefixes = {}) const;

 private:
  std::shared_ptr<WeightScope::State> state_;
};

}  // namespace cachedit::nn
