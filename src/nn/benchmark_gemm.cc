#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "attention/bench/measure.h"
#include "base/cpu.h"
#include "base/fail.h"
#include "base/stopwatch.h"
#include "cachedit/gemm_benchmark.h"
#include "nn/linear_forms.h"

namespace cachedit {
namespace {

using Layer = std::unique_ptr<nn::LinearForm>;

struct Form {
  const char* name;
  at::ScalarType dtype;
  std::optional<nn::QuantType> type;
  kernels::RoofKind roof;
};

constexpr Form kForms[] = {
    {"fp32", at::kFloat, std::nullopt, kernels::RoofKind::kFloat32},
    {"bf16", at::kBFloat16, std::nullopt, kernels::RoofKind::kBFloat16},
    {"int8", at::kBFloat16, nn::QuantType::kInt8PerRow, kernels::RoofKind::kInt8},
    {"int8_weight_only", at::kBFloat16, nn::QuantType::kInt8WeightOnly,
     kernels::RoofKind::kBFloat16},
    {"int4_weight_only", at::kBFloat16, nn::QuantType::kInt4WeightOnly,
     kernels::RoofKind::kBFloat16},
    {"float8_weight_only", at::kBFloat16, nn::QuantType::kFloat8WeightOnly,
     kernels::RoofKind::kBFloat16},
};

struct Shape {
  int64_t m, n, k;
};

constexpr Shape kShapes[] = {{1536, 3072, 3072}, {1536, 12288, 3072}, {1536, 3072, 15360}};
constexpr Shape kSmallBatches[] = {{16, 12288, 3072}, {1, 12288, 3072}};

/// Several times what the last-level caches hold: what was read that long ago is in none of them.
int64_t bytes_beyond_caches() {
  constexpr int64_t kFewest = int64_t{256} << 20;
  constexpr int64_t kCoresPerCache = 8;  // where a processor has several such caches
  int64_t cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  cache = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
  const int64_t caches = (cpu_threads().threads + kCoresPerCache - 1) / kCoresPerCache;
  return std::max(kFewest, 4 * cache * caches);
}

/// Bytes that all threads together read in a second, over all of `memory` once: each sums its share
/// up, in four places of it at a time and asking for lines ahead: no simpler loop reads faster.
double reading_rate(const at::Tensor& memory) {
  constexpr int64_t kStreams = 4;
  constexpr int64_t kLine = 8;  // numbers in a line of the cache
  constexpr int64_t kAhead = 8 * kLine;
  struct Task {
    const int64_t* data;
    int64_t count;  // of one stream
    std::atomic<int64_t> sum = 0;
  };
  const kernels::Parallel parallel = cpu_threads();
  Task task{.data = memory.const_data_ptr<int64_t>(),
            .count = memory.numel() / (kStreams * parallel.threads * kLine) * kLine};
  const Stopwatch watch;
  parallel.run(
      parallel.context,
      [](void* argument, int thread) {
        auto& t = *static_cast<Task*>(argument);
        const int64_t* p = t.data + thread * kStreams * t.count;
        int64_t sums[kStreams][kLine] = {};
        for (int64_t i = 0; i < t.count; i += kLine) {
          for (int64_t s = 0; s < kStreams; ++s) {
            const int64_t* line = p + s * t.count + i;
            __builtin_prefetch(line + kAhead);
            for (int64_t l = 0; l < kLine; ++l) sums[s][l] += line[l];
          }
        }
        int64_t sum = 0;
        for (const auto& stream : sums) {
          for (const int64_t part : stream) sum += part;
        }
        t.sum += sum;  // what nobody reads would not be computed
      },
      &task);
  return 8.0 * static_cast<double>(kStreams * task.count * parallel.threads) / watch.seconds();
}

double seconds_of(const nn::LinearForm& layer, const nn::LinearCall& call) {
  const Stopwatch watch;
  layer.run(call);
  return watch.seconds();
}

class GemmBenchmark {
 public:
  explicit GemmBenchmark(const GemmBenchmarkOptions& options) : options_(options) {}

  std::vector<GemmRecord> run(const std::vector<const Form*>& forms) {
    for (const Form* form : forms) measure(*form);
    return std::move(records_);
  }

 private:
  void measure(const Form& form) {
    for (const Shape& shape : kShapes) {
      if (!is_wanted(shape)) continue;
      const double roof = raised_roof(form.roof);
      const Layer layer = std::move(make_layers(form, shape, 0)[0]);
      const nn::LinearCall call = make_call(form, shape);
      double best = seconds_of(*layer, call);
      for (int64_t i = 0; i < options_.repeats; ++i) {
        best = std::min(best, seconds_of(*layer, call));
      }
      add(record_of(form, shape, best, roof));
    }
    std::vector<Shape> small;
    for (const Shape& shape : kSmallBatches) {
      if (is_wanted(shape)) small.push_back(shape);
    }
    if (!small.empty()) measure_small_batches(form, small, raised_roof(form.roof));
  }

  /// The most that was ever measured, now included: one measurement on a busy moment would make
  /// kernels look faster than the machine.
  double raised_roof(kernels::RoofKind kind) {
    double& roof = roofs_[kind];
    roof = std::max(roof, attention::bench::measure_roof(kind, cpu_isa()));
    return roof;
  }

  bool is_wanted(const Shape& shape) const {
    const std::vector<int64_t>& rows = options_.rows;
    return rows.empty() || std::find(rows.begin(), rows.end(), shape.m) != rows.end();
  }

  /// Turns of reading memory alone and of each batch, so that what slows the machine down meets
  /// all.
  void measure_small_batches(const Form& form, const std::vector<Shape>& shapes, double roof) {
    constexpr int64_t kTurns = 4;  // per repeat: they are short
    const at::Tensor memory = at::full({bytes_beyond_caches() / 8}, 1, at::kLong);
    const std::vector<Layer> layers = make_layers(form, shapes[0], memory.nbytes());
    std::vector<nn::LinearCall> calls;
    calls.reserve(shapes.size());
    for (const Shape& shape : shapes) calls.push_back(make_call(form, shape));
    std::vector<double> best(calls.size(), 1e9);
    double memory_roof = 0;
    for (int64_t i = 0; i < kTurns * options_.repeats; ++i) {
      memory_roof = std::max(memory_roof, reading_rate(memory));
      for (size_t c = 0; c < calls.size(); ++c) {
        const Stopwatch watch;
        for (const Layer& layer : layers) layer->run(calls[c]);
        best[c] = std::min(best[c], watch.seconds() / static_cast<double>(layers.size()));
      }
    }
    for (size_t c = 0; c < calls.size(); ++c) {
      GemmRecord record = record_of(form, shapes[c], best[c], roof);
      const double rate = static_cast<double>(layers[0]->bytes()) / best[c];
      record.reading = {.gb_per_s = rate / 1e9,
                        .roof_gb_per_s = memory_roof / 1e9,
                        .percent_of_roof = 100 * rate / memory_roof};
      add(std::move(record));
    }
  }

  /// Equal layers of at least `bytes` in all, one at least.
  static std::vector<Layer> make_layers(const Form& form, const Shape& shape, size_t bytes) {
    const nn::LinearWeight weight{.values = at::randn({shape.n, shape.k}, form.dtype)};
    const at::Tensor bias = at::randn({shape.n}, form.dtype);
    std::vector<Layer> layers;
    size_t held = 0;
    do {
      layers.push_back(form.type ? nn::make_quantized_form({weight}, bias, *form.type, 64)
                                 : nn::make_packed_form({weight}, bias, form.dtype));
      held += static_cast<size_t>(layers.back()->bytes());
    } while (held < bytes);
    return layers;
  }

  static nn::LinearCall make_call(const Form& form, const Shape& s) {
    return {.input = at::randn({1, s.m, s.k}, form.dtype),
            .out = at::empty({1, s.m, s.n}, form.dtype)};
  }

  static GemmRecord record_of(const Form& form, const Shape& s, double seconds, double roof) {
    const double operations =
        2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    const double gflops = operations / seconds / 1e9;
    return {.form = form.name,
            .m = s.m,
            .n = s.n,
            .k = s.k,
            .gflops = gflops,
            .percent_of_roof = 100 * gflops / roof};
  }

  void add(GemmRecord record) {
    if (options_.on_record) options_.on_record(record);
    records_.push_back(std::move(record));
  }

  const GemmBenchmarkOptions& options_;
  std::vector<GemmRecord> records_;
  std::map<kernels::RoofKind, double> roofs_;
};

std::vector<const Form*> chosen_forms(const std::vector<std::string>& names) {
  std::vector<const Form*> forms;
  if (names.empty()) {
    for (const Form& form : kForms) forms.push_back(&form);
  }
  for (const std::string& name : names) {
    const auto* form = std::find_if(std::begin(kForms), std::end(kForms),
                                    [&](const Form& f) { return name == f.name; });
    if (form == std::end(kForms)) {
      fail<InputError>("bench gemm", "unknown form: got '", name, "'; use ",
                       c10::Join(", ", gemm_benchmark_forms()));
    }
    forms.push_back(form);
  }
  return forms;
}

}  // namespace

std::vector<std::string> gemm_benchmark_forms() {
  std::vector<std::string> names;
  for (const Form& form : kForms) names.emplace_back(form.name);
  return names;
}

std::vector<GemmRecord> benchmark_gemm(const GemmBenchmarkOptions& options) {
  if (options.repeats < 1) {
    fail<InputError>("bench gemm", "repeats must be at least 1: got ", options.repeats);
  }
  const std::vector<const Form*> forms = chosen_forms(options.forms);
  for (const int64_t rows : options.rows) {
    const auto has_rows = [&](const Shape& shape) { return shape.m == rows; };
    if (std::none_of(std::begin(kShapes), std::end(kShapes), has_rows) &&
        std::none_of(std::begin(kSmallBatches), std::end(kSmallBatches), has_rows)) {
      fail<InputError>("bench gemm", "unknown number of rows: got ", rows, "; use 1536, 16, 1");
    }
  }
  return GemmBenchmark(options).run(forms);
}

}  // namespace cachedit
