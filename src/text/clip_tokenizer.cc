// CLIP: text is composed (NFC), lower-cased, its white space folded, and cut into letters, single
// digits and the rest; each piece is encoded by byte-level BPE with an end-of-word mark.
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/fail.h"
#include "io/json_config.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/staged_tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/unicode.h"

namespace cachedit::text {
namespace {

namespace fs = std::filesystem;

// Suffixes of contractions, in the order in which they are tried.
constexpr std::string_view kContractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
// Written out in CLIP's pattern, these part from punctuation around them.
constexpr std::string_view kMarkers[] = {"<|startoftext|>", "<|endoftext|>"};

size_t end_of_run(std::string_view text, size_t begin, CharClass kind) {
  for (size_t next = begin; next < text.size(); begin = next) {
    if (char_class(next_code_point(text, next)) != kind) break;
  }
  return begin;
}

class ClipAlgorithm : public TokenAlgorithm {
 public:
  explicit ClipAlgorithm(Bpe bpe) : bpe_(std::move(bpe)) {}

  MappedText normalize(std::string_view text) const override {
    const MappedText composed = nfc_(text);
    MappedText result;
    result.text.reserve(composed.text.size());
    result.origin.reserve(composed.text.size());
    bool after_space = false;
    for (size_t position = 0; position < composed.text.size();) {
      const size_t origin = composed.origin[position];
      const char32_t code_point = next_code_point(composed.text, position);
      const bool space = is_space(code_point);
      if (!space) {
        append_lower(result.text, code_point);
      } else if (!after_space) {
        result.text += ' ';
      }
      result.mark(origin);
      after_space = space;
    }
    return result;
  }

  void tokenize(std::string_view text, std::vector<TextToken>& tokens) const override {
    for (size_t begin = 0; begin < text.size();) {
      size_t end = begin;
      const CharClass kind = char_class(next_code_point(text, end));
      if (kind == CharClass::kSpace) {
        begin = end;
        continue;
      }
      if (const size_t marker = marker_length(text.substr(begin))) {
        // The byte-level stage splits what the first one kept together.
        add_word(text, begin, begin + 2, tokens);
        add_word(text, begin + 2, begin + marker - 2, tokens);
        begin += marker - 2;
        end = begin + 2;
      } else if (const size_t contraction = contraction_length(text.substr(begin))) {
        end = begin + contraction;
      } else if (kind != CharClass::kNumber) {
        end = end_of_run(text, end, kind);
      }
      add_word(text, begin, end, tokens);
      begin = end;
    }
  }

 private:
  static size_t marker_length(std::string_view text) {
    for (const std::string_view marker : kMarkers) {
      if (text.starts_with(marker)) return marker.size();
    }
    return 0;
  }

  static size_t contraction_length(std::string_view text) {
    for (const std::string_view contraction : kContractions) {
      if (text.starts_with(contraction)) return contraction.size();
    }
    return 0;
  }

  void add_word(std::string_view text, size_t begin, size_t end,
                std::vector<TextToken>& tokens) const {
    std::vector<BpePiece> pieces;
    bpe_.encode(text.substr(begin, end - begin), pieces);
    for (const BpePiece& piece : pieces) tokens.push_back({piece.id, begin + piece.begin});
  }

  Nfc nfc_;
  Bpe bpe_;
};

Vocabulary read_vocabulary(const fs::path& path) {
  const nlohmann::json json = io::read_json_file(path);
  const auto refuse = [&](const auto&... parts) {
    fail<ConfigError>(path.string(), parts..., "; restore the file from the checkpoint");
  };
  if (!json.is_object() || json.empty()) {
    refuse("the vocabulary must be an object from tokens to ids: got ",
           json.is_object() ? "an empty one" : json.type_name());
  }
  Vocabulary vocabulary;
  vocabulary.reserve(json.size());
  std::unordered_set<int64_t> ids;
  for (const auto& [token, id] : json.items()) {
    constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
    if (!id.is_number_integer() || id < 0 || id > kLargest) {
      refuse("the id of '", token, "' must be an integer from 0: got ", id.dump());
    }
    if (!ids.insert(id.get<int64_t>()).second) {
      refuse("each token must have an id of its own: got ", id.dump(),
             " twice, the second time for '", token, "'");
    }
    vocabulary.emplace(token, id.get<int64_t>());
  }
  return vocabulary;
}

Merges read_merges(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fail<IoError>(path.string(), "the merges file cannot be read: got no such file; ",
                  "complete the checkpoint");
  }
  Merges merges;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string::npos) {
      fail<ConfigError>(path.string(), "line ", number,
                        " must hold two tokens with one space between: got '", line.substr(0, 80),
                        "'; restore the file from the checkpoint");
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  if (file.bad()) {
    fail<IoError>(path.string(), "the merges file cannot be read to its end; check the disk");
  }
  return merges;
}

}  // namespace

std::unique_ptr<Tokenizer> load_clip_tokenizer(const fs::path& folder) {
  const TokenizerDefaults defaults{.class_name = "CLIPTokenizer",
                                   .named = {{"bos_token", "<|startoftext|>"},
                                             {"eos_token", "<|endoftext|>"},
                                             {"unk_token", "<|endoftext|>"},
                                             {"pad_token", "<|endoftext|>"}}};
  const Vocabulary vocabulary = read_vocabulary(folder / "vocab.json");
  const fs::path merges_path = folder / "merges.txt";
  const Merges merges = read_merges(merges_path);
  TokenizerConfig config = read_tokenizer_config(folder, defaults);
  resolve_ids(config, defaults, static_cast<int64_t>(vocabulary.size()),
              [&](const std::string& token) -> std::optional<int64_t> {
                const auto found = vocabulary.find(token);
                if (found == vocabulary.end()) return std::nullopt;
                return found->second;
              });
  const auto special = [&](const char* name) { return vocabulary.at(config.named.at(name)); };
  Bpe bpe(merges_path.string(), vocabulary, merges,
          {.end_of_word = "</w>", .unknown = config.named.at("unk_token")});
  return std::make_unique<StagedTokenizer>(std::make_unique<ClipAlgorithm>(std::move(bpe)),
                                           config.added,
                                           Framing{.where = "CLIP tokenizer",
                                                   .prefix = {special("bos_token")},
                                                   .suffix = {special("eos_token")},
                                                   .padding = special("pad_token"),
                                                   .model_max_length = config.model_max_length});
}

}  // namespace cachedit::text
