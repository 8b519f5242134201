#include "text/tokenizer_config.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/fail.h"
#include "io/json_config.h"

namespace cachedit::text {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

// The object in a file of the folder; empty where there is no such file.
json read_optional(const fs::path& path) {
  if (!fs::exists(path)) return json::object();
  json value = io::read_json_file(path);
  if (!value.is_object()) {
    fail<ConfigError>(path.string(), "the file must hold an object: got ", value.type_name(),
                      "; restore it from the checkpoint");
  }
  return value;
}

[[noreturn]] void refuse(const std::string& where, std::string_view key, const json& value,
                         std::string_view expected) {
  fail<ConfigError>(where, key, " must be ", expected, ": got ", value.dump(),
                    "; correct the file or restore it from the checkpoint");
}

bool read_flag(const json& token, const char* key, bool fallback, const std::string& where) {
  const auto found = token.find(key);
  if (found == token.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) refuse(where, key, *found, "true or false");
  return found->get<bool>();
}

// A token is written as its text or as an object with flags.
AddedToken read_token(const json& value, std::string_view key, const std::string& where) {
  if (value.is_string()) return {.content = value.get<std::string>()};
  if (!value.is_object() || !value.contains("content") || !value["content"].is_string()) {
    refuse(where, key, value, "a string, or an object with a string as its content");
  }
  const bool special = read_flag(value, "special", true, where);
  return {.content = value["content"].get<std::string>(),
          .single_word = read_flag(value, "single_word", false, where),
          .lstrip = read_flag(value, "lstrip", false, where),
          .rstrip = read_flag(value, "rstrip", false, where),
          .normalized = read_flag(value, "normalized", !special, where)};
}

using TokensById = std::map<int64_t, AddedToken>;

// tokenizer_config.json's table from id to token.
TokensById read_added_tokens_decoder(const json& decoder, const std::string& where) {
  if (!decoder.is_object()) refuse(where, "added_tokens_decoder", decoder, "an object");
  TokensById tokens;
  for (const auto& [key, value] : decoder.items()) {
    const bool digits =
        !key.empty() && key.size() < 10 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) refuse(where, "a key of added_tokens_decoder", json(key), "a token id");
    AddedToken token = read_token(value, "added_tokens_decoder", where);
    token.id = std::stoll(key);
    tokens.insert_or_assign(token.id, std::move(token));
  }
  return tokens;
}

// The files that older and newer checkpoints use where there is no such table.
TokensById read_added_tokens_files(const fs::path& folder, const std::vector<AddedToken>& special) {
  TokensById tokens;
  const fs::path by_text = folder / "added_tokens.json";
  const json ids = read_optional(by_text);
  for (const auto& [content, id] : ids.items()) {
    if (!id.is_number_integer()) refuse(by_text.string(), content, id, "a token id");
    const bool is_special =
        std::ranges::find(special, content, &AddedToken::content) != special.end();
    tokens[id.get<int64_t>()] = {
        .content = content, .id = id.get<int64_t>(), .normalized = !is_special};
  }
  const fs::path whole = folder / "tokenizer.json";
  const json tokenizer = read_optional(whole);
  const auto added = tokenizer.find("added_tokens");
  if (added == tokenizer.end()) return tokens;
  if (!added->is_array()) refuse(whole.string(), "added_tokens", *added, "an array");
  for (const json& value : *added) {
    AddedToken token = read_token(value, "added_tokens", whole.string());
    const auto id = value.find("id");
    if (id == value.end() || !id->is_number_integer()) {
      refuse(whole.string(), "added_tokens", value, "objects with an integer id");
    }
    token.id = id->get<int64_t>();
    tokens.insert_or_assign(token.id, std::move(token));
  }
  return tokens;
}

// The special tokens that have a role; their texts go to `result.named`.
std::vector<AddedToken> read_named_tokens(const json& config, const TokenizerDefaults& defaults,
                                          TokenizerConfig& result) {
  std::vector<AddedToken> tokens;
  for (const char* key : kNamedTokens) {
    const auto found = config.find(key);
    if (found != config.end() && !found->is_null()) {
      tokens.push_back(read_token(*found, key, result.where));
      result.named[key] = tokens.back().content;
    } else if (const auto standard = defaults.named.find(key); standard != defaults.named.end()) {
      tokens.push_back({.content = standard->second});
    }
  }
  return tokens;
}

// "additional_special_tokens" is the older name of "extra_special_tokens".
std::vector<AddedToken> read_extra_tokens(const json& config, const std::string& where) {
  std::vector<AddedToken> tokens;
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null() || found->empty()) continue;
    if (!found->is_array() && !found->is_object()) refuse(where, key, *found, "a list");
    for (const json& value : *found) tokens.push_back(read_token(value, key, where));
    break;
  }
  return tokens;
}

// A token that has an id keeps its flags; of the others the last mention of a text counts.
std::vector<AddedToken> merge_tokens(const TokensById& by_id,
                                     const std::vector<AddedToken>& special) {
  std::vector<AddedToken> tokens;
  for (const auto& entry : by_id) tokens.push_back(entry.second);
  for (const AddedToken& token : special) {
    const auto known = std::ranges::find(tokens, token.content, &AddedToken::content);
    if (known == tokens.end()) {
      tokens.push_back(token);
    } else if (known->id < 0) {
      *known = token;
    }
  }
  return tokens;
}

int64_t read_model_max_length(const json& config, const std::string& where) {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  const auto found = config.find("model_max_length");
  if (found == config.end() || found->is_null()) return kUnlimited;
  if (!found->is_number() || !(found->get<double>() >= 1)) {
    refuse(where, "model_max_length", *found, "a positive number");
  }
  // "No limit" is written as 1e30, with or without its digits.
  if (found->get<double>() >= static_cast<double>(kUnlimited)) return kUnlimited;
  return found->get<int64_t>();
}

void refuse_unsupported(const json& config, const TokenizerDefaults& defaults,
                        const std::string& where) {
  if (const auto found = config.find("tokenizer_class");
      found != config.end() && !found->is_null()) {
    const std::string name = found->is_string() ? found->get<std::string>() : found->dump();
    const std::string own(defaults.class_name);
    // The last two name no algorithm: they say only which library wrote the file.
    if (name != own && name != own + "Fast" && name != "TokenizersBackend" &&
        name != "PreTrainedTokenizerFast") {
      fail<ConfigError>(where, "tokenizer_class must be ", own, ": got ", name,
                        "; use the tokenizer folders of one checkpoint");
    }
  }
  const auto expect = [&](const char* key, const json& value) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null() || *found == value) return;
    fail<UnsupportedError>(where, key, " must be ", value.dump(), ": got ", found->dump(),
                           "; other values are not implemented");
  };
  expect("padding_side", "right");
  expect("truncation_side", "right");
  expect("split_special_tokens", false);
  expect("do_lower_case", true);
}

}  // namespace

TokenizerConfig read_tokenizer_config(const fs::path& folder, const TokenizerDefaults& defaults) {
  const fs::path path = folder / "tokenizer_config.json";
  json config = read_optional(path);
  TokenizerConfig result{.where = path.string(), .named = defaults.named};
  refuse_unsupported(config, defaults, result.where);

  const bool has_decoder = config.contains("added_tokens_decoder");
  if (!has_decoder) config.update(read_optional(folder / "special_tokens_map.json"));

  std::vector<AddedToken> special = read_named_tokens(config, defaults, result);
  std::ranges::move(read_extra_tokens(config, result.where), std::back_inserter(special));
  const TokensById by_id =
      has_decoder ? read_added_tokens_decoder(config["added_tokens_decoder"], result.where)
                  : read_added_tokens_files(folder, special);
  result.added = merge_tokens(by_id, special);
  result.model_max_length = read_model_max_length(config, result.where);
  if (const auto found = config.find("extra_ids"); found != config.end() && !found->is_null()) {
    constexpr int64_t kMost = 100'000;
    if (!found->is_number_integer() || *found < 0 || *found > kMost) {
      refuse(result.where, "extra_ids", *found, "a count of at most 100000");
    }
    result.extra_ids = found->get<int64_t>();
  }
  return result;
}

void resolve_ids(TokenizerConfig& config, const TokenizerDefaults& defaults,
                 int64_t vocabulary_size,
                 const std::function<std::optional<int64_t>(const std::string&)>& find_id) {
  for (const auto& entry : defaults.named) {
    const std::string& token = config.named.at(entry.first);
    if (!find_id(token)) {
      fail<ConfigError>(config.where, entry.first, " must be in the vocabulary: got '", token,
                        "'; use the settings and the vocabulary of one checkpoint");
    }
  }
  int64_t next = vocabulary_size;
  for (AddedToken& token : config.added) {
    const std::optional<int64_t> known = find_id(token.content);
    const int64_t id = known ? *known : next++;
    if (token.id >= 0 && token.id != id) {
      fail<ConfigError>(config.where, "the id of the added token '", token.content, "' must be ",
                        id, ", as the vocabulary has it: got ", token.id,
                        "; use the settings and the vocabulary of one checkpoint");
    }
    token.id = id;
  }
}

}  // namespace cachedit::text
