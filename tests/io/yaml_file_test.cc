#include "io/yaml_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::io {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Yaml, ScalarsAreWhatPyYamlMakesOfThem) {
  const json value = parse_yaml(
      "a: 8\nb: -1\nc: 0.08\nd: 1.0e-08\ne: 1e-8\nf: true\ng: Off\nh: ~\ni:\nj: text\n"
      "k: \"8\"\nl: 'no'\nm: 0110\nn: +3\no: .5\np: 3.\n",
      "file");
  const json wanted = {{"a", 8},       {"b", -1},     {"c", 0.08},  {"d", 1e-8},
                       {"e", 1e-8},    {"f", true},   {"g", false}, {"h", nullptr},
                       {"i", nullptr}, {"j", "text"}, {"k", "8"},   {"l", "no"},
                       {"m", "0110"},  {"n", 3},      {"o", 0.5},   {"p", 3.0}};
  EXPECT_EQ(value, wanted);
  EXPECT_TRUE(value["a"].is_number_integer());
  EXPECT_TRUE(value["c"].is_number_float());
  EXPECT_TRUE(std::isnan(parse_yaml("a: .nan", "file")["a"].get<double>()));
}

TEST(Yaml, ListsAndMapsNest) {
  EXPECT_EQ(parse_yaml("a: [1, 0, 1]\nb:\n  - x\n  - {c: 2}\n", "file"),
            (json{{"a", {1, 0, 1}}, {"b", {"x", {{"c", 2}}}}}));
  EXPECT_EQ(parse_yaml("", "file"), json(nullptr));
  EXPECT_EQ(parse_yaml("# only a comment\n", "file"), json(nullptr));
}

TEST(Yaml, FaultsNameFileLineAndColumn) {
  struct Case {
    const char* text;
    const char* fault;
  };
  const Case cases[] = {
      {"a: 1\na: 2\n", "line 2, column 1: the key 'a' stands here twice"},
      {"a: &x 1\nb: 2\n", "anchors are not read"},
      {"a: [1, 2\nb: 3\n", "[file] line"},
      {"a: !!python/object:os.system x\n", "tags are not read"},
      {"a: !tag [1]\n", "tags are not read"},
      {"? [a]\n: 1\n", "a key must be text"},
      {"a: 1\n---\nb: 2\n", "must hold one document"},
      {"a: b: c\n", "[file] line 1"},
  };
  for (const Case& c : cases) {
    test::expect_error<ConfigError>([&] { parse_yaml(c.text, "file"); }, HasSubstr(c.fault));
  }
}

TEST(Yaml, DeepNestingAndBinaryAreRefused) {
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "[";
  EXPECT_THROW(parse_yaml(deep, "file"), ConfigError);
  EXPECT_THROW(parse_yaml(std::string("\x00\x01: 1", 5), "file"), ConfigError);
  EXPECT_THROW(parse_yaml("\xff\xfe: 1", "file"), ConfigError);
}

TEST(Yaml, FilesThatCannotBeReadAreNamed) {
  const test::TempDir folder;
  test::expect_error<IoError>([&] { read_yaml_file(folder / "none.yaml"); },
                              HasSubstr("none.yaml"));
  test::expect_error<IoError>([&] { read_yaml_file(folder.path()); },
                              HasSubstr(folder.path().string()));
  folder.write("large.yaml", std::string((1 << 20) + 1, ' '));
  test::expect_error<ConfigError>([&] { read_yaml_file(folder / "large.yaml"); },
                                  AllOf(HasSubstr("large.yaml"), HasSubstr("1048577")));
}

TEST(Yaml, NumbersAndTextReadBack) {
  for (const double value : {0.0, 0.08, 1e-8, 12345678901234.0, 1.0 / 3, 1e300, -2.5}) {
    const std::string text = yaml_number(value);
    EXPECT_NE(text.find('.'), std::string::npos) << text;
    EXPECT_EQ(parse_yaml("a: " + text, "file")["a"], value) << text;
  }
  for (const char* value : {"", "plain", "a: b # c", "quote\" \\ back", "tab\t line\n", "Grün"}) {
    EXPECT_EQ(parse_yaml("a: " + yaml_text(value), "file")["a"], value);
  }
}

}  // namespace
}  // namespace cachedit::io
