#include "io/image_text.h"

#include <gmock/gmock.h>

#include "cachedit/error.h"
#include "cachedit/image.h"
#include "io/image_fixtures.h"
#include "support/temp_dir.h"

namespace cachedit::io {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Texts = std::map<std::string, std::string>;

class ImageText : public ::testing::Test {
 protected:
  std::filesystem::path write(const Texts& text, ImageFormat format = ImageFormat::kPng) {
    const auto path = folder_ / "picture";
    write_image(path, wave_image(4, 4), {.format = format, .text = text});
    return path;
  }
  test::TempDir folder_;
};

TEST_F(ImageText, PngReturnsWhatWasWritten) {
  const Texts text = {{"parameters", "red apple\nSteps: 20, Seed: 7"},
                      {"Title", ""},
                      {"Subject", "é, 漢字, \U0001F34E and \u0301"},
                      {"long", std::string(200000, 'x')},
                      {"long foreign", std::string(100000, 'y') + "ß"}};
  EXPECT_EQ(read_image_text(write(text)), text);
}

TEST_F(ImageText, AsciiUsesTheOldChunkAndTheRestTheInternationalOne) {
  const std::string ascii = test::read_bytes(write({{"parameters", "apple"}}));
  EXPECT_THAT(ascii, HasSubstr(std::string("tEXtparameters\0apple", 20)));
  const std::string foreign = test::read_bytes(write({{"parameters", "æpple"}}));
  EXPECT_THAT(foreign, HasSubstr(std::string("iTXtparameters\0\0\0\0\0æpple", 25)));
}

TEST_F(ImageText, PixelsDoNotDependOnIt) {
  EXPECT_EQ(read_image(write({{"a", "b"}})).pixels, wave_image(4, 4).pixels);
}

TEST_F(ImageText, RefusesKeysAndValuesThatPngCannotHold) {
  for (const std::string& key :
       {std::string(), std::string(80, 'k'), std::string(" a"), std::string("a "),
        std::string("a  b"), std::string("a\nb"), std::string("é"), std::string("a\0b", 3)}) {
    EXPECT_THROW(write({{key, "value"}}), InputError) << "key '" << key << "'";
  }
  EXPECT_EQ(read_image_text(write({{std::string(79, 'k'), "value"}})).size(), 1U);
  EXPECT_THAT(
      [&] {
        write({{"key", std::string("a\0b", 3)}});
      },
      ThrowsMessage<InputError>(HasSubstr("'key'")));
  EXPECT_THROW(write({{"key", "\xff\xfe"}}), InputError);
}

TEST_F(ImageText, JpegCarriesLinesInCommentMarkers) {
  const auto path = write({{"parameters", "äpple"}, {"seed", "7"}}, ImageFormat::kJpeg);
  EXPECT_THAT(test::read_bytes(path), HasSubstr("parameters: äpple\nseed: 7\n"));
  EXPECT_THAT(read_image_text(path), IsEmpty());
  // Longer than one marker holds.
  EXPECT_EQ(read_image(write({{"a", std::string(200000, 'x')}}, ImageFormat::kJpeg)).width, 4);
}

TEST_F(ImageText, WebpDropsIt) {
  EXPECT_THAT(read_image_text(write({{"a", "b"}}, ImageFormat::kWebp)), IsEmpty());
}

TEST_F(ImageText, DamagedFilesAreRefused) {
  const std::string whole = test::read_bytes(write({{"parameters", "apple"}}));
  const auto cut = folder_.write("cut", std::string_view(whole).substr(0, whole.size() / 2));
  EXPECT_THROW(read_image_text(cut), InputError);
  EXPECT_THROW(read_image_text(folder_.write("not", "a picture")), InputError);
  EXPECT_THROW(read_image_text(folder_ / "absent"), IoError);
}

TEST(Utf8, AcceptsOnlyShortestFormsOfCharacters) {
  for (const std::string good : {"", "a", "é", "漢", "\U0001F34E", "\U0010FFFF", "\uFFFF"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const std::string bad :
       {"\x80", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe6\xbc", "a\xff"}) {
    EXPECT_FALSE(is_utf8(bad)) << ::testing::PrintToString(bad);
  }
}

TEST(Latin1, BecomesUtf8) { EXPECT_EQ(latin1_to_utf8("caf\xe9 \xff\x80"), "café ÿ\xc2\x80"); }

}  // namespace
}  // namespace cachedit::io
