// y = x W^T + b, in whichever form the weight is held: plain tensors, packed for the CPU's kernels,
// or quantized; whole, or a rank's share of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "nn/activation.h"
#include "nn/weight_scope.h"

namespace cachedit::nn {

enum class Bias { kYes, kNo };

/// A product and what is done with it while it is still in registers or cache.
struct LinearCall {
  /// [..., in], or its first features where `second` [..., rest] has the others: as if both were
  /// concatenated. Any strides but in the last dimension.
  at::Tensor input;
  at::Tensor second = {};
  /// Where the result goes, [..., out], rows of any stride; undefined: a new tensor.
  at::Tensor out = {};
  std::optional<Activation> activation = std::nullopt;
  /// [..., out]: the result is residual + gate * y, y being activated already; may be `out`.
  at::Tensor residual = {};
  /// [B, out] for an input of [B, N, in]; undefined: ones.
  at::Tensor gate = {};
  /// [..., out], in place of a residual: the result is factor * y, y being activated already, as
  /// gated MLPs (SwiGLU, GEGLU) have it; may be `out`.
  at::Tensor factor = {};
};

/// What the scale of a form's rounded activations covers, where it is more than a few features.
enum class RowScale { kNone, kPerRow, kPerItem };

/// How a Linear computes. One object per layer; calls are const and may run at the same time.
class LinearForm {
 public:
  virtual ~LinearForm() = default;
  /// `call` is complete (out is defined), its tensors have 3 dimensions.
  virtual void run(const LinearCall& call) const = 0;
  /// For inputs that are a rank's share of whole rows, where row_scale() is not kNone: `largest`
  /// [B, N], fp32, is the largest magnitude in the whole row (kPerItem: in all rows of the batch
  /// item), so that all ranks round with one scale.
  virtual void run_share(const LinearCall& call, const at::Tensor& largest) const {
    static_cast<void>(largest);
    run(call);
  }
  virtual RowScale row_scale() const { return RowScale::kNone; }
  /// Of the weight as it is held, with scales.
  virtual int64_t bytes() const = 0;
};

/// Weight "weight" [out, in], "bias" [out]. Where the scope has a shard rule for the layer, this
/// rank holds its share of the weight only (shard.h says what it takes and gives).
class Linear {
 public:
  /// `dtype`: of the parameters, in place of the scope's.
  Linear(const WeightScope& scope, int64_t in_features, int64_t out_features,
         Bias bias = Bias::kYes, std::optional<at::ScalarType> dtype = std::nullopt);
  /// Several layers of one input as one: their outputs one after the other. None of them may have a
  /// rule of kRows or kGatheredColumns.
  Linear(const std::vector<WeightScope>& scopes, int64_t in_features, int64_t out_features_each);

  /// [..., in] -> [..., out], this rank's share of these where the rule says so. With Shard::kRows
  /// and kGatheredColumns all ranks of the group must call together.
  at::Tensor operator()(const at::Tensor& x) const { return run({.input = x}); }
  at::Tensor run(const LinearCall& call) const;

  /// Of what comes out.
  at::ScalarType dtype() const { return dtype_; }
  /// Outputs of this rank.
  int64_t out_features() const { return out_features_; }

 private:
  void run_form(const LinearCall& call, const at::Tensor& largest = {}) const;
  void check_input(const LinearCall& call) const;
  void bind(const std::vector<WeightScope>& scopes, int64_t in_features, int64_t out_features,
            Bias bias);
  at::Tensor gathered(const at::Tensor& y) const;
  void summed(const LinearCall& call) const;

  std::shared_ptr<const LinearForm> form_;
  at::Tensor bias_;  // with kRows: added after the sum
  at::ScalarType dtype_ = at::kFloat;
  int64_t in_features_ = 0;  // of this rank, as out_features_
  int64_t out_features_ = 0;
  std::shared_ptr<StepProfile> profile_;
  std::optional<Shard> shard_;
  comm::Communicator* group_ = nullptr;
};

/// `layer` of vectors [..., in], each a batch item of its own: where one scale of quantized
/// activations covers an item, no vector depends on the others.
at::Tensor each_alone(const Linear& layer, const at::Tensor& vectors);

}  // namespace cachedit::nn
