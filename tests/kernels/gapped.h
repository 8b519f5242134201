// Arrays for row operators that show what a kernel reads or writes outside of its rows.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/operators.h"

namespace cachedit::test {

inline kernels::ElementType element_type(const at::Tensor& t) {
  if (t.scalar_type() == at::kBFloat16) return kernels::ElementType::kBFloat16;
  return t.scalar_type() == at::kHalf ? kernels::ElementType::kFloat16
                                      : kernels::ElementType::kFloat32;
}

/// A tensor with gaps behind its rows and its items, which hold NaN: reads of them show, and so do
/// writes. `values` are rounded to `dtype`.
class Gapped {
 public:
  Gapped(const at::Tensor& values, at::ScalarType dtype) {
    std::vector<int64_t> shape = values.sizes().vec();
    for (size_t i = 1; i < shape.size(); ++i) shape[i] += i + 1 == shape.size() ? 3 : 1;
    storage_ = at::full(shape, std::numeric_limits<double>::quiet_NaN(), dtype);
    view_ = storage_;
    for (int64_t i = 1; i < values.dim(); ++i) view_ = view_.narrow(i, 0, values.size(i));
    view_.copy_(values);
  }

  const at::Tensor& view() const { return view_; }

  /// The values, after checking that the gaps still are NaN. Call it last.
  at::Tensor take() {
    at::Tensor result = view_.clone(at::MemoryFormat::Contiguous);
    view_.fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(storage_.isnan().all().item<bool>()) << "written outside the rows";
    return result;
  }

 private:
  at::Tensor storage_, view_;
};

inline kernels::RowStrides row_strides(const at::Tensor& t) { return {t.stride(0), t.stride(1)}; }

}  // namespace cachedit::test
