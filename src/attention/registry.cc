#include "attention/registry.h"

#include <algorithm>
#include <tuple>

#include "base/fail.h"

namespace cachedit::attention {

const DeviceSupport* Backend::on(at::DeviceType device) const {
  const auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const DeviceSupport& s) { return s.device == device; });
  return found == devices.end() ? nullptr : &*found;
}

Registry::Registry(std::vector<Backend> backends) : backends_(std::move(backends)) {
  std::sort(backends_.begin(), backends_.end(), [](const Backend& a, const Backend& b) {
    return std::tie(a.listing, a.name) < std::tie(b.listing, b.name);
  });
  for (const Backend& backend : backends_) {
    const auto same = std::count_if(backends_.begin(), backends_.end(),
                                    [&](const Backend& b) { return b.name == backend.name; });
    if (same != 1 || backend.name.empty() || backend.name == kAuto) {
      fail<ConfigError>("attention", "a backend needs a name of its own: got '", backend.name,
                        "'; rename it");
    }
  }
}

const Backend& Registry::find(std::string_view name) const {
  const auto found = std::find_if(backends_.begin(), backends_.end(),
                                  [&](const Backend& b) { return b.name == name; });
  if (found == backends_.end()) {
    fail<InputError>("attention", "unknown backend: got '", name, "'; use ", names());
  }
  return *found;
}

bool Registry::contains(std::string_view name) const {
  return std::any_of(backends_.begin(), backends_.end(),
                     [&](const Backend& b) { return b.name == name; });
}

std::string Registry::names() const {
  std::string all(kAuto);
  for (const Backend& backend : backends_) all += ", " + backend.name;
  return all;
}

std::vector<const Backend*> Registry::auto_order(at::DeviceType device) const {
  std::vector<const Backend*> order;
  for (const Backend& backend : backends_) {
    const DeviceSupport* support = backend.on(device);
    if (support != nullptr && support->auto_rank) order.push_back(&backend);
  }
  std::stable_sort(order.begin(), order.end(), [&](const Backend* a, const Backend* b) {
    return *a->on(device)->auto_rank < *b->on(device)->auto_rank;
  });
  return order;
}

const Registry& builtin_registry() {
  static const Registry registry(make_builtin_backends());
  return registry;
}

}  // namespace cachedit::attention
