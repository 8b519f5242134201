#include "base/log.h"

#include <gmock/gmock.h>

#include <functional>

#include "cachedit/error.h"

namespace cachedit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log_level(LogLevel::kWarning); }

  static std::string stderr_of(const std::function<void()>& action) {
    ::testing::internal::CaptureStderr();
    action();
    return ::testing::internal::GetCapturedStderr();
  }
  static std::string stderr_of_every_level() {
    return stderr_of([] {
      log_debug("[here] one");
      log_info("[here] two");
      log_warning("[here] three");
    });
  }
};

TEST_F(Log, WritesALineToStderrWithTheLevel) {
  EXPECT_EQ(stderr_of([] { log_warning("[vae] got {} and %s"); }),
            "cachedit warning: [vae] got {} and %s\n");
}

TEST_F(Log, LeavesStdoutToResults) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  log_warning("[here] three");
  ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), IsEmpty());
}

TEST_F(Log, DropsWhatIsBelowTheLevel) {
  set_log_level(LogLevel::kWarning);
  EXPECT_THAT(stderr_of_every_level(), AllOf(HasSubstr("three"), Not(HasSubstr("two"))));
  set_log_level(LogLevel::kInfo);
  EXPECT_THAT(stderr_of_every_level(), AllOf(HasSubstr("two"), Not(HasSubstr("one"))));
  set_log_level(LogLevel::kDebug);
  EXPECT_THAT(stderr_of_every_level(), HasSubstr("one"));
  set_log_level(LogLevel::kError);
  EXPECT_THAT(stderr_of_every_level(), IsEmpty());
  set_log_level(LogLevel::kOff);
  EXPECT_THAT(stderr_of_every_level(), IsEmpty());
}

TEST(LogLevelNames, AreParsed) {
  EXPECT_EQ(parse_log_level("debug"), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("info"), LogLevel::kInfo);
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarning);
  EXPECT_EQ(parse_log_level("error"), LogLevel::kError);
  EXPECT_EQ(parse_log_level("off"), LogLevel::kOff);
  EXPECT_EQ(parse_log_level(""), LogLevel::kWarning);
}

TEST(LogLevelNames, AnUnknownOneIsRefusedNamingTheVariableAndTheChoices) {
  EXPECT_THAT([] { parse_log_level("verbose"); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("CACHEDIT_LOG_LEVEL"),
                                               HasSubstr("'verbose'"), HasSubstr("debug, info"))));
  EXPECT_THROW(parse_log_level("Warning"), ConfigError);
}

}  // namespace
}  // namespace cachedit
