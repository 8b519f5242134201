#include "text/staged_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "text/unicode.h"

namespace cachedit::text {
namespace {

constexpr size_t kMaxTextBytes = size_t{4} << 20;
constexpr int64_t kMaxLength = int64_t{1} << 20;

std::vector<AddedToken> raw_tokens(std::vector<AddedToken> tokens) {
  std::erase_if(tokens, [](const AddedToken& token) { return token.normalized; });
  return tokens;
}

std::vector<AddedToken> normalized_tokens(std::vector<AddedToken> tokens,
                                          const TokenAlgorithm& algorithm) {
  std::erase_if(tokens, [](const AddedToken& token) { return !token.normalized; });
  for (AddedToken& token : tokens) token.content = algorithm.normalize(token.content).text;
  return tokens;
}

}  // namespace

StagedTokenizer::StagedTokenizer(std::unique_ptr<TokenAlgorithm> algorithm,
                                 const std::vector<AddedToken>& added, Framing framing)
    : algorithm_(std::move(algorithm)),
      raw_(raw_tokens(added)),
      normalized_(normalized_tokens(added, *algorithm_)),
      framing_(std::move(framing)) {}

void StagedTokenizer::check(std::string_view text, int64_t max_length) const {
  const auto frame = static_cast<int64_t>(framing_.prefix.size() + framing_.suffix.size());
  if (max_length < frame || max_length > kMaxLength) {
    fail<InputError>(framing_.where, "max_length must be from ", frame, " (the special tokens) to ",
                     kMaxLength, ": got ", max_length, "; ask for a length in this range");
  }
  if (text.size() > kMaxTextBytes) {
    fail<InputError>(framing_.where, "text must be at most ", kMaxTextBytes, " bytes: got ",
                     text.size(), "; shorten it");
  }
  require_utf8(framing_.where, text);
}

void StagedTokenizer::tokenize_plain(std::string_view text, size_t begin,
                                     std::vector<TextToken>& tokens) const {
  const MappedText normalized = algorithm_->normalize(text);
  const auto source = [&](size_t position) { return begin + normalized.origin[position]; };
  for (const TextSpan& span : normalized_.split(normalized.text)) {
    if (span.id) {
      tokens.push_back({*span.id, source(span.begin)});
      continue;
    }
    const size_t first = tokens.size();
    algorithm_->tokenize(
        std::string_view(normalized.text).substr(span.begin, span.end - span.begin), tokens);
    for (size_t i = first; i < tokens.size(); ++i) {
      tokens[i].begin = source(span.begin + tokens[i].begin);
    }
  }
}

std::vector<TextToken> StagedTokenizer::tokenize(std::string_view text) const {
  std::vector<TextToken> tokens;
  for (const TextSpan& span : raw_.split(text)) {
    if (span.id) {
      tokens.push_back({*span.id, span.begin});
    } else {
      tokenize_plain(text.substr(span.begin, span.end - span.begin), span.begin, tokens);
    }
  }
  return tokens;
}

Encoding StagedTokenizer::encode(std::string_view text, int64_t max_length) const {
  check(text, max_length);
  const auto length = static_cast<size_t>(max_length);
  const size_t room = length - framing_.prefix.size() - framing_.suffix.size();
  const std::vector<TextToken> tokens = tokenize(text);

  Encoding result;
  result.ids.reserve(length);
  result.ids = framing_.prefix;
  const size_t kept = std::min(room, tokens.size());
  for (size_t i = 0; i < kept; ++i) result.ids.push_back(tokens[i].id);
  result.ids.insert(result.ids.end(), framing_.suffix.begin(), framing_.suffix.end());
  result.used = static_cast<int64_t>(result.ids.size());
  result.ids.resize(length, framing_.padding);
  if (kept < tokens.size()) result.cut = trim(text.substr(tokens[kept].begin));
  return result;
}

}  // namespace cachedit::text
