// cachedit_probe text-encoder clip|t5 FOLDER DTYPE OUT: runs a text encoder on each batch of ids
// of a JSON object {"<name>": [[id, ..], ..], ..} on standard input, and writes the states as
// "<name>.last_hidden_state" (and "<name>.pooler_output") to the safetensors file OUT.
#include <ATen/ops/tensor.h>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fail.h"
#include "io/json_config.h"
#include "io/safetensors.h"
#include "io/weight_store.h"
#include "models/text_encoders/clip_text_model.h"
#include "models/text_encoders/t5_encoder_model.h"
#include "probe.h"

namespace cachedit::probe {
namespace {

using nlohmann::json;
using Tensors = std::map<std::string, at::Tensor>;

std::optional<at::ScalarType> parse_dtype(const std::string& name) {
  static const std::map<std::string, std::optional<at::ScalarType>> dtypes = {
      {"stored", std::nullopt}, {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};
  const auto found = dtypes.find(name);
  if (found == dtypes.end()) {
    fail<InputError>("probe", "the dtype must be stored, fp32, bf16 or fp16: got ", name);
  }
  return found->second;
}

at::Tensor parse_ids(const json& batch) {
  std::vector<int64_t> ids;
  for (const json& row : batch) {
    if (row.size() != batch[0].size()) fail<InputError>("probe", "rows must be equally long");
    for (const json& id : row) ids.push_back(id.get<int64_t>());
  }
  return at::tensor(ids, at::kLong).view({static_cast<int64_t>(batch.size()), -1});
}

void run_clip(const std::filesystem::path& folder, const nn::WeightOptions& options,
              const json& batches, Tensors& out) {
  io::JsonConfig config = io::JsonConfig::read(folder / "config.json");
  const models::ClipTextModel model(models::ClipTextConfig::parse(config),
                                    io::WeightStore::open(folder), options);
  for (const auto& [name, batch] : batches.items()) {
    models::ClipTextOutput states = model(parse_ids(batch), attention::native_attention());
    out[name + ".last_hidden_state"] = std::move(states.last_hidden_state);
    out[name + ".pooler_output"] = std::move(states.pooler_output);
  }
}

void run_t5(const std::filesystem::path& folder, const nn::WeightOptions& options,
            const json& batches, Tensors& out) {
  io::JsonConfig config = io::JsonConfig::read(folder / "config.json");
  const models::T5EncoderModel model(models::T5EncoderConfig::parse(config),
                                     io::WeightStore::open(folder), options);
  for (const auto& [name, batch] : batches.items()) {
    out[name + ".last_hidden_state"] = model(parse_ids(batch), attention::native_attention());
  }
}

}  // namespace

int run_text_encoder(const Arguments& arguments) {
  if (arguments.size() != 4) {
    fail<InputError>("probe", "text-encoder needs clip or t5, a folder, a dtype and a file: got ",
                     arguments.size(), " arguments");
  }
  const std::filesystem::path folder = arguments[1];
  const nn::WeightOptions options = {.dtype = parse_dtype(arguments[2])};
  const json batches = json::parse(std::cin);
  Tensors out;
  if (arguments[0] == "clip") {
    run_clip(folder, options, batches, out);
  } else if (arguments[0] == "t5") {
    run_t5(folder, options, batches, out);
  } else {
    fail<InputError>("probe", "the encoder must be clip or t5: got ", arguments[0]);
  }
  io::write_safetensors(arguments[3], out);
  return 0;
}

}  // namespace cachedit::probe
