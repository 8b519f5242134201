// What a call asks of a backend, without its tensors, and whether a backend can do it. The checks
// of calls, `auto` and the printed table all go through why_not().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/registry.h"

namespace cachedit::attention {

enum class MaskKind {
  kNone,
  kBool,
  kFloat,    ///< additive, of the query's dtype
  kFloat32,  ///< additive fp32 with a 16-bit query
};

struct Request {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  int64_t batch = 1;
  int64_t queries = 1;
  int64_t keys = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 64;
  MaskKind mask = MaskKind::kNone;
  bool mask_per_head = false;
  bool is_causal = false;
  bool enable_gqa = false;
  bool return_lse = false;
  bool under_context_parallelism = false;
};

/// `inputs` have shapes that fit together (contract.h's normalise()).
Request describe(const Inputs& inputs);

/// Why this implementation cannot do what is asked ("it takes no mask: got a bool mask"), or none.
/// Says nothing about whether it can run on this machine.
std::optional<std::string> why_not(const DeviceSupport& support, const Request& request);

/// Why a mask cannot be given to this implementation where each rank holds a part of the tokens.
std::optional<std::string> why_not_mask_under_context_parallelism(const DeviceSupport& support);

/// Whether the backend can run on the device; where it has nothing for that kind of device, no.
Availability availability_on(const Backend& backend, at::Device device);

/// The backends that are available on the request's device and can do it, nearest first: the
/// family of `instead_of` (ffpa, ffpa_fp8, ...), then the order of `auto`, then the list's.
std::vector<std::string> alternatives(const Registry& registry, const Backend& instead_of,
                                      const Request& request);

/// "; on cpu these can: ffpa, native", or "; on cpu no backend can".
std::string advice(const Registry& registry, const Backend& instead_of, const Request& request);

/// "cpu", "cuda", "npu", or LibTorch's name.
std::string device_kind(at::DeviceType device);

}  // namespace cachedit::attention
