// Pipelines on several ranks of one process, and tiny FLUX checkpoints with any number of heads.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "cachedit/cachedit.h"
#include "parallel/layout.h"

namespace cachedit::test {

/// The golden checkpoint flux_plain (2 double and 3 single blocks, heads of 24) with `heads` heads.
void make_flux_with_heads(int64_t heads, const std::filesystem::path& destination);

/// Every layout of `ranks` ranks that a model with that many heads allows with Ulysses-Anything.
std::vector<parallel::Layout> layouts_of(int64_t ranks, int64_t heads, bool true_cfg);

ParallelismConfig config_of(const parallel::Layout& layout);

/// Loads `model` in fp32 on `ranks` ranks with `config` (one rank: alone) and runs `work` on each.
void with_pipelines(const std::filesystem::path& model, int64_t ranks,
                    const ParallelismConfig& config, const std::function<void(Pipeline&)>& work);

/// The result of rank 0, after `prepare` (enable_cache and the like) on every rank.
GenerateResult generate_on(const std::filesystem::path& model, int64_t ranks,
                           const ParallelismConfig& config, const GenerateRequest& request,
                           const std::function<void(Pipeline&)>& prepare = {});

}  // namespace cachedit::test
