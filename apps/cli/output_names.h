// Where each picture goes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace cachedit::cli {

/// The destination that --save-path and --format describe.
class OutputNames {
 public:
  /// `save_path` with a known extension is a file, anything else a folder (made if need be; empty:
  /// the current one). `format` empty: by the file's extension, else png. For latents the
  /// extension is "safetensors". Throws IoError where nothing can be written, InputError where
  /// extension and format contradict each other.
  OutputNames(const std::string& save_path, const std::string& format, bool latent);

  /// The file of picture `index` of `count`: the file itself for one, "stem-<index>.ext" for
  /// several; in a folder "<index>-<prompt>-<width>x<height>-seed<seed>[-<copy>].ext".
  std::filesystem::path path(const std::string& prompt, int64_t width, int64_t height,
                             uint64_t seed, int64_t index, int64_t count, int64_t copy,
                             int64_t copies) const;

  /// "png", "jpg", "webp" or "safetensors".
  const std::string& extension() const { return extension_; }

 private:
  std::filesystem::path file_;    // empty when names are generated
  std::filesystem::path folder_;  // empty when a file is given
  std::string extension_;
};

}  // namespace cachedit::cli
