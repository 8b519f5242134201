// Checkpoints for tests without stored weights: every value follows from the tensor's name and its
// index by a fixed rule, which tests/goldens/tiny_weights.py states in Python for the peers.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string_view>

namespace cachedit::test {

/// The rule: the FNV-1a 64-bit hash of the name seeds splitmix64; element i takes its output number
/// i, whose top 24 bits give u in [-1, 1). Tensors with two or more dimensions are
/// u * sqrt(3 / (numel / shape[0])) (unit gain); one-dimensional ones are 1 + 0.2 u when the name
/// ends in "weight" and 0.1 u otherwise. Computed in double, rounded once to float32.
at::Tensor tiny_weight(std::string_view name, at::IntArrayRef shape);

/// Writes <folder>/<file_name> with every tensor of `shapes_json`, a JSON object from name to
/// shape, in the given dtype.
void write_tiny_weights(const std::filesystem::path& shapes_json,
                        const std::filesystem::path& folder,
                        std::string_view file_name = "diffusion_pytorch_model.safetensors",
                        at::ScalarType dtype = at::kFloat);

/// Builds a checkpoint folder from tests/goldens/<name>: copies every file of its "checkpoint"
/// folder, and writes weights where that holds a "tensors.json" in place of them.
void make_tiny_checkpoint(std::string_view name, const std::filesystem::path& destination);

}  // namespace cachedit::test
