#include "io/weight_store.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>

#include "base/fail.h"
#include "base/log.h"
#include "io/json_config.h"
#include "io/json_text.h"

namespace cachedit::io {
namespace {

namespace fs = std::filesystem;

/// What to open: the shards, and which tensor the index puts where (empty without an index).
struct Layout {
  std::vector<std::string> shards;
  std::map<std::string, std::string, std::less<>> shard_of;
};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string join(const std::vector<std::string>& items) {
  constexpr size_t kShown = 20;
  std::string text;
  for (size_t i = 0; i < items.size() && i < kShown; ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > kShown) text += c10::str(" and ", items.size() - kShown, " more");
  return text;
}

/// Names of weight files that are there in place of the ones that are read.
[[noreturn]] void refuse_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail<IoError>(folder.string(), "the component's folder must exist: got none");
  }
  std::vector<std::string> pickles, others;
  for (fs::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    const std::string name = item->path().filename().string();
    const auto ends = [&name](std::string_view suffix) { return name.ends_with(suffix); };
    if (ends(".bin") || ends(".pt") || ends(".pth") || ends(".ckpt") || ends(".bin.index.json")) {
      pickles.push_back(name);
    } else if (ends(".safetensors") || ends(".safetensors.index.json")) {
      others.push_back(name);
    }
  }
  std::sort(pickles.begin(), pickles.end());
  std::sort(others.begin(), others.end());
  std::string found;
  if (!pickles.empty()) found += c10::str(" pickle files (", join(pickles), ")");
  if (!others.empty()) {
    found += c10::str(found.empty() ? "" : " and", " files of other names (", join(others),
                      "; variants and shards without an index are not read)");
  }
  if (found.empty()) found = " no weights";
  fail<IoError>(folder.string(), pickles.empty() ? "" : "only safetensors are read; ",
                "the folder must hold diffusion_pytorch_model.safetensors or model.safetensors, or "
                "one of them with .index.json: got",
                found);
}

/// A name that could only mean a file of the folder itself.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

Layout read_index(const fs::path& folder, const std::string& index_name) {
  const std::string where = (folder / index_name).string();
  const nlohmann::json index = read_json_file(where);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    fail<WeightError>(where, "\"weight_map\" must map tensors to files: got ",
                      map == index.end() ? "none" : show_json(*map));
  }
  Layout layout;
  std::set<std::string> shards;
  std::vector<std::string> leaving, absent;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      fail<WeightError>(where, "tensor '", tensor, "' must be in a file: got ", show_json(shard));
    }
    const auto& name = shard.get_ref<const std::string&>();
    layout.shard_of[tensor] = name;
    if (!shards.insert(name).second) continue;
    if (!is_plain_name(name)) {
      leaving.push_back(show_json(shard));
    } else if (!is_file(folder / name)) {
      absent.push_back(name);
    }
  }
  if (!leaving.empty()) {
    fail<WeightError>(where, "shards must lie in the index's own folder: got ", join(leaving));
  }
  if (!absent.empty()) {
    fail<WeightError>(where, "every shard must be there: got no ", join(absent),
                      "; download them again");
  }
  layout.shards.assign(shards.begin(), shards.end());
  return layout;
}

/// Where both layouts are there, each library's loader has a preference, kept here.
struct FileNames {
  const char* base;
  bool index_wins;
};
constexpr FileNames kFileNames[] = {{"diffusion_pytorch_model", true}, {"model", false}};

Layout find_layout(const fs::path& folder) {
  for (const auto& [base, index_wins] : kFileNames) {
    const std::string single = c10::str(base, ".safetensors");
    const std::string index = single + ".index.json";
    const bool has_single = is_file(folder / single), has_index = is_file(folder / index);
    if (!has_single && !has_index) continue;
    const bool use_index = has_index && (index_wins || !has_single);
    if (has_single && has_index) {
      log_warning(c10::str("[", folder.string(), "] both ", single, " and ", index, " are there; ",
                           use_index ? single : index, " is left out"));
    }
    return use_index ? read_index(folder, index) : Layout{{single}, {}};
  }
  refuse_folder(folder);
}

int64_t count_elements(const TensorEntry& entry) {
  return std::accumulate(entry.shape.begin(), entry.shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

WeightStore WeightStore::open(const fs::path& folder) {
  const Layout layout = find_layout(folder);
  WeightStore store;
  store.folder_ = folder;
  std::vector<std::string> unlisted;
  for (const std::string& shard : layout.shards) {
    store.files_.emplace_back(folder / shard);
    for (const auto& [name, entry] : store.files_.back().header().tensors) {
      const auto listed = layout.shard_of.find(name);
      if (layout.shard_of.empty() || (listed != layout.shard_of.end() && listed->second == shard)) {
        store.file_of_[name] = store.files_.size() - 1;
      } else {
        unlisted.push_back(c10::str(name, " (", shard, ")"));
      }
    }
  }
  std::vector<std::string> broken;
  for (const auto& [name, shard] : layout.shard_of) {
    if (!store.contains(name)) broken.push_back(c10::str(name, " (", shard, ")"));
  }
  if (!broken.empty()) {
    fail<WeightError>(folder.string(), "the shards must hold what the index promises: got no ",
                      join(broken), "; download the shards again");
  }
  if (!unlisted.empty()) {
    log_warning(c10::str("[", folder.string(), "] tensors that the index does not list are left ",
                         "out: ", join(unlisted)));
  }
  return store;
}

bool WeightStore::contains(std::string_view name) const {
  return file_of_.find(name) != file_of_.end();
}

const TensorEntry& WeightStore::entry(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    fail<WeightError>(folder_.string(), "no such tensor: got '", name, "'");
  }
  return files_[found->second].header().tensors.find(name)->second;
}

at::Tensor WeightStore::tensor(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    fail<WeightError>(folder_.string(), "no such tensor: got '", name, "'");
  }
  return files_[found->second].tensor(name);
}

std::vector<std::string> WeightStore::names() const {
  std::vector<std::string> names;
  names.reserve(file_of_.size());
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

at::ScalarType WeightStore::floating_dtype() const {
  bool float8 = false;
  for (const std::string& name : names()) {
    const at::ScalarType dtype = entry(name).dtype;
    if (!at::isFloatingType(dtype)) continue;
    float8 |= c10::elementSize(dtype) == 1;
    // Scales of quantized weights are fp32 whatever the model computes in.
    const bool scale = name.find("scale", name.rfind('.') + 1) != std::string::npos;
    if (c10::elementSize(dtype) > 1 && !scale) return dtype;
  }
  return float8 ? at::kBFloat16 : at::kFloat;
}

void WeightStore::release_pages(const at::Tensor& tensor) const {
  for (const SafetensorsFile& file : files_) {
    file.release_pages(tensor.const_data_ptr(), tensor.nbytes());
  }
}

const SafetensorsFile& WeightStore::file_of(std::string_view name) const {
  entry(name);  // throws
  return files_[file_of_.find(name)->second];
}

int64_t WeightStore::parameters() const {
  int64_t total = 0;
  for (const auto& [name, file] : file_of_) total += count_elements(entry(name));
  return total;
}

int64_t WeightStore::bytes() const {
  int64_t total = 0;
  for (const auto& [name, file] : file_of_) {
    total += static_cast<int64_t>(entry(name).end - entry(name).begin);
  }
  return total;
}

}  // namespace cachedit::io
