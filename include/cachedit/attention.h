// The attention backends: which there are, what each takes, which of them run on this machine, and
// which one `auto` would take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/export.h"

namespace cachedit::attention {

/// Whether a backend runs on a device of this machine; if not, why, and what would change it.
struct AvailabilityInfo {
  bool available = false;
  std::string reason;
  std::string remedy;
};

/// What a backend takes on one kind of device.
struct DeviceInfo {
  std::string device;               ///< "cpu", "cuda" or "npu"
  std::vector<std::string> dtypes;  ///< "fp32", "bf16", "fp16", "fp64"
  int64_t min_head_dim = 1;
  int64_t max_head_dim = 0;
  int64_t head_dim_multiple = 1;
  bool causal = false;
  /// Where is_causal lines up when queries and keys differ in number: "first rows" (query i sees
  /// keys 0..i), "last rows" (the last query sees all), "equal only" (they may not differ).
  std::string causal_alignment;
  bool mask = false;                            ///< on one device
  bool mask_under_context_parallelism = false;  ///< where each rank holds a part of the tokens
  bool gqa = false;                             ///< fewer key heads than query heads
  bool lse = false;                             ///< gives the log-sum-exp
  std::vector<int> compute_capabilities;        ///< CUDA, 10 * major + minor; empty: any
  std::string note;                             ///< limits that the fields above cannot say
  AvailabilityInfo availability;                ///< on the first device of the kind
};

struct BackendInfo {
  std::string name;
  std::string description;
  std::vector<DeviceInfo> devices;
};

/// Every backend, in the order of the documentation. Throws IoError if a library that
/// CACHEDIT_OP_LIBRARIES names cannot be loaded.
CACHEDIT_API std::vector<BackendInfo> list_backends();

/// Throws InputError listing the valid names unless `name` is a backend's or "auto".
CACHEDIT_API void check_backend_name(const std::string& name);

/// One attention call, by its sizes.
struct BackendQuery {
  int64_t batch = 1;
  int64_t tokens = 0;  ///< of the query
  int64_t heads = 0;
  int64_t head_dim = 0;
  std::optional<int64_t> key_tokens;  ///< default: tokens
  std::string dtype = "bf16";         ///< "fp32", "bf16", "fp16"
  std::string mask = "none";          ///< "none", "bool", "float" (of that dtype)
  std::string device = "auto";        ///< as LoadOptions::device
};

struct BackendChoice {
  struct PassedOver {
    std::string name;
    std::string reason;
  };
  std::string name;    ///< empty where no backend can
  std::string device;  ///< that it was asked for, e.g. "cpu"
  std::string why;
  std::vector<PassedOver> passed_over;  ///< the candidates before it, in order
};

/// What `auto` would take for such a call. Throws InputError for sizes below 1 and unknown names,
/// UnsupportedError for a device that this machine lacks.
CACHEDIT_API BackendChoice choose_backend(const BackendQuery& query);

/// Loads a shared library that registers operators (FlashAttention-3's, torch_npu's) for the rest
/// of the process. Throws IoError naming the path and what the loader says.
CACHEDIT_API void load_op_library(const std::filesystem::path& path);

}  // namespace cachedit::attention
