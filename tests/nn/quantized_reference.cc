#include "quantized_reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/round.h>
#include <ATen/ops/where.h>

#include "io/safetensors.h"

namespace cachedit::test {
namespace {

using nn::QuantType;

/// `x` rounded with the scales that belong to its largest magnitudes `amax`, both in fp32 as the
/// definition has it.
at::Tensor round_with(const at::Tensor& x, const at::Tensor& amax, nn::StoredKind kind) {
  const double most = kind == nn::StoredKind::kInt8 ? 127 : kind == nn::StoredKind::kInt4 ? 7 : 448;
  const at::Tensor scale = at::where(amax.lt(1e-30), 1.0, amax / most).to(at::kFloat);
  const at::Tensor scaled = at::clamp(x.to(at::kFloat) / scale, -most, most);
  const at::Tensor q = kind == nn::StoredKind::kFloat8
                           ? scaled.to(at::kFloat8_e4m3fn).to(at::kDouble)
                           : at::round(scaled).to(at::kDouble);
  return q * scale.to(at::kDouble);
}

/// Rounds tiles of rows x columns, each with a scale of its own.
at::Tensor round_tiles(const at::Tensor& x, int64_t rows, int64_t columns, nn::StoredKind kind) {
  const int64_t n = x.size(0), k = x.size(1);
  const int64_t n_tiles = (n + rows - 1) / rows, k_tiles = (k + columns - 1) / columns;
  const at::Tensor tiles = at::constant_pad_nd(x, {0, k_tiles * columns - k, 0, n_tiles * rows - n})
                               .view({n_tiles, rows, k_tiles, columns});
  const at::Tensor rounded = round_with(tiles, tiles.abs().amax({1, 3}, true), kind);
  return rounded.view({n_tiles * rows, k_tiles * columns}).narrow(0, 0, n).narrow(1, 0, k);
}

}  // namespace

std::vector<QuantType> all_quant_types() {
  return {QuantType::kInt8PerRow,     QuantType::kInt8PerTensor,   QuantType::kInt8WeightOnly,
          QuantType::kInt4WeightOnly, QuantType::kFloat8PerRow,    QuantType::kFloat8PerTensor,
          QuantType::kFloat8PerBlock, QuantType::kFloat8WeightOnly};
}

bool rounds_activations(QuantType type) {
  return std::string(nn::name_of(type)).find("weight_only") == std::string::npos;
}

at::Tensor rounded_weight(const at::Tensor& weight, QuantType type, int64_t group) {
  const at::Tensor w = weight.to(at::kDouble);
  const nn::StoredKind kind = nn::stored_kind(type);
  if (nn::is_per_tensor(type)) return round_tiles(w, w.size(0), w.size(1), kind);
  if (type == QuantType::kFloat8PerBlock) return round_tiles(w, 128, 128, kind);
  if (type == QuantType::kInt4WeightOnly) return round_tiles(w, 1, group, kind);
  return round_tiles(w, 1, w.size(1), kind);
}

at::Tensor rounded_input(const at::Tensor& x, QuantType type) {
  if (!rounds_activations(type)) return x.to(at::kBFloat16).to(at::kDouble);
  const nn::StoredKind kind = nn::stored_kind(type);
  const at::Tensor wide = x.to(at::kDouble);
  if (nn::is_per_tensor(type)) return round_with(wide, wide.abs().amax({1, 2}, true), kind);
  if (type == QuantType::kFloat8PerBlock) {
    return round_tiles(wide.flatten(0, 1), 1, 128, kind).view(x.sizes());
  }
  return round_with(wide, wide.abs().amax(-1, true), kind);
}

at::Tensor reference_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            QuantType type, int64_t group) {
  const at::Tensor y = at::linear(rounded_input(x, type), rounded_weight(weight, type, group));
  return bias.defined() ? y + bias.to(at::kDouble) : y;
}

double reference_tolerance(QuantType type) {
  return nn::stored_kind(type) == nn::StoredKind::kInt8 && rounds_activations(type) ? 5e-4 : 4e-3;
}

LayerFile::LayerFile(const std::map<std::string, at::Tensor>& tensors)
    : store_([&] {
        io::write_safetensors(folder_ / "model.safetensors", tensors);
        return io::WeightStore::open(folder_.path());
      }()) {}

nn::Linear LayerFile::load(int64_t in, int64_t out, std::optional<QuantType> type,
                           nn::WeightOptions options) {
  if (type) options.quantization.type = type;
  const nn::WeightLoader loader(store_, options);
  const bool bias = store_.contains("layer.bias");
  nn::Linear layer(loader.root() / "layer", in, out, bias ? nn::Bias::kYes : nn::Bias::kNo);
  loader.finish();
  layers_ = loader.linear_layers();
  return layer;
}

}  // namespace cachedit::test
