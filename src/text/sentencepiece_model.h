// A SentencePiece model file, read by the SentencePiece library, with the parts that the library
// does not show.
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

/// Throws IoError if the file cannot be read, ConfigError if the library refuses it, and
/// UnsupportedError for a model that is not of the unigram kind.
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

}  // namespace cachedit::text
