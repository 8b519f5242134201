#include "text/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/fail.h"

namespace cachedit::text {
namespace {

namespace fs = std::filesystem;

// A reader of protocol buffers' wire format, for the few fields below. The library has parsed the
// file before, so a fault ends the reading instead of being reported.
class WireReader {
 public:
  struct Field {
    uint64_t number;
    uint64_t value;          ///< of a varint
    std::string_view bytes;  ///< of a length-delimited field
  };

  explicit WireReader(std::string_view message) : rest_(message) {}

  std::optional<Field> next() {
    const auto tag = varint();
    if (!tag) return std::nullopt;
    Field field{.number = *tag >> 3, .value = 0, .bytes = {}};
    std::optional<uint64_t> size;
    switch (*tag & 7) {
      case 0:
        size = 0;
        if (const auto value = varint()) field.value = *value;
        break;
      case 1:
        size = 8;
        break;
      case 2:
        size = varint();
        break;
      case 5:
        size = 4;
        break;
      default:
        break;
    }
    if (!size || *size > rest_.size()) return std::nullopt;
    field.bytes = rest_.substr(0, *size);
    rest_.remove_prefix(*size);
    return field;
  }

 private:
  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::string_view rest_;
};

// Field numbers and values of sentencepiece_model.proto.
constexpr uint64_t kPieces = 1;
constexpr uint64_t kTrainerSpec = 2;
constexpr uint64_t kNormalizerSpec = 3;
constexpr uint64_t kPieceType = 3;
constexpr uint64_t kUserDefined = 4;
constexpr uint64_t kModelType = 3;
constexpr uint64_t kUnigramType = 1;
constexpr uint64_t kCharsmap = 2;

struct HiddenFields {
  std::string charsmap;
  std::vector<int> user_defined;
  uint64_t model_type = kUnigramType;
};

HiddenFields read_hidden_fields(std::string_view serialized) {
  HiddenFields result;
  int id = 0;
  WireReader model(serialized);
  while (const auto part = model.next()) {
    WireReader fields(part->bytes);
    while (const auto field = fields.next()) {
      if (part->number == kPieces && field->number == kPieceType && field->value == kUserDefined) {
        result.user_defined.push_back(id);
      }
      if (part->number == kTrainerSpec && field->number == kModelType) {
        result.model_type = field->value;
      }
      if (part->number == kNormalizerSpec && field->number == kCharsmap) {
        result.charsmap = field->bytes;
      }
    }
    if (part->number == kPieces) ++id;
  }
  return result;
}

std::string read_whole_file(const fs::path& path) {
  constexpr uintmax_t kLargest = uintmax_t{256} << 20;
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    fail<IoError>(path.string(), "the SentencePiece model cannot be read: got ",
                  error ? error.message() : "no permission", "; complete the checkpoint");
  }
  if (size > kLargest) {
    fail<ConfigError>(path.string(), "a SentencePiece model must be at most ", kLargest,
                      " bytes: got ", size, "; restore the file from the checkpoint");
  }
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) {
    fail<IoError>(path.string(), "the SentencePiece model cannot be read to its end; ",
                  "check the disk");
  }
  return bytes;
}

}  // namespace

SentencePieceModel read_sentencepiece_model(const fs::path& path) {
  const std::string bytes = read_whole_file(path);
  sentencepiece::SentencePieceProcessor processor;
  const auto status = processor.LoadFromSerializedProto(bytes);
  if (!status.ok()) {
    fail<ConfigError>(path.string(), "the file must be a SentencePiece model: got '",
                      status.ToString(), "'; restore it from the checkpoint");
  }
  HiddenFields hidden = read_hidden_fields(bytes);
  if (hidden.model_type != kUnigramType) {
    fail<UnsupportedError>(path.string(), "the model must be of type 1 (unigram): got ",
                           hidden.model_type, "; other types are not implemented");
  }
  SentencePieceModel model;
  model.unknown_id = processor.unk_id();
  model.charsmap = std::move(hidden.charsmap);
  model.pieces.reserve(static_cast<size_t>(processor.GetPieceSize()));
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    model.pieces.push_back({processor.IdToPiece(id), double{processor.GetScore(id)}});
  }
  for (const int id : hidden.user_defined) {
    model.user_defined.push_back(processor.IdToPiece(id));
  }
  return model;
}

}  // namespace cachedit::text
