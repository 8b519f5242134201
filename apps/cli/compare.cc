#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cachedit/error.h"
#include "cachedit/image.h"
#include "commands.h"

namespace cachedit::cli {
namespace {

namespace fs = std::filesystem;

struct CompareOptions {
  std::string a;
  std::string b;
  bool json = false;
};

struct PairResult {
  std::string name;
  ImageDifference difference;
  std::string error;  ///< why the pair could not be compared; empty otherwise
};

struct Comparison {
  std::vector<PairResult> pairs;
  std::optional<ImageDifference> mean;  ///< of the pairs without an error
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;

  size_t failures() const {
    return static_cast<size_t>(std::count_if(pairs.begin(), pairs.end(),
                                             [](const PairResult& p) { return !p.error.empty(); }));
  }
};

bool is_picture(const fs::path& path) {
  try {
    parse_image_format(path.extension().string());
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Names relative to `folder`, so that folders of one layout match at any depth.
std::set<std::string> pictures_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;  // a dangling link is no picture
    if (entry->is_regular_file(ignored) && is_picture(entry->path())) {
      names.insert(entry->path().lexically_relative(folder).generic_string());
    }
  }
  if (error) {
    throw IoError("[" + folder.string() + "] cannot list folder: " + error.message() +
                  "; check its permissions");
  }
  return names;
}

/// Equal pictures have an infinite PSNR; as in cache-dit's metrics they are left out of its mean,
/// unless all are equal.
std::optional<ImageDifference> mean_of(const std::vector<PairResult>& pairs) {
  ImageDifference sum;
  int compared = 0;
  int finite = 0;
  for (const PairResult& pair : pairs) {
    if (!pair.error.empty()) continue;
    ++compared;
    sum.ssim += pair.difference.ssim;
    sum.mse += pair.difference.mse;
    sum.max_difference = std::max(sum.max_difference, pair.difference.max_difference);
    if (std::isinf(pair.difference.psnr)) continue;
    ++finite;
    sum.psnr += pair.difference.psnr;
  }
  if (compared == 0) return std::nullopt;
  sum.ssim /= compared;
  sum.mse /= compared;
  sum.psnr = finite == 0 ? std::numeric_limits<double>::infinity() : sum.psnr / finite;
  return sum;
}

Comparison compare_folders(const fs::path& a, const fs::path& b) {
  const std::set<std::string> in_a = pictures_in(a);
  const std::set<std::string> in_b = pictures_in(b);
  Comparison result;
  std::set_difference(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                      std::back_inserter(result.only_in_a));
  std::set_difference(in_b.begin(), in_b.end(), in_a.begin(), in_a.end(),
                      std::back_inserter(result.only_in_b));
  for (const std::string& name : in_a) {
    if (in_b.count(name) == 0) continue;
    PairResult pair{name, {}, {}};
    try {
      pair.difference = compare_images(read_image(a / name), read_image(b / name));
    } catch (const Error& error) {
      pair.error = error.what();
    }
    result.pairs.push_back(pair);
  }
  result.mean = mean_of(result.pairs);
  return result;
}

Comparison compare_files(const fs::path& a, const fs::path& b) {
  Comparison result;
  result.pairs.push_back({b.filename().string(), compare_images(read_image(a), read_image(b)), {}});
  result.mean = mean_of(result.pairs);
  return result;
}

Comparison compare(const CompareOptions& options) {
  std::error_code ignored;  // what is absent is reported when it is read
  const bool a_is_folder = fs::is_directory(options.a, ignored);
  const bool b_is_folder = fs::is_directory(options.b, ignored);
  if (a_is_folder && b_is_folder) return compare_folders(options.a, options.b);
  for (const std::string& path : {options.a, options.b}) {
    if (!fs::exists(path, ignored)) {
      throw IoError("[" + path + "] no such file or folder; check the name");
    }
  }
  if (a_is_folder != b_is_folder) {
    throw InputError("[compare] needs two pictures or two folders: got the folder '" +
                     (a_is_folder ? options.a : options.b) + "' and the file '" +
                     (a_is_folder ? options.b : options.a) + "'; name two of a kind");
  }
  return compare_files(options.a, options.b);
}

/// JSON has no infinity: the PSNR of equal pictures is null.
nlohmann::ordered_json to_json(const ImageDifference& d) {
  nlohmann::ordered_json psnr = nullptr;
  if (std::isfinite(d.psnr)) psnr = d.psnr;
  return {{"psnr", psnr}, {"ssim", d.ssim}, {"mse", d.mse}, {"max_difference", d.max_difference}};
}

nlohmann::ordered_json to_json(const CompareOptions& options, const Comparison& result) {
  nlohmann::ordered_json pairs = nlohmann::ordered_json::array();
  for (const PairResult& pair : result.pairs) {
    nlohmann::ordered_json entry = {{"name", pair.name}};
    if (pair.error.empty()) {
      entry.update(to_json(pair.difference));
    } else {
      entry["error"] = pair.error;
    }
    pairs.push_back(entry);
  }
  nlohmann::ordered_json mean = nullptr;
  if (result.mean) mean = to_json(*result.mean);
  return {{"a", options.a},
          {"b", options.b},
          {"pairs", pairs},
          {"mean", mean},
          {"only_in_a", result.only_in_a},
          {"only_in_b", result.only_in_b}};
}

void print_row(int width, const std::string& name, const ImageDifference& d) {
  std::printf("%-*s  %9.4f  %8.6f  %11.5f  %8d\n", width, name.c_str(), d.psnr, d.ssim, d.mse,
              d.max_difference);
}

void print(const CompareOptions& options, const Comparison& result) {
  const std::string mean_name = "mean (largest max diff)";
  size_t longest = result.pairs.size() > 1 ? mean_name.size() : 0;
  for (const PairResult& pair : result.pairs) longest = std::max(longest, pair.name.size());
  const int width = static_cast<int>(longest);
  if (!result.pairs.empty()) {
    std::printf("%-*s  %9s  %8s  %11s  %8s\n", width, "picture", "PSNR (dB)", "SSIM", "MSE",
                "max diff");
  }
  for (const PairResult& pair : result.pairs) {
    if (pair.error.empty()) {
      print_row(width, pair.name, pair.difference);
    } else {
      std::printf("%-*s  %s\n", width, pair.name.c_str(), pair.error.c_str());
    }
  }
  if (result.pairs.size() > 1 && result.mean) print_row(width, mean_name, *result.mean);
  for (const std::string& name : result.only_in_a) {
    std::printf("only in %s: %s\n", options.a.c_str(), name.c_str());
  }
  for (const std::string& name : result.only_in_b) {
    std::printf("only in %s: %s\n", options.b.c_str(), name.c_str());
  }
}

void run_compare(const CompareOptions& options) {
  const Comparison result = compare(options);
  if (options.json) {
    // File names need not be UTF-8.
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;
    std::printf("%s\n", to_json(options, result).dump(2, ' ', false, replace).c_str());
  } else {
    print(options, result);
  }
  std::fflush(stdout);
  if (result.pairs.empty()) {
    throw IoError("[compare] folders must share names of pictures: got none in both '" + options.a +
                  "' and '" + options.b + "'; rename the files of one");
  }
  if (result.failures() > 0) {
    throw IoError("[compare] every pair must be readable and of one size: got " +
                  std::to_string(result.failures()) + " of " + std::to_string(result.pairs.size()) +
                  " that are not; see the list");
  }
}

}  // namespace

void add_compare(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand(
      "compare", "Tell how far two pictures, or the pictures of two folders, are apart");
  command->add_option("a", options->a, "Picture or folder to compare with")->required();
  command->add_option("b", options->b, "Picture or folder to judge")->required();
  command->add_flag("--json", options->json, "Print JSON (an infinite PSNR becomes null)");
  command->callback([options] { run_compare(*options); });
}

}  // namespace cachedit::cli
