#include <csetjmp>
#include <cstdio>
// jpeglib.h needs size_t and FILE declared before it.
#include <jpeglib.h>
// After jpeglib.h.
#include <jerror.h>

#include <algorithm>
#include <array>

#include "base/fail.h"
#include "io/image_codec.h"
#include "io/image_text.h"

// As for PNG: libjpeg leaves by longjmp, so its calls sit in steps, functions without objects that
// have destructors, and run() is the only place that calls setjmp.
namespace cachedit::io {
namespace {

// A progressive file may repeat scans over the whole picture without end.
constexpr int kMaxScans = 500;
constexpr size_t kMaxCommentBytes = 65533;

template <class Codec>
struct JpegState {
  Codec codec{};
  jpeg_error_mgr errors{};
  std::jmp_buf jump{};
  std::array<char, JMSG_LENGTH_MAX> message{};

  template <class State>
  static bool run(State& state, void (*step)(State&)) {
    if (setjmp(state.jump) != 0) return false;
    step(state);
    return true;
  }
};

template <class Codec>
[[noreturn]] void on_error(j_common_ptr codec) {
  auto& state = *static_cast<JpegState<Codec>*>(codec->client_data);
  codec->err->format_message(codec, state.message.data());
  std::longjmp(state.jump, 1);
}

// libjpeg fills the gaps of a damaged file with grey and only warns. That is an error here; what
// is left of the warnings (extra bytes, odd version numbers) does no harm.
void on_message(j_common_ptr codec, int level) {
  if (level >= 0) return;
  switch (codec->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_NOT_SEQUENTIAL:
      codec->err->error_exit(codec);
      break;
    default:
      break;
  }
}

void ignore_output(j_common_ptr) {}

template <class Codec>
void set_up_errors(JpegState<Codec>& state) {
  state.codec.err = jpeg_std_error(&state.errors);
  state.codec.client_data = &state;
  state.errors.error_exit = on_error<Codec>;
  state.errors.emit_message = on_message;
  state.errors.output_message = ignore_output;
}

struct JpegReader : JpegState<jpeg_decompress_struct> {
  std::string_view bytes;
  jpeg_progress_mgr progress{};
  uint8_t* row = nullptr;

  explicit JpegReader(std::string_view data) : bytes(data) { set_up_errors(*this); }
  ~JpegReader() { jpeg_destroy_decompress(&codec); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
};

void count_scans(j_common_ptr codec) {
  const auto* decoder = reinterpret_cast<j_decompress_ptr>(codec);
  if (decoder->input_scan_number > kMaxScans) ERREXIT(decoder, JERR_BAD_PROGRESSION);
}

void read_header(JpegReader& reader) {
  jpeg_decompress_struct& codec = reader.codec;
  jpeg_create_decompress(&codec);
  jpeg_mem_src(&codec, reinterpret_cast<const unsigned char*>(reader.bytes.data()),
               reader.bytes.size());
  jpeg_read_header(&codec, TRUE);
  const bool four_inks = codec.jpeg_color_space == JCS_CMYK || codec.jpeg_color_space == JCS_YCCK;
  codec.out_color_space = four_inks ? JCS_CMYK : JCS_RGB;
  reader.progress.progress_monitor = count_scans;
  codec.progress = &reader.progress;
}

void start_pixels(JpegReader& reader) { jpeg_start_decompress(&reader.codec); }
void read_row(JpegReader& reader) { jpeg_read_scanlines(&reader.codec, &reader.row, 1); }
void finish(JpegReader& reader) { jpeg_finish_decompress(&reader.codec); }

// Files with four inks store them inverted (Adobe's habit, which PIL takes for granted): a sample
// is the light that the ink lets through.
void inks_to_rgb(const std::vector<uint8_t>& inks, uint8_t* rgb) {
  for (size_t i = 0; i + 3 < inks.size(); i += 4) {
    const int black = inks[i + 3];
    for (size_t c = 0; c < 3; ++c) {
      const int product = (255 - inks[i + c]) * black + 128;
      *rgb++ = static_cast<uint8_t>(std::max(black - ((product + (product >> 8)) >> 8), 0));
    }
  }
}

struct JpegWriter : JpegState<jpeg_compress_struct> {
  const Image* image;
  int quality;
  std::string comment;
  std::string bytes;
  jpeg_destination_mgr destination{};
  std::array<JOCTET, 1 << 14> buffer{};

  JpegWriter(const Image& picture, int wanted_quality, std::string lines)
      : image(&picture), quality(wanted_quality), comment(std::move(lines)) {
    set_up_errors(*this);
  }
  ~JpegWriter() { jpeg_destroy_compress(&codec); }
  JpegWriter(const JpegWriter&) = delete;
  JpegWriter& operator=(const JpegWriter&) = delete;

  bool append(size_t count) noexcept {
    try {
      bytes.append(reinterpret_cast<const char*>(buffer.data()), count);
      return true;
    } catch (const std::exception&) {
      return false;  // an exception must not pass through libjpeg's frames
    }
  }
};

JpegWriter& writer_of(j_compress_ptr codec) {
  return *static_cast<JpegWriter*>(
      static_cast<JpegState<jpeg_compress_struct>*>(codec->client_data));
}

void start_output(j_compress_ptr codec) {
  JpegWriter& writer = writer_of(codec);
  writer.destination.next_output_byte = writer.buffer.data();
  writer.destination.free_in_buffer = writer.buffer.size();
}

void append_output(j_compress_ptr codec, size_t count) {
  if (!writer_of(codec).append(count)) {
    ERREXIT1(codec, JERR_OUT_OF_MEMORY, 0);
  }
}

boolean flush_output(j_compress_ptr codec) {
  append_output(codec, writer_of(codec).buffer.size());
  start_output(codec);
  return TRUE;
}

void finish_output(j_compress_ptr codec) {
  const JpegWriter& writer = writer_of(codec);
  append_output(codec, writer.buffer.size() - writer.destination.free_in_buffer);
}

void write_picture(JpegWriter& writer) {
  jpeg_compress_struct& codec = writer.codec;
  const Image& image = *writer.image;
  jpeg_create_compress(&codec);
  writer.destination.init_destination = start_output;
  writer.destination.empty_output_buffer = flush_output;
  writer.destination.term_destination = finish_output;
  codec.dest = &writer.destination;
  codec.image_width = static_cast<JDIMENSION>(image.width);
  codec.image_height = static_cast<JDIMENSION>(image.height);
  codec.input_components = 3;
  codec.in_color_space = JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, writer.quality, TRUE);
  for (int i = 0; i < codec.num_components; ++i) {  // colour at full resolution
    codec.comp_info[i].h_samp_factor = 1;
    codec.comp_info[i].v_samp_factor = 1;
  }
  jpeg_start_compress(&codec, TRUE);
  for (size_t at = 0; at < writer.comment.size(); at += kMaxCommentBytes) {
    const size_t length = std::min(kMaxCommentBytes, writer.comment.size() - at);
    jpeg_write_marker(&codec, JPEG_COM, reinterpret_cast<const JOCTET*>(&writer.comment[at]),
                      static_cast<unsigned>(length));
  }
  for (int64_t y = 0; y < image.height; ++y) {
    auto* row = const_cast<JSAMPROW>(image.pixels.data() + y * image.width * 3);
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
}

}  // namespace

Image decode_jpeg(std::string_view bytes, std::string_view where) {
  JpegReader reader(bytes);
  auto run = [&](void (*step)(JpegReader&)) {
    if (JpegReader::run(reader, step)) return;
    fail<InputError>(where, "damaged or unsupported JPEG: ", reader.message.data(),
                     "; get a whole copy or save it as PNG");
  };
  run(read_header);
  const jpeg_decompress_struct& codec = reader.codec;
  Image image{codec.image_width, codec.image_height, {}};
  check_image_size(image.width, image.height, where);
  run(start_pixels);
  const size_t stride = static_cast<size_t>(image.width) * 3;
  std::vector<uint8_t> inks(codec.out_color_space == JCS_CMYK ? stride / 3 * 4 : 0);
  // Grown row by row: memory that a truncated file never fills stays untouched.
  image.pixels.reserve(stride * static_cast<size_t>(image.height));
  for (int64_t y = 0; y < image.height; ++y) {
    image.pixels.resize(image.pixels.size() + stride);
    uint8_t* row = image.pixels.data() + image.pixels.size() - stride;
    reader.row = inks.empty() ? row : inks.data();
    run(read_row);
    if (!inks.empty()) inks_to_rgb(inks, row);
  }
  run(finish);
  return image;
}

std::string encode_jpeg(const Image& image, int quality, const TextMap& text,
                        std::string_view where) {
  if (quality < 1 || quality > 100) {
    fail<InputError>(where, "JPEG quality must be 1 to 100: got ", quality, "; 95 is usual");
  }
  JpegWriter writer(image, quality, text_lines(text));
  if (!JpegWriter::run(writer, write_picture)) {
    fail<InputError>(where, "cannot encode JPEG: ", writer.message.data(), "; save it as PNG");
  }
  return std::move(writer.bytes);
}

}  // namespace cachedit::io
