// What a run tells afterwards: the text chunk in its pictures, the summary, and the JSON report.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cache_report.h"
#include "cachedit/pipeline.h"
#include "generate_options.h"

namespace cachedit::cli {

struct OutputRecord {
  std::string path;
  std::string prompt;
  uint64_t seed = 0;
  int64_t width = 0;
  int64_t height = 0;
};

/// Sums over all pictures of a call.
struct RunReport {
  std::string format;  ///< of the outputs
  double load_seconds = 0;
  StageSeconds seconds;
  double total_seconds = 0;
  std::vector<double> step_seconds;
  std::vector<OutputRecord> outputs;
  std::set<std::string> attention_backends;  ///< what ran, of each call
  std::optional<EnableCacheOptions> cache_options;
  nlohmann::ordered_json cache = nlohmann::ordered_json::array();     ///< one object per context
  std::vector<CachePair> pairs;                                       ///< of --compare-cache
  std::optional<QuantizeConfig> quantize_config;                      ///< none: as stored
  std::vector<ComponentQuantization> quantization;                    ///< of rank 0
  ParallelStats parallel;                                             ///< of rank 0
  nlohmann::ordered_json settings = nlohmann::ordered_json::array();  ///< one object per prompt
};

/// The "parameters" text that web UIs read back: prompt, negative prompt, settings.
std::string parameters_text(const ImageSettings& settings, const GenerateResult& result,
                            const std::string& model);

/// The settings that took effect, for the JSON report.
nlohmann::ordered_json settings_json(const ImageSettings& settings, const GenerateResult& result);

nlohmann::ordered_json report_json(const GenerateOptions& options, const std::string& model,
                                   const Pipeline& pipeline, const RunReport& report);

/// Indented, with a line end. Paths need not be UTF-8: bytes that are not become U+FFFD.
std::string to_text(const nlohmann::ordered_json& json);

/// One line with the time of each stage, on stderr.
void print_summary(const RunReport& report);

}  // namespace cachedit::cli
