// A SentencePiece model file (a protocol buffer). Read here and not by the SentencePiece library:
// Debian's exports FLAGS_minloglevel, as libc10 does with another type, so that in one process its
// constructor overwrites libc10's flags, after which a failed allocation aborts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "text/unigram.h"

namespace cachedit::text {

struct SentencePieceModel {
  std::vector<ScoredPiece> pieces;        ///< by id
  std::vector<std::string> user_defined;  ///< pieces that are found in text as they are written
  int64_t unknown_id = 0;
  std::string charsmap;  ///< the normaliser's character map
};

/// Throws IoError if the file cannot be read, ConfigError if it is no such model, and
/// UnsupportedError for a model that is not of the unigram kind.
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

}  // namespace cachedit::text
