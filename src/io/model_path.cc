#include "io/model_path.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "base/fail.h"

namespace cachedit::io {
namespace {

namespace fs = std::filesystem;

struct HubName {
  std::string repository;  // "org/name"
  std::string revision;    // empty where none was given
};

bool is_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.front() != '.' && std::all_of(text.begin(), text.end(), allowed);
}

/// Branches and tags may hold slashes ("refs/pr/1"), which must not lead out of the cache.
bool is_revision(std::string_view text) {
  while (true) {
    const size_t slash = text.find('/');
    if (!is_name(text.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    text.remove_prefix(slash + 1);
  }
}

std::optional<HubName> parse_hub_name(const std::string& model) {
  HubName name;
  const size_t at = model.find('@');
  name.repository = model.substr(0, at);
  if (at != std::string::npos) {
    name.revision = model.substr(at + 1);
    if (!is_revision(name.revision)) return std::nullopt;
  }
  const size_t slash = name.repository.find('/');
  if (slash == std::string::npos || !is_name(name.repository.substr(0, slash)) ||
      !is_name(name.repository.substr(slash + 1))) {
    return std::nullopt;
  }
  return name;
}

fs::path expand_home(const std::string& path, const Environment& env) {
  if (env.home.empty() || (path != "~" && !path.starts_with("~/"))) return path;
  return fs::path(env.home) / (path.size() > 2 ? path.substr(2) : "");
}

/// The order of huggingface_hub.
fs::path hub_cache(const Environment& env) {
  if (!env.hf_hub_cache.empty()) return expand_home(env.hf_hub_cache, env);
  if (!env.hf_home.empty()) return expand_home(env.hf_home, env) / "hub";
  if (!env.xdg_cache_home.empty()) {
    return expand_home(env.xdg_cache_home, env) / "huggingface" / "hub";
  }
  return fs::path(env.home) / ".cache" / "huggingface" / "hub";
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

/// The commit that refs/<revision> holds; empty where there is no such file.
std::string read_reference(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  std::ifstream in(path);
  std::string commit;
  in >> commit;
  return commit;
}

std::vector<fs::path> folders_in(const fs::path& path) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator item(path, error), end; !error && item != end;
       item.increment(error)) {
    if (is_folder(item->path())) folders.push_back(item->path());
  }
  return folders;
}

std::optional<fs::path> find_snapshot(const fs::path& repository, const std::string& revision) {
  const fs::path snapshots = repository / "snapshots";
  const std::string commit =
      read_reference(repository / "refs" / (revision.empty() ? "main" : revision));
  if (is_name(commit) && is_folder(snapshots / commit)) return snapshots / commit;
  if (!commit.empty()) return std::nullopt;
  if (!revision.empty()) {  // a commit itself
    if (is_name(revision) && is_folder(snapshots / revision)) return snapshots / revision;
    return std::nullopt;
  }
  const std::vector<fs::path> all = folders_in(snapshots);
  if (all.size() != 1) return std::nullopt;
  return all.front();
}

fs::path resolve_hub_name(const HubName& name, const std::string& model, const Environment& env) {
  std::string folder = "models--" + name.repository;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path cache = hub_cache(env);
  if (auto snapshot = find_snapshot(cache / folder, name.revision)) return *std::move(snapshot);
  const bool other_revision = is_folder(cache / folder);
  const std::string option = name.revision.empty() ? "" : " --revision " + name.revision;
  fail<IoError>(model, "the model must be a folder or in the Hugging Face cache: got neither (",
                other_revision ? "the model is there, but not this revision, in " : "the cache is ",
                cache.string(), "); to download it: hf download ", name.repository, option);
}

}  // namespace

fs::path resolve_model_path(const std::string& model, const Environment& env) {
  if (model.empty()) {
    fail<IoError>("model path", "a folder or a hub name is needed: got an empty text");
  }
  for (const fs::path& path : {fs::path(model), expand_home(model, env)}) {
    if (is_folder(path)) return path;
    if (std::error_code ignored; fs::exists(path, ignored)) {
      fail<IoError>(model, "the model must be a folder in diffusers' layout: got a file; ",
                    "give the folder that holds model_index.json");
    }
  }
  if (const auto name = parse_hub_name(model)) return resolve_hub_name(*name, model, env);
  fail<IoError>(model, "no such folder; give a folder in diffusers' layout, or a hub name such as ",
                "black-forest-labs/FLUX.1-schnell");
}

}  // namespace cachedit::io
