// 8-bit RGB pictures: reading, writing and comparing them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cachedit/export.h"

namespace cachedit {

/// Interleaved 8-bit RGB, rows from top to bottom: pixels.size() == width * height * 3.
struct Image {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> pixels;
};

enum class ImageFormat { kPng, kJpeg, kWebp };

struct ImageWriteOptions {
  ImageFormat format = ImageFormat::kPng;
  /// JPEG quality, 1-100; WebP is written lossless.
  int quality = 95;
  /// Key-value texts, written as iTXt/tEXt chunks (PNG) or as a comment (JPEG). WebP drops them.
  std::map<std::string, std::string> text;
};

/// Reads PNG, JPEG or WebP, told apart by content. Grey is expanded, alpha is dropped (as
/// PIL's convert("RGB") does), 16-bit samples are reduced to 8.
/// Throws IoError if the file cannot be opened, InputError if it is not such a picture.
CACHEDIT_API Image read_image(const std::filesystem::path& path);

/// Writes to a temporary name in the same folder and renames, so a reader never sees half a file.
/// Throws IoError naming the path, InputError if `image` is empty or too large for the format.
CACHEDIT_API void write_image(const std::filesystem::path& path, const Image& image,
                              const ImageWriteOptions& options = {});

/// The text chunks of a PNG file; empty for other formats.
CACHEDIT_API std::map<std::string, std::string> read_image_text(const std::filesystem::path& path);

/// "png", "jpg"/"jpeg", "webp" (any case, with or without a leading dot). Throws InputError.
CACHEDIT_API ImageFormat parse_image_format(const std::string& name);

/// Pastes pictures of one size into a sheet with `columns` columns, left to right, top to bottom.
/// Throws InputError if sizes differ or there is nothing to paste.
CACHEDIT_API Image contact_sheet(const std::vector<Image>& images, int64_t columns);

/// How far two pictures of one size are apart.
struct ImageDifference {
  double psnr = 0;         ///< dB over all samples, peak 255; infinity when equal
  double ssim = 0;         ///< mean structural similarity, 1 when equal
  double mse = 0;          ///< mean squared difference of 8-bit samples
  int max_difference = 0;  ///< largest absolute difference of a sample
};

/// Throws InputError naming both sizes if they differ.
CACHEDIT_API ImageDifference compare_images(const Image& a, const Image& b);

}  // namespace cachedit
