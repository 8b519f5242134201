// How far two tensors are apart.
#pragma once

#include <ATen/core/Tensor.h>

namespace cachedit::test {

/// ||got - want|| / ||want|| in float64 (Frobenius); infinity when shapes differ or got holds a
/// non-finite value, the absolute norm when want is all zero.
double relative_error(const at::Tensor& got, const at::Tensor& want);

/// sum |got - want| / sum |want| in float64; otherwise as relative_error.
double relative_l1(const at::Tensor& got, const at::Tensor& want);

/// max |got - want| in float64; infinity when shapes differ or got holds a non-finite value.
double max_abs_error(const at::Tensor& got, const at::Tensor& want);

/// The cosine of the angle between both tensors seen as vectors, in float64; -1 when shapes differ
/// or got holds a non-finite value, 1 when both are all zero.
double cosine(const at::Tensor& got, const at::Tensor& want);

/// Same shape, dtype and value of every element; NaN equals NaN, and 0 equals -0.
bool same_values(const at::Tensor& a, const at::Tensor& b);

}  // namespace cachedit::test
