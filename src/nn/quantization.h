// Which linear layers are quantized and how, by cache-dit's names for the types.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cachedit::nn {

/// W8A8 types also round the activations, at each call. Scales are fp32.
enum class QuantType {
  kInt8PerRow,        ///< W8A8: a scale per output channel, one per row of the activations
  kInt8PerTensor,     ///< W8A8: one scale per weight, one per batch item of the activations
  kInt8WeightOnly,    ///< a scale per output channel
  kInt4WeightOnly,    ///< a scale per group of inputs and output channel
  kFloat8PerRow,      ///< e4m3, W8A8, scales as kInt8PerRow
  kFloat8PerTensor,   ///< e4m3, W8A8, scales as kInt8PerTensor
  kFloat8PerBlock,    ///< e4m3, W8A8: a scale per 128 x 128 weights, and per 128 of a row's inputs
  kFloat8WeightOnly,  ///< e4m3, a scale per output channel
};

/// Outputs and inputs that share a scale in kFloat8PerBlock.
inline constexpr int64_t kFloat8Block = 128;

const char* name_of(QuantType type);
/// Of ASCII letters.
std::string lower_case(std::string text);
/// In letters of any case, as cache-dit takes them. Throws ConfigError for an unknown name, listing
/// the known ones; UnsupportedError for cache-dit's types that this version lacks (SVDQuant,
/// NVFP4). `where` names the source in errors.
QuantType parse_quant_type(const std::string& name, const std::string& where);
/// All names, comma separated.
std::string quant_type_names();

/// What a weight of some type is stored as.
enum class StoredKind { kInt8, kInt4, kFloat8 };
StoredKind stored_kind(QuantType type);
/// What quantized values in a file are without anybody saying how they are meant: activations are
/// not rounded, which only costs accuracy. None: values of that element type are not quantized, or
/// in a way that is not read.
std::optional<QuantType> weight_only_type(c10::ScalarType values);
/// Whether the type has one scale for a whole weight.
bool is_per_tensor(QuantType type);

/// Whether `text` is `pattern`, in which "*" stands for any characters.
bool fits_pattern(std::string_view pattern, std::string_view text);

/// For the layers whose name fits the pattern.
struct QuantizationRule {
  std::string layers;
  std::optional<QuantType> type = std::nullopt;  ///< none: as stored
  std::string reason = {};                       ///< why it has no type, for the summary
};

struct QuantizationPlan {
  /// For layers that no rule names; none: as stored.
  std::optional<QuantType> type;
  /// The first that fits is obeyed.
  std::vector<QuantizationRule> rules;
  /// Inputs that share a scale in kInt4WeightOnly: 32, 64 or 128.
  int64_t group_size = 64;
  /// Where a rank's share of a weight does not end between two scales, the share gets a type whose
  /// scales do not have to (see linear_choice.h); otherwise it stays as stored.
  bool per_tensor_fallback = true;

  QuantizationRule rule_for(std::string_view layer) const;
};

/// What became of a linear layer at load.
struct QuantizedLayer {
  std::string layer;
  std::optional<QuantType> type = std::nullopt;  ///< none: it stayed as stored
  std::string note = {};       ///< why it is not of the type that was asked for, or empty
  bool was_quantized = false;  ///< in the file
  int64_t stored_bytes = 0;    ///< of its weight in the file, or this rank's share, with scales
  int64_t bytes = 0;           ///< of its weight as it is held, with scales
};

}  // namespace cachedit::nn
