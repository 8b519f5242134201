#include <dlfcn.h>

#include "base/environment.h"
#include "base/fail.h"
#include "cachedit/pipeline.h"

namespace cachedit {
namespace {

/// Folder of the binary that this code is in: libcachedit, or a program linked statically.
std::filesystem::path own_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return {};
  std::error_code ignored;
  return std::filesystem::canonical(info.dli_fname, ignored).parent_path();
}

}  // namespace

std::filesystem::path default_model_path() {
  constexpr const char* kName = "emoji-flux";
  if (const std::string& chosen = environment().default_model; !chosen.empty()) return chosen;
  const std::filesystem::path in_prefix =
      std::filesystem::path("share") / "cachedit" / "models" / kName;
  const std::filesystem::path above = own_folder().parent_path();
  const std::filesystem::path candidates[] = {
      above / in_prefix,                // <prefix>/lib
      above.parent_path() / in_prefix,  // <prefix>/lib/<multiarch triplet>
      std::filesystem::path(CACHEDIT_SOURCE_MODELS) / kName};
  for (const std::filesystem::path& path : candidates) {
    if (std::filesystem::exists(path / "model_index.json")) return path;
  }
  fail<IoError>("default model", "the shipped model is neither in ", candidates[0].string(),
                " nor in ", candidates[2].string(),
                "; name a checkpoint, or set CACHEDIT_DEFAULT_MODEL");
}

}  // namespace cachedit
