#include "support/reader_fuzz.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "cachedit/error.h"
#include "io/json_config.h"
#include "io/safetensors.h"
#include "io/weight_store.h"
#include "support/text_mutator.h"

namespace cachedit::test {
namespace {

namespace fs = std::filesystem;

struct WeightSeed {
  const char* header;
  size_t data_bytes;
};

const std::vector<WeightSeed> kWeightSeeds = {
    {R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
     R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
     32},
    {R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})", 16},
    {R"({"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[0,7],)"
     R"("data_offsets":[8,8]},"c":{"dtype":"BOOL","shape":[1,1,5],"data_offsets":[8,13]},)"
     R"("d":{"dtype":"F32","shape":[1],"data_offsets":[13,17]}})",
     17},
    {R"({"w.0":{"dtype":"F8_E4M3","shape":[3,1],"data_offsets":[0,3]},"w.1":{"dtype":"U16",)"
     R"("shape":[1],"data_offsets":[3,5]}}   )",
     5},
    {"{}", 0},
};

const std::vector<const char*> kIndexSeeds = {
    R"({"metadata":{"total_size":40},"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})",
    R"({"weight_map":{"a":"s1.safetensors"}})",
};

const std::vector<const char*> kConfigSeeds = {
    R"({"_class_name":"FluxTransformer2DModel","num_layers":19,"axes_dims_rope":[16,56,56],)"
    R"("guidance_embeds":true,"out_channels":null,"scale":0.3611,"name":"x"})",
    R"({"architectures":["T5EncoderModel"],"layer_norm_epsilon":1e-06,"rope":{"type":"default"},)"
    R"("ratios":[0.5,1],"blocks":["A","B"],"num_layers":2.0})",
};

template <class T>
const T& pick(TextMutator& mutator, const std::vector<T>& items) {
  return items[mutator.below(items.size())];
}

std::string length_bytes(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

std::string valid_weights(const WeightSeed& seed) {
  const std::string header = seed.header;
  return length_bytes(header.size()) + header + std::string(seed.data_bytes, '\x01');
}

/// Mostly a damaged header behind a right length, so that the JSON is reached.
std::string damaged_weights(TextMutator& mutator) {
  const WeightSeed& seed = pick(mutator, kWeightSeeds);
  const std::string header = mutator.mutate(seed.header);
  uint64_t length = header.size();
  if (mutator.below(12) == 0) length = mutator.number();
  std::string file = length_bytes(length) + header;
  size_t data_bytes = seed.data_bytes;
  if (mutator.below(12) == 0) data_bytes = mutator.below(48);
  file.append(data_bytes, '\x01');
  if (mutator.below(20) == 0) file.resize(mutator.below(file.size() + 1));
  return file;
}

/// Well-formed tensors in a row, now and then with a gap, an overlap or a byte too many at the end.
std::string shifted_weights(TextMutator& mutator) {
  const auto shift = [&mutator] { return mutator.below(8) == 0 ? mutator.below(5) : size_t{2}; };
  std::string header;
  size_t end = 0;
  for (size_t i = mutator.below(5); i > 0; --i) {
    const size_t count = mutator.below(6);
    const size_t begin = std::max(end + shift(), size_t{2}) - 2;
    end = begin + count;
    header += c10::str(header.empty() ? "{" : ",", "\"t", mutator.below(40),
                       "\":{\"dtype\":\"U8\",\"shape\":[", count, "],\"data_offsets\":[", begin,
                       ",", end, "]}");
  }
  header += header.empty() ? "{}" : "}";
  const size_t data_bytes = std::max(end + shift(), size_t{2}) - 2;
  return length_bytes(header.size()) + header + std::string(data_bytes, '\x01');
}

[[noreturn]] void broken_promise(const std::string& name) {
  throw std::logic_error("an accepted header breaks its promises at tensor '" + name + "'");
}

/// What the rest of the program relies on once a header is accepted.
void check_promises(const io::SafetensorsHeader& header, uint64_t file_size) {
  if (header.data_offset > file_size) broken_promise("(data offset)");
  uint64_t total = 0;
  for (const auto& [name, entry] : header.tensors) {
    if (entry.begin > entry.end || entry.end > file_size - header.data_offset) broken_promise(name);
    uint64_t bytes = c10::elementSize(entry.dtype);
    for (const int64_t dim : entry.shape) {
      if (dim < 0) broken_promise(name);
      bytes *= static_cast<uint64_t>(dim);
    }
    if (bytes != entry.end - entry.begin) broken_promise(name);
    total += bytes;
  }
  if (total != file_size - header.data_offset) broken_promise("(coverage)");
}

void read_header(const std::string& file, size_t visible) {
  // An exactly sized heap block lets AddressSanitizer see a read past the end.
  const std::vector<char> bytes(file.begin(), file.begin() + static_cast<ptrdiff_t>(visible));
  const auto header =
      io::parse_safetensors_header({bytes.data(), bytes.size()}, file.size(), "fuzz");
  check_promises(header, file.size());
}

void read_config(const std::string& text) {
  io::JsonConfig config(io::parse_json(text, "fuzz"), "fuzz");
  config.require_class({"FluxTransformer2DModel", "T5EncoderModel"});
  config.get<int64_t>("num_layers");
  config.find<std::vector<int64_t>>("axes_dims_rope");
  config.get_or<bool>("guidance_embeds", false);
  config.find<int64_t>("out_channels");
  config.get_or<double>("scale", 1.0);
  config.find<std::string>("name");
  config.find<std::vector<double>>("ratios");
  config.find<std::vector<std::string>>("blocks");
  config.expect<double>("layer_norm_epsilon", 1e-6, "no other epsilon is known");
  if (auto rope = config.find_object("rope")) {
    rope->expect<std::string>("type", "default", "no other rotation is known");
    rope->finish();
  }
  config.ignore({"training"});
  config.finish();
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

/// Opens the folder and reads every byte of every tensor.
void read_store(const fs::path& folder) {
  const io::WeightStore store = io::WeightStore::open(folder);
  uint64_t sum = 0;
  int64_t bytes = 0;
  for (const std::string& name : store.names()) {
    const at::Tensor tensor = store.tensor(name);
    const auto* data = static_cast<const uint8_t*>(tensor.const_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) sum += data[i];
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  if (bytes != store.bytes() || sum != static_cast<uint64_t>(bytes)) broken_promise("(store)");
}

class Fuzzer {
 public:
  Fuzzer(uint64_t seed, const fs::path& scratch)
      : mutator_(seed), single_(scratch / "single"), sharded_(scratch / "sharded") {
    fs::create_directories(single_);
    fs::create_directories(sharded_);
    write_file(sharded_ / "s2.safetensors", valid_weights(kWeightSeeds[0]));
  }

  void run_one() {
    const size_t kind = mutator_.below(64);
    if (kind == 0) return run_single_file();
    if (kind == 1) return run_index();
    if (kind < 20) {
      input_ = mutator_.mutate(pick(mutator_, kConfigSeeds));
      return read_config(input_);
    }
    input_ = kind < 30 ? shifted_weights(mutator_) : damaged_weights(mutator_);
    const bool cut = mutator_.below(16) == 0;
    read_header(input_, cut ? mutator_.below(input_.size() + 1) : input_.size());
  }

  const std::string& input() const { return input_; }

 private:
  void run_single_file() {
    input_ = damaged_weights(mutator_);
    write_file(single_ / "model.safetensors", input_);
    read_store(single_);
  }

  /// A damaged index over good shards, or a good index over a damaged shard.
  void run_index() {
    const bool damage_index = mutator_.below(2) == 0;
    const std::string index = pick(mutator_, kIndexSeeds);
    const std::string shard = valid_weights(kWeightSeeds[1]);
    input_ = damage_index ? mutator_.mutate(index) : damaged_weights(mutator_);
    write_file(sharded_ / "model.safetensors.index.json", damage_index ? input_ : index);
    write_file(sharded_ / "s1.safetensors", damage_index ? shard : input_);
    read_store(sharded_);
  }

  TextMutator mutator_;
  fs::path single_;
  fs::path sharded_;
  std::string input_;
};

void print_input(int64_t run, const std::string& input) {
  std::fprintf(stderr, "input %lld (%zu bytes, as hexadecimal): ", static_cast<long long>(run),
               input.size());
  for (const char c : input) std::fprintf(stderr, "%02x", static_cast<uint8_t>(c));
  std::fprintf(stderr, "\n");
}

}  // namespace

FuzzCounts fuzz_readers(uint64_t seed, int64_t runs, const fs::path& scratch) {
  Fuzzer fuzzer(seed, scratch);
  FuzzCounts counts;
  for (; counts.inputs < runs; ++counts.inputs) {
    try {
      fuzzer.run_one();
      ++counts.accepted;
    } catch (const Error&) {
      ++counts.refused;
    } catch (...) {
      print_input(counts.inputs, fuzzer.input());
      throw;
    }
  }
  return counts;
}

}  // namespace cachedit::test
