#include <c10/core/InferenceMode.h>

#include <map>

#include "base/fail.h"
#include "cachedit/quantize.h"
#include "io/clone_file.h"
#include "pipelines/checkpoint.h"
#include "pipelines/out_of_memory.h"
#include "pipelines/quantize_choice.h"
#include "pipelines/quantize_component.h"
#include "pipelines/work_folder.h"

namespace cachedit {
namespace pipelines {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "quantize";
constexpr const char* kIndex = "model_index.json";

using Components = std::map<std::string, QuantizedComponent>;

/// Weights that nothing here reads.
bool is_of_other_format(const std::string& name) {
  return is_weight_file(name) && !name.ends_with(".safetensors") &&
         !name.ends_with(".safetensors.index.json");
}

/// Follows links; throws where one leads nowhere.
void clone_file(const fs::directory_entry& item, const fs::path& to) {
  if (item.is_symlink() && !item.exists()) {
    fail<IoError>(item.path().string(), "the link must lead to a file: got ",
                  fs::read_symlink(item.path()).string(), "; download the checkpoint again");
  }
  if (item.is_regular_file()) io::clone_file(item.path(), to);
}

/// Copies what is in a folder. Weights of other formats, hidden folders (a download's notes) and,
/// where `weights` is false, all weights stay behind.
void clone_folder(const fs::path& from, const fs::path& to, bool weights, int depth = 0) {
  constexpr int kDeepest = 16;
  if (depth > kDeepest) {
    fail<IoError>(from.string(), "folders nest deeper than ", kDeepest,
                  " levels; does a link lead back?");
  }
  fs::create_directories(to);
  for (const fs::directory_entry& item : fs::directory_iterator(from)) {
    const std::string name = item.path().filename().string();
    if (item.is_directory()) {
      if (!name.starts_with('.')) clone_folder(item.path(), to / name, true, depth + 1);
    } else if (weights ? !is_of_other_format(name) : !is_weight_file(name)) {
      clone_file(item, to / name);
    }
  }
}

/// All but the weights of `components`.
void clone_checkpoint(const fs::path& from, const fs::path& to, const Components& components) {
  for (const fs::directory_entry& item : fs::directory_iterator(from)) {
    const std::string name = item.path().filename().string();
    if (!item.is_directory()) {
      // Weights beside the components are another program's copy of them.
      if (!is_weight_file(name)) clone_file(item, to / name);
    } else if (!name.starts_with('.')) {
      clone_folder(item.path(), to / name, components.count(name) == 0);
    }
  }
}

Components open_components(const CheckpointIndex& index, const QuantizeConfig& config) {
  const QuantizeChoice choice(config, at::kCPU);
  Components components;
  for (const char* name : {"transformer", "text_encoder", "text_encoder_2"}) {
    if (!config_of(config, name)) continue;
    const auto found = index.components.find(name);
    if (found == index.components.end()) {
      fail<InputError>((index.folder / kIndex).string(), "the checkpoint has no ", name);
    }
    components.emplace(
        std::piecewise_construct, std::forward_as_tuple(name),
        std::forward_as_tuple(index.folder / name, name, found->second, config, choice));
  }
  std::map<std::string, const io::WeightStore*> stores;
  for (const auto& [name, component] : components) stores[name] = &component.store();
  choice.warn_of_unmet(stores);
  return components;
}

std::vector<ComponentQuantization> write_components(Components& components, const fs::path& folder,
                                                    int64_t all,
                                                    const QuantizeCheckpointOptions& options) {
  std::vector<ComponentQuantization> results;
  int64_t before = 0;
  for (auto& [name, component] : components) {
    const auto tell = [&, &own = name](int64_t done) {
      if (!options.on_layer || options.on_layer(own, before + done, all)) return;
      throw Cancelled(c10::str("[quantize] stopped after layer ", before + done, " of ", all));
    };
    results.push_back(component.write(folder / name, tell));
    before += results.back().quantized_layers();
  }
  return results;
}

}  // namespace
}  // namespace pipelines

std::vector<ComponentQuantization> quantize_checkpoint(const std::string& model,
                                                       const std::filesystem::path& save_path,
                                                       const QuantizeCheckpointOptions& options) {
  namespace p = pipelines;
  const c10::InferenceMode inference;
  const QuantizeConfig config = p::in_small_letters(options.config);
  check_quantize_config(config);
  const p::CheckpointIndex index = p::read_checkpoint_index(model);
  const p::fs::path out = p::check_new_folder(save_path, index.folder);
  p::Components components = p::open_components(index, config);
  int64_t all = 0;
  for (const auto& [name, component] : components) all += component.plan().quantized_layers();
  if (all == 0) {
    fail<InputError>(p::kWhere, "the configuration leaves every layer as stored: got quant_type ",
                     config.quant_type, "; choose a type, or exclude fewer layers");
  }
  return p::report_out_of_memory(p::kWhere, [&] {
    p::WorkFolder work(out, p::kIndex);
    try {
      p::on_disk([&] { p::clone_checkpoint(index.folder, work.path(), components); });
      auto results = p::write_components(components, work.path(), all, options);
      work.commit();
      return results;
    } catch (const IoError& error) {
      throw IoError(work.in_final_names(error.what()));
    }
  });
}

}  // namespace cachedit
