#include "kernels/gemm_runner.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernel_runner.h"

namespace cachedit::test {
namespace {

using kernels::CpuIsa;
using kernels::ElementType;
using kernels::WeightForm;

constexpr size_t kGuard = 4096;
constexpr unsigned char kGuardByte = 0xa5;
constexpr unsigned char kNanByte = 0xff;

int64_t size_of(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

}  // namespace

TypedMatrix::TypedMatrix(ElementType type, int64_t rows, int64_t columns, int64_t gap)
    : type_(type), rows_(rows), columns_(columns), stride_(columns + gap) {
  const int64_t elements = rows == 0 ? 0 : (rows - 1) * stride_ + columns;
  bytes_.assign(static_cast<size_t>(elements * size_of(type)), kNanByte);
}

unsigned char* TypedMatrix::element(int64_t row, int64_t column) {
  return bytes_.data() + (row * stride_ + column) * size_of(type_);
}

void TypedMatrix::set(int64_t row, int64_t column, double value) {
  const auto f = static_cast<float>(value);
  const c10::BFloat16 b(f);
  const c10::Half h(f);
  const void* bits = &f;
  if (type_ == ElementType::kBFloat16) bits = &b;
  if (type_ == ElementType::kFloat16) bits = &h;
  std::memcpy(element(row, column), bits, static_cast<size_t>(size_of(type_)));
}

double TypedMatrix::at(int64_t row, int64_t column) const {
  const unsigned char* p = const_cast<TypedMatrix*>(this)->element(row, column);
  float f = 0;
  uint16_t half = 0;
  std::memcpy(type_ == ElementType::kFloat32 ? static_cast<void*>(&f) : &half, p,
              static_cast<size_t>(size_of(type_)));
  if (type_ == ElementType::kBFloat16) f = c10::BFloat16(half, c10::BFloat16::from_bits());
  if (type_ == ElementType::kFloat16) f = c10::Half(half, c10::Half::from_bits());
  return f;
}

void TypedMatrix::fill(const std::function<double(int64_t, int64_t)>& value) {
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = 0; c < columns_; ++c) set(r, c, value(r, c));
  }
}

bool TypedMatrix::gaps_intact() const {
  for (int64_t r = 0; r + 1 < rows_; ++r) {
    const auto begin = bytes_.begin() + (r * stride_ + columns_) * size_of(type_);
    const auto end = bytes_.begin() + (r + 1) * stride_ * size_of(type_);
    if (!std::all_of(begin, end, [](unsigned char b) { return b == kNanByte; })) return false;
  }
  return true;
}

GuardedBytes::GuardedBytes(size_t bytes)
    : bytes_(bytes), start_(0), storage_(bytes + 2 * kGuard + 64, kGuardByte) {
  start_ = (reinterpret_cast<uintptr_t>(storage_.data()) + kGuard + 63) / 64 * 64 -
           reinterpret_cast<uintptr_t>(storage_.data());
  std::memset(data(), kNanByte, bytes);
}

bool GuardedBytes::intact() const {
  const auto is_guard = [](unsigned char byte) { return byte == kGuardByte; };
  const auto begin = storage_.begin() + static_cast<int64_t>(start_);
  return std::all_of(storage_.begin(), begin, is_guard) &&
         std::all_of(begin + static_cast<int64_t>(bytes_), storage_.end(), is_guard);
}

std::string describe(const LinearCase& c) {
  return c10::str(
      "form ", static_cast<int>(c.spec.form), ", scale ", static_cast<int>(c.spec.scale),
      ", group ", c.spec.group, ", M ", c.rows(), ", K ", c.spec.inputs, " in ", c.input.size(),
      " segments, N ", c.spec.outputs, " in ", c.weights.size(), " parts, input ",
      static_cast<int>(c.input[0].type()), ", output ", static_cast<int>(c.out_type), ", bias ",
      !c.bias.empty(), ", activation ", static_cast<int>(c.activation), ", combine ",
      static_cast<int>(c.combine), ", gate ", !c.gate.empty(), ", in place ", c.in_place);
}

namespace {

kernels::WeightSource source_of(const TypedMatrix& m) {
  const kernels::SourceType types[] = {
      kernels::SourceType::kFloat32, kernels::SourceType::kBFloat16, kernels::SourceType::kFloat16};
  return {.type = types[static_cast<int>(m.type())],
          .data = m.data(),
          .rows = m.rows(),
          .stride = m.stride()};
}

struct Quantized {
  std::vector<unsigned char> values;
  std::vector<float> scales;
};

Quantized quantize(const kernels::WeightSpec& spec, const TypedMatrix& part, CpuIsa isa,
                   int threads) {
  Quantized q;
  q.values.resize(static_cast<size_t>(part.rows() * kernels::quantized_row_bytes(spec)));
  q.scales.resize(static_cast<size_t>(kernels::weight_scale_count(spec, part.rows())));
  ThreadPerTask pool(threads);
  kernels::quantize_weight(spec, source_of(part), q.values.data(), q.scales.data(), pool.parallel(),
                           isa);
  return q;
}

kernels::SourceType stored_type(WeightForm form) {
  if (form == WeightForm::kE4M3WeightOnly) return kernels::SourceType::kE4M3;
  return form == WeightForm::kInt4WeightOnly ? kernels::SourceType::kInt4
                                             : kernels::SourceType::kInt8;
}

bool is_quantized(WeightForm form) {
  return form != WeightForm::kFloat32 && form != WeightForm::kBFloat16;
}

}  // namespace

PackedWeight::PackedWeight(const LinearCase& c, CpuIsa isa, bool quantize_first, int threads) {
  std::vector<Quantized> quantized;
  std::vector<kernels::WeightSource> sources;
  for (const TypedMatrix& part : c.weights) {
    sources.push_back(source_of(part));
    if (quantize_first) quantized.push_back(quantize(c.spec, part, isa, threads));
  }
  for (size_t i = 0; i < quantized.size(); ++i) {
    const int64_t row_bytes = kernels::quantized_row_bytes(c.spec);
    const bool half_bytes = c.spec.form == WeightForm::kInt4WeightOnly;
    sources[i].type = stored_type(c.spec.form);
    sources[i].data = quantized[i].values.data();
    sources[i].stride = half_bytes ? 2 * row_bytes : row_bytes;
    sources[i].scales = quantized[i].scales.data();
  }
  bytes_.emplace(kernels::packed_weight_bytes(c.spec, isa));
  ThreadPerTask pool(threads);
  kernels::pack_weight(c.spec, sources.data(), static_cast<int>(sources.size()), bytes_->data(),
                       pool.parallel(), isa);
  EXPECT_TRUE(bytes_->intact()) << "packing wrote outside its buffer";
}

TypedMatrix run_gemm(const LinearCase& c, const PackedWeight& weight, CpuIsa isa, int threads) {
  TypedMatrix out(c.out_type, c.rows(), c.spec.outputs, c.out_gap);
  if (c.in_place) {
    out.fill([&](int64_t r, int64_t n) { return c.before.at(r, n); });
  }
  kernels::GemmProblem problem{
      .rows = c.rows(),
      .input_type = c.input[0].type(),
      .weight = c.spec,
      .packed = weight.data(),
      .activation_scale = c.activation_scale,
      .input_magnitude = c.magnitude.empty() ? nullptr : c.magnitude.data(),
      .bias = c.bias.empty() ? nullptr : c.bias.data(),
      .activation = c.activation,
      .combine = c.combine,
      .gate = c.gate.empty() ? nullptr : c.gate.data(),
      .out_type = c.out_type,
      .out = out.data(),
      .out_stride = out.stride()};
  for (size_t s = 0; s < c.input.size(); ++s) {
    problem.input[s] = {
        .data = c.input[s].data(), .columns = c.input[s].columns(), .stride = c.input[s].stride()};
  }
  if (c.combine != kernels::Combine::kStore) {
    problem.residual = c.in_place ? out.data() : c.before.data();
    problem.residual_stride = c.in_place ? out.stride() : c.before.stride();
  }
  ThreadPerTask pool(threads);
  GuardedBytes scratch(kernels::gemm_scratch_bytes(problem, threads, isa));
  kernels::gemm(problem, scratch.data(), pool.parallel(), isa);
  EXPECT_TRUE(scratch.intact()) << "the kernel wrote outside its scratch";
  EXPECT_TRUE(weight.intact()) << "the kernel wrote around the packed weight";
  EXPECT_TRUE(out.gaps_intact()) << "the kernel wrote between the rows of out";
  return out;
}

TypedMatrix run_gemm(const LinearCase& c, CpuIsa isa, int threads) {
  return run_gemm(c, PackedWeight(c, isa), isa, threads);
}

namespace {

double e4m3_value(unsigned char code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double sign = code & 0x80 ? -1 : 1;
  if ((code & 0x7f) == 0x7f) return std::nan("");
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}

/// What one stored element stands for, without its scale.
double stored_value(WeightForm form, const unsigned char* row, int64_t k) {
  switch (form) {
    case WeightForm::kE4M3WeightOnly:
      return e4m3_value(row[k]);
    case WeightForm::kInt4WeightOnly: {
      const int nibble = k % 2 == 0 ? row[k / 2] & 15 : row[k / 2] >> 4;
      return nibble < 8 ? nibble : nibble - 16;
    }
    default:
      return static_cast<signed char>(row[k]);
  }
}

size_t scale_index(const kernels::WeightSpec& spec, int64_t row, int64_t k) {
  const auto groups = [&](int64_t size) { return (spec.inputs + size - 1) / size; };
  switch (spec.scale) {
    case kernels::WeightScale::kPerTensor:
      return 0;
    case kernels::WeightScale::kPerGroup:
      return static_cast<size_t>(row * groups(spec.group) + k / spec.group);
    case kernels::WeightScale::kPerBlock:
      return static_cast<size_t>(row / 128 * groups(128) + k / 128);
    case kernels::WeightScale::kPerChannel:
      break;
  }
  return static_cast<size_t>(row);
}

}  // namespace

StoredWeight stored_weight(const LinearCase& c, CpuIsa isa) {
  StoredWeight w;
  for (const TypedMatrix& part : c.weights) {
    Quantized q;
    if (is_quantized(c.spec.form)) q = quantize(c.spec, part, isa, 1);
    for (int64_t n = 0; n < part.rows(); ++n) {
      const unsigned char* row = q.values.data() + n * kernels::quantized_row_bytes(c.spec);
      for (int64_t k = 0; k < c.spec.inputs; ++k) {
        double value = part.at(n, k);
        if (c.spec.form == WeightForm::kBFloat16) value = c10::BFloat16(static_cast<float>(value));
        if (is_quantized(c.spec.form)) {
          const double stored = stored_value(c.spec.form, row, k);
          w.integers.push_back(static_cast<int>(stored));
          value = stored * q.scales[scale_index(c.spec, n, k)];
        }
        w.values.push_back(value);
      }
      if (is_quantized(c.spec.form)) w.scales.push_back(q.scales[scale_index(c.spec, n, 0)]);
    }
  }
  return w;
}

namespace {

/// Row m of A over both segments.
std::vector<double> input_row(const LinearCase& c, int64_t m) {
  std::vector<double> row;
  for (const TypedMatrix& segment : c.input) {
    for (int64_t k = 0; k < segment.columns(); ++k) row.push_back(segment.at(m, k));
  }
  return row;
}

float scale_for(float amax) { return amax < 1e-30f ? 1.0f : amax / 127.0f; }

}  // namespace

QuantizedInput quantize_input(const LinearCase& c) {
  QuantizedInput q;
  std::vector<float> amax;
  for (int64_t m = 0; m < c.rows(); ++m) {
    float largest = 0;
    for (const double x : input_row(c, m)) {
      largest = std::max(largest, std::abs(static_cast<float>(x)));
    }
    amax.push_back(largest);
  }
  const float overall = amax.empty() ? 0 : *std::max_element(amax.begin(), amax.end());
  for (int64_t m = 0; m < c.rows(); ++m) {
    const bool per_row = c.activation_scale == kernels::ActivationScale::kPerRow;
    const float scale = scale_for(per_row ? amax[static_cast<size_t>(m)] : overall);
    const float inverse = 1.0f / scale;
    for (const double x : input_row(c, m)) {
      q.integers.push_back(static_cast<int>(std::nearbyint(static_cast<float>(x) * inverse)));
    }
    q.scales.push_back(scale);
  }
  return q;
}

namespace {

double activate(kernels::Activation activation, double x) {
  switch (activation) {
    case kernels::Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case kernels::Activation::kGeluErf:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case kernels::Activation::kSilu:
      return x / (1 + std::exp(-x));
    case kernels::Activation::kNone:
      break;
  }
  return x;
}

/// How far products may be off, relative to the sum of their magnitudes. What the form rounds A or
/// scaled weights to has 8 bits, and sums of n terms in fp32 err by about sqrt(n) roundings.
double product_error(const LinearCase& c, CpuIsa isa) {
  constexpr double kFloat = 6e-8;
  if (c.spec.form == WeightForm::kInt8) return 4 * kFloat;
  double error = kFloat * (4 + 2 * std::sqrt(static_cast<double>(c.spec.inputs)));
  if (isa != CpuIsa::kAvx512Bf16 || c.spec.form == WeightForm::kFloat32) return error;
  if (c.input[0].type() != ElementType::kBFloat16) error += 0.004;
  const bool grouped = c.spec.scale == kernels::WeightScale::kPerGroup ||
                       c.spec.scale == kernels::WeightScale::kPerBlock;
  if (is_quantized(c.spec.form) && grouped) error += 0.004;
  return error;
}

}  // namespace

LinearReference reference_linear(const LinearCase& c, const StoredWeight& weight, CpuIsa isa) {
  LinearReference result;
  const bool dynamic = c.spec.form == WeightForm::kInt8;
  QuantizedInput q;
  if (dynamic) q = quantize_input(c);
  const auto inputs = static_cast<size_t>(c.spec.inputs);
  for (int64_t m = 0; m < c.rows(); ++m) {
    std::vector<double> a = input_row(c, m);
    for (size_t k = 0; dynamic && k < inputs; ++k) {
      a[k] = q.integers[static_cast<size_t>(m) * inputs + k] *
             static_cast<double>(q.scales[static_cast<size_t>(m)]);
    }
    for (int64_t n = 0; n < c.spec.outputs; ++n) {
      const double* w = weight.values.data() + n * c.spec.inputs;
      double sum = 0, magnitude = 0;
      for (size_t k = 0; k < inputs; ++k) {
        sum += a[k] * w[k];
        magnitude += std::abs(a[k] * w[k]);
      }
      const double bias = c.bias.empty() ? 0 : c.bias[static_cast<size_t>(n)];
      double value = activate(c.activation, sum + bias);
      double bound = 1.2 * product_error(c, isa) * (dynamic ? std::abs(sum) : magnitude) +
                     4e-7 * (std::abs(sum + bias) + std::abs(bias));
      if (c.combine == kernels::Combine::kMultiply) {
        value *= c.before.at(m, n);
        bound = std::abs(c.before.at(m, n)) * bound + 1e-7 * std::abs(value);
      } else if (c.combine == kernels::Combine::kGatedResidual) {
        const double gate = c.gate.empty() ? 1 : c.gate[static_cast<size_t>(n)];
        value = c.before.at(m, n) + gate * value;
        bound = std::abs(gate) * bound + 1e-7 * (std::abs(value) + std::abs(c.before.at(m, n)));
      }
      result.values.push_back(value);
      result.bounds.push_back(bound);
    }
  }
  return result;
}

void expect_close(const TypedMatrix& got, const LinearReference& want) {
  const double rounding = got.type() == ElementType::kFloat32    ? 1.2e-7
                          : got.type() == ElementType::kBFloat16 ? 1.0 / 256
                                                                 : 1.0 / 2048;
  // Half a step of the smallest fp16 numbers.
  const double smallest = got.type() == ElementType::kFloat16 ? 3e-8 : 1e-37;
  for (int64_t m = 0; m < got.rows(); ++m) {
    for (int64_t n = 0; n < got.columns(); ++n) {
      const auto i = static_cast<size_t>(m * got.columns() + n);
      const double bound = want.bounds[i] + rounding * std::abs(want.values[i]) + smallest;
      ASSERT_LE(std::abs(got.at(m, n) - want.values[i]), bound)
          << "row " << m << ", column " << n << ": " << got.at(m, n) << ", not " << want.values[i];
    }
  }
}

bool same_bytes(const TypedMatrix& a, const TypedMatrix& b) { return a.bytes() == b.bytes(); }

TypedMatrix random_matrix(ElementType type, int64_t rows, int64_t columns, std::mt19937& random,
                          int64_t gap) {
  std::normal_distribution<double> normal;
  TypedMatrix m(type, rows, columns, gap);
  m.fill([&](int64_t, int64_t) { return normal(random); });
  return m;
}

}  // namespace cachedit::test
