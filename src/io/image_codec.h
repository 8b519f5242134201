// The picture formats behind cachedit/image.h: one decoder and one encoder each, from and to
// memory. Every function throws InputError whose text starts with `where`, the picture's path.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "cachedit/image.h"

namespace cachedit::io {

using TextMap = std::map<std::string, std::string>;

/// Pictures beyond these are refused before their pixels are allocated: a file of a few kilobytes
/// may claim gigabytes. The pixel count is the one at which PIL gives up, too.
inline constexpr int64_t kMaxImageSide = 16384;
inline constexpr int64_t kMaxImagePixels = 178956970;

/// Throws InputError unless both sides are positive and within the limits.
void check_image_size(int64_t width, int64_t height, std::string_view where);

/// Throws InputError unless the sides are positive and `pixels` has width * height * 3 bytes.
void check_image(const Image& image, std::string_view where);

/// Collects the text chunks too when `text` is not null.
Image decode_png(std::string_view bytes, std::string_view where, TextMap* text = nullptr);
Image decode_jpeg(std::string_view bytes, std::string_view where);
Image decode_webp(std::string_view bytes, std::string_view where);

std::string encode_png(const Image& image, const TextMap& text, std::string_view where);
/// `text` becomes "key: value" lines in comment markers.
std::string encode_jpeg(const Image& image, int quality, const TextMap& text,
                        std::string_view where);
std::string encode_webp(const Image& image, std::string_view where);

}  // namespace cachedit::io
