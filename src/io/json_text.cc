#include "io/json_text.h"

#include <c10/util/StringUtil.h>

#include <set>
#include <utility>
#include <vector>

namespace cachedit::io {
namespace {

using Json = nlohmann::json;

/// Leaves the parser from inside its callback.
struct Refusal {
  std::string fault;
};

/// The parser's text without its library's own prefix "[json.exception...] ".
std::string describe(const Json::exception& error) {
  const std::string_view text = error.what();
  const size_t prefix = text.find("] ");
  return std::string(prefix == std::string_view::npos ? text : text.substr(prefix + 2));
}

/// Watches the parser's events. Keeps the keys of every object that is still open.
class Watch {
 public:
  explicit Watch(DuplicateKeys duplicates)
      : refuse_duplicates_(duplicates == DuplicateKeys::kRefuse) {}

  void see(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= kMaxJsonDepth) {
        throw Refusal{c10::str("it nests deeper than ", kMaxJsonDepth, " levels")};
      }
    }
    if (!refuse_duplicates_) return;
    if (event == Event::object_start) {
      open_.emplace_back();
    } else if (event == Event::object_end) {
      open_.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(key).second) {
        throw Refusal{c10::str("it holds the key '", key, "' twice")};
      }
    }
  }

 private:
  bool refuse_duplicates_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

JsonText parse_json_text(std::string_view text, DuplicateKeys duplicates) {
  // The parser takes a zero byte for the end of its input and would drop what follows.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return {{}, c10::str("it holds a zero byte at offset ", zero)};
  }
  Watch watch(duplicates);
  const auto callback = [&watch](int depth, Json::parse_event_t event, Json& parsed) {
    watch.see(depth, event, parsed);
    return true;
  };
  try {
    return {Json::parse(text.begin(), text.end(), callback), ""};
  } catch (const Refusal& refusal) {
    return {{}, refusal.fault};
  } catch (const Json::exception& error) {
    return {{}, describe(error)};
  }
}

std::string show_json(const Json& value) {
  constexpr size_t kShown = 80;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

}  // namespace cachedit::io
