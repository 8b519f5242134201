// cachedit_probe vae encode|decode FOLDER IN OUT OPTIONS: runs the VAE in FOLDER. The safetensors
// file IN holds "pixels" to encode or "latents" to decode; OUT gets "mean", "logvar" and, with a
// seed, "sample", or "pixels". OPTIONS is a JSON object with any of dtype (fp32, bf16, fp16), seed,
// tiling, slicing, tile_sample_min_size and tile_overlap_factor.
#include <ATen/CPUGeneratorImpl.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "io/json_config.h"
#include "io/safetensors.h"
#include "io/weight_store.h"
#include "models/vae/autoencoder_kl.h"
#include "probe.h"

namespace cachedit::probe {
namespace {

using nlohmann::json;
using Tensors = std::map<std::string, at::Tensor>;

models::AutoencoderKl load(const std::filesystem::path& folder, const json& options) {
  static const std::map<std::string, at::ScalarType> dtypes = {
      {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};
  nn::WeightOptions weights;
  if (options.contains("dtype")) weights.dtype = dtypes.at(options.at("dtype"));
  io::JsonConfig config = io::JsonConfig::read(folder / "config.json");
  return {models::AutoencoderKlConfig::parse(config), io::WeightStore::open(folder), weights};
}

models::VaeTiling parse_tiling(const json& options) {
  models::VaeTiling tiling;
  tiling.tiling = options.value("tiling", tiling.tiling);
  tiling.slicing = options.value("slicing", tiling.slicing);
  tiling.tile_sample_min_size = options.value("tile_sample_min_size", tiling.tile_sample_min_size);
  tiling.tile_overlap_factor = options.value("tile_overlap_factor", tiling.tile_overlap_factor);
  return tiling;
}

Tensors encode(const models::AutoencoderKl& vae, const io::SafetensorsFile& input,
               const json& options) {
  const models::DiagonalGaussian latents =
      vae.encode(input.tensor("pixels"), parse_tiling(options));
  Tensors out = {{"mean", latents.mean}, {"logvar", latents.logvar}};
  if (options.contains("seed")) {
    at::Generator generator = at::detail::createCPUGenerator(options.at("seed").get<uint64_t>());
    out["sample"] = latents.sample(generator);
  }
  return out;
}

}  // namespace

int run_vae(const Arguments& arguments) {
  if (arguments.size() != 5) {
    fail<InputError>("probe", "vae needs encode or decode, a folder, two files and options: got ",
                     arguments.size(), " arguments");
  }
  const json options = json::parse(arguments[4]);
  const models::AutoencoderKl vae = load(arguments[1], options);
  const io::SafetensorsFile input(arguments[2]);
  if (arguments[0] == "encode") {
    io::write_safetensors(arguments[3], encode(vae, input, options));
  } else if (arguments[0] == "decode") {
    io::write_safetensors(
        arguments[3],
        Tensors{{"pixels", vae.decode(input.tensor("latents"), parse_tiling(options))}});
  } else {
    fail<InputError>("probe", "the direction must be encode or decode: got ", arguments[0]);
  }
  return 0;
}

}  // namespace cachedit::probe
