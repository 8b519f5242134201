// What the kernels do with threads and memory: results that do not depend on the number of threads,
// scratch that does not grow with queries x keys, and no access outside the operands.
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "kernels/kernel_runner.h"
#include "support/tensor_compare.h"

namespace cachedit::test {
namespace {

using kernels::AttentionScheme;
using kernels::CpuIsa;

constexpr AttentionScheme kAllSchemes[] = {
    AttentionScheme::kExact, AttentionScheme::kSage,        AttentionScheme::kSageUnsmoothed,
    AttentionScheme::kFp8,   AttentionScheme::kFp8PerBlock, AttentionScheme::kFp4,
};

class AttentionMemory : public ::testing::TestWithParam<AttentionScheme> {};

TEST_P(AttentionMemory, ResultsDoNotDependOnThreads) {
  const AttentionShape one_head{.queries = 700, .keys = 300, .head_dim = 64};
  const AttentionShape many_heads{
      .batch = 2, .heads = 6, .kv_heads = 3, .queries = 90, .keys = 130, .head_dim = 40};
  for (const AttentionShape& shape : {one_head, many_heads}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      AttentionInputs in = random_attention_inputs(shape, dtype, 1);
      in.causal = dtype == at::kFloat;
      for (const CpuIsa isa : supported_isas()) {
        const auto run = [&](int threads) {
          return run_kernel(in, {.scheme = GetParam(), .isa = isa, .threads = threads});
        };
        const AttentionOutputs one = run(1);
        for (const int threads : {2, 3, 5, 64}) {
          SCOPED_TRACE(describe(in, {.scheme = GetParam(), .isa = isa, .threads = threads}));
          const AttentionOutputs many = run(threads);
          EXPECT_TRUE(same_values(many.out, one.out));
          EXPECT_TRUE(same_values(many.lse, one.lse));
        }
      }
    }
  }
}

/// Without lse, and twice with other memory in between, the result is the same.
TEST_P(AttentionMemory, LseIsOptionalAndRunsRepeat) {
  const AttentionInputs in = random_attention_inputs(
      {.heads = 2, .kv_heads = 2, .queries = 270, .keys = 130, .head_dim = 72}, at::kHalf, 2);
  for (const CpuIsa isa : supported_isas()) {
    KernelOptions options{.scheme = GetParam(), .isa = isa};
    const at::Tensor with = run_kernel(in, options).out;
    options.lse = false;
    EXPECT_TRUE(same_values(run_kernel(in, options).out, with)) << kernels::isa_name(isa);
  }
}

TEST_P(AttentionMemory, ScratchDoesNotGrowWithQueriesTimesKeys) {
  const auto bytes = [](int64_t queries, int64_t keys, int64_t heads, int threads, CpuIsa isa) {
    const kernels::AttentionProblem problem{.scheme = GetParam(),
                                            .type = kernels::ElementType::kBFloat16,
                                            .batch = 1,
                                            .heads = heads,
                                            .kv_heads = heads,
                                            .queries = queries,
                                            .keys = keys,
                                            .head_dim = 128,
                                            .scale = 1};
    return static_cast<double>(kernels::attention_scratch_bytes(problem, threads, isa));
  };
  constexpr double kMiB = 1 << 20;
  for (const CpuIsa isa : supported_isas()) {
    SCOPED_TRACE(kernels::isa_name(isa));
    // K and V of one head take 8 MiB in bf16 and 16 MiB in fp32; the logits would take 1 GiB.
    EXPECT_LE(bytes(16384, 16384, 1, 1, isa), 48 * kMiB);
    EXPECT_LE(bytes(65536, 16384, 1, 1, isa), bytes(16384, 16384, 1, 1, isa) + kMiB);
    // Heads are packed in groups of one per thread, or as many as fit into 8 MiB.
    EXPECT_LE(bytes(16384, 16384, 24, 1, isa), bytes(16384, 16384, 1, 1, isa) + 8 * kMiB);
    EXPECT_LE(bytes(16384, 16384, 24, 4, isa), 4 * bytes(16384, 16384, 24, 1, isa) + kMiB);
  }
}

/// Memory that ends where a page without access begins: reading one byte further ends the test.
class FencedMemory {
 public:
  explicit FencedMemory(size_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t usable = (bytes + page - 1) / page * page;
    size_ = usable + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + page, usable, PROT_READ | PROT_WRITE) != 0) {
      throw std::bad_alloc();
    }
    end_ = base_ + page + usable;
  }
  ~FencedMemory() { munmap(base_, size_); }
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;

  char* end() const { return end_; }

 private:
  size_t size_;
  char* base_;
  char* end_;
};

/// A contiguous copy whose last byte is the last accessible one.
at::Tensor fenced(const at::Tensor& t) {
  const auto bytes = static_cast<size_t>(t.nbytes());
  auto memory = std::make_shared<FencedMemory>(bytes);
  at::Tensor copy = at::from_blob(
      memory->end() - bytes, t.sizes(), [memory](void*) {}, t.options());
  return copy.copy_(t);
}

TEST_P(AttentionMemory, ReadsNothingBehindTheOperands) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t head_dim : {1, 7, 40, 72, 128}) {
      for (const auto& [queries, keys] : {std::pair{1, 1}, {17, 19}, {265, 130}}) {
        const AttentionShape shape{
            .heads = 2, .kv_heads = 2, .queries = queries, .keys = keys, .head_dim = head_dim};
        const AttentionInputs in = random_attention_inputs(shape, dtype, 3);
        AttentionInputs guarded = in;
        for (at::Tensor* t : {&guarded.query, &guarded.key, &guarded.value}) *t = fenced(*t);
        for (const bool boolean : {true, false}) {
          AttentionInputs masked = in;
          masked.mask = boolean ? seeded_bool({1, 1, queries, keys}, 0.7, 4)
                                : seeded_normal({1, 1, queries, keys}, dtype, 4);
          guarded.mask = fenced(masked.mask);
          for (const CpuIsa isa : supported_isas()) {
            const KernelOptions options{.scheme = GetParam(), .isa = isa};
            EXPECT_TRUE(
                same_values(run_kernel(guarded, options).out, run_kernel(masked, options).out))
                << describe(in, options);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, AttentionMemory, ::testing::ValuesIn(kAllSchemes),
                         [](const auto& test) { return scheme_name(test.param); });

}  // namespace
}  // namespace cachedit::test
