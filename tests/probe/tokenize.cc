// cachedit_probe tokenize clip|t5 FOLDER: for each line of JSON on standard input, a line with
// the encoding, or with the error that refused it.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "probe.h"
#include "text/tokenizer.h"

namespace cachedit::probe {
namespace {

using nlohmann::json;

std::unique_ptr<text::Tokenizer> load(const Arguments& arguments) {
  if (arguments.size() != 2) {
    fail<InputError>("probe", "tokenize needs clip or t5 and a folder: got ", arguments.size(),
                     " arguments");
  }
  if (arguments[0] == "clip") return text::load_clip_tokenizer(arguments[1]);
  if (arguments[0] == "t5") return text::load_t5_tokenizer(arguments[1]);
  fail<InputError>("probe", "the tokenizer must be clip or t5: got ", arguments[0]);
}

json encode(const text::Tokenizer& tokenizer, const json& request) {
  try {
    const text::Encoding encoding = tokenizer.encode(request.at("text").get<std::string>(),
                                                     request.at("max_length").get<int64_t>());
    return {{"ids", encoding.ids}, {"used", encoding.used}, {"cut", encoding.cut}};
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int run_tokenize(const Arguments& arguments) {
  const auto tokenizer = load(arguments);
  std::string line;
  while (std::getline(std::cin, line)) {
    if (!line.empty()) std::cout << encode(*tokenizer, json::parse(line)).dump() << '\n';
  }
  return 0;
}

}  // namespace cachedit::probe
