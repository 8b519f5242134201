#include "parallel_support.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/rank_threads.h"
#include "support/temp_dir.h"
#include "support/tiny_weights.h"

namespace cachedit::test {
namespace {

using nlohmann::json;

constexpr int64_t kHeads = 5, kHeadDim = 24;  // of flux_plain

json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

void write_json(const std::filesystem::path& path, const json& value) {
  std::ofstream(path) << value.dump(1);
}

}  // namespace

void make_flux_with_heads(int64_t heads, const std::filesystem::path& destination) {
  make_tiny_checkpoint("flux_plain", destination);
  const std::filesystem::path folder = destination / "transformer";
  json config = read_json(folder / "config.json");
  config["num_attention_heads"] = heads;
  write_json(folder / "config.json", config);
  json shapes = read_json(golden("flux_plain") / "checkpoint" / "transformer" / "tensors.json");
  for (auto& [name, shape] : shapes.items()) {
    for (json& size : shape) {
      constexpr int64_t kWidth = kHeads * kHeadDim;
      if (size.get<int64_t>() % kWidth == 0) size = size.get<int64_t>() / kHeads * heads;
    }
  }
  const std::filesystem::path list = folder / "shapes.json";
  write_json(list, shapes);
  write_tiny_weights(list, folder);
  std::filesystem::remove(list);
}

std::vector<parallel::Layout> layouts_of(int64_t ranks, int64_t heads, bool true_cfg) {
  std::vector<parallel::Layout> layouts;
  for (int64_t cfg = 1; cfg <= (true_cfg ? 2 : 1); ++cfg) {
    for (int64_t ring = 1; ring <= ranks; ++ring) {
      for (int64_t ulysses = 1; ulysses <= ranks; ++ulysses) {
        for (int64_t tp = 1; tp <= ranks; ++tp) {
          const parallel::Layout layout{.cfg = cfg, .ring = ring, .ulysses = ulysses, .tp = tp};
          if (layout.world() != ranks || heads % tp != 0 || heads / tp < ulysses) continue;
          layouts.push_back(layout);
        }
      }
    }
  }
  return layouts;
}

ParallelismConfig config_of(const parallel::Layout& layout) {
  return {.ulysses_size = layout.ulysses,
          .ring_size = layout.ring,
          .tp_size = layout.tp,
          .cfg_size = layout.cfg,
          .ulysses_anything = layout.ulysses > 1};
}

void with_pipelines(const std::filesystem::path& model, int64_t ranks,
                    const ParallelismConfig& config, const std::function<void(Pipeline&)>& work) {
  run_ranks(ranks, [&](comm::Communicator& rank) {
    const World world(std::shared_ptr<comm::Communicator>(&rank, [](comm::Communicator*) {}));
    work(*load_pipeline(
        model.string(),
        {.dtype = "fp32", .device = "cpu", .world = world, .parallelism_config = config}));
  });
}

GenerateResult generate_on(const std::filesystem::path& model, int64_t ranks,
                           const ParallelismConfig& config, const GenerateRequest& request,
                           const std::function<void(Pipeline&)>& prepare) {
  GenerateResult result;
  with_pipelines(model, ranks, config, [&](Pipeline& pipeline) {
    if (prepare) prepare(pipeline);
    GenerateResult own = pipeline.generate(request);
    if (pipeline.world().rank() == 0) result = std::move(own);
  });
  return result;
}

}  // namespace cachedit::test
