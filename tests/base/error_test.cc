#include "cachedit/error.h"

#include <gmock/gmock.h>

#include <string>
#include <type_traits>
#include <vector>

#include "base/fail.h"

namespace cachedit {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

template <class ErrorType>
class TypedErrors : public ::testing::Test {};

using EveryType = ::testing::Types<ConfigError, WeightError, UnsupportedError, InputError,
                                   CommError, IoError, Cancelled>;
TYPED_TEST_SUITE(TypedErrors, EveryType);

TYPED_TEST(TypedErrors, FailThrowsTheTypeWithPlaceAndParts) {
  EXPECT_THAT([] { fail<TypeParam>("vae", "sides must be even: got ", 7, "x", 2.5, "; crop"); },
              ThrowsMessage<TypeParam>(StrEq("[vae] sides must be even: got 7x2.5; crop")));
}

TYPED_TEST(TypedErrors, AreCaughtAsErrorAndAsStandardException) {
  EXPECT_THROW(fail<TypeParam>("here", "text"), Error);
  static_assert(std::is_base_of_v<std::runtime_error, TypeParam>);
}

TEST(Fail, TakesStringsOfEveryKind) {
  const std::string where = "weights/a.safetensors";
  EXPECT_THAT([&] { fail<WeightError>(where, std::string("name "), std::string_view("is "), "x"); },
              ThrowsMessage<WeightError>(StrEq("[weights/a.safetensors] name is x")));
  EXPECT_THAT([] { fail<InputError>("", "nothing"); },
              ThrowsMessage<InputError>(StrEq("[] nothing")));
}

TEST(Fail, TypesAreNotMistakenForEachOther) {
  try {
    fail<IoError>("here", "text");
  } catch (const InputError&) {
    FAIL() << "an IoError was caught as an InputError";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[here] text");
  }
}

}  // namespace
}  // namespace cachedit
