#include <algorithm>
#include <array>

#include "base/fail.h"
#include "cachedit/parallel.h"

namespace cachedit {
namespace {

enum class Size { kUlysses, kRing, kTp };

/// The sizes that a name stands for, the one first that gets half of the ranks where upstream
/// halves them.
struct Type {
  const char* name;
  std::array<std::optional<Size>, 3> sizes;
};

constexpr Type kTypes[] = {
    {"tp", {Size::kTp}},
    {"ulysses", {Size::kUlysses}},
    {"ring", {Size::kRing}},
    {"usp", {Size::kUlysses, Size::kRing}},
    {"ulysses_tp", {Size::kUlysses, Size::kTp}},
    {"ring_tp", {Size::kRing, Size::kTp}},
    {"tp_ulysses", {Size::kTp, Size::kUlysses}},
    {"tp_ring", {Size::kTp, Size::kRing}},
    {"usp_tp", {Size::kUlysses, Size::kRing, Size::kTp}},
};

const Type& find_type(const std::string& name) {
  std::string known;
  for (const Type& type : kTypes) {
    if (name == type.name) return type;
    known += (known.empty() ? "" : ", ") + std::string(type.name);
  }
  fail<InputError>("parallel", "unknown --parallel-type: got '", name, "'; use ", known);
}

std::optional<int64_t>& size_in(ParallelismConfig& config, Size size) {
  if (size == Size::kUlysses) return config.ulysses_size;
  return size == Size::kRing ? config.ring_size : config.tp_size;
}

}  // namespace

bool ParallelismConfig::enabled() const {
  const ParallelismConfig nothing{.attention_backend = attention_backend};
  return !(*this == nothing);
}

ParallelismConfig parallel_layout(const std::string& parallel_type, int64_t world_size,
                                  ParallelismConfig given) {
  const Type& type = find_type(parallel_type);
  const auto cannot = [&](int64_t left, const char* why) {
    fail<InputError>("parallel", "--parallel-type ", parallel_type, " cannot share out ",
                     world_size, " ranks: ", left, " ", why,
                     "; start another number of ranks, or give the sizes");
  };
  if (world_size < 2) {
    fail<InputError>("parallel", "--parallel-type ", parallel_type,
                     " shares work among several "
                     "ranks: got one; start them together (mpirun -n 2 cachedit generate ...)");
  }
  int64_t left = world_size;
  std::vector<Size> open;
  const auto take = [&](int64_t size) {
    if (size < 1 || left % size != 0) {
      cannot(left, c10::str("of them do not divide by ", size).c_str());
    }
    left /= size;
  };
  if (given.cfg_size) take(*given.cfg_size);
  for (const std::optional<Size>& size : type.sizes) {
    if (!size) continue;
    if (const std::optional<int64_t>& fixed = size_in(given, *size)) {
      take(*fixed);
    } else {
      open.push_back(*size);
    }
  }
  if (open.empty() && left != 1) cannot(left, "would have nothing to do");
  while (!open.empty()) {
    // As upstream: half of the ranks for the first, and with three sizes 2 for each but the last.
    const bool last = open.size() == 1;
    const int64_t size = last ? left
                         : open.size() == 2 && type.sizes[2] == std::nullopt
                             ? std::max<int64_t>(1, left / 2)
                             : 2;
    take(size);
    size_in(given, open.front()) = size;
    open.erase(open.begin());
  }
  return given;
}

}  // namespace cachedit
