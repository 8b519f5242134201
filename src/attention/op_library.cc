#include "attention/op_library.h"

#include <dlfcn.h>

#include <sstream>

#include "base/environment.h"
#include "base/fail.h"
#include "base/log.h"

namespace cachedit::attention {

void load_op_library(const std::filesystem::path& path) {
  constexpr const char* kWhere = "op library";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    fail<IoError>(kWhere, "no such file: got '", path.string(),
                  "'; give the .so file that registers the operators");
  }
  // Without a slash the loader would search its own folders. Lazily, because extensions made for
  // Python name functions of the interpreter that nobody calls here.
  const std::string file = std::filesystem::absolute(path, error).string();
  if (dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    const char* reason = dlerror();
    fail<IoError>(kWhere, "cannot load '", file, "': ", reason == nullptr ? "no reason" : reason,
                  "; it must be a shared library built for the linked LibTorch");
  }
  log_debug("[op library] loaded " + file);
}

void load_op_libraries(const std::string& list) {
  std::istringstream paths(list);
  for (std::string path; std::getline(paths, path, ':');) {
    if (!path.empty()) load_op_library(path);
  }
}

void load_environment_op_libraries() {
  static const bool loaded = [] {
    load_op_libraries(environment().op_libraries);
    return true;
  }();
  static_cast<void>(loaded);
}

}  // namespace cachedit::attention
