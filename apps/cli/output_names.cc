#include "output_names.h"

#include <algorithm>

#include "cachedit/error.h"
#include "cachedit/files.h"

namespace cachedit::cli {
namespace {

std::string lower_extension(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  if (!extension.empty()) extension.erase(0, 1);
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == "jpeg" ? "jpg" : extension;
}

bool is_output_extension(const std::string& extension) {
  return extension == "png" || extension == "jpg" || extension == "webp" ||
         extension == "safetensors";
}

/// The prompt's letters and digits, at most 40 bytes: readable, and safe in every file system.
std::string slug(const std::string& prompt) {
  std::string text;
  for (const char c : prompt) {
    const bool keep = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (keep) {
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!text.empty() && text.back() != '-') {
      text += '-';
    }
    if (text.size() >= 40) break;
  }
  while (!text.empty() && text.back() == '-') text.pop_back();
  return text.empty() ? "picture" : text;
}

}  // namespace

OutputNames::OutputNames(const std::string& save_path, const std::string& format, bool latent) {
  const std::string wanted = latent ? "safetensors" : format == "jpeg" ? "jpg" : format;
  const std::string given = lower_extension(save_path);
  std::error_code error;  // what is wrong with the path is told when it is written
  if (is_output_extension(given) && !std::filesystem::is_directory(save_path, error)) {
    const bool fits = wanted.empty() ? given != "safetensors" : given == wanted;
    if (!fits) {
      throw InputError("[generate] --save-path ends in ." + given + ", but the output is " +
                       (wanted.empty() ? "a picture (png, jpg, webp)" : wanted) +
                       "; make them agree");
    }
    file_ = save_path;
    extension_ = given;
    check_writable(file_);
    return;
  }
  folder_ = save_path.empty() ? "." : save_path;
  extension_ = wanted.empty() ? "png" : wanted;
  std::filesystem::create_directories(folder_, error);
  if (error) {
    throw IoError("[" + folder_.string() + "] cannot make the output folder: " + error.message());
  }
  check_writable(folder_ / (".cachedit-probe." + extension_));
}

std::filesystem::path OutputNames::path(const std::string& prompt, int64_t width, int64_t height,
                                        uint64_t seed, int64_t index, int64_t count, int64_t copy,
                                        int64_t copies) const {
  if (!file_.empty()) {
    if (count == 1) return file_;
    std::filesystem::path name = file_.stem();
    name += "-" + std::to_string(index) + file_.extension().string();
    return file_.parent_path() / name;
  }
  char number[16];
  std::snprintf(number, sizeof(number), "%03d", static_cast<int>(index));
  return folder_ / (std::string(number) + "-" + slug(prompt) + "-" + std::to_string(width) + "x" +
                    std::to_string(height) + "-seed" + std::to_string(seed) +
                    (copies > 1 ? "-" + std::to_string(copy) : "") + "." + extension_);
}

}  // namespace cachedit::cli
