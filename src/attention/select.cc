#include "attention/select.h"

#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <mutex>
#include <set>

#include "attention/contract.h"
#include "base/dtype_name.h"
#include "base/environment.h"
#include "base/fail.h"
#include "base/log.h"

namespace cachedit::attention {
namespace {

bool all_finite(const at::Tensor& t) { return at::isfinite(t).all().item<bool>(); }

/// No key, or no query: nothing that a kernel has to see.
Result empty_result(const Inputs& in) {
  const at::Tensor& q = in.query;
  Result result{.out = at::zeros(q.sizes(), q.options())};
  if (in.return_lse) {
    result.lse = at::full({q.size(0), q.size(2), q.size(1)},
                          -std::numeric_limits<float>::infinity(), q.options().dtype(at::kFloat));
  }
  return result;
}

[[noreturn]] void refuse_output(const Backend& backend, const Inputs& in) {
  std::string culprits;
  for (const auto& [tensor, name] :
       {std::pair{&in.query, "query"}, std::pair{&in.key, "key"}, std::pair{&in.value, "value"}}) {
    if (!all_finite(*tensor)) culprits += std::string(culprits.empty() ? "" : ", ") + name;
  }
  // Minus infinity in a mask is how it says no.
  if (in.mask.defined() && in.mask.scalar_type() != at::kBool &&
      (in.mask != in.mask)
          .logical_or(in.mask == std::numeric_limits<double>::infinity())
          .any()
          .item<bool>()) {
    culprits += std::string(culprits.empty() ? "" : ", ") + "mask";
  }
  fail<UnsupportedError>(
      "attention " + backend.name, "the output must be finite: query ", in.query.sizes(), ", key ",
      in.key.sizes(), ", ", dtype_name(in.query.scalar_type()), "; not finite in the inputs: ",
      culprits.empty() ? "nothing, so the backend overflowed: use a wider dtype" : culprits);
}

/// `checked` went through check().
Result run_checked(const Backend& backend, const DeviceSupport& support, const Inputs& checked,
                   bool check_finite) {
  const bool empty = checked.query.numel() == 0 || checked.key.numel() == 0;
  Result result = empty ? empty_result(checked) : support.run(checked);
  result.backend = backend.name;
  if (check_finite && !all_finite(result.out)) refuse_output(backend, checked);
  return result;
}

[[noreturn]] void refuse_unavailable(const Backend& backend, at::Device device,
                                     const Availability& availability, const std::string& advice) {
  fail<UnsupportedError>("attention " + backend.name, "not available on ", device.str(), ": ",
                         availability.reason, "; ", availability.remedy, advice);
}

/// A backend that is available on `device`.
class BackendAttention final : public Attention {
 public:
  BackendAttention(const Backend& backend, at::Device device, const AttentionOptions& options)
      : backend_(backend), support_(*backend.on(device.type())), options_(options) {}

  Result operator()(const Inputs& inputs) const override {
    const Inputs checked = check(backend_, support_, inputs, *options_.registry);
    return run_checked(backend_, support_, checked, options_.check_finite);
  }

 private:
  const Backend& backend_;
  const DeviceSupport& support_;
  AttentionOptions options_;
};

class AutoAttention final : public Attention {
 public:
  explicit AutoAttention(const AttentionOptions& options) : options_(options) {}

  Result operator()(const Inputs& inputs) const override {
    const Inputs in = normalise(kAuto, inputs);
    const Request request = describe(in);
    const Choice choice = choose_automatically(*options_.registry, request);
    if (choice.backend == nullptr) refuse(request, choice);
    report(request, choice);
    const DeviceSupport& support = *choice.backend->on(request.device.type());
    return run_checked(*choice.backend, support,
                       check(*choice.backend, support, in, *options_.registry),
                       options_.check_finite);
  }

 private:
  [[noreturn]] static void refuse(const Request& request, const Choice& choice) {
    std::string reasons;
    for (const PassedOver& p : choice.passed_over) reasons += "; " + p.backend + ": " + p.reason;
    fail<UnsupportedError>("attention auto", "no backend on ", request.device.str(),
                           " can do it: head dim ", request.head_dim, ", ",
                           dtype_name(request.dtype), reasons);
  }

  /// Says each distinct choice of this object once.
  void report(const Request& request, const Choice& choice) const {
    const std::lock_guard lock(mutex_);
    if (!reported_.insert(choice.backend->name).second) return;
    std::string reasons;
    for (const PassedOver& p : choice.passed_over)
      reasons += "; not " + p.backend + ": " + p.reason;
    log_info(c10::str("[attention auto] takes ", choice.backend->name, " for head dim ",
                      request.head_dim, ", ", dtype_name(request.dtype), reasons));
  }

  AttentionOptions options_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> reported_;
};

class NativeAttention final : public Attention {
 public:
  Result operator()(const Inputs& inputs) const override {
    return attend(builtin_registry().find(kDefault), inputs);
  }
};

}  // namespace

bool AttentionOptions::default_check_finite() {
  static const bool value = parse_attention_checks(environment().attention_checks);
  return value;
}

bool parse_attention_checks(const std::string& value) {
  for (const char* yes : {"1", "true", "yes", "on"}) {
    if (value == yes) return true;
  }
  for (const char* no : {"", "0", "false", "no", "off"}) {
    if (value == no) return false;
  }
  fail<ConfigError>("CACHE_DIT_ATTN_CHECKS", "must be a switch: got '", value,
                    "'; use 1, true, yes, on, 0, false, no or off");
}

Result attend(const Backend& backend, const Inputs& inputs, const AttentionOptions& options) {
  // Where the backend has nothing for this device, what it takes elsewhere judges the arguments.
  const bool known = inputs.query.defined() && backend.on(inputs.query.device().type()) != nullptr;
  const DeviceSupport& support =
      known ? *backend.on(inputs.query.device().type()) : backend.devices.front();
  const Inputs in = check(backend, support, inputs, *options.registry);
  const at::Device device = in.query.device();
  const Availability availability = availability_on(backend, device);
  if (!availability.available) {
    refuse_unavailable(backend, device, availability,
                       advice(*options.registry, backend, describe(in)));
  }
  return run_checked(backend, support, in, options.check_finite);
}

std::unique_ptr<Attention> make_attention(std::string_view name, at::Device device,
                                          const AttentionOptions& options) {
  if (name == kAuto) return std::make_unique<AutoAttention>(options);
  const Backend& backend = options.registry->find(name);
  const Availability availability = availability_on(backend, device);
  if (!availability.available) {
    std::string available;
    for (const Backend& other : options.registry->backends()) {
      if (availability_on(other, device).available) available += ", " + other.name;
    }
    refuse_unavailable(backend, device, availability,
                       "; on " + device.str() + " use " + std::string(kAuto) + available);
  }
  return std::make_unique<BackendAttention>(backend, device, options);
}

Choice choose_automatically(const Registry& registry, const Request& request) {
  Choice choice;
  for (const Backend* backend : registry.auto_order(request.device.type())) {
    const DeviceSupport& support = *backend->on(request.device.type());
    std::optional<std::string> reason = why_not(support, request);
    if (!reason) {
      const Availability availability = support.availability(request.device);
      if (availability.available) {
        choice.backend = backend;
        break;
      }
      reason = availability.reason;
    }
    choice.passed_over.push_back({backend->name, *reason});
  }
  return choice;
}

const Attention& native_attention() {
  static const NativeAttention native;
  return native;
}

}  // namespace cachedit::attention
