#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/bench/cases.h"
#include "attention/bench/measure.h"
#include "attention/capability.h"
#include "attention/cpu_kernels.h"
#include "attention/registry.h"
#include "attention/select.h"
#include "base/cpu.h"
#include "base/dtype_name.h"
#include "base/fail.h"
#include "cachedit/benchmark.h"

namespace cachedit::attention {
namespace {

constexpr const char* kWhere = "bench attention";
const at::Device kCpu = at::kCPU;

/// What shares its inputs: the backends measured on one case in one dtype.
struct Group {
  const bench::Case* what = nullptr;
  at::ScalarType dtype = at::kFloat;
  std::vector<const Backend*> backends;
};

struct Plan {
  std::vector<Group> groups;
  std::vector<std::string> left_out;  ///< "d512, flash: reason"
};

at::ScalarType parse_dtype(const std::string& name) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  fail<InputError>(kWhere, "unknown dtype: got '", name, "'; use fp32, bf16, fp16");
}

const Backend& find_backend(const std::string& name) {
  if (name == kAuto) {
    fail<InputError>(kWhere, "needs the backends themselves: got 'auto'; name some or none");
  }
  const Backend& backend = builtin_registry().find(name);
  const Availability availability = availability_on(backend, kCpu);
  if (!availability.available) {
    fail<UnsupportedError>(kWhere, name, " is not available on the CPU: ", availability.reason,
                           "; ", availability.remedy);
  }
  return backend;
}

std::vector<const Backend*> chosen_backends(const std::vector<std::string>& names) {
  std::vector<const Backend*> chosen;
  for (const std::string& name : names) chosen.push_back(&find_backend(name));
  if (!names.empty()) return chosen;
  for (const Backend& backend : builtin_registry().backends()) {
    if (availability_on(backend, kCpu).available) chosen.push_back(&backend);
  }
  return chosen;
}

std::vector<const bench::Case*> chosen_cases(const std::vector<std::string>& names) {
  std::vector<const bench::Case*> chosen;
  for (const std::string& name : names) chosen.push_back(&bench::find_case(name));
  if (!names.empty()) return chosen;
  for (const bench::Case& c : bench::all_cases()) {
    if (c.is_default) chosen.push_back(&c);
  }
  return chosen;
}

Request request_of(const bench::Case& c, at::ScalarType dtype) {
  return {.dtype = dtype,
          .queries = c.tokens,
          .keys = c.tokens,
          .heads = c.heads,
          .kv_heads = c.heads,
          .head_dim = c.head_dim,
          .mask = c.masked_keys > 0 ? MaskKind::kBool : MaskKind::kNone};
}

Plan make_plan(const BenchmarkOptions& options) {
  const std::vector<const Backend*> backends = chosen_backends(options.backends);
  std::vector<at::ScalarType> dtypes;
  for (const std::string& name : options.dtypes) dtypes.push_back(parse_dtype(name));
  if (dtypes.empty()) dtypes = {at::kFloat, at::kBFloat16, at::kHalf};
  Plan plan;
  for (const bench::Case* c : chosen_cases(options.cases)) {
    for (const at::ScalarType dtype : dtypes) {
      Group group{.what = c, .dtype = dtype};
      for (const Backend* backend : backends) {
        const auto reason = why_not(*backend->on(kCpu.type()), request_of(*c, dtype));
        if (!reason) {
          group.backends.push_back(backend);
        } else if (dtype == dtypes.front()) {  // the reasons are those of the shape
          plan.left_out.push_back(c10::str(c->name, ", ", backend->name, ": ", *reason));
        }
      }
      if (!group.backends.empty()) plan.groups.push_back(std::move(group));
    }
  }
  if (plan.groups.empty()) {
    fail<InputError>(kWhere, "nothing is left to measure: ", c10::Join("; ", plan.left_out),
                     "; choose other cases or backends");
  }
  return plan;
}

class BenchmarkRun {
 public:
  explicit BenchmarkRun(const BenchmarkOptions& options) : options_(options) {}

  std::vector<BenchmarkRecord> run(const Plan& plan) {
    for (const std::string& entry : plan.left_out) note("left out: " + entry);
    for (const Group& group : plan.groups) measure(group);
    return std::move(records_);
  }

 private:
  void note(const std::string& text) const {
    if (options_.on_note) options_.on_note(text);
  }

  /// Measured when a dtype first needs it, so once a run.
  double roof(at::ScalarType dtype) {
    const auto kind =
        dtype == at::kBFloat16 ? kernels::RoofKind::kBFloat16 : kernels::RoofKind::kFloat32;
    const auto found = roofs_.find(kind);
    if (found != roofs_.end()) return found->second;
    return roofs_[kind] = bench::measure_roof(kind, isa_);
  }

  void measure(const Group& group) {
    note(c10::str(group.what->name, ", ", dtype_name(group.dtype), ": inputs and reference"));
    const Inputs inputs = bench::make_inputs(*group.what, group.dtype);
    const bench::Reference reference(inputs);
    const std::optional<at::Tensor> mask =
        inputs.mask.defined() ? std::optional<at::Tensor>(inputs.mask) : std::nullopt;
    const auto sdpa = [&] {
      at::scaled_dot_product_attention(inputs.query.transpose(1, 2), inputs.key.transpose(1, 2),
                                       inputs.value.transpose(1, 2), mask);
    };
    sdpa();  // warm-up
    for (const Backend* backend : group.backends) {
      note(c10::str(group.what->name, ", ", dtype_name(group.dtype), ", ", backend->name));
      const auto attention = make_attention(backend->name, kCpu);
      records_.push_back(measure_one(
          group, backend->name, [&] { return (*attention)(inputs).out; }, sdpa, reference));
      if (options_.on_record) options_.on_record(records_.back());
    }
  }

  BenchmarkRecord measure_one(const Group& group, const std::string& backend,
                              const std::function<at::Tensor()>& call,
                              const std::function<void()>& sdpa,
                              const bench::Reference& reference) {
    at::Tensor out;
    const size_t peak = bench::peak_allocation([&] { out = call(); });  // and warm-up
    const bench::Accuracy accuracy = reference.judge(out);
    const size_t output_bytes = out.nbytes();
    out.reset();
    const bench::Timing timing = bench::time_pairs([&] { call(); }, sdpa, options_.repeats);
    return {.name = std::string(group.what->name),
            .backend = backend,
            .dtype = dtype_name(group.dtype),
            .isa = kernels::isa_name(isa_),
            .ms = timing.ms,
            .gflops = group.what->operations() / timing.ms / 1e6,
            .roof_gflops = roof(group.dtype),
            .ratio_to_sdpa = timing.ratio,
            .cosine = accuracy.cosine,
            .rel_l1 = accuracy.rel_l1,
            .scratch_bytes = peak - std::min(peak, output_bytes)};
  }

  const BenchmarkOptions& options_;
  const kernels::CpuIsa isa_ = cpu_isa();
  std::map<kernels::RoofKind, double> roofs_;
  std::vector<BenchmarkRecord> records_;
};

}  // namespace

std::vector<BenchmarkCase> benchmark_cases() {
  std::vector<BenchmarkCase> cases;
  for (const bench::Case& c : bench::all_cases()) {
    cases.push_back({std::string(c.name), std::string(c.description), c.is_default});
  }
  return cases;
}

std::vector<BenchmarkRecord> run_benchmark(const BenchmarkOptions& options) {
  if (options.repeats < 1) {
    fail<InputError>(kWhere, "repeats must be at least 1: got ", options.repeats);
  }
  const c10::InferenceMode inference;
  return BenchmarkRun(options).run(make_plan(options));
}

}  // namespace cachedit::attention
