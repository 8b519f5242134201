#include "cachedit/image.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cachedit/error.h"
#include "io/image_codec.h"
#include "io/image_fixtures.h"
#include "support/temp_dir.h"

namespace cachedit::io {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Property;
using ::testing::Throws;
using ::testing::ThrowsMessage;

const std::map<ImageFormat, std::string> kNames = {
    {ImageFormat::kPng, "png"}, {ImageFormat::kJpeg, "jpg"}, {ImageFormat::kWebp, "webp"}};

int largest_difference(const Image& a, const Image& b) {
  return compare_images(a, b).max_difference;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

Image decode(const std::string& bytes, ImageFormat format, std::string_view where) {
  switch (format) {
    case ImageFormat::kPng:
      return decode_png(bytes, where);
    case ImageFormat::kJpeg:
      return decode_jpeg(bytes, where);
    case ImageFormat::kWebp:
      break;
  }
  return decode_webp(bytes, where);
}

class EveryFormat : public ::testing::TestWithParam<ImageFormat> {
 protected:
  std::filesystem::path write(const std::string& stem, const Image& image) {
    const auto path = folder_ / (stem + "." + kNames.at(GetParam()));
    write_image(path, image, {.format = GetParam()});
    return path;
  }
  test::TempDir folder_;
};

TEST_P(EveryFormat, SurvivesTheRoundTrip) {
  for (const auto& [width, height] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 37}, {37, 1}, {2, 3}, {17, 9}, {128, 128}, {255, 64}}) {
    SCOPED_TRACE(::testing::Message() << width << "x" << height);
    const Image image = wave_image(width, height);
    const Image back = read_image(write("picture", image));
    ASSERT_EQ(back.width, width);
    ASSERT_EQ(back.height, height);
    if (GetParam() == ImageFormat::kJpeg) {
      EXPECT_LE(largest_difference(back, image), 20);
      EXPECT_GE(compare_images(back, image).psnr, 38);
    } else {
      EXPECT_EQ(back.pixels, image.pixels);
    }
  }
}

TEST_P(EveryFormat, NoiseSurvivesTheRoundTripWhereTheFormatIsLossless) {
  if (GetParam() == ImageFormat::kJpeg) {
    const Image noise = with_noise(wave_image(65, 33), 255);
    EXPECT_GE(compare_images(read_image(write("noise", noise)), noise).psnr, 30);
  } else {
    const Image noise = with_noise(wave_image(65, 33), 255);
    EXPECT_EQ(read_image(write("noise", noise)).pixels, noise.pixels);
  }
}

TEST_P(EveryFormat, SamePictureGivesSameBytes) {
  const Image image = with_noise(wave_image(50, 40), 9);
  const std::string first = test::read_bytes(write("first", image));
  EXPECT_EQ(first, test::read_bytes(write("second", image)));
}

TEST_P(EveryFormat, IsToldByContentNotByName) {
  const auto path = folder_ / "picture.dat";
  write_image(path, wave_image(8, 8), {.format = GetParam()});
  EXPECT_EQ(read_image(path).width, 8);
}

TEST_P(EveryFormat, EveryTruncationIsRefusedNamingThePath) {
  const std::string whole = test::read_bytes(write("whole", wave_image(9, 7)));
  ASSERT_GT(whole.size(), 40U);
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT([&] { decode(whole.substr(0, length), GetParam(), "a/cut.picture"); },
                ThrowsMessage<InputError>(HasSubstr("[a/cut.picture]")))
        << "the first " << length << " of " << whole.size() << " bytes";
  }
  for (const size_t length : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    const auto path = folder_.write("cut", std::string_view(whole).substr(0, length));
    EXPECT_THAT([&] { read_image(path); }, ThrowsMessage<InputError>(HasSubstr(path.string())));
  }
}

TEST_P(EveryFormat, DamagedBytesGiveAPictureOrATypedError) {
  const std::string whole = test::read_bytes(write("whole", wave_image(9, 7)));
  size_t refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        const Image image = decode(damaged, GetParam(), "damaged");
        EXPECT_EQ(image.pixels.size(), static_cast<size_t>(image.width * image.height * 3));
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, whole.size() / 4);
}

TEST_P(EveryFormat, RefusesPicturesThatAreEmptyOrInconsistent) {
  Image short_one = wave_image(4, 4);
  short_one.pixels.pop_back();
  EXPECT_THROW(write("bad", Image{}), InputError);
  EXPECT_THROW(write("bad", Image{0, 5, {}}), InputError);
  EXPECT_THROW(write("bad", Image{-1, -1, {1, 2, 3}}), InputError);
  EXPECT_THROW(write("bad", short_one), InputError);
  EXPECT_THROW(write("bad", Image{int64_t{1} << 40, int64_t{1} << 40, {}}), InputError);
  EXPECT_THAT(names_in(folder_.path()), IsEmpty());
}

TEST_P(EveryFormat, UnwritablePathLeavesNothing) {
  const auto path = folder_ / "absent" / "picture";
  EXPECT_THAT([&] { write_image(path, wave_image(4, 4), {.format = GetParam()}); },
              Throws<IoError>(Property(&IoError::what, HasSubstr(path.string()))));
  std::filesystem::create_directory(folder_ / "folder");
  EXPECT_THROW(write_image(folder_ / "folder", wave_image(4, 4), {.format = GetParam()}), IoError);
  EXPECT_THAT(names_in(folder_.path()), ::testing::ElementsAre("folder"));
  EXPECT_THAT(names_in(folder_ / "folder"), IsEmpty());
}

TEST_P(EveryFormat, WritingReplacesWhatWasThere) {
  const auto path = write("picture", wave_image(16, 16));
  EXPECT_EQ(write("picture", wave_image(5, 6)), path);
  EXPECT_EQ(read_image(path).height, 6);
  EXPECT_EQ(names_in(folder_.path()).size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Image, EveryFormat,
                         ::testing::Values(ImageFormat::kPng, ImageFormat::kJpeg,
                                           ImageFormat::kWebp),
                         [](const auto& each) { return kNames.at(each.param); });

// Every kind of file that readers meet, against the samples that PIL's convert("RGB") gives.
TEST(ReadImage, AgreesWithPilOnEveryKindOfFile) {
  std::ifstream in(test::golden("image_files/expected.json"));
  const auto expected = nlohmann::json::parse(in);
  ASSERT_GE(expected.size(), 19U);
  for (const auto& [name, hex] : expected.items()) {
    SCOPED_TRACE(name);
    Image want{13, 9, {}};
    const auto digits = hex.get<std::string>();
    for (size_t i = 0; i < digits.size(); i += 2) {
      want.pixels.push_back(static_cast<uint8_t>(std::stoi(digits.substr(i, 2), nullptr, 16)));
    }
    const Image got = read_image(test::golden("image_files") / name);
    ASSERT_EQ(got.width, 13);
    ASSERT_EQ(got.height, 9);
    // Versions of libjpeg may round differently; nothing else may.
    EXPECT_LE(largest_difference(got, want), name.ends_with(".jpg") ? 2 : 0);
  }
}

TEST(ReadImage, RefusesAnimations) {
  EXPECT_THAT([] { read_image(test::golden("image_files/animated.webp")); },
              ThrowsMessage<InputError>(HasSubstr("animation")));
}

TEST(ReadImage, RefusesWhatIsNoPicture) {
  const test::TempDir folder;
  EXPECT_THAT([&] { read_image(folder.write("a.png", "")); },
              ThrowsMessage<InputError>(AllOf(HasSubstr("a.png"), HasSubstr("empty"))));
  EXPECT_THAT([&] { read_image(folder.write("b.png", "GIF89a and so on")); },
              ThrowsMessage<InputError>(AllOf(HasSubstr("b.png"), HasSubstr("PNG, JPEG or WebP"))));
  EXPECT_THAT([&] { read_image(folder / "absent.png"); },
              ThrowsMessage<IoError>(HasSubstr("absent.png")));
  EXPECT_THAT([&] { read_image(folder.path()); }, ThrowsMessage<IoError>(HasSubstr("folder")));
}

std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// The CRC of PNG chunks, bit by bit.
uint32_t crc32(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

std::string png_claiming(uint32_t width, uint32_t height) {
  using namespace std::string_literals;
  const std::string header = "IHDR" + big_endian(width) + big_endian(height) + "\x08\x02\0\0\0"s;
  return "\x89PNG\r\n\x1a\n"s + big_endian(13) + header + big_endian(crc32(header)) +
         big_endian(0) + "IDAT" + big_endian(crc32("IDAT"));
}

TEST(ReadImage, RefusesAbsurdSizesBeforeAllocating) {
  const test::TempDir folder;
  EXPECT_THAT([&] { read_image(folder.write("a.png", png_claiming(16385, 1))); },
              ThrowsMessage<InputError>(AllOf(HasSubstr("16385x1"), HasSubstr("16384"))));
  EXPECT_THAT([&] { read_image(folder.write("b.png", png_claiming(16384, 16384))); },
              ThrowsMessage<InputError>(HasSubstr("16384x16384")));
  EXPECT_THROW(read_image(folder.write("c.png", png_claiming(2000000000, 2000000000))), InputError);
  // Within the limits, but a file of this length cannot hold so many pixels.
  EXPECT_THAT([&] { read_image(folder.write("d.png", png_claiming(10000, 10000))); },
              ThrowsMessage<InputError>(HasSubstr("cannot hold")));
}

TEST(ReadImage, RefusesAJpegThatClaimsMoreThanItHolds) {
  const test::TempDir folder;
  write_image(folder / "a.jpg", wave_image(8, 8), {.format = ImageFormat::kJpeg});
  std::string bytes = test::read_bytes(folder / "a.jpg");
  const size_t frame = bytes.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  bytes.replace(frame + 5, 4, "\x2f\xff\x2f\xff");  // 12287 x 12287
  EXPECT_THROW(read_image(folder.write("b.jpg", bytes)), InputError);
  bytes.replace(frame + 5, 4, std::string_view("\xff\0\xff\0", 4));
  EXPECT_THAT([&] { read_image(folder.write("c.jpg", bytes)); },
              ThrowsMessage<InputError>(HasSubstr("65280x65280")));
}

TEST(WriteImage, RefusesSidesBeyondTheLimit) {
  const test::TempDir folder;
  const Image wide{16385, 1, std::vector<uint8_t>(16385 * 3)};
  EXPECT_THAT([&] { write_image(folder / "a.png", wide); },
              ThrowsMessage<InputError>(HasSubstr("16385x1")));
  const Image webp_limit{16384, 1, std::vector<uint8_t>(16384 * 3)};
  EXPECT_THAT([&] { write_image(folder / "a.webp", webp_limit, {.format = ImageFormat::kWebp}); },
              ThrowsMessage<InputError>(HasSubstr("16383")));
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(WriteImage, JpegQualityIsCheckedAndMatters) {
  const test::TempDir folder;
  const Image image = with_noise(wave_image(64, 64), 50);
  auto size_at = [&](int quality) {
    write_image(folder / "a.jpg", image, {.format = ImageFormat::kJpeg, .quality = quality});
    return std::filesystem::file_size(folder / "a.jpg");
  };
  EXPECT_LT(size_at(30), size_at(95));
  EXPECT_THAT([&] { size_at(0); }, ThrowsMessage<InputError>(HasSubstr("got 0")));
  EXPECT_THROW(size_at(101), InputError);
}

TEST(ImageFormatNames, AreParsed) {
  EXPECT_EQ(parse_image_format("png"), ImageFormat::kPng);
  EXPECT_EQ(parse_image_format(".PNG"), ImageFormat::kPng);
  EXPECT_EQ(parse_image_format("jpg"), ImageFormat::kJpeg);
  EXPECT_EQ(parse_image_format("JpEg"), ImageFormat::kJpeg);
  EXPECT_EQ(parse_image_format(".webp"), ImageFormat::kWebp);
  for (const std::string name : {"", ".", "gif", "..png", "png ", "pngx"}) {
    EXPECT_THAT([&] { parse_image_format(name); },
                ThrowsMessage<InputError>(HasSubstr("'" + name + "'")));
  }
}

TEST(ContactSheet, PastesRowByRow) {
  std::vector<Image> images;
  for (uint8_t i = 1; i <= 5; ++i) images.push_back({2, 1, std::vector<uint8_t>(6, i)});
  const Image sheet = contact_sheet(images, 2);
  ASSERT_EQ(sheet.width, 4);
  ASSERT_EQ(sheet.height, 3);
  auto red = [&](int64_t x, int64_t y) { return sheet.pixels[static_cast<size_t>(y * 4 + x) * 3]; };
  EXPECT_EQ(red(0, 0), 1);
  EXPECT_EQ(red(1, 0), 1);
  EXPECT_EQ(red(2, 0), 2);
  EXPECT_EQ(red(3, 1), 4);
  EXPECT_EQ(red(1, 2), 5);
  EXPECT_EQ(red(2, 2), 255) << "an empty place is white";
}

TEST(ContactSheet, IsNoWiderThanItsPictures) {
  EXPECT_EQ(contact_sheet({wave_image(3, 2)}, 4).pixels, wave_image(3, 2).pixels);
}

TEST(ContactSheet, RefusesWhatCannotBePasted) {
  EXPECT_THROW(contact_sheet({}, 4), InputError);
  EXPECT_THROW(contact_sheet({wave_image(3, 2)}, 0), InputError);
  EXPECT_THAT(
      [] {
        contact_sheet({wave_image(3, 2), wave_image(2, 3)}, 2);
      },
      ThrowsMessage<InputError>(AllOf(HasSubstr("3x2"), HasSubstr("2x3"))));
  EXPECT_THROW(contact_sheet(std::vector<Image>(20, wave_image(1000, 1)), 20), InputError);
}

}  // namespace
}  // namespace cachedit::io
