// T5: text is folded by the model's character map and cut at white space; each word gets a leading
// mark for its space and is split by the unigram model.
//
// The SentencePiece library segments text other than transformers does: it sums scores in single
// precision (which splits ties differently), joins text around special tokens, and does not find
// special tokens that only appear through normalisation. Hence src/text/unigram.
#include <set>
#include <utility>

#include "base/fail.h"
#include "text/charsmap.h"
#include "text/sentencepiece_model.h"
#include "text/staged_tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/unicode.h"
#include "text/unigram.h"

namespace cachedit::text {
namespace {

namespace fs = std::filesystem;

constexpr char32_t kSpaceMark = 0x2581;
constexpr std::string_view kSpaceMarkBytes = "\xE2\x96\x81";
constexpr int64_t kDefaultExtraIds = 100;

class T5Algorithm : public TokenAlgorithm {
 public:
  T5Algorithm(Charsmap charsmap, Unigram unigram)
      : charsmap_(std::move(charsmap)), unigram_(std::move(unigram)) {}

  MappedText normalize(std::string_view text) const override { return charsmap_.normalize(text); }

  void tokenize(std::string_view text, std::vector<TextToken>& tokens) const override {
    size_t begin = 0;  // of a word, or of a part that starts with a mark of its own
    for (size_t position = 0; position < text.size();) {
      const size_t start = position;
      const char32_t code_point = next_code_point(text, position);
      if (code_point != kSpaceMark && !is_space(code_point)) continue;
      add_word(text, begin, start, tokens);
      begin = code_point == kSpaceMark ? start : position;
    }
    add_word(text, begin, text.size(), tokens);
  }

 private:
  void add_word(std::string_view text, size_t begin, size_t end,
                std::vector<TextToken>& tokens) const {
    if (begin == end) return;
    std::string word(text.substr(begin, end - begin));
    const bool marked = word.starts_with(kSpaceMarkBytes);
    if (!marked) word.insert(0, kSpaceMarkBytes);
    const size_t added = marked ? 0 : kSpaceMarkBytes.size();
    std::vector<UnigramPiece> pieces;
    unigram_.encode(word, pieces);
    for (const UnigramPiece& piece : pieces) {
      tokens.push_back({piece.id, begin + (piece.begin > added ? piece.begin - added : 0)});
    }
  }

  Charsmap charsmap_;
  Unigram unigram_;
};

// The sentinels follow the model's pieces, the last one first.
void append_extra_ids(std::vector<ScoredPiece>& pieces, int64_t count) {
  std::set<std::string> known;
  for (const ScoredPiece& piece : pieces) {
    if (piece.text.starts_with("<extra_id_")) known.insert(piece.text);
  }
  for (int64_t i = count - 1; i >= 0; --i) {
    std::string token = c10::str("<extra_id_", i, ">");
    if (!known.contains(token)) pieces.push_back({std::move(token), 0});
  }
}

SentencePieceModel read_model(const fs::path& folder) {
  const fs::path path = folder / "spiece.model";
  if (!fs::exists(path) && fs::exists(folder / "tokenizer.json")) {
    fail<UnsupportedError>(path.string(), "the T5 tokenizer is read from spiece.model: got only ",
                           "tokenizer.json; add spiece.model from the original checkpoint");
  }
  return read_sentencepiece_model(path);
}

}  // namespace

std::unique_ptr<Tokenizer> load_t5_tokenizer(const fs::path& folder) {
  const TokenizerDefaults defaults{
      .class_name = "T5Tokenizer",
      .named = {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}}};
  SentencePieceModel model = read_model(folder);
  TokenizerConfig config = read_tokenizer_config(folder, defaults);

  const int64_t extra_ids = config.extra_ids.value_or(kDefaultExtraIds);
  append_extra_ids(model.pieces, extra_ids);
  std::set<std::string> listed;
  for (const AddedToken& token : config.added) listed.insert(token.content);
  const auto also_add = [&](const std::string& content) {
    if (listed.insert(content).second) config.added.push_back({.content = content});
  };
  for (int64_t i = 0; i < extra_ids; ++i) also_add(c10::str("<extra_id_", i, ">"));
  for (const std::string& piece : model.user_defined) also_add(piece);

  Unigram unigram(std::move(model.pieces), model.unknown_id);
  const auto find_id = [&](const std::string& token) -> std::optional<int64_t> {
    const int64_t id = unigram.find(token);
    return id < 0 ? std::nullopt : std::optional(id);
  };
  resolve_ids(config, defaults, unigram.size(), find_id);
  Framing framing{.where = "T5 tokenizer",
                  .prefix = {},
                  .suffix = {unigram.find(config.named.at("eos_token"))},
                  .padding = unigram.find(config.named.at("pad_token")),
                  .model_max_length = config.model_max_length};
  return std::make_unique<StagedTokenizer>(
      std::make_unique<T5Algorithm>(Charsmap((folder / "spiece.model").string(), model.charsmap),
                                    std::move(unigram)),
      config.added, std::move(framing));
}

}  // namespace cachedit::text
