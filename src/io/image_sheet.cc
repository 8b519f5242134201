#include <algorithm>

#include "base/fail.h"
#include "cachedit/image.h"
#include "io/image_codec.h"

namespace cachedit {

Image contact_sheet(const std::vector<Image>& images, int64_t columns) {
  constexpr std::string_view kWhere = "contact sheet";
  if (images.empty()) {
    fail<InputError>(kWhere, "needs pictures: got none; give at least one");
  }
  if (columns < 1) {
    fail<InputError>(kWhere, "columns must be at least 1: got ", columns, "; use a positive count");
  }
  const int64_t width = images.front().width;
  const int64_t height = images.front().height;
  for (const Image& image : images) {
    io::check_image(image, kWhere);
    if (image.width != width || image.height != height) {
      fail<InputError>(kWhere, "pictures must have one size: got ", width, "x", height, " and ",
                       image.width, "x", image.height, "; resize them first");
    }
  }
  const auto count = static_cast<int64_t>(images.size());
  columns = std::min(columns, count);
  const int64_t rows = (count + columns - 1) / columns;
  // Dividing keeps the test itself from overflowing.
  if (columns > io::kMaxImageSide / width || rows > io::kMaxImageSide / height) {
    fail<InputError>(kWhere, "sheet must have sides of at most ", io::kMaxImageSide, ": got ",
                     columns, "x", rows, " pictures of ", width, "x", height,
                     "; use fewer or smaller ones");
  }
  Image sheet{columns * width, rows * height, {}};
  io::check_image_size(sheet.width, sheet.height, kWhere);
  constexpr uint8_t kWhite = 255;
  sheet.pixels.assign(static_cast<size_t>(sheet.width * sheet.height * 3), kWhite);
  for (int64_t i = 0; i < count; ++i) {
    const Image& image = images[static_cast<size_t>(i)];
    const int64_t left = i % columns * width;
    const int64_t top = i / columns * height;
    for (int64_t y = 0; y < height; ++y) {
      std::copy_n(image.pixels.begin() + y * width * 3, width * 3,
                  sheet.pixels.begin() + ((top + y) * sheet.width + left) * 3);
    }
  }
  return sheet;
}

}  // namespace cachedit
