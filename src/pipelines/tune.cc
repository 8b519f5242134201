#include "cachedit/tune.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/fail.h"
#include "base/log.h"
#include "cache/fitting_runner.h"
#include "cachedit/files.h"
#include "pipelines/cache_yaml.h"
#include "pipelines/linear_table_file.h"
#include "pipelines/runner_host.h"
#include "pipelines/tune_masks.h"

namespace cachedit {
namespace {

constexpr const char* kWhere = "tune";
/// Computed values that a forecast adds up.
constexpr int64_t kHistory = 4;

struct Prompts {
  std::vector<std::string> fitting;
  std::vector<std::string> judging;
};

Prompts split(const std::vector<std::string>& prompts) {
  if (prompts.size() < 4) {
    log_warning(c10::str("[tune] fewer than 4 prompts (", prompts.size(),
                         "): the linear calibrator is judged on what it was fitted to; give more"));
    return {.fitting = prompts, .judging = prompts};
  }
  Prompts parts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    (i % 4 == 3 ? parts.judging : parts.fitting).push_back(prompts[i]);
  }
  return parts;
}

void check(const TuneOptions& options) {
  if (options.prompts.empty()) fail<InputError>(kWhere, "prompts: at least one is needed");
  if (!(options.target_psnr > 0) || options.target_psnr > 100) {
    fail<InputError>(kWhere, "target_psnr must be above 0 and at most 100 dB: got ",
                     options.target_psnr);
  }
  if (options.max_runs < 1) {
    fail<InputError>(kWhere, "max_runs must be at least 1: got ", options.max_runs);
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Median step times the number of steps would hide the cached ones: the sum, without the first
/// step's one-off costs.
double denoise_seconds(const GenerateResult& result) {
  const std::vector<double>& all = result.step_seconds;
  if (all.size() < 2) return all.empty() ? 0 : all.front();
  return std::accumulate(all.begin() + 1, all.end(), 0.0) +
         std::min(all.front(), *std::max_element(all.begin() + 1, all.end()));
}

class Tuner {
 public:
  Tuner(Pipeline& pipeline, const TuneOptions& options, std::filesystem::path folder)
      : pipeline_(pipeline),
        host_(dynamic_cast<const pipelines::RunnerHost*>(&pipeline)),
        options_(options),
        folder_(std::move(folder)),
        prompts_(split(options.prompts)) {
    if (host_ == nullptr) {
      fail<UnsupportedError>(kWhere, pipeline.class_name(), " runs no block runners");
    }
  }

  TuneResult run() {
    disable_cache(pipeline_);
    measure_uncached();
    try_static_masks();
    try_dynamic(std::nullopt);
    try_dynamic(CalibratorConfig{.calibrator_type = CalibratorType::kTaylorSeer});
    vary_dynamic();
    disable_cache(pipeline_);
    mark();
    return std::move(result_);
  }

 private:
  GenerateRequest request_for(const std::vector<std::string>& prompts) const {
    GenerateRequest request;
    request.prompt = prompts;
    request.num_inference_steps = options_.num_inference_steps;
    request.height = options_.height;
    request.width = options_.width;
    request.max_sequence_length = options_.max_sequence_length;
    request.guidance_scale = options_.guidance_scale;
    request.true_cfg_scale = options_.true_cfg_scale;
    if (options_.true_cfg_scale > 1) request.negative_prompt = {""};
    request.seed = options_.seed;
    return request;
  }

  void measure_uncached() {
    const GenerateRequest request = request_for(prompts_.judging);
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i) {
      GenerateResult result = pipeline_.generate(request);
      seconds.push_back(denoise_seconds(result));
      steps_ = result.num_inference_steps;
      reference_ = std::move(result.images);
    }
    result_.uncached_seconds = median(seconds);
    result_.judging_prompts = static_cast<int64_t>(reference_.size());
    result_.target_psnr = options_.target_psnr;
    if (steps_ < 3) {
      fail<InputError>(kWhere,
                       "num_inference_steps must be at least 3 for anything to be cached: "
                       "got ",
                       steps_);
    }
  }

  bool exhausted() const {
    return static_cast<int64_t>(result_.trials.size()) >= options_.max_runs;
  }

  /// Measures a configuration; null once max_runs is used up.
  const TuneTrial* measure(const EnableCacheOptions& options) {
    if (exhausted()) return nullptr;
    enable_cache(pipeline_, options);
    const GenerateRequest request = request_for(prompts_.judging);
    TuneTrial trial{.name = cache_summary_name(pipeline_), .options = options};
    std::vector<double> seconds;
    for (int i = 0; i < 2; ++i) {
      const GenerateResult result = pipeline_.generate(request);
      seconds.push_back(denoise_seconds(result));
      if (i == 0) judge(result, trial);
    }
    trial.speedup = result_.uncached_seconds / *std::min_element(seconds.begin(), seconds.end());
    trial.num_inference_steps = steps_;
    trial.meets_target = trial.psnr >= options_.target_psnr;
    disable_cache(pipeline_);
    result_.trials.push_back(trial);
    if (options_.on_trial) options_.on_trial(trial);
    return &result_.trials.back();
  }

  void judge(const GenerateResult& result, TuneTrial& trial) const {
    double sum = 0;
    trial.lowest_psnr = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < reference_.size(); ++i) {
      // Equal pictures have no finite PSNR; 100 dB keeps the mean meaningful.
      const double psnr = std::min(compare_images(reference_[i], result.images[i]).psnr, 100.0);
      sum += psnr;
      trial.lowest_psnr = std::min(trial.lowest_psnr, psnr);
    }
    trial.psnr = sum / static_cast<double>(reference_.size());
    trial.computed_steps =
        steps_ - static_cast<int64_t>(result.cache.front().conditional.cached_steps.size());
  }

  /// The largest threshold that meets the target, by halving on a logarithmic scale.
  void try_dynamic(const std::optional<CalibratorConfig>& calibrator) {
    constexpr int kHalvings = 5;
    double low = std::log(0.02), high = std::log(0.95);
    for (int i = 0; i < kHalvings && !exhausted(); ++i) {
      const double middle = (low + high) / 2;
      // Three digits: the file then says what was measured.
      DBCacheConfig config{.Fn_compute_blocks = 1,
                           .residual_diff_threshold = std::round(std::exp(middle) * 1000) / 1000,
                           .max_warmup_steps = std::min<int64_t>(3, steps_ - 1)};
      const TuneTrial* trial = measure({.cache_config = config, .calibrator_config = calibrator});
      if (trial == nullptr) return;
      (trial->meets_target ? low : high) = middle;
    }
  }

  /// Changes one thing at a time in the fastest dynamic configuration that meets the target, and
  /// keeps what makes it faster: warm-up, limits, block counts, calibrators.
  void vary_dynamic() {
    using Change = void (*)(DBCacheConfig&, std::optional<CalibratorConfig>&);
    static constexpr Change kChanges[] = {
        [](DBCacheConfig& c, auto&) { c.max_warmup_steps = 2; },
        [](DBCacheConfig& c, auto&) { c.max_continuous_cached_steps = 4; },
        [](DBCacheConfig& c, auto&) { c.max_continuous_cached_steps = 6; },
        [](DBCacheConfig&, auto& calibrator) {
          calibrator = CalibratorConfig{.taylorseer_order = 2};
        },
        [](DBCacheConfig&, auto& calibrator) {
          calibrator = CalibratorConfig{.calibrator_type = CalibratorType::kDMD};
        },
        [](DBCacheConfig&, auto& calibrator) {
          calibrator = CalibratorConfig{.calibrator_type = CalibratorType::kFoCa};
        },
        [](DBCacheConfig& c, auto&) { c.Fn_compute_blocks = 2; },
        [](DBCacheConfig& c, auto&) { c.Bn_compute_blocks = 1; },
        [](DBCacheConfig& c, auto&) {
          c.max_warmup_steps = 4;
          c.residual_diff_threshold = std::min(0.99, c.residual_diff_threshold * 1.3);
        },
    };
    const TuneTrial* found = nullptr;
    for (const TuneTrial& trial : result_.trials) {
      const bool dynamic =
          std::get<DBCacheConfig>(trial.options.cache_config).steps_computation_mask.empty();
      if (!dynamic || !trial.meets_target) continue;
      if (found == nullptr || trial.speedup > found->speedup) found = &trial;
    }
    if (found == nullptr) return;
    EnableCacheOptions best = found->options;
    double speedup = found->speedup;
    for (const Change change : kChanges) {
      EnableCacheOptions next = best;
      change(std::get<DBCacheConfig>(next.cache_config), next.calibrator_config);
      if (exhausted()) return;
      try {
        const TuneTrial* trial = measure(next);
        if (!trial->meets_target || trial->speedup <= speedup) continue;
        speedup = trial->speedup;
        best = next;
      } catch (const ConfigError& error) {
        log_info(std::string("[tune] left out: ") + error.what());  // a list with too few blocks
      }
    }
  }

  const TuneTrial* measure_mask(const std::vector<int64_t>& mask) {
    if (exhausted() || !tried_.insert(mask).second) return nullptr;
    cache::FittingRunner fitter({.steps_computation_mask = mask, .history = kHistory});
    GenerateRequest request = request_for(prompts_.fitting);
    request.output_type = OutputType::kLatent;
    host_->generate_with(request, fitter);
    const std::filesystem::path file =
        folder_ / c10::str("trial_", result_.trials.size(), ".linear.json");
    pipelines::write_linear_table(file, fitter.table());
    DBCacheConfig config{.Fn_compute_blocks = 1,
                         .residual_diff_threshold = 0.08,
                         .max_warmup_steps = 1,
                         .num_inference_steps = steps_,
                         .steps_computation_mask = mask,
                         .steps_computation_policy = StepsComputationPolicy::kStatic};
    config.static_skips_Fn_blocks = true;
    CalibratorConfig calibrator{.calibrator_type = CalibratorType::kLinear,
                                .enable_encoder_calibrator = false,
                                .linear_coefficients_path = file.string()};
    return measure({.cache_config = config, .calibrator_config = calibrator});
  }

  /// The fewest computed steps that meet the target, then better places for one step fewer.
  void try_static_masks() {
    int64_t low = 2, high = std::max<int64_t>(2, steps_ / 2);
    std::vector<int64_t> best_failing;
    double best_failing_psnr = 0;
    while (low <= high && !exhausted()) {
      const int64_t computed = (low + high) / 2;
      bool met = false;
      for (const auto& [bend, reach] : {std::pair{1.4, 0.8}, std::pair{1.7, 0.8}}) {
        const std::vector<int64_t> mask = pipelines::bent_mask(steps_, computed, bend, reach);
        const TuneTrial* trial = measure_mask(mask);
        if (trial == nullptr) continue;
        met = met || trial->meets_target;
        if (!trial->meets_target && trial->psnr > best_failing_psnr) {
          best_failing = mask;
          best_failing_psnr = trial->psnr;
        }
        if (met) break;
      }
      if (met) {
        high = computed - 1;
      } else {
        low = computed + 1;
      }
    }
    climb(best_failing, best_failing_psnr);
  }

  void climb(std::vector<int64_t> mask, double psnr) {
    // Far from the target a moved step will not do; dynamic caching needs its share of the runs.
    const int64_t reserve = 10;
    bool better = !mask.empty() && psnr > options_.target_psnr - 4;
    while (better) {
      better = false;
      for (const std::vector<int64_t>& next : pipelines::neighbours(mask)) {
        if (static_cast<int64_t>(result_.trials.size()) + reserve >= options_.max_runs) return;
        const TuneTrial* trial = measure_mask(next);
        if (trial == nullptr || trial->psnr <= psnr) continue;
        mask = next;
        psnr = trial->psnr;
        better = !trial->meets_target;
        if (trial->meets_target) return;
        break;
      }
    }
  }

  void mark() {
    for (size_t i = 0; i < result_.trials.size(); ++i) {
      TuneTrial& trial = result_.trials[i];
      trial.on_frontier =
          std::none_of(result_.trials.begin(), result_.trials.end(), [&](const TuneTrial& other) {
            return other.speedup > trial.speedup && other.psnr > trial.psnr;
          });
      const bool best = trial.meets_target &&
                        (!result_.best || trial.speedup > result_.trials[*result_.best].speedup);
      if (best) result_.best = i;
    }
  }

  Pipeline& pipeline_;
  const pipelines::RunnerHost* host_;
  const TuneOptions& options_;
  std::filesystem::path folder_;
  Prompts prompts_;
  std::vector<Image> reference_;
  int64_t steps_ = 0;
  std::set<std::vector<int64_t>> tried_;
  TuneResult result_;
};

}  // namespace

TuneResult tune(Pipeline& pipeline, const TuneOptions& options,
                const std::filesystem::path& folder) {
  check(options);
  return Tuner(pipeline, options, folder).run();
}

void write_best(const TuneResult& result, const std::filesystem::path& yaml) {
  if (!result.best) {
    fail<InputError>(kWhere, "no configuration reaches ", result.target_psnr,
                     " dB; lower the target, or allow more runs");
  }
  EnableCacheOptions options = result.trials[*result.best].options;
  if (options.calibrator_config &&
      options.calibrator_config->calibrator_type == CalibratorType::kLinear) {
    const std::filesystem::path weights =
        std::filesystem::path(yaml).replace_extension(".linear.json");
    pipelines::write_linear_table(
        weights, pipelines::read_linear_table(options.calibrator_config->linear_coefficients_path));
    options.calibrator_config->linear_coefficients_path = weights.string();
  }
  write_file(yaml,
             pipelines::cache_configs_text(options, std::filesystem::absolute(yaml).parent_path()));
}

}  // namespace cachedit
