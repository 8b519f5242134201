// Quantized linear layers by their definition, in double precision.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "nn/linear.h"
#include "nn/linear_weight.h"
#include "nn/quantization.h"
#include "support/temp_dir.h"

namespace cachedit::test {

/// Every type, by its name.
std::vector<nn::QuantType> all_quant_types();

/// Whether the type rounds activations.
bool rounds_activations(nn::QuantType type);

/// A weight in double as the type holds it, by the definition: rounded to its numbers with a scale
/// of amax / 127, 7 or 448 per channel, tensor, group or block.
at::Tensor rounded_weight(const at::Tensor& weight, nn::QuantType type, int64_t group = 64);

/// Activations [B, N, K] in double as a call of the type rounds them: to bfloat16 for weight-only
/// types.
at::Tensor rounded_input(const at::Tensor& x, nn::QuantType type);

/// x W^T + b with both rounded, in double.
at::Tensor reference_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            nn::QuantType type, int64_t group = 64);

/// Bound of relative_error() between a layer in fp32 and reference_linear(): values that lie on a
/// boundary may round the other way, and levels without bfloat16 products keep fp32 activations.
double reference_tolerance(nn::QuantType type);

/// A checkpoint of these tensors, and layers of it.
class LayerFile {
 public:
  explicit LayerFile(const std::map<std::string, at::Tensor>& tensors);
  /// The layer "layer" of the type (none: as stored), of the widths given. Checks that everything
  /// in the file was used.
  nn::Linear load(int64_t in, int64_t out, std::optional<nn::QuantType> type,
                  nn::WeightOptions options = {.dtype = at::kFloat, .pack_linear = true});
  /// What became of the layers of the last load().
  const std::vector<nn::QuantizedLayer>& layers() const { return layers_; }
  const io::WeightStore& store() const { return store_; }

 private:
  TempDir folder_;
  io::WeightStore store_;
  std::vector<nn::QuantizedLayer> layers_;
};

}  // namespace cachedit::test
