// What an attention backend is: a name, what it can do on each kind of device, whether it can run
// here, and the call itself. Each file of backends/ defines one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attention/attention.h"

namespace cachedit::attention {

/// How is_causal lines up when the numbers of queries and keys differ.
enum class CausalAlignment {
  kFirst,      ///< query i sees keys 0..i (PyTorch)
  kLast,       ///< the last query sees all keys (FlashAttention)
  kEqualOnly,  ///< refused unless both numbers agree
};

struct Capabilities {
  std::vector<at::ScalarType> dtypes;
  int64_t min_head_dim = 1;
  int64_t max_head_dim = 0;
  int64_t head_dim_multiple = 1;
  bool causal = false;
  CausalAlignment causal_alignment = CausalAlignment::kFirst;
  bool mask = false;                            ///< on one device
  bool mask_under_context_parallelism = false;  ///< each rank then holds a part of the tokens
  bool float_mask = true;                       ///< where it takes masks: additive ones, too
  bool per_head_mask = true;                    ///< where it takes masks: a mask per head, too
  /// Takes an fp32 mask with 16-bit inputs: check() casts it to their dtype.
  bool fp32_mask = false;
  bool gqa = false;
  bool lse = false;
  /// CUDA compute capabilities as 10 * major + minor; empty: any.
  std::vector<int> compute_capabilities = {};
};

/// Whether a backend can run on a device of this machine; if not, why, and what would change it.
struct Availability {
  bool available = true;
  std::string reason = {};
  std::string remedy = {};
};

/// One device's implementation.
struct DeviceSupport {
  at::DeviceType device = at::DeviceType::CPU;
  Capabilities can;
  std::function<Availability(at::Device)> availability;
  /// Computes attention on inputs that passed contract.h's check(): at least one query and one key,
  /// mask [b|1, h|1, q|1, k] or undefined, scale set. Empty where no implementation exists (then
  /// availability says why).
  std::function<Result(const Inputs&)> run = {};
  /// Place in the order that `auto` tries on this device, from 1; none: `auto` never takes it.
  /// Only backends without quantization have one.
  std::optional<int> auto_rank = std::nullopt;
  std::string note = {};  ///< for the table: limits that the fields above cannot say
};

struct Backend {
  std::string name;
  std::string description;
  std::vector<DeviceSupport> devices;
  /// Place in lists: 1 to 12 are cache-dit's backends in its documentation's order. Backends
  /// without a place come last, by name.
  int listing = 1000;

  /// Null where it has nothing for this kind of device.
  const DeviceSupport* on(at::DeviceType device) const;
};

}  // namespace cachedit::attention
