// Gated residuals and activations where no GEMM's epilogue can take them.
#include "kernels/cpu/gemm_epilogue.h"
#include "kernels/cpu/operators_rows.h"

namespace cachedit::kernels::CACHEDIT_ISA {
namespace {

template <class X, class V>
void add_gated_row(int64_t columns, const void* x, const void* residual, void* out,
                   const void* gate) {
  const int64_t i = full_vectors(
      columns, [&](int64_t at, int) __attribute__((always_inline)) {
        X::store(out, at, fma(V::load(gate, at), X::load(x, at), X::load(residual, at)));
      });
  if (i == columns) return;
  const int64_t left = columns - i;
  X::store_tail(
      out, i, left,
      fma(V::load_tail(gate, i, left), X::load_tail(x, i, left), X::load_tail(residual, i, left)));
}

template <Activation activation>
CACHEDIT_INLINE F32 activated(F32 v) {
  if constexpr (activation == Activation::kGeluTanh) return gelu_tanh(v);
  if constexpr (activation == Activation::kGeluErf) return gelu_erf(v);
  if constexpr (activation == Activation::kSilu) return silu(v);
  return v;
}

template <class X, Activation activation>
void activate_row(int64_t columns, const void* x, void* out) {
  const int64_t i = full_vectors(
      columns, [&](int64_t at, int) __attribute__((always_inline)) {
        X::store(out, at, activated<activation>(X::load(x, at)));
      });
  if (i == columns) return;
  X::store_tail(out, i, columns - i, activated<activation>(X::load_tail(x, i, columns - i)));
}

using ActivateRow = void (*)(int64_t columns, const void* x, void* out);

template <class X>
ActivateRow row_function(Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return activate_row<X, Activation::kGeluTanh>;
    case Activation::kGeluErf:
      return activate_row<X, Activation::kGeluErf>;
    case Activation::kSilu:
      return activate_row<X, Activation::kSilu>;
    case Activation::kNone:
      break;
  }
  return activate_row<X, Activation::kNone>;
}

}  // namespace

void gated_residual(const GatedResidualProblem& p, const Parallel& parallel) {
  using AddGatedRow =
      void (*)(int64_t columns, const void* x, const void* residual, void* out, const void* gate);
  AddGatedRow run = nullptr;
  with_types(p.type, p.vector_type, [&]<class X, class V>(X, V) { run = add_gated_row<X, V>; });
  for_each_row(parallel, p.batch * p.rows, p.columns * element_size(p.type), [&](int64_t i) {
    run(p.columns, offset(p.x, p.type, row_offset(p.x_strides, p.rows, i)),
        offset(p.residual, p.type, row_offset(p.residual_strides, p.rows, i)),
        offset(p.out, p.type, row_offset(p.out_strides, p.rows, i)),
        offset(p.gate.data, p.vector_type, i / p.rows * p.gate.stride_batch));
  });
}

void activate(const ActivationProblem& p, const Parallel& parallel) {
  ActivateRow run = nullptr;
  with_type(p.type, [&]<class X>(X) { run = row_function<X>(p.activation); });
  for_each_row(parallel, p.rows, p.columns * element_size(p.type), [&](int64_t row) {
    run(p.columns, offset(p.x, p.type, row * p.x_stride),
        offset(p.out, p.type, row * p.out_stride));
  });
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
