// Quantized linear layers: which ones and how, in the shape of cache-dit's QuantizeConfig; and
// checkpoints that hold them. docs/quantization.md says which type to take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/export.h"

namespace cachedit {

/// What differs for one component; fields left out are those of QuantizeConfig.
struct ComponentQuantizeConfig {
  std::optional<std::string> quant_type;
  std::optional<std::vector<std::string>> exclude_layers;
  std::optional<bool> regional_quantize;
  std::optional<std::map<std::string, std::string>> precision_plan;
  std::optional<bool> per_tensor_fallback;

  bool operator==(const ComponentQuantizeConfig&) const = default;
};

struct QuantizeConfig {
  /// int8_per_row, int8_per_tensor, int8_weight_only, int4_weight_only, float8_per_row,
  /// float8_per_tensor, float8_per_block, float8_weight_only; or none, for a precision_plan alone.
  std::string quant_type = "float8_per_row";
  /// Layers whose name contains one of these stay as stored.
  std::vector<std::string> exclude_layers = {"embedder", "embed", "modulation", "mod"};
  /// Of a transformer, only the layers in its repeated blocks.
  bool regional_quantize = true;
  /// Any of transformer, text_encoder and text_encoder_2; empty: the transformer.
  std::map<std::string, ComponentQuantizeConfig> components_to_quantize;
  /// Types (or none) by parts of layers' names, "*" standing for any characters: {"attn.to_out":
  /// "float8_per_row"}. Of several that a name contains, the longest decides. Layers that none
  /// names have quant_type; excluded ones stay excluded.
  std::map<std::string, std::string> precision_plan;
  /// Where a rank's share of a layer ends amid the block or group of a scale: another type for that
  /// layer. Otherwise it stays as stored.
  bool per_tensor_fallback = true;
  /// Inputs that share a scale in int4_weight_only: 32, 64 or 128. Not in cache-dit.
  int64_t group_size = 64;

  bool operator==(const QuantizeConfig&) const = default;
};

/// What became of a linear layer.
struct LayerQuantization {
  std::string layer;
  std::string type;  ///< empty: as stored
  std::string note;  ///< why, where it is not what was asked for
};

struct CACHEDIT_API ComponentQuantization {
  std::string component;
  std::vector<LayerQuantization> layers;  ///< every linear layer
  int64_t stored_bytes = 0;               ///< of their weights in the file
  int64_t bytes = 0;                      ///< of their weights now, scales included

  int64_t quantized_layers() const;
};

/// A line per component that has quantized layers, or was asked to: "transformer: 76 of 88 linear
/// layers quantized (int8_per_row 76), 24.1 -> 12.1 MiB; as stored: 12 (10 outside of the blocks, 2
/// ...)".
CACHEDIT_API std::string quantization_summary(const std::vector<ComponentQuantization>& components);

/// Throws ConfigError naming the field for an unknown type, component or group size;
/// UnsupportedError for SVDQuant and NVFP4.
CACHEDIT_API void check_quantize_config(const QuantizeConfig& config);

struct QuantizeCheckpointOptions {
  QuantizeConfig config;
  /// Called after every quantized layer, on the calling thread; return false to stop
  /// (quantize_checkpoint() then throws Cancelled).
  std::function<bool(const std::string& component, int64_t done, int64_t of)> on_layer;
};

/// Writes the checkpoint `model` to the folder `save_path` with the layers quantized that `options`
/// name, which load_pipeline() then takes as they are. In the folder of each quantized component,
/// quantization_config.json says what was done. Other files are copied (large ones linked where
/// that is possible). The folder appears whole or not at all.
/// Throws InputError where save_path is not an empty or new folder outside of the model, for a
/// model that is quantized already, and where no layer fits; IoError, and what load_pipeline()
/// throws.
CACHEDIT_API std::vector<ComponentQuantization> quantize_checkpoint(
    const std::string& model, const std::filesystem::path& save_path,
    const QuantizeCheckpointOptions& options);

}  // namespace cachedit
