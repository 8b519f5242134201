#include <algorithm>
#include <cctype>

#include "base/fail.h"
#include "cachedit/image.h"
#include "io/atomic_file.h"
#include "io/image_codec.h"

namespace cachedit {

void write_image(const std::filesystem::path& path, const Image& image,
                 const ImageWriteOptions& options) {
  const std::string where = path.string();
  io::check_image(image, where);
  std::string bytes;
  switch (options.format) {
    case ImageFormat::kPng:
      bytes = io::encode_png(image, options.text, where);
      break;
    case ImageFormat::kJpeg:
      bytes = io::encode_jpeg(image, options.quality, options.text, where);
      break;
    case ImageFormat::kWebp:
      bytes = io::encode_webp(image, where);
      break;
  }
  io::AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

ImageFormat parse_image_format(const std::string& name) {
  std::string lower = name.starts_with('.') ? name.substr(1) : name;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "png") return ImageFormat::kPng;
  if (lower == "jpg" || lower == "jpeg") return ImageFormat::kJpeg;
  if (lower == "webp") return ImageFormat::kWebp;
  fail<InputError>("image format", "unknown format: got '", name, "'; use png, jpg or webp");
}

}  // namespace cachedit

namespace cachedit::io {

void check_image_size(int64_t width, int64_t height, std::string_view where) {
  if (width <= 0 || height <= 0) {
    fail<InputError>(where, "picture must not be empty: got ", width, "x", height,
                     "; give both sides at least 1 pixel");
  }
  if (width > kMaxImageSide || height > kMaxImageSide || width * height > kMaxImagePixels) {
    fail<InputError>(where, "picture must have sides of at most ", kMaxImageSide, " and at most ",
                     kMaxImagePixels, " pixels: got ", width, "x", height, "; shrink it first");
  }
}

void check_image(const Image& image, std::string_view where) {
  check_image_size(image.width, image.height, where);
  const int64_t samples = image.width * image.height * 3;
  if (static_cast<int64_t>(image.pixels.size()) != samples) {
    fail<InputError>(where, "picture of ", image.width, "x", image.height, " must have ", samples,
                     " bytes: got ", image.pixels.size(), "; fill in width * height * 3 samples");
  }
}

}  // namespace cachedit::io
