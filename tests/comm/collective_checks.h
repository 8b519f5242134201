// What must hold of the collectives on every transport: run on threads by the suite, on processes
// by tests/mpi.
#pragma once

#include <c10/util/StringUtil.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace cachedit::test {

/// Throws std::runtime_error with the parts as its text unless `condition` holds.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw std::runtime_error(c10::str(parts...));
}

/// Throws unless both have the same dtype, sizes and bits.
void require_same(const at::Tensor& got, const at::Tensor& want, const std::string& what);

/// Seeded numbers of any dtype.
at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype, uint64_t seed);

/// Dtypes that travel.
const std::vector<at::ScalarType>& all_dtypes();

/// Every rank of a group runs it; throws on a rank that sees something wrong.
struct CollectiveCheck {
  std::string name;
  std::function<void(comm::Communicator&)> run;
};

/// collective_checks.cc, reduction_checks.cc, group_checks.cc
std::vector<CollectiveCheck> exchange_checks();
std::vector<CollectiveCheck> reduction_checks();
std::vector<CollectiveCheck> group_checks();
/// All of them.
std::vector<CollectiveCheck> collective_checks();

}  // namespace cachedit::test
