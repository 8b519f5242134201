#include <cerrno>
#include <fstream>
#include <optional>
#include <system_error>

#include "base/fail.h"
#include "cachedit/image.h"
#include "io/image_codec.h"

namespace cachedit {
namespace {

// More than any picture within the size limits needs.
constexpr size_t kMaxFileBytes = size_t{1} << 30;

std::optional<ImageFormat> detect_format(std::string_view bytes) {
  using namespace std::string_view_literals;
  if (bytes.starts_with("\x89PNG\r\n\x1a\n"sv)) return ImageFormat::kPng;
  if (bytes.starts_with("\xff\xd8\xff"sv)) return ImageFormat::kJpeg;
  if (bytes.starts_with("RIFF"sv) && bytes.substr(0, 12).ends_with("WEBP"sv)) {
    return ImageFormat::kWebp;
  }
  return std::nullopt;
}

struct PictureFile {
  std::string bytes;
  ImageFormat format;
};

// Looks at the first bytes before it reads on, so that a wrong file costs nothing whatever its
// size.
PictureFile read_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    fail<IoError>(path.string(), "cannot read picture: it is a folder; name a file in it");
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    fail<IoError>(path.string(), "cannot read picture: ",
                  std::generic_category().message(errno == 0 ? EIO : errno),
                  "; check the name and its permissions");
  }
  std::string bytes;
  std::string block(size_t{1} << 16, '\0');
  std::optional<ImageFormat> format;
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())), in.gcount() > 0) {
    bytes.append(block, 0, static_cast<size_t>(in.gcount()));
    if (!format) format = detect_format(bytes);
    if (!format) break;
    if (bytes.size() > kMaxFileBytes) {
      fail<InputError>(path.string(), "picture must be at most 1 GiB: got more; shrink it first");
    }
  }
  if (in.bad()) {
    fail<IoError>(path.string(), "cannot read picture: the device reported an error; check it");
  }
  if (!format) {
    fail<InputError>(path.string(), "not a picture: ",
                     bytes.empty() ? "the file is empty" : "got an unknown file type",
                     "; use PNG, JPEG or WebP");
  }
  return {std::move(bytes), *format};
}

}  // namespace

Image read_image(const std::filesystem::path& path) {
  const PictureFile file = read_file(path);
  switch (file.format) {
    case ImageFormat::kPng:
      return io::decode_png(file.bytes, path.string());
    case ImageFormat::kJpeg:
      return io::decode_jpeg(file.bytes, path.string());
    case ImageFormat::kWebp:
      break;
  }
  return io::decode_webp(file.bytes, path.string());
}

std::map<std::string, std::string> read_image_text(const std::filesystem::path& path) {
  const PictureFile file = read_file(path);
  io::TextMap text;
  if (file.format == ImageFormat::kPng) io::decode_png(file.bytes, path.string(), &text);
  return text;
}

}  // namespace cachedit
