#include <c10/core/InferenceMode.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/fail.h"
#include "cachedit/quantize.h"
#include "pipelines/checkpoint.h"
#include "pipelines/out_of_memory.h"
#include "pipelines/quantize_choice.h"
#include "pipelines/quantize_component.h"

namespace cachedit {
namespace pipelines {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "quantize";

/// Calls the file system; throws IoError naming the path.
template <class Action>
auto on_disk(const fs::path& path, const Action& action) {
  try {
    return action();
  } catch (const fs::filesystem_error& error) {
    fail<IoError>(path.string(), "the file system refused: got \"", error.code().message(), "\"");
  }
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

/// The absolute path of the folder to make.
fs::path check_destination(const fs::path& wanted, const fs::path& model) {
  return on_disk(wanted, [&] {
    if (wanted.empty()) fail<InputError>(kWhere, "--save-path must name a folder: got ''");
    fs::path out = fs::weakly_canonical(fs::absolute(wanted));
    if (!out.has_filename()) out = out.parent_path();  // "folder/"
    if (is_inside(out, fs::canonical(model))) {
      fail<InputError>(kWhere, "the new folder must lie outside of the model's: got ",
                       out.string());
    }
    if (fs::exists(out) && (!fs::is_directory(out) || !fs::is_empty(out))) {
      fail<InputError>(kWhere, "the new folder must be empty or not there yet: got ", out.string());
    }
    return out;
  });
}

/// A folder beside the destination that is gone unless it was renamed.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& destination)
      : destination_(destination),
        path_(destination.parent_path() / c10::str(".cachedit-", getpid(), "-quantize.tmp")) {
    on_disk(destination_, [&] {
      fs::create_directories(destination_.parent_path());
      fs::remove_all(path_);
      fs::create_directory(path_);
    });
  }
  ~WorkFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const fs::path& path() const { return path_; }
  void commit() {
    on_disk(destination_, [&] { fs::rename(path_, destination_); });
    path_.clear();
  }

 private:
  fs::path destination_;
  fs::path path_;
};

/// Copies a file that a link may stand for; large ones become links of the same file.
void clone_file(const fs::path& from, const fs::path& to) {
  constexpr uintmax_t kLarge = 1 << 20;
  const fs::path file = fs::canonical(from);
  std::error_code error;
  if (fs::file_size(file) >= kLarge) {
    fs::create_hard_link(file, to, error);
    if (!error) return;
  }
  fs::copy_file(file, to);
}

/// Copies what is in a folder. Hidden folders (a download's notes) and, where `weights` is false,
/// weights stay behind.
void clone_folder(const fs::path& from, const fs::path& to, bool weights, int depth = 0) {
  constexpr int kDeepest = 16;
  if (depth > kDeepest) {
    fail<IoError>(from.string(), "folders nest deeper than ", kDeepest,
                  " levels; does a link lead back?");
  }
  fs::create_directories(to);
  for (const fs::directory_entry& item : fs::directory_iterator(from)) {
    const fs::path name = item.path().filename();
    if (item.is_directory()) {
      if (name.string().starts_with('.')) continue;
      clone_folder(item.path(), to / name, true, depth + 1);
    } else if (item.is_regular_file() && (weights || !is_weight_file(name))) {
      clone_file(item.path(), to / name);
    }
  }
}

}  // namespace
}  // namespace pipelines

std::vector<ComponentQuantization> quantize_checkpoint(const std::string& model,
                                                       const std::filesystem::path& save_path,
                                                       const QuantizeCheckpointOptions& options) {
  using pipelines::fs::path;
  const c10::InferenceMode inference;
  check_quantize_config(options.config);
  const pipelines::CheckpointIndex index = pipelines::read_checkpoint_index(model);
  const path out = pipelines::check_destination(save_path, index.folder);
  std::map<std::string, pipelines::QuantizedComponent> components;
  int64_t all = 0;
  for (const char* name : {"transformer", "text_encoder", "text_encoder_2"}) {
    if (!pipelines::config_of(options.config, name)) continue;
    const auto found = index.components.find(name);
    if (found == index.components.end()) {
      fail<InputError>((index.folder / "model_index.json").string(), "the checkpoint has no ",
                       name);
    }
    const auto own = components.emplace(
        std::piecewise_construct, std::forward_as_tuple(name),
        std::forward_as_tuple(index.folder / name, name, found->second, options.config));
    all += own.first->second.plan().quantized_layers();
  }
  if (all == 0) {
    fail<InputError>("quantize", "the configuration leaves every layer as stored: got quant_type ",
                     options.config.quant_type);
  }
  return pipelines::report_out_of_memory("quantize", [&] {
    pipelines::WorkFolder work(out);
    pipelines::on_disk(out, [&] {
      pipelines::fs::create_directories(work.path());
      for (const auto& item : pipelines::fs::directory_iterator(index.folder)) {
        const std::string name = item.path().filename().string();
        if (!item.is_directory()) {
          // Weights beside the components are another program's copy of them.
          if (item.is_regular_file() && !pipelines::is_weight_file(name)) {
            pipelines::clone_file(item.path(), work.path() / name);
          }
        } else if (!name.starts_with('.')) {
          pipelines::clone_folder(item.path(), work.path() / name, components.count(name) == 0);
        }
      }
    });
    std::vector<ComponentQuantization> results;
    int64_t before = 0;
    for (auto& [name, component] : components) {
      const auto tell = [&, &own = name](int64_t done) {
        if (!options.on_layer || options.on_layer(own, before + done, all)) return;
        throw Cancelled(c10::str("[quantize] stopped after layer ", before + done, " of ", all));
      };
      results.push_back(component.write(work.path() / name, tell));
      before += results.back().quantized_layers();
    }
    work.commit();
    return results;
  });
}

}  // namespace cachedit
