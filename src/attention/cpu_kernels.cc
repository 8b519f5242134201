#include "attention/cpu_kernels.h"

#include <ATen/ops/empty.h>

#include <cstdint>

#include "attention/capability.h"
#include "base/cpu.h"
#include "base/dtype_name.h"
#include "base/element_type.h"
#include "base/fail.h"

namespace cachedit::attention {
namespace {

kernels::ElementType require_element_type(at::ScalarType type) {
  if (const auto element = element_type(type)) return *element;
  fail<UnsupportedError>("attention", "CPU kernels take fp32, bf16 and fp16: got ",
                         dtype_name(type));
}

kernels::MaskType mask_type(at::ScalarType type) {
  if (type == at::kBool) return kernels::MaskType::kBool;
  switch (require_element_type(type)) {
    case kernels::ElementType::kFloat32:
      return kernels::MaskType::kFloat32;
    case kernels::ElementType::kBFloat16:
      return kernels::MaskType::kBFloat16;
    case kernels::ElementType::kFloat16:
      return kernels::MaskType::kFloat16;
  }
  return kernels::MaskType::kNone;
}

at::Tensor with_dense_rows(const at::Tensor& t) {
  return t.stride(3) == 1 || t.size(3) == 1 ? t : t.contiguous();
}

kernels::AttentionOperand operand(const at::Tensor& t) {
  return {.data = t.const_data_ptr(),
          .stride_batch = t.stride(0),
          .stride_token = t.stride(1),
          .stride_head = t.stride(2)};
}

kernels::AttentionMask mask_operand(const at::Tensor& mask) {
  if (!mask.defined()) return {};
  const auto stride = [&](int64_t dim) { return mask.size(dim) == 1 ? 0 : mask.stride(dim); };
  return {.type = mask_type(mask.scalar_type()),
          .data = mask.const_data_ptr(),
          .stride_batch = stride(0),
          .stride_head = stride(1),
          .stride_query = stride(2),
          .stride_key = mask.stride(3)};
}

/// Bytes at a multiple of 64, as long as `owner` lives.
struct Scratch {
  at::Tensor owner;
  void* data = nullptr;
};

Scratch make_scratch(size_t bytes) {
  constexpr size_t kAlignment = 64;
  Scratch scratch;
  if (bytes == 0) return scratch;
  // LibTorch's allocator aligns to 64 bytes here, but does not promise it.
  scratch.owner = at::empty({static_cast<int64_t>(bytes + kAlignment)}, at::kByte);
  const auto address = reinterpret_cast<uintptr_t>(scratch.owner.mutable_data_ptr());
  scratch.data = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  return scratch;
}

}  // namespace

Result run_cpu_kernel(kernels::AttentionScheme scheme, CausalAlignment alignment,
                      const Inputs& in) {
  const at::Tensor query = with_dense_rows(in.query), key = with_dense_rows(in.key),
                   value = with_dense_rows(in.value);
  Result result;
  result.out = at::empty(query.sizes(), query.options());
  kernels::AttentionProblem problem{.scheme = scheme,
                                    .type = require_element_type(query.scalar_type()),
                                    .batch = query.size(0),
                                    .heads = query.size(2),
                                    .kv_heads = key.size(2),
                                    .queries = query.size(1),
                                    .keys = key.size(1),
                                    .head_dim = query.size(3),
                                    .query = operand(query),
                                    .key = operand(key),
                                    .value = operand(value),
                                    .mask = mask_operand(in.mask),
                                    .scale = static_cast<float>(in.scale.value()),
                                    .causal = in.is_causal};
  problem.out = {.data = result.out.mutable_data_ptr(),
                 .stride_batch = result.out.stride(0),
                 .stride_token = result.out.stride(1),
                 .stride_head = result.out.stride(2)};
  if (alignment == CausalAlignment::kLast) problem.causal_offset = problem.keys - problem.queries;
  if (in.return_lse) {
    result.lse = at::empty({problem.batch, problem.heads, problem.queries},
                           query.options().dtype(at::kFloat));
    problem.lse = result.lse.mutable_data_ptr<float>();
  }
  const kernels::CpuIsa isa = cpu_isa();
  const kernels::Parallel parallel = cpu_threads();
  const Scratch scratch =
      make_scratch(kernels::attention_scratch_bytes(problem, parallel.threads, isa));
  kernels::attention(problem, scratch.data, parallel, isa);
  return result;
}

}  // namespace cachedit::attention
