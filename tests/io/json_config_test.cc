#include "io/json_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::io {
namespace {

using test::expect_error;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

JsonConfig config(const std::string& text) {
  return JsonConfig(parse_json(text, "config.json"), "config.json");
}

TEST(JsonConfig, ReadsEveryType) {
  JsonConfig c = config(R"({"b":true,"i":-3,"d":0.5,"s":"text","li":[1,2],"ld":[1,0.5],)"
                        R"("ls":["x","y"],"none":[]})");
  EXPECT_TRUE(c.get<bool>("b"));
  EXPECT_EQ(c.get<int64_t>("i"), -3);
  EXPECT_EQ(c.get<double>("d"), 0.5);
  EXPECT_EQ(c.get<std::string>("s"), "text");
  EXPECT_THAT(c.get<std::vector<int64_t>>("li"), ElementsAre(1, 2));
  EXPECT_THAT(c.get<std::vector<double>>("ld"), ElementsAre(1.0, 0.5));
  EXPECT_THAT(c.get<std::vector<std::string>>("ls"), ElementsAre("x", "y"));
  EXPECT_TRUE(c.get<std::vector<std::string>>("none").empty());
  c.finish();
}

TEST(JsonConfig, IntegersAreNumbersAndWholeFloatsAreIntegers) {
  JsonConfig c = config(R"({"i":2,"w":3.0,"e":1e3,"max":9223372036854775807})");
  EXPECT_EQ(c.get<double>("i"), 2.0);
  EXPECT_EQ(c.get<int64_t>("w"), 3);
  EXPECT_EQ(c.get<int64_t>("e"), 1000);
  EXPECT_EQ(c.get<int64_t>("max"), INT64_MAX);
}

TEST(JsonConfig, NothingElseConverts) {
  JsonConfig c = config(R"({"text":"1","flag":true,"half":1.5,"zero":0,"mixed":[1,"a"],)"
                        R"("huge":9223372036854775808,"float":1e300,"list":[1.5]})");
  for (const char* key : {"text", "flag", "half", "mixed", "huge", "float"}) {
    expect_error<ConfigError>(
        [&] { c.get<int64_t>(key); },
        AllOf(HasSubstr("config.json"), HasSubstr(key), HasSubstr("must be an integer")));
  }
  expect_error<ConfigError>([&] { c.get<bool>("zero"); }, HasSubstr("true or false: got 0"));
  expect_error<ConfigError>([&] { c.get<double>("text"); }, HasSubstr("a number: got \"1\""));
  expect_error<ConfigError>([&] { c.get<double>("flag"); }, HasSubstr("a number: got true"));
  expect_error<ConfigError>([&] { c.get<std::string>("zero"); }, HasSubstr("a string"));
  expect_error<ConfigError>([&] { c.get<std::vector<int64_t>>("mixed"); }, HasSubstr("[1,\"a\"]"));
  expect_error<ConfigError>([&] { c.get<std::vector<int64_t>>("list"); }, HasSubstr("[1.5]"));
  expect_error<ConfigError>([&] { c.get<std::vector<double>>("zero"); }, HasSubstr("a list"));
}

TEST(JsonConfig, MissingAndNullKeys) {
  JsonConfig c = config(R"({"null":null,"wrong":"x"})");
  expect_error<ConfigError>([&] { c.get<int64_t>("absent"); },
                            AllOf(HasSubstr("'absent'"), HasSubstr("missing")));
  expect_error<ConfigError>([&] { c.get<int64_t>("null"); }, HasSubstr("got null"));
  EXPECT_EQ(c.get_or<int64_t>("absent", 7), 7);
  EXPECT_EQ(c.get_or<int64_t>("null", 7), 7);
  EXPECT_EQ(c.find<double>("absent"), std::nullopt);
  EXPECT_EQ(c.find<double>("null"), std::nullopt);
  // A wrong type is a fault, never a reason for the fallback.
  expect_error<ConfigError>([&] { c.get_or<int64_t>("wrong", 7); }, HasSubstr("'wrong'"));
  EXPECT_TRUE(c.contains("null"));
  EXPECT_FALSE(c.contains("absent"));
}

TEST(JsonConfig, FinishListsEveryUnreadKey) {
  JsonConfig c = config(R"({"read":1,"ignored":2,"first":3,"second":{"a":1},"zero":0})");
  c.get<int64_t>("read");
  c.ignore({"ignored", "not there"});
  expect_error<ConfigError>(
      [&] { c.finish(); },
      AllOf(HasSubstr("'first' = 3"), HasSubstr("'second' = {\"a\":1}"), HasSubstr("'zero' = 0"),
            Not(HasSubstr("'read'")), Not(HasSubstr("'ignored'"))));
}

TEST(JsonConfig, FinishPassesKeysThatSayNothing) {
  const JsonConfig c =
      config(R"({"_diffusers_version":"0.42.1","a":null,"b":false,"c":"","d":[]})");
  EXPECT_NO_THROW(c.finish());
}

TEST(JsonConfig, ExpectedValues) {
  JsonConfig c = config(R"({"act":"gelu","null":null,"n":2,"flag":true})");
  c.expect<std::string>("act", "gelu", "unused");
  c.expect<std::string>("null", "gelu", "unused");
  c.expect<std::string>("absent", "gelu", "unused");
  expect_error<ConfigError>(
      [&] { c.expect<int64_t>("n", 1, "patches of one token only"); },
      AllOf(HasSubstr("'n' must be 1: got 2"), HasSubstr("patches of one token only")));
  expect_error<ConfigError>([&] { c.expect<int64_t>("act", 1, "why"); }, HasSubstr("\"gelu\""));
  expect_error<ConfigError>([&] { c.expect("flag", false, "why"); }, HasSubstr("must be false"));
  c.finish();
}

TEST(JsonConfig, ObjectsAreConfigsOfTheirOwn) {
  JsonConfig c = config(R"({"rope":{"type":"x","left":1},"null":null,"n":1})");
  auto rope = c.find_object("rope");
  ASSERT_TRUE(rope.has_value());
  EXPECT_EQ(rope->get<std::string>("type"), "x");
  expect_error<ConfigError>([&] { rope->finish(); },
                            AllOf(HasSubstr("config.json: rope"), HasSubstr("'left' = 1")));
  EXPECT_FALSE(c.find_object("null").has_value());
  EXPECT_FALSE(c.find_object("absent").has_value());
  expect_error<ConfigError>([&] { c.find_object("n"); }, HasSubstr("must be an object"));
}

TEST(JsonConfig, ClassNames) {
  EXPECT_EQ(config(R"({"_class_name":"A","architectures":["B"]})").class_name(), "A");
  EXPECT_EQ(config(R"({"architectures":["B"]})").class_name(), "B");
  EXPECT_EQ(config(R"({"architectures":["B","C"]})").class_name(), std::nullopt);
  EXPECT_EQ(config("{}").class_name(), std::nullopt);
  expect_error<ConfigError>([] { config(R"({"_class_name":1})").class_name(); },
                            HasSubstr("_class_name"));
  config(R"({"_class_name":"A"})").require_class({"B", "A"});
  expect_error<ConfigError>(
      [] {
        config(R"({"_class_name":"UNet"})").require_class({"A", "B"});
      },
      AllOf(HasSubstr("A or B"), HasSubstr("got UNet")));
  expect_error<ConfigError>([] { config("{}").require_class({"A"}); }, HasSubstr("_class_name"));
}

TEST(JsonConfig, TheTopMustBeAnObject) {
  for (const char* text : {"[]", "1", "null", "\"x\""}) {
    expect_error<ConfigError>([text] { config(text); }, HasSubstr("a JSON object: got"));
  }
}

TEST(JsonFiles, FaultsNameTheFileAndThePosition) {
  const TempDir folder;
  const auto path = folder.write("config.json", "{\n \"a\": ,\n}");
  expect_error<ConfigError>(
      [&] { read_json_file(path); },
      AllOf(HasSubstr(path.string()), HasSubstr("line 2"), Not(HasSubstr("json.exception"))));
  for (const char* text :
       {"", "{", "{} {}", "{\"a\":1,}", "\xff", "{\"a\":NaN}", "{\"a\":1e999}", "// no\n{}"}) {
    folder.write("config.json", text);
    EXPECT_THROW(read_json_file(path), ConfigError) << text;
  }
  folder.write("config.json", std::string("{}\0x", 4));
  expect_error<ConfigError>([&] { read_json_file(path); }, HasSubstr("zero byte at offset 2"));
}

TEST(JsonFiles, NestingIsBounded) {
  const auto nested = [](size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(100), "x"));
  expect_error<ConfigError>([&] { parse_json(nested(101), "x"); }, HasSubstr("100 levels"));
  expect_error<ConfigError>([&] { parse_json(std::string(1000000, '['), "x"); },
                            HasSubstr("100 levels"));
}

TEST(JsonFiles, UnreadableFilesAreRefused) {
  const TempDir folder;
  expect_error<IoError>([&] { read_json_file(folder / "none.json"); },
                        AllOf(HasSubstr("none.json"), HasSubstr("No such file")));
  expect_error<IoError>([&] { read_json_file(folder.path()); }, HasSubstr("not a file"));
  const auto path = folder.write("big.json", "{}");
  std::filesystem::resize_file(path, (uintmax_t{64} << 20) + 1);
  expect_error<ConfigError>([&] { read_json_file(path); }, HasSubstr("64 MiB"));
}

TEST(JsonFiles, LaterDuplicatesWinAsInPython) {
  EXPECT_EQ(config(R"({"a":1,"a":2})").get<int64_t>("a"), 2);
}

TEST(JsonFiles, LongValuesAreShortenedInErrors) {
  JsonConfig c = config("{\"a\":\"" + std::string(5000, 'x') + "\"}");
  try {
    c.get<int64_t>("a");
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_LT(std::string(error.what()).size(), 300u);
  }
}

}  // namespace
}  // namespace cachedit::io
