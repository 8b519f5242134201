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
  std::map<std::string, std::string> text = {};
};

/// Reads PNG, JPEG or WebP, told apart by content. Grey is expanded, alpha is dropped (as
/// PIL's convert("RGB") does), 16-bit samples are reduced to 8 (their high byte), CMYK is taken as
/// inverted and converted as PIL does, an EXIF orientation is not applied.
/// Throws IoError if the file cannot be opened, InputError if it is not such a picture, is damaged
/// or cut off, moves, or has a side above 16384 or more than 178956970 pixels.
CACHEDIT_API Image read_image(const std::filesystem::path& path);

/// Writes to a temporary name in the same folder and renames, so a reader never sees half a file.
/// The same input gives the same bytes.
/// Throws IoError naming the path; InputError if `image` is empty or too large for the format, the
/// quality is out of range, a PNG text's key is not 1 to 79 printable ASCII characters, or its
/// value is not UTF-8 or holds a zero byte.
CACHEDIT_API void write_image(const std::filesystem::path& path, const Image& image,
                              const ImageWriteOptions& options = {});

/// The text chunks of a PNG file, as UTF-8; empty for other formats. Throws as read_image does.
CACHEDIT_API std::map<std::string, std::string> read_image_text(const std::filesystem::path& path);

/// "png", "jpg"/"jpeg", "webp" (any case, with or without a leading dot). Throws InputError.
CACHEDIT_API ImageFormat parse_image_format(const std::string& name);

/// Pastes pictures of one size into a sheet with `columns` columns (fewer where there are fewer
/// pictures), left to right, top to bottom; what is left of the last row is white.
/// Throws InputError if sizes differ, there is nothing to paste or the sheet becomes too large.
CACHEDIT_API Image contact_sheet(const std::vector<Image>& images, int64_t columns);

/// How far two pictures of one size are apart.
struct ImageDifference {
  double psnr = 0;         ///< dB over all samples, peak 255; infinity when equal
  double ssim = 0;         ///< mean structural similarity, 1 when equal; see compare_images()
  double mse = 0;          ///< mean squared difference of 8-bit samples
  int max_difference = 0;  ///< largest absolute difference of a sample
};

/// The figures are those of scikit-image with channel_axis = 2, which cache-dit's metrics command
/// uses. SSIM: a uniform 7 x 7 window at every place where it fits (for pictures with a shorter
/// side, the largest odd window that fits), sample covariance (divided by one less than the
/// window's samples), K1 = 0.01, K2 = 0.03, data range 255; the mean over places and the three
/// channels. Throws InputError naming both sizes if they differ.
CACHEDIT_API ImageDifference compare_images(const Image& a, const Image& b);

}  // namespace cachedit
