// How far two tensors are apart.
#pragma once

#include <ATen/core/Tensor.h>

namespace cachedit::test {

/// ||got - want|| / ||want|| in float64 (Frobenius); infinity when shapes differ or got holds a
/// non-finite value, the absolute norm when want is all zero.
double relative_error(const at::Tensor& got, const at::Tensor& want);

/// max |got - want| in float64; infinity when shapes differ or got holds a non-finite value.
double max_abs_error(const at::Tensor& got, const at::Tensor& want);

}  // namespace cachedit::test
