// Parsing and validating the header. Everything here comes from an untrusted file.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/fail.h"
#include "io/json_text.h"
#include "io/safetensors.h"
#include "io/safetensors_dtype.h"

namespace cachedit::io {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;

[[noreturn]] void refuse_file(const std::string& where, const std::string& got) {
  fail<WeightError>(where, "not a safetensors file: got ", got, "; download the file again");
}

/// Names the tensor in every fault of its entry.
struct EntryReader {
  const std::string& where;
  const std::string& name;

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail<WeightError>(where, "tensor '", name, "': ", parts..., "; download the file again");
  }

  const Json& field(const Json& entry, const char* key) const {
    const auto found = entry.find(key);
    if (found == entry.end()) refuse("an entry has dtype, shape and data_offsets: got no ", key);
    return *found;
  }

  uint64_t unsigned_number(const Json& value, const char* what) const {
    // The parser keeps non-negative integers up to 2^64 - 1 as unsigned, and larger ones as floats.
    if (!value.is_number_unsigned()) {
      refuse(what, " must be a non-negative 64-bit integer: got ", show_json(value));
    }
    return value.get<uint64_t>();
  }

  at::ScalarType dtype(const Json& entry) const {
    const Json& value = field(entry, "dtype");
    if (!value.is_string()) refuse("dtype must be a string: got ", show_json(value));
    const auto& text = value.get_ref<const std::string&>();
    const auto dtype = parse_safetensors_dtype(text);
    if (dtype) return *dtype;
    if (is_unsupported_safetensors_dtype(text)) {
      fail<UnsupportedError>(where, "tensor '", name, "': dtype ", text,
                             " is not read by this version, which knows ", safetensors_dtype_list(),
                             "; take a checkpoint in one of these");
    }
    refuse("unknown dtype: got ", show_json(value), ", known are ", safetensors_dtype_list());
  }

  std::vector<int64_t> shape(const Json& entry) const {
    const Json& value = field(entry, "shape");
    if (!value.is_array()) refuse("shape must be a list: got ", show_json(value));
    std::vector<int64_t> shape;
    shape.reserve(value.size());
    for (const Json& item : value) {
      const uint64_t dim = unsigned_number(item, "a dimension");
      if (dim > uint64_t{std::numeric_limits<int64_t>::max()}) {
        refuse("a dimension must fit 63 bits: got ", dim);
      }
      shape.push_back(static_cast<int64_t>(dim));
    }
    return shape;
  }

  std::pair<uint64_t, uint64_t> offsets(const Json& entry) const {
    const Json& value = field(entry, "data_offsets");
    if (!value.is_array() || value.size() != 2) {
      refuse("data_offsets must be a list of two: got ", show_json(value));
    }
    return {unsigned_number(value[0], "an offset"), unsigned_number(value[1], "an offset")};
  }

  /// dtype size times every dimension.
  uint64_t byte_count(const TensorEntry& entry) const {
    int64_t count = static_cast<int64_t>(c10::elementSize(entry.dtype));
    bool is_empty = false;
    for (const int64_t dim : entry.shape) {
      // Strides multiply the other dimensions even where one is zero, so those must not overflow.
      if (__builtin_mul_overflow(count, std::max<int64_t>(dim, 1), &count)) {
        refuse("the size in bytes overflows 64 bits: got shape ", at::IntArrayRef(entry.shape));
      }
      is_empty = is_empty || dim == 0;
    }
    return is_empty ? 0 : static_cast<uint64_t>(count);
  }

  TensorEntry read(const Json& json, uint64_t data_size) const {
    if (!json.is_object()) refuse("an entry must be an object: got ", show_json(json));
    TensorEntry entry;
    entry.dtype = dtype(json);
    entry.shape = shape(json);
    std::tie(entry.begin, entry.end) = offsets(json);
    if (entry.begin > entry.end) {
      refuse("its bytes must begin before they end: got [", entry.begin, ", ", entry.end, "]");
    }
    const uint64_t bytes = byte_count(entry);
    if (entry.end - entry.begin != bytes) {
      refuse("dtype ", safetensors_dtype_name(entry.dtype), " and shape ",
             at::IntArrayRef(entry.shape), " take ", bytes, " bytes: got [", entry.begin, ", ",
             entry.end, "]");
    }
    if (entry.end > data_size) {
      refuse("its bytes must lie in the file: got [", entry.begin, ", ", entry.end,
             "] in a data section of ", data_size, " bytes (is the file truncated?)");
    }
    return entry;
  }
};

uint64_t header_length(std::string_view bytes, uint64_t file_size, const std::string& where) {
  if (file_size < kLengthBytes || bytes.size() < kLengthBytes) {
    refuse_file(where, c10::str("a file of ", file_size, " bytes"));
  }
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  }
  if (length == 0) refuse_file(where, "a header of 0 bytes");
  if (length > kMaxHeaderBytes || length > file_size - kLengthBytes ||
      length > bytes.size() - kLengthBytes) {
    refuse_file(where, c10::str("a header of ", length, " bytes in a file of ", file_size,
                                " (a header has at most 100 MiB)"));
  }
  return length;
}

Json parse_object(std::string_view text, const std::string& where) {
  if (text.front() != '{') refuse_file(where, "a header that is not a JSON object");
  JsonText parsed = parse_json_text(text, DuplicateKeys::kRefuse);
  if (!parsed.fault.empty()) refuse_file(where, "a header that is not good JSON: " + parsed.fault);
  return std::move(parsed.value);
}

std::map<std::string, std::string> read_metadata(const Json& json, const std::string& where) {
  std::map<std::string, std::string> metadata;
  if (json.is_null()) return metadata;
  if (!json.is_object()) refuse_file(where, "__metadata__ = " + show_json(json));
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      refuse_file(where, c10::str("metadata '", key, "' that is not text: ", show_json(value)));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

/// The format wants the tensors to cover the data section, each byte once.
void check_coverage(const SafetensorsHeader& header, uint64_t data_size, const std::string& where) {
  using Item = decltype(header.tensors)::value_type;
  std::vector<const Item*> items;
  items.reserve(header.tensors.size());
  for (const Item& item : header.tensors) items.push_back(&item);
  std::sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t covered = 0;
  const Item* previous = nullptr;
  for (const Item* item : items) {
    const EntryReader reader{where, item->first};
    if (item->second.begin < covered) {
      reader.refuse("its bytes must be its own: got an overlap with tensor '", previous->first,
                    "'");
    }
    if (item->second.begin > covered) {
      reader.refuse("the data must have no holes: got ", item->second.begin - covered,
                    " bytes before it that belong to no tensor");
    }
    covered = item->second.end;
    previous = item;
  }
  if (covered != data_size) {
    fail<WeightError>(where, "the data must end with the last tensor: got ", data_size - covered,
                      " bytes after it",
                      previous == nullptr ? "" : c10::str(" ('", previous->first, "')"),
                      "; download the file again");
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view bytes, uint64_t file_size,
                                           const std::string& where) {
  const uint64_t length = header_length(bytes, file_size, where);
  const Json json = parse_object(bytes.substr(kLengthBytes, length), where);
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  const uint64_t data_size = file_size - header.data_offset;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      header.metadata = read_metadata(value, where);
    } else {
      header.tensors.emplace(name, EntryReader{where, name}.read(value, data_size));
    }
  }
  check_coverage(header, data_size, where);
  return header;
}

}  // namespace cachedit::io
