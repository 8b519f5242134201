#include "stand_ins.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <limits>

#include "support/attention_reference.h"

namespace cachedit::attention::stand_in {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::map<std::string, Arguments>& calls() {
  static std::map<std::string, Arguments> instance;
  return instance;
}

/// Takes the arguments off the stack and keeps them.
const Arguments& take_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Arguments& kept = calls()[op.schema().name()];
  kept.clear();
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    kept.emplace(arguments[i].name(), (*stack)[first + i]);
  }
  stack->resize(first);
  return kept;
}

/// [B, N, H, D] tensors in the query's dtype and an fp32 lse.
test::AttentionOutputs compute(const test::AttentionInputs& in) {
  test::AttentionOutputs out = test::reference_attention(in);
  return {.out = out.out.to(in.query.scalar_type()), .lse = out.lse.to(at::kFloat)};
}

at::Tensor swap(const at::Tensor& t) { return t.transpose(1, 2); }

at::Tensor integer() { return at::empty({0}, at::kLong); }

void flash_2(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Arguments& a = take_arguments(op, stack);
  const at::Tensor q = a.at("query").toTensor(), k = a.at("key").toTensor();
  auto out = compute({.query = q,
                      .key = k,
                      .value = a.at("value").toTensor(),
                      .causal = a.at("is_causal").toBool(),
                      .causal_offset = k.size(1) - q.size(1),
                      .scale = a.at("scale").toDouble()});
  // As the real one: rows without a key have an infinite lse of the wrong sign.
  out.lse.masked_fill_(out.lse == -kInfinity, kInfinity);
  *stack = {out.out, out.lse, integer(), integer(), at::empty({0})};
}

void cudnn(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Arguments& a = take_arguments(op, stack);
  test::AttentionInputs in{.query = swap(a.at("query").toTensor()),
                           .key = swap(a.at("key").toTensor()),
                           .value = swap(a.at("value").toTensor()),
                           .causal = a.at("is_causal").toBool(),
                           .scale = a.at("scale").toDouble()};
  if (!a.at("attn_bias").isNone()) in.mask = a.at("attn_bias").toTensor();
  auto out = compute(in);
  // As the real one: NaN in rows without a key.
  out.out.masked_fill_(swap((out.lse == -kInfinity).unsqueeze(-1)),
                       std::numeric_limits<double>::quiet_NaN());
  *stack = {swap(out.out),    out.lse.unsqueeze(-1), at::Tensor(), at::Tensor(),
            in.query.size(1), in.key.size(1),        integer(),    integer(),
            at::Tensor()};
}

void efficient(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Arguments& a = take_arguments(op, stack);
  const auto out = compute({.query = swap(a.at("query").toTensor()),
                            .key = swap(a.at("key").toTensor()),
                            .value = swap(a.at("value").toTensor()),
                            .causal = a.at("is_causal").toBool(),
                            .scale = a.at("scale").toDouble()});
  // As the real one: the rows of lse are padded to a multiple of 32.
  const int64_t queries = out.lse.size(2);
  at::Tensor padded = at::full({out.lse.size(0), out.lse.size(1), (queries + 31) / 32 * 32}, -7.0);
  padded.narrow(2, 0, queries).copy_(out.lse);
  *stack = {swap(out.out), padded, integer(), integer()};
}

void flash_3(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Arguments& a = take_arguments(op, stack);
  const at::Tensor q = a.at("q").toTensor(), k = a.at("k").toTensor();
  const auto out = compute({.query = q,
                            .key = k,
                            .value = a.at("v").toTensor(),
                            .causal = a.at("is_causal").toBool(),
                            .causal_offset = k.size(1) - q.size(1),
                            .scale = a.at("softmax_scale").toDouble()});
  *stack = {out.out, out.lse, at::empty({0}), at::empty({0})};
}

/// Both of torch_npu's: true in a mask is left out, and a causal mask is the compressed one.
test::AttentionOutputs npu(const Arguments& a) {
  test::AttentionInputs in{.query = a.at("query").toTensor(),
                           .key = a.at("key").toTensor(),
                           .value = a.at("value").toTensor(),
                           .causal = a.at("sparse_mode").toInt() == 2,
                           .scale = a.at("scale").toDouble()};
  if (!in.causal && !a.at("atten_mask").isNone()) {
    in.mask = a.at("atten_mask").toTensor().logical_not();
  }
  return compute(in);
}

void npu_fusion(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto out = npu(take_arguments(op, stack));
  *stack = {out.out,    at::empty({0}), at::empty({0}), at::empty({0}),
            int64_t{0}, int64_t{0},     int64_t{0}};
}

void npu_fia(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto out = npu(take_arguments(op, stack));
  *stack = {out.out, out.lse.unsqueeze(-1)};
}

}  // namespace

const Arguments& last_call(const std::string& name) { return calls()[name]; }

// Operators of LibTorch that have no kernel for CPU tensors.
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_flash_attention_forward", torch::CppFunction::makeFromBoxedFunction<&flash_2>());
  m.impl("_scaled_dot_product_cudnn_attention",
         torch::CppFunction::makeFromBoxedFunction<&cudnn>());
  m.impl("_scaled_dot_product_efficient_attention",
         torch::CppFunction::makeFromBoxedFunction<&efficient>());
}

// The schema of flash-attention's hopper/flash_api.cpp.
TORCH_LIBRARY(flash_attn_3, m) {
  m.def(
      "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, "
      "Tensor? q_v=None, Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, "
      "Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, "
      "Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
      "Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, "
      "Tensor? rotary_cos=None, Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, "
      "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, "
      "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, "
      "int window_size_right=-1, int attention_chunk=0, float softcap=0.0, "
      "bool is_rotary_interleaved=False, Tensor? scheduler_metadata=None, int num_splits=0, "
      "bool? pack_gqa=None, int sm_margin=0) -> (Tensor(out!), Tensor, Tensor, Tensor)");
  m.impl("fwd", torch::dispatch(c10::DispatchKey::CPU,
                                torch::CppFunction::makeFromBoxedFunction<&flash_3>()));
}

// The schemas of torch_npu's op-plugin, 2.x.
TORCH_LIBRARY(npu, m) {
  m.def(
      "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, "
      "str input_layout, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, "
      "float scale=1., float keep_prob=1., int pre_tockens=2147483647, "
      "int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, "
      "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
      "bool gen_mask_parallel=True, bool sync=False) -> "
      "(Tensor, Tensor, Tensor, Tensor, int, int, int)");
  m.def(
      "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, "
      "Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None, "
      "SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, "
      "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, "
      "Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, "
      "Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None, "
      "Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, "
      "Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, "
      "Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, "
      "SymInt[]? actual_shared_prefix_len=None, int num_heads=1, float scale=1.0, "
      "int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout=\"BSH\", "
      "int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, "
      "int antiquant_mode=0, bool softmax_lse_flag=False, int key_antiquant_mode=0, "
      "int value_antiquant_mode=0) -> (Tensor, Tensor)");
  m.impl("npu_fusion_attention",
         torch::dispatch(c10::DispatchKey::CPU,
                         torch::CppFunction::makeFromBoxedFunction<&npu_fusion>()));
  m.impl("npu_fused_infer_attention_score",
         torch::dispatch(c10::DispatchKey::CPU,
                         torch::CppFunction::makeFromBoxedFunction<&npu_fia>()));
}

// For the errors of calls by argument names.
TORCH_LIBRARY(cachedit_test, m) {
  m.def("without_scale(Tensor q) -> Tensor");
  m.def("needs_more(Tensor q, float scale, int extra) -> Tensor");
}

}  // namespace cachedit::attention::stand_in
