// The goldens of tests/goldens/make_tokenizers.py, and folders that hold a tokenizer under test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temp_dir.h"
#include "text/tokenizer.h"

namespace cachedit::text {

inline nlohmann::json read_golden(const std::string& name) {
  return nlohmann::json::parse(test::read_bytes(test::golden("tokenizers/" + name)));
}

/// Expects `tokenizer` to give every case's ids; returns how many cases there were.
inline size_t expect_cases(const Tokenizer& tokenizer, const nlohmann::json& golden) {
  for (const auto& one : golden.at("cases")) {
    const auto text = one.at("text").get<std::string>();
    const Encoding encoding = tokenizer.encode(text, one.at("max_length").get<int64_t>());
    EXPECT_EQ(encoding.ids, one.at("ids").get<std::vector<int64_t>>()) << one.at("text").dump();
    EXPECT_EQ(encoding.used, one.at("used").get<int64_t>()) << one.at("text").dump();
  }
  return golden.at("cases").size();
}

/// A folder with the named files of `source` and the golden's settings beside them.
class TokenizerFolder {
 public:
  TokenizerFolder(const std::filesystem::path& source, std::initializer_list<const char*> names) {
    for (const char* name : names) std::filesystem::copy_file(source / name, folder_ / name);
  }
  void write(const std::string& name, const nlohmann::json& content) const {
    folder_.write(name, content.dump());
  }
  void write_files(const nlohmann::json& golden) const {
    for (const auto& [name, content] : golden.at("files").items()) write(name, content);
  }
  const test::TempDir& folder() const { return folder_; }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  test::TempDir folder_;
};

}  // namespace cachedit::text
