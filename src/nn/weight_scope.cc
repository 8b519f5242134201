#include "nn/weight_scope.h"

#include <ATen/ops/empty.h>

#include <map>
#include <set>

#include "base/dtype_name.h"
#include "base/fail.h"
#include "nn/comfy_quant.h"

namespace cachedit::nn {

struct WeightScope::State {
  const io::WeightStore* store;
  WeightOptions options;
  at::ScalarType dtype;
  std::set<std::string, std::less<>> used;
  std::vector<std::string> missing;
  std::vector<std::string> misshapen;
  int64_t bytes = 0;
  std::vector<QuantizedLayer> linear_layers;
  std::map<std::string, std::string> descriptions;  // of layers

  at::Tensor keep(const at::Tensor& stored, at::ScalarType wanted) {
    at::Tensor tensor = stored.to(options.device, wanted);
    bytes += static_cast<int64_t>(tensor.nbytes());
    return tensor;
  }
};

namespace {

/// Whether `layer` is `pattern`, in which "*" stands for one part between dots.
bool matches(std::string_view pattern, std::string_view layer) {
  while (true) {
    const std::string_view wanted = pattern.substr(0, pattern.find('.'));
    const std::string_view got = layer.substr(0, layer.find('.'));
    if (wanted != "*" && wanted != got) return false;
    const bool last = wanted.size() == pattern.size(), last_got = got.size() == layer.size();
    if (last || last_got) return last && last_got;
    pattern.remove_prefix(wanted.size() + 1);
    layer.remove_prefix(got.size() + 1);
  }
}

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
  if (at::isFloatingType(dtype) && !at::isFloatingType(entry.dtype)) {
    // Values of a quantized checkpoint, which mean nothing without their scales.
    state_->misshapen.push_back(c10::str(full,
                                         ": the model needs floating-point numbers, the file ",
                                         "has ", dtype_name(entry.dtype)));
    return placeholder;
  }
  return state_->keep(state_->store->tensor(full), dtype);
}

at::Tensor WeightScope::take_share(std::string_view name, at::IntArrayRef shape, int64_t dim,
                                   const ShardRule& rule, at::ScalarType dtype) const {
  const at::Tensor stored = take_stored(name, shape, dim, &rule);
  return stored.is_meta() ? stored : state_->keep(stored, dtype);
}

at::Tensor WeightScope::take_stored(std::string_view name, at::IntArrayRef shape, int64_t dim,
                                    const ShardRule* rule) const {
  const bool shared = dim >= 0 && rule != nullptr;
  std::vector<int64_t> share = shape.vec();
  if (shared) {
    int64_t& size = share[static_cast<size_t>(dim)];
    check_share(name, size, *rule);
    size /= shard_group()->size();
  }
  const std::string full = prefix_ + std::string(name);
  const bool fits =
      state_->store->contains(full) && at::IntArrayRef(state_->store->entry(full).shape) == shape;
  if (!fits) {
    take_as(name, shape, at::kFloat);  // records the fault
    return at::empty(share, at::TensorOptions().dtype(at::kFloat).device("meta"));
  }
  state_->used.insert(full);
  const at::Tensor whole = state_->store->tensor(full);
  return shared ? share_of(whole, dim, *rule, *shard_group()) : whole;
}

void WeightScope::check_share(std::string_view name, int64_t size, const ShardRule& rule) const {
  const int64_t ranks = shard_group()->size();
  std::vector<int64_t> parts = rule.parts;
  if (parts.empty()) parts.push_back(size);
  for (const int64_t part : parts) {
    if (part % ranks == 0) continue;
    fail<UnsupportedError>(prefix_ + std::string(name), "tensor parallelism needs ", part,
                           " to divide by the number of ranks: got ", ranks);
  }
}

std::optional<at::ScalarType> WeightScope::stored_dtype(std::string_view name) const {
  const std::string full = prefix_ + std::string(name);
  if (!state_->store->contains(full)) return std::nullopt;
  return state_->store->entry(full).dtype;
}

std::vector<int64_t> WeightScope::stored_shape(std::string_view name) const {
  return state_->store->entry(prefix_ + std::string(name)).shape;
}

const std::string* WeightScope::description() const {
  const auto found = state_->descriptions.find(layer());
  return found == state_->descriptions.end() ? nullptr : &found->second;
}

void WeightScope::mark_used(std::string_view name) const {
  state_->used.insert(prefix_ + std::string(name));
}

void WeightScope::release_pages(const std::vector<at::Tensor>& tensors) const {
  for (const at::Tensor& tensor : tensors) state_->store->release_pages(tensor);
}

const WeightOptions& WeightScope::options() const { return state_->options; }

void WeightScope::record(const QuantizedLayer& layer) const {
  state_->bytes += layer.bytes;
  state_->linear_layers.push_back(layer);
  if (options().on_linear_layer) options().on_linear_layer(layer);
}

std::string WeightScope::place(std::string_view name) const {
  const std::string full = prefix_ + std::string(name);
  const io::WeightStore& store = *state_->store;
  const auto path = store.contains(full) ? store.file_of(full).path() : store.folder();
  return c10::str(path.string(), " ", full);
}

std::string WeightScope::layer() const {
  return prefix_.empty() ? prefix_ : prefix_.substr(0, prefix_.size() - 1);
}

const ShardRule* WeightScope::shard_rule() const {
  const TensorParallel& parallel = state_->options.tensor_parallel;
  if (parallel.group == nullptr || parallel.group->size() == 1 || prefix_.empty()) return nullptr;
  const std::string name = layer();
  for (const ShardRule& rule : parallel.rules) {
    if (matches(rule.layer, name)) return &rule;
  }
  return nullptr;
}

comm::Communicator* WeightScope::shard_group() const {
  return state_->options.tensor_parallel.group;
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
  state_->descriptions = described_layers(store);
}

WeightScope WeightLoader::root() const { return WeightScope(state_, ""); }

int64_t WeightLoader::bytes() const { return state_->bytes; }

const std::vector<QuantizedLayer>& WeightLoader::linear_layers() const {
  return state_->linear_layers;
}

void WeightLoader::finish(const std::vector<std::string>& ignored_prefixes) const {
  std::vector<std::string> extra;
  for (const std::string& name : state_->store->names()) {
    if (state_->used.count(name) != 0) continue;
    bool ignored = false;
    for (const std::string& prefix : ignored_prefixes) ignored |= name.starts_with(prefix);
    ignored |= name == "scaled_fp8";  // marks ComfyUI's float8 files, and has no values
    if (!ignored)
      extra.push_back(c10::str(name, " ", at::IntArrayRef(state_->store->entry(name).shape)));
  }
  if (state_->missing.empty() && state_->misshapen.empty() && extra.empty()) return;
  std::string text;
  append_group(text, "missing", state_->missing);
  append_group(text, "of another shape or kind", state_->misshapen);
  append_group(text, "not part of the model that config.json describes", extra);
  fail<WeightError>(state_->store->folder().string(),
                    "the weights do not fit config.json; restore the checkpoint, or correct its "
                    "config:",
                    text);
}

}  // namespace cachedit::nn
