#include "attention/capability.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "base/dtype_name.h"

namespace cachedit::attention {
namespace {

constexpr const char* kMaskOnOneDeviceOnly =
    "it takes a mask on one device only, not under context parallelism";

const char* mask_name(MaskKind kind) {
  switch (kind) {
    case MaskKind::kBool:
      return "a bool mask";
    case MaskKind::kFloat:
      return "a float mask";
    case MaskKind::kFloat32:
      return "an fp32 mask";
    case MaskKind::kNone:
      break;
  }
  return "no mask";
}

std::string dtype_list(const std::vector<at::ScalarType>& dtypes) {
  std::string text;
  for (const at::ScalarType dtype : dtypes) {
    text += (text.empty() ? "" : ", ") + dtype_name(dtype);
  }
  return text;
}

std::optional<std::string> why_not_mask(const Capabilities& can, const Request& r) {
  if (r.mask == MaskKind::kNone) return std::nullopt;
  const char* got = mask_name(r.mask);
  if (!can.mask) return c10::str("it takes no mask: got ", got);
  if (r.under_context_parallelism && !can.mask_under_context_parallelism) {
    return c10::str(kMaskOnOneDeviceOnly, ": got ", got);
  }
  if (!can.float_mask && r.mask != MaskKind::kBool) {
    return c10::str("it takes bool masks only: got ", got);
  }
  if (!can.fp32_mask && r.mask == MaskKind::kFloat32) {
    return c10::str("it takes a bool mask or one of the query's dtype (", dtype_name(r.dtype),
                    "): got ", got);
  }
  if (!can.per_head_mask && r.mask_per_head) return "it takes one mask for all heads: got one each";
  return std::nullopt;
}

std::optional<std::string> why_not_causal(const Capabilities& can, const Request& r) {
  if (!r.is_causal) return std::nullopt;
  if (!can.causal) return "it knows no causal attention: got is_causal";
  if (can.causal_alignment == CausalAlignment::kEqualOnly && r.queries != r.keys) {
    return c10::str("causal, it takes as many queries as keys: got ", r.queries, " and ", r.keys);
  }
  return std::nullopt;
}

std::optional<std::string> why_not_head_dim(const Capabilities& can, const Request& r) {
  if (r.head_dim >= can.min_head_dim && r.head_dim <= can.max_head_dim &&
      r.head_dim % can.head_dim_multiple == 0) {
    return std::nullopt;
  }
  const std::string multiple =
      can.head_dim_multiple == 1 ? "" : c10::str(", multiples of ", can.head_dim_multiple);
  return c10::str("it takes head dims ", can.min_head_dim, " to ", can.max_head_dim, multiple,
                  ": got ", r.head_dim);
}

/// "ffpa" of "ffpa_fp8", "flash" of "_flash_3".
std::string_view family(std::string_view name) {
  if (name.starts_with('_')) name.remove_prefix(1);
  return name.substr(0, name.find('_'));
}

}  // namespace

Request describe(const Inputs& in) {
  const at::Tensor& q = in.query;
  Request r{.device = q.device(),
            .dtype = q.scalar_type(),
            .batch = q.size(0),
            .queries = q.size(1),
            .keys = in.key.size(1),
            .heads = q.size(2),
            .kv_heads = in.key.size(2),
            .head_dim = q.size(3),
            .is_causal = in.is_causal,
            .enable_gqa = in.enable_gqa,
            .return_lse = in.return_lse,
            .under_context_parallelism = in.under_context_parallelism};
  if (in.mask.defined()) {
    const at::ScalarType type = in.mask.scalar_type();
    r.mask = type == at::kBool ? MaskKind::kBool
             : type == r.dtype ? MaskKind::kFloat
                               : MaskKind::kFloat32;
    r.mask_per_head = in.mask.dim() >= 3 && in.mask.size(-3) > 1;
  }
  return r;
}

std::optional<std::string> why_not(const DeviceSupport& support, const Request& r) {
  const Capabilities& can = support.can;
  if (auto reason = why_not_mask(can, r)) return reason;
  if (auto reason = why_not_causal(can, r)) return reason;
  if (r.enable_gqa && !can.gqa) {
    return c10::str("it takes as many key heads as query heads: got enable_gqa, with ", r.heads,
                    " and ", r.kv_heads);
  }
  if (r.return_lse && !can.lse) return "it gives no log-sum-exp: got return_lse";
  if (auto reason = why_not_head_dim(can, r)) return reason;
  if (std::find(can.dtypes.begin(), can.dtypes.end(), r.dtype) == can.dtypes.end()) {
    return c10::str("it takes ", dtype_list(can.dtypes), ": got ", dtype_name(r.dtype));
  }
  if (r.device.type() != support.device) {
    return c10::str("it takes tensors on ", device_kind(support.device), ": got ", r.device.str());
  }
  return std::nullopt;
}

std::optional<std::string> why_not_mask_under_context_parallelism(const DeviceSupport& support) {
  if (!support.can.mask) return "it takes no mask";
  if (!support.can.mask_under_context_parallelism) {
    return kMaskOnOneDeviceOnly;
  }
  return std::nullopt;
}

Availability availability_on(const Backend& backend, at::Device device) {
  const DeviceSupport* support = backend.on(device.type());
  if (support != nullptr) return support->availability(device);
  std::string kinds;
  for (const DeviceSupport& s : backend.devices) {
    kinds += (kinds.empty() ? "" : ", ") + device_kind(s.device);
  }
  return {.available = false,
          .reason = "it has no implementation for " + device_kind(device.type()),
          .remedy = "it runs on " + kinds};
}

std::vector<std::string> alternatives(const Registry& registry, const Backend& instead_of,
                                      const Request& request) {
  struct Candidate {
    int distance;
    std::string name;
  };
  std::vector<Candidate> found;
  for (const Backend& backend : registry.backends()) {
    const DeviceSupport* support = backend.on(request.device.type());
    if (backend.name == instead_of.name || support == nullptr || why_not(*support, request) ||
        !support->availability(request.device).available) {
      continue;
    }
    constexpr int kNotInAuto = 1000;
    const bool related = family(backend.name) == family(instead_of.name);
    found.push_back({related ? 0 : support->auto_rank.value_or(kNotInAuto), backend.name});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.distance < b.distance; });
  std::vector<std::string> names;
  names.reserve(found.size());
  for (Candidate& candidate : found) names.push_back(std::move(candidate.name));
  return names;
}

std::string advice(const Registry& registry, const Backend& instead_of, const Request& request) {
  const std::vector<std::string> names = alternatives(registry, instead_of, request);
  const std::string where = "; on " + device_kind(request.device.type());
  if (names.empty()) return where + " no backend can";
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return where + " these can: " + list;
}

std::string device_kind(at::DeviceType device) {
  if (device == at::DeviceType::PrivateUse1) return "npu";
  return c10::DeviceTypeName(device, /*lower_case=*/true);
}

}  // namespace cachedit::attention
