#include "text/sentencepiece_model.h"

#include <bit>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "base/fail.h"

namespace cachedit::text {
namespace {

namespace fs = std::filesystem;

/// Thrown inside this file; read_sentencepiece_model names the path.
struct Malformed {
  const char* what;
};

// A reader of protocol buffers' wire format, for the few fields below.
class WireReader {
 public:
  struct Field {
    uint64_t number;
    uint64_t value;          ///< of a varint
    std::string_view bytes;  ///< of a length-delimited or fixed-size field
  };

  explicit WireReader(std::string_view message) : rest_(message) {}

  /// The next field, nothing at the message's end. Throws Malformed.
  std::optional<Field> next() {
    if (rest_.empty()) return std::nullopt;
    const uint64_t tag = varint();
    Field field{.number = tag >> 3, .value = 0, .bytes = {}};
    uint64_t size = 0;
    switch (tag & 7) {
      case 0:
        field.value = varint();
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
        throw Malformed{"a field of unknown kind"};
    }
    if (size > rest_.size()) throw Malformed{"a field that is longer than the rest of the file"};
    field.bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return field;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    throw Malformed{"a number that does not end"};
  }

  std::string_view rest_;
};

// Field numbers and values of sentencepiece_model.proto.
constexpr uint64_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3;       // of the model
constexpr uint64_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;          // of a piece
constexpr uint64_t kNormalType = 1, kUnknownType = 2, kUserDefinedType = 4;  // of piece types
constexpr uint64_t kModelType = 3, kUnigramType = 1;                         // of the trainer spec
constexpr uint64_t kCharsmap = 2;  // of the normalizer spec

float fixed32(std::string_view bytes) {
  if (bytes.size() != 4) throw Malformed{"a score that is no 32-bit number"};
  uint32_t bits = 0;
  for (int i = 3; i >= 0; --i) bits = bits << 8 | static_cast<unsigned char>(bytes[i]);
  return std::bit_cast<float>(bits);
}

struct Parsed {
  SentencePieceModel model;
  std::optional<int64_t> unknown_id;
  uint64_t model_type = kUnigramType;
};

void add_piece(std::string_view message, Parsed& parsed) {
  ScoredPiece piece;
  uint64_t type = kNormalType;
  WireReader fields(message);
  while (const auto field = fields.next()) {
    if (field->number == kPieceText) piece.text = field->bytes;
    if (field->number == kPieceScore) piece.score = double{fixed32(field->bytes)};
    if (field->number == kPieceType) type = field->value;
  }
  if (piece.text.empty()) throw Malformed{"a piece without text"};
  if (type == kUnknownType) {
    if (parsed.unknown_id) throw Malformed{"two unknown pieces"};
    parsed.unknown_id = static_cast<int64_t>(parsed.model.pieces.size());
  }
  if (type == kUserDefinedType) parsed.model.user_defined.push_back(piece.text);
  parsed.model.pieces.push_back(std::move(piece));
}

Parsed parse_model(std::string_view serialized) {
  Parsed parsed;
  WireReader model(serialized);
  while (const auto part = model.next()) {
    if (part->number == kPieces) add_piece(part->bytes, parsed);
    if (part->number != kTrainerSpec && part->number != kNormalizerSpec) continue;
    WireReader fields(part->bytes);
    while (const auto field = fields.next()) {
      if (part->number == kTrainerSpec && field->number == kModelType) {
        parsed.model_type = field->value;
      }
      if (part->number == kNormalizerSpec && field->number == kCharsmap) {
        parsed.model.charsmap = field->bytes;
      }
    }
  }
  if (!parsed.unknown_id) throw Malformed{"no unknown piece"};
  std::set<std::string_view> seen;
  for (const ScoredPiece& piece : parsed.model.pieces) {
    if (!seen.insert(piece.text).second) throw Malformed{"a piece that is there twice"};
  }
  return parsed;
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
  Parsed parsed;
  try {
    parsed = parse_model(bytes);
  } catch (const Malformed& fault) {
    fail<ConfigError>(path.string(), "the file must be a SentencePiece model: got ", fault.what,
                      "; restore it from the checkpoint");
  }
  if (parsed.model_type != kUnigramType) {
    fail<UnsupportedError>(path.string(), "the model must be of type 1 (unigram): got ",
                           parsed.model_type, "; other types are not implemented");
  }
  parsed.model.unknown_id = *parsed.unknown_id;
  return std::move(parsed.model);
}

}  // namespace cachedit::text
