#include <webp/decode.h>
#include <webp/encode.h>

#include <new>

#include "base/fail.h"
#include "io/image_codec.h"

namespace cachedit::io {
namespace {

// 0 (fast) to 9 (small).
constexpr int kLosslessLevel = 3;

struct WebpWriter {
  WebPPicture picture;
  WebPMemoryWriter memory;

  WebpWriter() {
    if (WebPPictureInit(&picture) == 0) {
      fail<UnsupportedError>("libwebp",
                             "library and headers must match: got another version; "
                             "rebuild cachedit");
    }
    WebPMemoryWriterInit(&memory);
    picture.writer = WebPMemoryWrite;
    picture.custom_ptr = &memory;
  }
  ~WebpWriter() {
    WebPMemoryWriterClear(&memory);
    WebPPictureFree(&picture);
  }
  WebpWriter(const WebpWriter&) = delete;
  WebpWriter& operator=(const WebpWriter&) = delete;
};

}  // namespace

Image decode_webp(std::string_view bytes, std::string_view where) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(data, bytes.size(), &features) != VP8_STATUS_OK) {
    fail<InputError>(where, "damaged WebP: its header makes no sense; get a whole copy");
  }
  if (features.has_animation != 0) {
    fail<InputError>(where, "WebP must be a still picture: got an animation; extract a frame");
  }
  Image image{features.width, features.height, {}};
  check_image_size(image.width, image.height, where);
  image.pixels.resize(static_cast<size_t>(image.width * image.height * 3));
  if (WebPDecodeRGBInto(data, bytes.size(), image.pixels.data(), image.pixels.size(),
                        features.width * 3) == nullptr) {
    fail<InputError>(where, "damaged WebP: its data is cut off or wrong; get a whole copy");
  }
  return image;
}

std::string encode_webp(const Image& image, std::string_view where) {
  if (image.width > WEBP_MAX_DIMENSION || image.height > WEBP_MAX_DIMENSION) {
    fail<InputError>(where, "WebP sides must be at most ", WEBP_MAX_DIMENSION, ": got ",
                     image.width, "x", image.height, "; save it as PNG");
  }
  WebPConfig config;
  WebpWriter writer;
  if (WebPConfigInit(&config) == 0 || WebPConfigLosslessPreset(&config, kLosslessLevel) == 0) {
    fail<UnsupportedError>("libwebp", "lossless level must be known: got ", kLosslessLevel,
                           "; rebuild cachedit");
  }
  writer.picture.use_argb = 1;
  writer.picture.width = static_cast<int>(image.width);
  writer.picture.height = static_cast<int>(image.height);
  if (WebPPictureImportRGB(&writer.picture, image.pixels.data(), writer.picture.width * 3) == 0) {
    throw std::bad_alloc();
  }
  if (WebPEncode(&config, &writer.picture) == 0) {
    const WebPEncodingError code = writer.picture.error_code;
    if (code == VP8_ENC_ERROR_OUT_OF_MEMORY || code == VP8_ENC_ERROR_BITSTREAM_OUT_OF_MEMORY) {
      throw std::bad_alloc();
    }
    fail<InputError>(where, "cannot encode WebP: libwebp's error code ", static_cast<int>(code),
                     "; save it as PNG");
  }
  return {reinterpret_cast<const char*>(writer.memory.mem), writer.memory.size};
}

}  // namespace cachedit::io
