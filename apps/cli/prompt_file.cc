#include "prompt_file.h"

#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "cachedit/error.h"

namespace cachedit::cli {
namespace {

using Setter = std::function<void(ImageSettings&, const nlohmann::json&)>;

template <class T>
Setter set(std::optional<T> ImageSettings::*field) {
  return [field](ImageSettings& s, const nlohmann::json& value) { s.*field = value.get<T>(); };
}

/// nlohmann wraps numbers from 2^63 on to negative ones.
bool fits(const nlohmann::json& integer) {
  return !integer.is_number_unsigned() ||
         integer.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
}

/// nlohmann turns 1.5 into the integer 1; a setting must not change in silence.
Setter set_integer(std::optional<int64_t> ImageSettings::*field) {
  return [field](ImageSettings& s, const nlohmann::json& value) {
    if (!value.is_number_integer() || !fits(value))
      throw InputError("must be an integer: got " + value.dump());
    s.*field = value.get<int64_t>();
  };
}

Setter set_seed() {
  return [](ImageSettings& s, const nlohmann::json& value) {
    if (!value.is_number_integer() || !fits(value) || value.get<int64_t>() < -1) {
      throw InputError("must be an integer from -1 to 2^63 - 1: got " + value.dump());
    }
    s.seed = value.get<int64_t>();
  };
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> table = {
      {"prompt",
       [](ImageSettings& s, const nlohmann::json& v) { s.prompt = v.get<std::string>(); }},
      {"negative_prompt", set(&ImageSettings::negative_prompt)},
      {"true_cfg_scale", set(&ImageSettings::true_cfg_scale)},
      {"guidance_scale", set(&ImageSettings::guidance_scale)},
      {"height", set_integer(&ImageSettings::height)},
      {"width", set_integer(&ImageSettings::width)},
      {"num_inference_steps", set_integer(&ImageSettings::num_inference_steps)},
      {"steps", set_integer(&ImageSettings::num_inference_steps)},
      {"seed", set_seed()},
      {"num_images_per_prompt", set_integer(&ImageSettings::num_images_per_prompt)},
      {"max_sequence_length", set_integer(&ImageSettings::max_sequence_length)},
      {"image_path", set(&ImageSettings::image_path)},
      {"strength", set(&ImageSettings::strength)},
      {"sigmas",
       [](ImageSettings& s, const nlohmann::json& v) { s.sigmas = v.get<std::vector<double>>(); }}};
  return table;
}

std::string known_keys() {
  std::string keys;
  for (const auto& [key, setter] : setters()) keys += (keys.empty() ? "" : ", ") + key;
  return keys;
}

ImageSettings parse_json_line(const std::string& line, const std::string& where,
                              const ImageSettings& defaults) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    throw InputError("[" + where + "] not JSON: " + error.what());
  }
  if (!json.is_object()) throw InputError("[" + where + "] must be a JSON object");
  ImageSettings settings = defaults;
  for (const auto& [key, value] : json.items()) {
    const auto setter = setters().find(key);
    if (setter == setters().end()) {
      throw InputError("[" + where + "] unknown key '" + key + "'; known are " + known_keys());
    }
    try {
      setter->second(settings, value);
    } catch (const nlohmann::json::exception&) {
      throw InputError("[" + where + "] '" + key + "' has the wrong type: got " + value.dump());
    } catch (const InputError& error) {
      throw InputError("[" + where + "] '" + key + "' " + error.what());
    }
  }
  if (!json.contains("prompt")) throw InputError("[" + where + "] 'prompt' is missing");
  if (json.contains("strength") && !settings.image_path) {
    throw InputError("[" + where + "] 'strength' has no effect without 'image_path'");
  }
  return settings;
}

}  // namespace

std::vector<ImageSettings> read_prompt_file(const std::filesystem::path& path,
                                            const ImageSettings& defaults) {
  std::ifstream in(path);
  if (!in || std::filesystem::is_directory(path)) {
    throw IoError("[" + path.string() + "] cannot read the prompt file");
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors write one
  std::vector<ImageSettings> all;
  std::optional<bool> json;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos || line[0] == '#') continue;
    if (!json) json = line[line.find_first_not_of(" \t")] == '{';
    if (*json) {
      all.push_back(parse_json_line(line, path.string() + ":" + std::to_string(number), defaults));
    } else {
      all.push_back(defaults);
      all.back().prompt = line;
    }
  }
  if (all.empty()) throw InputError("[" + path.string() + "] the prompt file holds no prompt");
  return all;
}

}  // namespace cachedit::cli
