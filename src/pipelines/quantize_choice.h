// Which layers of a component are quantized: the configuration, and what the checkpoint says of
// itself, as a plan for loading.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "cachedit/quantize.h"
#include "io/weight_store.h"
#include "nn/quantization.h"
#include "nn/weight_scope.h"

namespace cachedit::pipelines {

class QuantizeChoice {
 public:
  /// As stored.
  QuantizeChoice() = default;
  /// Warns of a group size that no layer can have. Throws as check_quantize_config() does, and
  /// UnsupportedError for devices without kernels.
  QuantizeChoice(std::optional<QuantizeConfig> config, at::Device device);

  /// For loading `component` from `store`. Throws as read_stored_quantization() does.
  nn::QuantizationPlan plan(const std::string& component, const io::WeightStore& store) const;

  /// Warns of patterns that are in no layer's name of the components they are for. `stores` holds
  /// every component that the configuration may name.
  void warn_of_unmet(const std::map<std::string, const io::WeightStore*>& stores) const;

  bool names(const std::string& component) const;
  /// For comparison between ranks; empty: as stored.
  std::string text() const;
  bool operator==(const QuantizeChoice&) const = default;

 private:
  std::optional<QuantizeConfig> config_;
};

/// As the public check_quantize_config(), `where` naming the source in errors.
void check_quantize_config(const QuantizeConfig& config, const std::string& where);
/// Throws ConfigError for another size than 32, 64 and 128.
void check_group_size(int64_t size, const std::string& where);

/// `config` with the names of types in small letters, as cache-dit takes them.
QuantizeConfig in_small_letters(QuantizeConfig config);

/// What the note of a layer begins with that is quantized in the file, where the configuration
/// leaves it as stored; the reason for that follows.
inline constexpr std::string_view kInFile = "quantized in the file; ";

/// `config` as it is for that component; none: not named.
std::optional<QuantizeConfig> config_of(const QuantizeConfig& config, const std::string& component);

/// Collects what became of a component's layers.
class QuantizeRecord {
 public:
  explicit QuantizeRecord(std::string component) { result_.component = std::move(component); }
  /// Lets the layers that `options` load report here; the record must outlive the load.
  void listen(nn::WeightOptions& options);
  const ComponentQuantization& result() const { return result_; }

 private:
  ComponentQuantization result_;
};

}  // namespace cachedit::pipelines
