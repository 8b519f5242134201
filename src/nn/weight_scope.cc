#include "nn/weight_scope.h"

#include <ATen/ops/empty.h>

#include <set>

#include "base/fail.h"

namespace cachedit::nn {

struct WeightScope::State {
  const io::WeightStore* store;
  WeightOptions options;
  at::ScalarType dtype;
  std::set<std::string, std::less<>> used;
  std::vector<std::string> missing;
  std::vector<std::string> misshapen;
};

namespace {

/// Appends ": a, b, ... and 12 more" for a group of faults.
void append_group(std::string& text, const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return;
  constexpr size_t kShown = 20;
  text += c10::str("\n  ", title, " (", items.size(), "):");
  for (size_t i = 0; i < items.size() && i < kShown; ++i) text += "\n    " + items[i];
  if (items.size() > kShown) text += c10::str("\n    ... and ", items.size() - kShown, " more");
}

}  // namespace

WeightScope WeightScope::operator/(std::string_view part) const {
  return WeightScope(state_, prefix_ + std::string(part) + ".");
}

WeightScope WeightScope::operator/(int64_t index) const { return *this / std::to_string(index); }

at::Tensor WeightScope::take(std::string_view name, at::IntArrayRef shape) const {
  return take_as(name, shape, state_->dtype);
}

at::Tensor WeightScope::take_as(std::string_view name, at::IntArrayRef shape,
                                at::ScalarType dtype) const {
  const std::string full = prefix_ + std::string(name);
  const at::Tensor placeholder = at::empty(shape, at::TensorOptions().dtype(dtype).device("meta"));
  if (!state_->store->contains(full)) {
    state_->missing.push_back(c10::str(full, " ", shape));
    return placeholder;
  }
  state_->used.insert(full);
  const io::TensorEntry& entry = state_->store->entry(full);
  if (at::IntArrayRef(entry.shape) != shape) {
    state_->misshapen.push_back(c10::str(full, ": the config asks for ", shape, ", the file has ",
                                         at::IntArrayRef(entry.shape)));
    return placeholder;
  }
  return state_->store->tensor(full).to(state_->options.device, dtype);
}

bool WeightScope::contains(std::string_view name) const {
  return state_->store->contains(prefix_ + std::string(name));
}

at::ScalarType WeightScope::dtype() const { return state_->dtype; }
at::Device WeightScope::device() const { return state_->options.device; }

WeightLoader::WeightLoader(const io::WeightStore& store, const WeightOptions& options)
    : state_(std::make_shared<WeightScope::State>()) {
  state_->store = &store;
  state_->options = options;
  state_->dtype = options.dtype.value_or(store.floating_dtype());
}

WeightScope WeightLoader::root() const { return WeightScope(state_, ""); }

void WeightLoader::finish(const std::vector<std::string>& ignored_prefixes) const {
  std::vector<std::string> extra;
  for (const std::string& name : state_->store->names()) {
    if (state_->used.count(name) != 0) continue;
    bool ignored = false;
    for (const std::string& prefix : ignored_prefixes) ignored |= name.starts_with(prefix);
    if (!ignored)
      extra.push_back(c10::str(name, " ", at::IntArrayRef(state_->store->entry(name).shape)));
  }
  if (state_->missing.empty() && state_->misshapen.empty() && extra.empty()) return;
  std::string text;
  append_group(text, "missing", state_->missing);
  append_group(text, "of another shape", state_->misshapen);
  append_group(text, "not part of the model that config.json describes", extra);
  fail<WeightError>(state_->store->folder().string(),
                    "the weights do not fit config.json; restore the checkpoint, or correct its "
                    "config:",
                    text);
}

}  // namespace cachedit::nn
