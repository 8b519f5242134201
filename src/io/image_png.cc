#include <png.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/fail.h"
#include "io/image_codec.h"
#include "io/image_text.h"

// libpng reports errors by longjmp, which must not skip a destructor. Therefore each of its calls
// that may fail sits in a `step`, a function without such objects, and run() is the only place that
// calls setjmp; objects live in the struct that the steps are given.
namespace cachedit::io {
namespace {

// Fast, and within a few percent of the default level on generated pictures.
constexpr int kCompressionLevel = 3;
// A text chunk may be compressed; these bound what a hostile file can make us allocate.
constexpr png_alloc_size_t kMaxTextBytes = 4 << 20;
constexpr png_uint_32 kMaxTextChunks = 64;
// No deflate stream expands further than this.
constexpr uint64_t kMaxDeflateRatio = 1032;

struct PngState {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::array<char, 200> message{};

  bool run(void (*step)(PngState&)) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    step(*this);
    return true;
  }
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto& state = *static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state.message.data(), state.message.size(), "%s", message);
  png_longjmp(png, 1);
}

// libpng's warnings are about chunks that do not touch the pixels.
void on_warning(png_structp, png_const_charp) {}

struct PngReader : PngState {
  std::string_view rest;
  std::vector<png_bytep> rows;

  explicit PngReader(std::string_view bytes) : rest(bytes) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, static_cast<PngState*>(this), on_error,
                                 on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      throw std::bad_alloc();
    }
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
};

void read_bytes(png_structp png, png_bytep out, size_t count) {
  auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
  if (count > reader.rest.size()) png_error(png, "the file ends early");
  std::memcpy(out, reader.rest.data(), count);
  reader.rest.remove_prefix(count);
}

void read_header(PngState& state) {
  png_read_info(state.png, state.info);
  const int depth = png_get_bit_depth(state.png, state.info);
  const int color = png_get_color_type(state.png, state.info);
  if (depth == 16) png_set_strip_16(state.png);
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(state.png);
  if (color == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(state.png);
  if ((color & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(state.png);
  png_set_strip_alpha(state.png);
  png_set_interlace_handling(state.png);
}

void start_pixels(PngState& state) { png_read_update_info(state.png, state.info); }

void read_pixels(PngState& state) {
  png_read_image(state.png, static_cast<PngReader&>(state).rows.data());
  png_read_end(state.png, state.info);
}

void collect_text(const PngReader& reader, TextMap& text) {
  png_textp chunks = nullptr;
  const int count = png_get_text(reader.png, reader.info, &chunks, nullptr);
  for (int i = 0; i < count; ++i) {
    const bool international = chunks[i].compression >= PNG_ITXT_COMPRESSION_NONE;
    const std::string value(chunks[i].text,
                            international ? chunks[i].itxt_length : chunks[i].text_length);
    if (international && !is_utf8(value)) continue;
    text.emplace(latin1_to_utf8(chunks[i].key), international ? value : latin1_to_utf8(value));
  }
}

struct PngWriter : PngState {
  std::string bytes;
  const Image* image;
  std::vector<std::string> text_chunks;  // the name of the chunk's type, then its data

  explicit PngWriter(const Image& picture) : image(&picture) {
    png = png_create_write_struct(PNG_LIBPNG_VER_STRING, static_cast<PngState*>(this), on_error,
                                  on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) {
      png_destroy_write_struct(&png, nullptr);
      throw std::bad_alloc();
    }
  }
  ~PngWriter() { png_destroy_write_struct(&png, &info); }
  PngWriter(const PngWriter&) = delete;
  PngWriter& operator=(const PngWriter&) = delete;
};

bool append(std::string& bytes, png_const_bytep data, size_t count) noexcept {
  try {
    bytes.append(reinterpret_cast<const char*>(data), count);
    return true;
  } catch (const std::exception&) {
    return false;  // an exception must not pass through libpng's frames
  }
}

void write_bytes(png_structp png, png_bytep data, size_t count) {
  auto& writer = *static_cast<PngWriter*>(png_get_io_ptr(png));
  if (!append(writer.bytes, data, count)) png_error(png, "out of memory");
}

void flush_nothing(png_structp) {}

void write_picture(PngState& state) {
  auto& writer = static_cast<PngWriter&>(state);
  const Image& image = *writer.image;
  png_set_user_limits(state.png, kMaxImageSide, kMaxImageSide);
  png_set_IHDR(state.png, state.info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_compression_level(state.png, kCompressionLevel);
  png_write_info(state.png, state.info);
  for (const std::string& chunk : writer.text_chunks) {
    const auto* data = reinterpret_cast<png_const_bytep>(chunk.data());
    png_write_chunk(state.png, data, data + 4, chunk.size() - 4);
  }
  for (int64_t y = 0; y < image.height; ++y) {
    png_write_row(state.png, image.pixels.data() + y * image.width * 3);
  }
  png_write_end(state.png, state.info);
}

}  // namespace

Image decode_png(std::string_view bytes, std::string_view where, TextMap* text) {
  PngReader reader(bytes);
  auto run = [&](void (*step)(PngState&)) {
    if (reader.run(step)) return;
    fail<InputError>(where, "damaged PNG: ", reader.message.data(), "; get a whole copy");
  };
  png_set_read_fn(reader.png, &reader, read_bytes);
  png_set_chunk_malloc_max(reader.png, kMaxTextBytes);
  png_set_chunk_cache_max(reader.png, kMaxTextChunks);
  // Profiles are not applied, and texts cost time and memory when nobody asked for them.
  constexpr png_byte kSkipped[] = "iCCP\0tEXt\0zTXt\0iTXt";
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, kSkipped,
                              text == nullptr ? 4 : 1);
  run(read_header);
  Image image{png_get_image_width(reader.png, reader.info),
              png_get_image_height(reader.png, reader.info),
              {}};
  check_image_size(image.width, image.height, where);
  const uint64_t raw =
      png_get_rowbytes(reader.png, reader.info) * static_cast<uint64_t>(image.height);
  if (raw / kMaxDeflateRatio > bytes.size()) {
    fail<InputError>(where, "damaged PNG: ", bytes.size(), " bytes cannot hold ", image.width, "x",
                     image.height, " pixels; get a whole copy");
  }
  run(start_pixels);
  const size_t stride = static_cast<size_t>(image.width) * 3;
  if (png_get_rowbytes(reader.png, reader.info) != stride) {
    fail<InputError>(where, "PNG must reduce to 8-bit RGB: got ",
                     png_get_rowbytes(reader.png, reader.info), " bytes for a row of ", image.width,
                     " pixels; save it as plain RGB");
  }
  image.pixels.resize(stride * static_cast<size_t>(image.height));
  reader.rows.resize(static_cast<size_t>(image.height));
  for (size_t y = 0; y < reader.rows.size(); ++y) reader.rows[y] = image.pixels.data() + y * stride;
  run(read_pixels);
  if (text != nullptr) collect_text(reader, *text);
  return image;
}

std::string encode_png(const Image& image, const TextMap& text, std::string_view where) {
  PngWriter writer(image);
  for (const auto& [key, value] : text) {
    writer.text_chunks.push_back(png_text_chunk(key, value, where));
  }
  png_set_write_fn(writer.png, &writer, write_bytes, flush_nothing);
  if (!writer.run(write_picture)) {
    fail<InputError>(where, "cannot encode PNG: ", writer.message.data(),
                     "; shorten the texts or shrink the picture");
  }
  return std::move(writer.bytes);
}

}  // namespace cachedit::io
