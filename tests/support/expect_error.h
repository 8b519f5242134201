// Checks the type and the text of an error.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace cachedit::test {

/// Expects `action` to throw exactly ErrorType with a text that fits `text`.
template <class ErrorType, class Action>
void expect_error(const Action& action, const ::testing::Matcher<std::string>& text) {
  try {
    action();
  } catch (const ErrorType& error) {
    EXPECT_EQ(typeid(error), typeid(ErrorType));
    EXPECT_THAT(std::string(error.what()), text);
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error";
}

}  // namespace cachedit::test
