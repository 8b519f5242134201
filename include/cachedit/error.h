// Every error that cachedit throws derives from cachedit::Error. The text has the form
// "[where] rule: got value; what to do", complete enough to show to a user as it is.
#pragma once

#include <stdexcept>

#include "cachedit/export.h"

namespace cachedit {

class CACHEDIT_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A model's or scheduler's configuration is missing, malformed or asks for something unknown.
class CACHEDIT_API ConfigError : public Error {
 public:
  using Error::Error;
};

/// Weights are missing, left over, of the wrong shape, or the file that holds them is damaged.
class CACHEDIT_API WeightError : public Error {
 public:
  using Error::Error;
};

/// The request is well-formed, but this build, machine or version cannot do it.
class CACHEDIT_API UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// An argument of a request is out of range, malformed, or contradicts another one.
class CACHEDIT_API InputError : public Error {
 public:
  using Error::Error;
};

/// Ranks of a parallel run disagree or lost each other.
class CACHEDIT_API CommError : public Error {
 public:
  using Error::Error;
};

/// A file cannot be found, read or written.
class CACHEDIT_API IoError : public Error {
 public:
  using Error::Error;
};

/// An allocation failed: smaller sizes, fewer images, tiling or a smaller dtype help.
class CACHEDIT_API OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// The caller asked to stop (a progress callback returned false).
class CACHEDIT_API Cancelled : public Error {
 public:
  using Error::Error;
};

}  // namespace cachedit
