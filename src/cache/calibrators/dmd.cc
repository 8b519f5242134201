#include "cache/calibrators/dmd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_eig.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/real.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace cachedit::cache {
namespace {

/// Snapshots below which one complex pole is not identifiable.
constexpr size_t kMinSnapshots = 4;
/// Singular values below this part of the largest are noise.
constexpr double kNoiseFloor = 1e-4;
/// Below this part, their squares are lost in the rounding of the inner products, whatever rank is
/// asked for.
constexpr double kLost = 1e-7;

/// Whether the inner products of the snapshots are finite and those that are mapped not all zero.
bool is_usable(const at::Tensor& gram) {
  const int64_t mapped = gram.size(0) - 1;
  return at::isfinite(gram).all().item<bool>() &&
         gram.diagonal().narrow(0, 0, mapped).max().item<double>() > 0;
}

}  // namespace

void Dmd::update(const at::Tensor& value) {
  if (!snapshots_.empty() && snapshots_.back().value.sizes() != value.sizes()) {
    snapshots_.clear();
    before_last_ = at::Tensor();
    step_ = -1;
  }
  const int64_t last = snapshots_.empty() ? -1 : snapshots_.back().step;
  // cache-dit divides the change over two updates by the steps since the last one; so do we.
  slope_ = at::Tensor();
  if (before_last_.defined() && step_ > 1 && step_ > last) {
    slope_ = (value - before_last_) / static_cast<double>(step_ - last);
  }
  before_last_ = snapshots_.empty() ? at::Tensor() : snapshots_.back().value;
  snapshots_.push_back({step_, value});
  while (static_cast<int64_t>(snapshots_.size()) > options_.history) snapshots_.pop_front();
  fits_.reset();
}

std::vector<at::Tensor> Dmd::uniform_tail(int64_t& spacing) const {
  // A window of mixed spacing, as across the end of the warm-up, would not follow one linear map.
  if (snapshots_.size() < 2) return {};
  const size_t n = snapshots_.size();
  spacing = snapshots_[n - 1].step - snapshots_[n - 2].step;
  if (spacing <= 0) return {};
  size_t first = n - 2;
  while (first > 0 && snapshots_[first].step - snapshots_[first - 1].step == spacing) --first;
  std::vector<at::Tensor> tail;
  for (size_t i = first; i < n; ++i) tail.push_back(snapshots_[i].value);
  return tail;
}

std::optional<Dmd::Fit> Dmd::fit_one(const at::Tensor& trajectory) const {
  const int64_t n = trajectory.size(0);
  // The decomposition lies in the span of the snapshots, so their inner products hold all of it:
  // with X the first n - 1 and Y the last n - 1 snapshots as columns,
  //   X'X = V S^2 V',   A = S^-1 V' X'Y V (S + ridge)^-1 = W L W^-1,   modes = Y V (S + ridge)^-1
  //   W.
  const at::Tensor gram = at::matmul(trajectory, trajectory.t());
  if (!is_usable(gram)) return std::nullopt;
  const auto [squares, vectors] = at::linalg_eigh(gram.narrow(0, 0, n - 1).narrow(1, 0, n - 1));
  const at::Tensor singular = squares.clamp_min(0).sqrt().flip(0);
  const at::Tensor v_all = vectors.flip(1);
  const auto above = [&](double part) {
    return (singular > singular[0] * part).sum().item<int64_t>();
  };
  const int64_t rank =
      options_.rank <= 0 ? above(kNoiseFloor) : std::min(options_.rank, above(kLost));
  const at::Tensor s = singular.narrow(0, 0, rank);
  const at::Tensor v = v_all.narrow(1, 0, rank);
  const at::Tensor inverse = 1.0 / (s + options_.ridge);
  const at::Tensor cross = gram.narrow(0, 0, n - 1).narrow(1, 1, n - 1);  // X'Y
  const at::Tensor map =
      (1.0 / s).unsqueeze(1) * at::matmul(at::matmul(v.t(), cross), v) * inverse.unsqueeze(0);
  const auto [eigenvalues, w] = at::linalg_eig(map);
  const at::Tensor mixing =
      at::matmul((v * inverse.unsqueeze(0)).to(at::kComplexDouble), w);  // modes = Y * mixing

  // Amplitudes: least squares of modes * b = newest snapshot, in the coordinates of Y, whose
  // metric Y'Y = E D E' turns into the ordinary one by sqrt(D) E'.
  const auto [metric, axes] = at::linalg_eigh(gram.narrow(0, 1, n - 1).narrow(1, 1, n - 1));
  const at::Tensor to_plain =
      (metric.clamp_min(0).sqrt().unsqueeze(1) * axes.t()).to(at::kComplexDouble);
  const at::Tensor newest = to_plain.narrow(1, n - 2, 1);
  const at::Tensor amplitudes =
      std::get<0>(at::linalg_lstsq(at::matmul(to_plain, mixing), newest)).squeeze(1);
  return Fit{.snapshots = trajectory.narrow(0, 1, n - 1),
             .mixing = mixing,
             .eigenvalues = eigenvalues,
             .amplitudes = amplitudes};
}

std::vector<Dmd::Fit> Dmd::fit(const std::vector<at::Tensor>& tail) const {
  const int64_t items = tail.front().dim() > 1 ? tail.front().size(0) : 1;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& value : tail) flat.push_back(value.reshape({items, -1}).to(at::kDouble));
  const at::Tensor trajectories = at::stack(flat, 1);  // [items, n, d]
  std::vector<Fit> fits;
  try {
    for (int64_t i = 0; i < items; ++i) {
      std::optional<Fit> fit = fit_one(trajectories[i]);
      if (!fit) return {};
      fits.push_back(std::move(*fit));
    }
  } catch (const c10::LinAlgError&) {
    return {};  // degenerate: the newest value is reused
  }
  return fits;
}

at::Tensor Dmd::evaluate(double horizon) const {
  const at::Tensor& newest = snapshots_.back().value;
  std::vector<at::Tensor> items;
  for (const Fit& fit : *fits_) {
    const at::Tensor powers = at::pow(fit.eigenvalues, horizon) * fit.amplitudes;
    const at::Tensor weights = at::real(at::matmul(fit.mixing, powers.unsqueeze(1)).squeeze(1));
    items.push_back(at::matmul(weights.contiguous(), fit.snapshots));
  }
  const at::Tensor forecast = at::stack(items).reshape(newest.sizes()).to(newest.scalar_type());
  return at::isfinite(forecast).all().item<bool>() ? forecast : at::Tensor();
}

at::Tensor Dmd::approximate() {
  const Snapshot& newest = snapshots_.back();
  const auto elapsed = static_cast<double>(step_ - newest.step);
  int64_t spacing = 0;
  const std::vector<at::Tensor> tail = uniform_tail(spacing);
  if (tail.size() < kMinSnapshots) {
    return slope_.defined() ? at::add(newest.value, slope_, elapsed) : newest.value;
  }
  if (!fits_) fits_ = fit(tail);
  if (fits_->empty()) return newest.value;
  const at::Tensor forecast = evaluate(elapsed / static_cast<double>(spacing));
  return forecast.defined() ? forecast : newest.value;
}

int64_t Dmd::bytes() const {
  int64_t sum = slope_.defined() ? static_cast<int64_t>(slope_.nbytes()) : 0;
  for (const Snapshot& s : snapshots_) sum += static_cast<int64_t>(s.value.nbytes());
  if (!fits_) return sum;
  for (const Fit& f : *fits_) sum += static_cast<int64_t>(f.snapshots.nbytes());
  return sum;
}

}  // namespace cachedit::cache
