#include "ranks.h"

#include <algorithm>
#include <exception>
#include <vector>

namespace cachedit::cli {
namespace {

/// Drops texts that only pass on another rank's.
void drop_consequences(std::vector<std::string>& texts) {
  const std::vector<std::string> all = texts;
  for (std::string& text : texts) {
    for (const std::string& other : all) {
      if (other.empty() || other.size() >= text.size()) continue;
      if (text.find(other) != std::string::npos) {
        text.clear();
        break;
      }
    }
  }
}

/// "rank 1: ..." for each rank, equal texts together: "ranks 1, 3: ...".
std::string by_rank(const std::vector<std::string>& texts) {
  std::string all;
  std::vector<bool> told(texts.size());
  for (size_t r = 0; r < texts.size(); ++r) {
    if (told[r] || texts[r].empty()) continue;
    std::string ranks;
    int64_t count = 0;
    for (size_t other = r; other < texts.size(); ++other) {
      if (texts[other] != texts[r]) continue;
      told[other] = true;
      ranks += (count++ == 0 ? "" : ", ") + std::to_string(other);
    }
    all += (all.empty() ? "" : "\n") + std::string(count == 1 ? "rank " : "ranks ") + ranks + ": " +
           texts[r];
  }
  return all;
}

}  // namespace

const World& Ranks::world() {
  if (!world_) world_ = World::from_environment();
  return *world_;
}

bool Ranks::speaks() { return world().rank() == 0; }

std::string Ranks::report_failure(const std::string& text) {
  try {
    if (world().size() == 1) return text;
  } catch (const std::exception&) {
    return text;  // the ranks never met
  }
  const World& all = world();
  all.announce_failure(text);
  std::vector<std::string> texts = all.failures();
  const auto own = static_cast<size_t>(all.rank());
  if (own != 0) {
    return texts[0].empty() ? "rank " + std::to_string(own) + ": " + text : std::string();
  }
  texts[0] = text;
  const bool alike = std::all_of(texts.begin(), texts.end(),
                                 [&](const std::string& other) { return other == text; });
  if (alike) return text;
  drop_consequences(texts);
  return by_rank(texts);
}

}  // namespace cachedit::cli
