#include "attention/capability.h"
#include "attention/op_library.h"
#include "attention/registry.h"
#include "attention/select.h"
#include "base/dtype_name.h"
#include "base/fail.h"
#include "cachedit/attention.h"
#include "pipelines/device.h"

namespace cachedit::attention {
namespace {

const char* alignment_name(CausalAlignment alignment) {
  switch (alignment) {
    case CausalAlignment::kFirst:
      return "first rows";
    case CausalAlignment::kLast:
      return "last rows";
    case CausalAlignment::kEqualOnly:
      break;
  }
  return "equal only";
}

DeviceInfo describe_support(const DeviceSupport& support) {
  const Capabilities& can = support.can;
  DeviceInfo info{.device = device_kind(support.device),
                  .dtypes = {},
                  .min_head_dim = can.min_head_dim,
                  .max_head_dim = can.max_head_dim,
                  .head_dim_multiple = can.head_dim_multiple,
                  .causal = can.causal,
                  .causal_alignment = alignment_name(can.causal_alignment),
                  .mask = can.mask,
                  .mask_under_context_parallelism = can.mask_under_context_parallelism,
                  .gqa = can.gqa,
                  .lse = can.lse,
                  .compute_capabilities = can.compute_capabilities,
                  .note = support.note,
                  .availability = {}};
  for (const at::ScalarType dtype : can.dtypes) info.dtypes.push_back(dtype_name(dtype));
  const bool cpu = support.device == at::kCPU;
  const Availability here =
      support.availability(cpu ? at::Device(at::kCPU) : at::Device(support.device, 0));
  info.availability = {.available = here.available, .reason = here.reason, .remedy = here.remedy};
  return info;
}

MaskKind parse_mask(const std::string& name) {
  if (name == "none") return MaskKind::kNone;
  if (name == "bool") return MaskKind::kBool;
  if (name == "float") return MaskKind::kFloat;
  fail<InputError>("mask", "unknown kind: got '", name, "'; use none, bool or float");
}

at::ScalarType parse_query_dtype(const std::string& name) {
  if (name == "auto") {
    fail<InputError>("dtype", "unknown dtype: got 'auto'; use fp32, bf16 or fp16");
  }
  return pipelines::parse_dtype(name, at::kFloat, at::kCPU);
}

Request parse_query(const BackendQuery& query) {
  const int64_t keys = query.key_tokens.value_or(query.tokens);
  for (const int64_t size : {query.batch, query.tokens, query.heads, query.head_dim, keys}) {
    if (size < 1) {
      fail<InputError>("shape", "sizes must be at least 1: got batch ", query.batch, ", tokens ",
                       query.tokens, ", heads ", query.heads, ", head dim ", query.head_dim,
                       ", key tokens ", keys);
    }
  }
  return {.device = pipelines::parse_device(query.device),
          .dtype = parse_query_dtype(query.dtype),
          .batch = query.batch,
          .queries = query.tokens,
          .keys = keys,
          .heads = query.heads,
          .kv_heads = query.heads,
          .head_dim = query.head_dim,
          .mask = parse_mask(query.mask)};
}

}  // namespace

std::vector<BackendInfo> list_backends() {
  load_environment_op_libraries();
  std::vector<BackendInfo> all;
  for (const Backend& backend : builtin_registry().backends()) {
    BackendInfo info{.name = backend.name, .description = backend.description, .devices = {}};
    for (const DeviceSupport& support : backend.devices) {
      info.devices.push_back(describe_support(support));
    }
    all.push_back(std::move(info));
  }
  return all;
}

void check_backend_name(const std::string& name) {
  if (name != kAuto) builtin_registry().find(name);
}

BackendChoice choose_backend(const BackendQuery& query) {
  const Request request = parse_query(query);
  const Choice choice = choose_automatically(builtin_registry(), request);
  BackendChoice result{.name = {}, .device = request.device.str(), .why = {}, .passed_over = {}};
  for (const PassedOver& p : choice.passed_over) {
    result.passed_over.push_back({.name = p.backend, .reason = p.reason});
  }
  if (choice.backend == nullptr) {
    result.why = "no backend on " + device_kind(request.device.type()) + " can do it";
    return result;
  }
  result.name = choice.backend->name;
  result.why = std::string("the first in the order of ") + device_kind(request.device.type()) +
               " that takes it and is available";
  return result;
}

}  // namespace cachedit::attention
