#include "kernels/kernel_runner.h"

#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

namespace cachedit::test {
namespace {

using kernels::AttentionProblem;
using kernels::CpuIsa;
using kernels::ElementType;
using kernels::MaskType;

constexpr size_t kGuard = 4096;
constexpr unsigned char kGuardByte = 0xa5;
constexpr unsigned char kNanByte = 0xff;  // all ones is NaN in fp32, bf16 and fp16, and -1 in int8
constexpr double kGap = 7;                // what out holds where it must not be written

ElementType element_type(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return ElementType::kBFloat16;
  return dtype == at::kHalf ? ElementType::kFloat16 : ElementType::kFloat32;
}

MaskType mask_type(at::ScalarType dtype) {
  if (dtype == at::kBool) return MaskType::kBool;
  if (dtype == at::kBFloat16) return MaskType::kBFloat16;
  return dtype == at::kHalf ? MaskType::kFloat16 : MaskType::kFloat32;
}

kernels::AttentionOperand operand(const at::Tensor& t) {
  return {.data = t.const_data_ptr(),
          .stride_batch = t.stride(0),
          .stride_token = t.stride(1),
          .stride_head = t.stride(2)};
}

/// Bytes on a 64-byte boundary between two guard zones.
class GuardedScratch {
 public:
  explicit GuardedScratch(size_t bytes) : bytes_(bytes) {
    const size_t total = (bytes + 2 * kGuard + 63) / 64 * 64;
    memory_.reset(static_cast<unsigned char*>(std::aligned_alloc(64, total)));
    std::memset(memory_.get(), kGuardByte, total);
    std::memset(data(), kNanByte, bytes);
  }

  unsigned char* data() { return memory_.get() + kGuard; }

  bool intact() {
    const auto is_guard = [](unsigned char byte) { return byte == kGuardByte; };
    return std::all_of(memory_.get(), data(), is_guard) &&
           std::all_of(data() + bytes_, data() + bytes_ + kGuard, is_guard);
  }

 private:
  struct Free {
    void operator()(unsigned char* p) const { std::free(p); }
  };
  size_t bytes_;
  std::unique_ptr<unsigned char, Free> memory_;
};

/// Out with room around it, so that writes outside show.
struct GuardedOut {
  at::Tensor storage;
  at::Tensor view;

  GuardedOut(const at::Tensor& query, bool strided) {
    const int64_t gap = strided ? 1 : 0;
    storage = at::full(
        {query.size(0) + 1, query.size(1) + gap, query.size(2) + gap, query.size(3) + 3 * gap},
        kGap, query.options());
    view = storage.narrow(0, 0, query.size(0))
               .narrow(1, 0, query.size(1))
               .narrow(2, 0, query.size(2))
               .narrow(3, 0, query.size(3));
    view.fill_(std::numeric_limits<double>::quiet_NaN());
  }

  /// The written part, after checking the rest.
  at::Tensor take() {
    at::Tensor result = view.clone(at::MemoryFormat::Contiguous);
    view.fill_(kGap);
    EXPECT_TRUE((storage == kGap).all().item<bool>()) << "the kernel wrote outside out";
    return result;
  }
};

}  // namespace

kernels::Parallel ThreadPerTask::parallel() {
  return {.threads = threads_,
          .context = &threads_,
          .run = [](void* context, kernels::Parallel::Task task, void* argument) {
            std::vector<std::thread> workers;
            for (int i = 1; i < *static_cast<int*>(context); ++i) {
              workers.emplace_back(task, argument, i);
            }
            task(argument, 0);
            for (std::thread& worker : workers) worker.join();
          }};
}

std::vector<CpuIsa> supported_isas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : kernels::kAllIsas) {
    if (kernels::isa_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

const char* scheme_name(kernels::AttentionScheme scheme) {
  switch (scheme) {
    case kernels::AttentionScheme::kExact:
      return "exact";
    case kernels::AttentionScheme::kSage:
      return "sage";
    case kernels::AttentionScheme::kSageUnsmoothed:
      return "sage_unsmoothed";
    case kernels::AttentionScheme::kFp8:
      return "fp8";
    case kernels::AttentionScheme::kFp8PerBlock:
      return "fp8_per_block";
    case kernels::AttentionScheme::kFp4:
      return "fp4";
  }
  return "?";
}

std::string describe(const AttentionInputs& in, const KernelOptions& options) {
  std::string text =
      c10::str(scheme_name(options.scheme), " on ", kernels::isa_name(options.isa), ", ",
               options.threads, " threads, ", in.query.scalar_type(), " query ", in.query.sizes(),
               " strides ", in.query.strides(), ", key ", in.key.sizes(), " strides ",
               in.key.strides(), ", scale ", in.effective_scale());
  if (in.mask.defined()) text += c10::str(", mask ", in.mask.scalar_type(), in.mask.sizes());
  if (in.causal) text += c10::str(", causal + ", in.causal_offset);
  if (options.strided_out) text += ", strided out";
  return text;
}

AttentionProblem kernel_problem(const AttentionInputs& in, const KernelOptions& options) {
  AttentionProblem problem{.scheme = options.scheme,
                           .type = element_type(in.query.scalar_type()),
                           .batch = in.query.size(0),
                           .heads = in.query.size(2),
                           .kv_heads = in.key.size(2),
                           .queries = in.query.size(1),
                           .keys = in.key.size(1),
                           .head_dim = in.query.size(3),
                           .query = operand(in.query),
                           .key = operand(in.key),
                           .value = operand(in.value),
                           .scale = static_cast<float>(in.effective_scale()),
                           .causal = in.causal,
                           .causal_offset = in.causal_offset};
  if (in.mask.defined()) {
    const at::Tensor mask =
        in.mask.expand({problem.batch, problem.heads, problem.queries, problem.keys});
    problem.mask = {.type = mask_type(mask.scalar_type()),
                    .data = mask.const_data_ptr(),
                    .stride_batch = mask.stride(0),
                    .stride_head = mask.stride(1),
                    .stride_query = mask.stride(2),
                    .stride_key = mask.stride(3)};
  }
  return problem;
}

AttentionOutputs run_kernel(const AttentionInputs& in, const KernelOptions& options) {
  AttentionProblem problem = kernel_problem(in, options);
  GuardedOut out(in.query, options.strided_out);
  problem.out = {.data = out.view.data_ptr(),
                 .stride_batch = out.view.stride(0),
                 .stride_token = out.view.stride(1),
                 .stride_head = out.view.stride(2)};
  const int64_t rows = problem.batch * problem.heads * problem.queries;
  at::Tensor lse = at::full({rows + 16}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
  lse.narrow(0, rows, 16).fill_(kGap);
  if (options.lse) problem.lse = lse.mutable_data_ptr<float>();

  ThreadPerTask threads(options.threads);
  const size_t bytes = kernels::attention_scratch_bytes(problem, options.threads, options.isa);
  GuardedScratch scratch(bytes);
  kernels::attention(problem, scratch.data(), threads.parallel(), options.isa);

  EXPECT_TRUE(scratch.intact()) << "the kernel wrote outside its " << bytes << " bytes of scratch";
  EXPECT_TRUE((lse.narrow(0, rows, 16) == kGap).all().item<bool>())
      << "the kernel wrote behind lse";
  AttentionOutputs result{.out = out.take(), .lse = {}};
  if (options.lse) {
    result.lse = lse.narrow(0, 0, rows).view({problem.batch, problem.heads, problem.queries});
  }
  return result;
}

}  // namespace cachedit::test
