// Stored quantized layers of random types, shapes and scale names: each either computes something
// of the right shape or is refused with an error of ours.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "cachedit/error.h"
#include "quantized_reference.h"

namespace cachedit::nn {
namespace {

class StoredLayers {
 public:
  explicit StoredLayers(uint64_t seed) : random_(seed) {}

  void run_one() {
    const int64_t in = any_of<int64_t>({1, 2, 32, 64, 100, 128, 129, 256});
    const int64_t out = any_of<int64_t>({1, 3, 64, 128, 130});
    std::map<std::string, at::Tensor> file;
    const auto dtype = any_of<at::ScalarType>({at::kChar, at::kChar, at::kFloat8_e4m3fn,
                                               at::kFloat8_e4m3fn, at::kByte, at::kFloat8_e5m2,
                                               at::kShort, at::kBFloat16, at::kDouble});
    const int64_t columns = dtype == at::kByte && one_in(2) ? in / 2 : in;
    file["layer.weight"] = random_bytes(shape_near({out, columns}), dtype);
    if (one_in(2)) file["layer.bias"] = random_bytes(shape_near({out}), at::kFloat);
    for (int scales = any_of<int>({0, 1, 1, 1, 1, 2}); scales > 0; --scales) {
      const char* name = any_of<const char*>({"weight_scale", "scale_weight", "weight_scale_inv",
                                              "weight.scale", "input_scale", "weight_scales"});
      file[std::string("layer.") + name] = scale_for(out, in);
    }
    test::LayerFile layers(file);
    WeightOptions options{.dtype = any_of<at::ScalarType>({at::kFloat, at::kBFloat16, at::kHalf}),
                          .pack_linear = one_in(2)};
    options.quantization.group_size = any_of<int64_t>({32, 64, 128});
    std::optional<QuantType> type;
    if (one_in(2)) type = any_of(test::all_quant_types());
    const Linear layer = layers.load(in, out, type, options);
    const at::Tensor y = layer(at::ones({1, 3, in}, at::TensorOptions().dtype(options.dtype)));
    if (y.sizes() != at::IntArrayRef({1, 3, out})) throw std::logic_error("a wrong shape");
  }

 private:
  bool one_in(uint64_t n) { return random_() % n == 0; }
  template <class T>
  T any_of(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }
  /// Mostly `shape`; else one size off, one dimension more or one fewer.
  std::vector<int64_t> shape_near(std::vector<int64_t> shape) {
    if (!one_in(8)) return shape;
    if (one_in(3)) {
      shape.pop_back();
    } else if (one_in(2)) {
      shape.push_back(1);
    } else {
      shape[random_() % shape.size()] += one_in(2) ? 1 : -1;
    }
    return shape;
  }
  at::Tensor scale_for(int64_t out, int64_t in) {
    const std::vector<std::vector<int64_t>> shapes = {{},
                                                      {1},
                                                      {out},
                                                      {out, 1},
                                                      {1, out},
                                                      {out, in / 64},
                                                      {(out + 127) / 128, (in + 127) / 128},
                                                      {0},
                                                      {out + 1},
                                                      {in}};
    const auto dtype =
        any_of<at::ScalarType>({at::kFloat, at::kFloat, at::kBFloat16, at::kHalf, at::kLong});
    const at::Tensor scale = random_bytes(any_of(shapes), dtype);
    return one_in(2) ? at::ones(scale.sizes(), scale.options()) : scale;
  }
  /// Any bits, NaN and infinity among them.
  at::Tensor random_bytes(const std::vector<int64_t>& shape, at::ScalarType dtype) {
    at::Tensor bytes = at::empty(shape, dtype);
    auto* data = static_cast<uint8_t*>(bytes.mutable_data_ptr());
    for (size_t i = 0; i < bytes.nbytes(); ++i) data[i] = static_cast<uint8_t>(random_());
    return bytes;
  }

  std::mt19937_64 random_;
};

TEST(StoredLinear, RandomLayersComputeOrAreRefused) {
  StoredLayers fuzzer(1);
  int64_t accepted = 0, refused = 0;
  for (int run = 0; run < 1500; ++run) {
    SCOPED_TRACE(run);
    try {
      fuzzer.run_one();
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, 150);
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace cachedit::nn
