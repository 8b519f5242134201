#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace cachedit::text {
namespace {

bool touches_word(std::string_view text, size_t begin, size_t end) {
  size_t before = begin;
  if (begin > 0 && is_word(previous_code_point(text, before))) return true;
  return end < text.size() && is_word(next_code_point(text, end));
}

size_t skip_spaces_back(std::string_view text, size_t end, size_t limit) {
  for (size_t previous = end; previous > limit; end = previous) {
    if (!is_space(previous_code_point(text, previous))) break;
  }
  return std::max(end, limit);
}

size_t skip_spaces(std::string_view text, size_t begin) {
  for (size_t next = begin; next < text.size(); begin = next) {
    if (!is_space(next_code_point(text, next))) break;
  }
  return begin;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  for (const AddedToken& token : tokens_) {
    starts_[static_cast<unsigned char>(token.content.front())] = true;
  }
}

const AddedToken* AddedTokenFinder::match(std::string_view text, size_t position) const {
  if (!starts_[static_cast<unsigned char>(text[position])]) return nullptr;
  const std::string_view rest = text.substr(position);
  const auto found = std::find_if(tokens_.begin(), tokens_.end(), [&](const AddedToken& token) {
    return rest.starts_with(token.content);
  });
  return found == tokens_.end() ? nullptr : &*found;
}

std::vector<TextSpan> AddedTokenFinder::split(std::string_view text) const {
  std::vector<TextSpan> spans;
  size_t done = 0;  // everything before it is in spans
  for (size_t position = 0; position < text.size();) {
    const AddedToken* token = match(text, position);
    if (token == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position;
    size_t end = position + token->content.size();
    position = end;
    if (token->single_word && touches_word(text, begin, end)) continue;
    if (token->lstrip) begin = skip_spaces_back(text, begin, done);
    if (token->rstrip) end = skip_spaces(text, end);
    if (done < begin) spans.push_back({done, begin, std::nullopt});
    spans.push_back({begin, end, token->id});
    done = end;
    position = std::max(position, end);
  }
  if (done < text.size()) spans.push_back({done, text.size(), std::nullopt});
  return spans;
}

}  // namespace cachedit::text
