// Linear layers for the tests of kernels::gemm(): typed arrays with gaps between their rows, the
// kernel's call in guarded memory, and the same layer in float64.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu_isa.h"
#include "kernels/gemm.h"

namespace cachedit::test {

/// A [rows, columns] array in memory of exactly its size; gaps between rows are NaN.
class TypedMatrix {
 public:
  TypedMatrix() = default;
  TypedMatrix(kernels::ElementType type, int64_t rows, int64_t columns, int64_t gap = 0);

  /// The number is rounded to the type.
  void set(int64_t row, int64_t column, double value);
  double at(int64_t row, int64_t column) const;
  void fill(const std::function<double(int64_t row, int64_t column)>& value);

  /// Whether the gaps still are what they were.
  bool gaps_intact() const;

  kernels::ElementType type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t stride() const { return stride_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  unsigned char* element(int64_t row, int64_t column);

  kernels::ElementType type_ = kernels::ElementType::kFloat32;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  int64_t stride_ = 0;
  std::vector<unsigned char> bytes_;
};

/// Bytes on a 64-byte boundary between two guard zones; they start as NaN.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes);
  unsigned char* data() { return storage_.data() + start_; }
  bool intact() const;

 private:
  size_t bytes_;
  size_t start_;
  std::vector<unsigned char> storage_;
};

/// A layer and its input. `weights` are the parts of W, of floating-point types.
struct LinearCase {
  kernels::WeightSpec spec;
  std::vector<TypedMatrix> weights;
  std::vector<TypedMatrix> input;  ///< one or two segments
  kernels::ActivationScale activation_scale = kernels::ActivationScale::kPerRow;
  std::vector<float> magnitude = {};  ///< of the rows; empty: their own
  std::vector<float> bias;            ///< empty for none, as is gate
  kernels::Activation activation = kernels::Activation::kNone;
  kernels::Combine combine = kernels::Combine::kStore;
  TypedMatrix before;     ///< the residual
  bool in_place = false;  ///< the residual is what out holds
  std::vector<float> gate;
  kernels::ElementType out_type = kernels::ElementType::kFloat32;
  int64_t out_gap = 0;

  int64_t rows() const { return input[0].rows(); }
};

std::string describe(const LinearCase& c);

/// A weight packed on one level, from the parts as they are or quantized beforehand.
class PackedWeight {
 public:
  PackedWeight(const LinearCase& c, kernels::CpuIsa isa, bool quantize_first = false,
               int threads = 1);
  const void* data() const { return bytes_->data(); }
  bool intact() const { return bytes_->intact(); }

 private:
  std::optional<GuardedBytes> mutable bytes_;
};

/// Runs the kernel; adds a test failure where it wrote outside out or its scratch.
TypedMatrix run_gemm(const LinearCase& c, const PackedWeight& weight, kernels::CpuIsa isa,
                     int threads = 1);
TypedMatrix run_gemm(const LinearCase& c, kernels::CpuIsa isa, int threads = 1);

/// W as the form stores it: stored integers or e4m3 numbers times their scales, in float64.
struct StoredWeight {
  std::vector<double> values;  ///< [N, K], scales included
  std::vector<int> integers;   ///< [N, K] of the integer forms
  std::vector<float> scales;   ///< [N] of the forms with a scale per channel or tensor
};
StoredWeight stored_weight(const LinearCase& c, kernels::CpuIsa isa);

/// A as kInt8 quantizes it, by the definition in gemm.h.
struct QuantizedInput {
  std::vector<int> integers;  ///< [M, K]
  std::vector<float> scales;  ///< [M]
};
QuantizedInput quantize_input(const LinearCase& c);

/// The output in float64, and for each element a bound of what the kernel may be off by before its
/// result is rounded to the output's type.
struct LinearReference {
  std::vector<double> values;
  std::vector<double> bounds;
};
LinearReference reference_linear(const LinearCase& c, const StoredWeight& weight,
                                 kernels::CpuIsa isa);

/// Compares with the reference, rounding to the output's type included.
void expect_close(const TypedMatrix& got, const LinearReference& want);

/// Whether two outputs are the same bits.
bool same_bytes(const TypedMatrix& a, const TypedMatrix& b);

TypedMatrix random_matrix(kernels::ElementType type, int64_t rows, int64_t columns,
                          std::mt19937& random, int64_t gap = 0);

}  // namespace cachedit::test
