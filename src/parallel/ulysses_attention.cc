#include "base/fail.h"
#include "comm/collectives.h"
#include "parallel/context_call.h"
#include "parallel/context_parallel.h"
#include "parallel/float8_wire.h"
#include "parallel/sequence.h"
#include "parallel/trade.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;
using attention::Projections;
using attention::Result;

constexpr const char* kWhere = "ulysses";
constexpr int64_t kTokens = 1, kHeads = 2;  // dimensions of query, key, value and output

class UlyssesAttention final : public attention::Attention {
 public:
  UlyssesAttention(const Attention& inner, comm::Communicator& group, std::vector<int64_t> lengths,
                   const UlyssesOptions& options)
      : inner_(inner), group_(group), lengths_(std::move(lengths)), options_(options) {}

  Result operator()(const Inputs& in) const override {
    if (group_.size() == 1) return inner_(in);
    check(in);
    const ContextMask mask = read_context_mask(kWhere, in.mask, in.query);
    Arriving value = send(in.value, options_.float8);
    Arriving query = send(in.query, options_.float8);
    Arriving key = send(in.key, /*float8=*/false);
    return attend({query, key, value, mask}, in, {});
  }

  Result project_and_attend(const Projections& projections, Inputs rest) const override {
    if (group_.size() == 1) return inner_.project_and_attend(projections, rest);
    // With enable_gqa, whether the heads fit is known only when both query and key are.
    if (!options_.async || rest.enable_gqa) {
      return Attention::project_and_attend(projections, rest);
    }
    check_not_causal(kWhere, rest);
    rest.value = projections.value();
    check_alone(rest.value);
    const ContextMask mask = read_context_mask(kWhere, rest.mask, rest.value);
    Arriving value = send(rest.value, options_.float8);
    rest.query = projections.query();
    check_alone(rest.query);
    Arriving query = send(rest.query, options_.float8);
    rest.key = projections.key();
    check(rest);
    Arriving key = send(rest.key, /*float8=*/false);
    return attend({query, key, value, mask}, std::move(rest), projections.meanwhile);
  }

 private:
  int64_t own_tokens() const { return lengths_[static_cast<size_t>(group_.rank())]; }
  Shares tokens(int64_t dim) const { return {dim, lengths_}; }
  Shares heads(int64_t dim, int64_t count) const {
    return {dim, split_lengths(count, group_.size())};
  }

  void check(const Inputs& in) const {
    check_context_call(kWhere, in, own_tokens());
    const int64_t query_heads = in.query.size(kHeads), key_heads = in.key.size(kHeads);
    check_ulysses_heads(query_heads, group_.size(), options_);
    if (key_heads != query_heads) check_ulysses_key_heads(key_heads, group_.size());
  }

  /// What can be known of one tensor before it is sent.
  void check_alone(const at::Tensor& t) const {
    if (!t.defined() || t.dim() != 4 || t.size(kTokens) != own_tokens()) {
      fail<InputError>(kWhere, "query, key and value must be [B, ", own_tokens(),
                       ", H, D] on this rank: got ",
                       t.defined() ? c10::str(t.sizes()) : std::string("nothing"));
    }
    check_ulysses_heads(t.size(kHeads), group_.size(), options_);
  }

  /// This rank's tokens with all heads become all tokens with this rank's heads.
  Arriving send(const at::Tensor& t, bool float8) const {
    return travel(t, heads(kHeads, t.size(kHeads)), tokens(kTokens), float8);
  }

  Arriving travel(const at::Tensor& t, const Shares& split, const Shares& join, bool float8) const {
    if (!float8) return trade(group_, t, split, join);
    return trade(group_, pack_float8(t), split, join)
        .then([dtype = t.scalar_type()](const at::Tensor& packed) {
          return unpack_float8(packed, dtype);
        });
  }

  /// The mask for all queries of the group and this rank's heads.
  at::Tensor gather_mask(const ContextMask& mask) const {
    if (mask.form == MaskForm::kNone) return {};
    if (mask.form == MaskForm::kKeys) return comm::all_gather(group_, mask.tensor, lengths_, 3);
    const int64_t mask_heads = mask.tensor.size(1);
    if (mask_heads == 1) return comm::all_gather(group_, mask.tensor, lengths_, 2);
    return trade(group_, mask.tensor, heads(1, mask_heads), tokens(2)).wait();
  }

  struct Exchanged {
    Arriving& query;
    Arriving& key;
    Arriving& value;
    const ContextMask& mask;
  };

  Result attend(const Exchanged& exchanged, Inputs in,
                const std::function<void()>& meanwhile) const {
    const int64_t all_heads = in.query.size(kHeads);
    in.value = exchanged.value.wait();
    in.query = exchanged.query.wait();
    in.key = exchanged.key.wait();
    in.mask = gather_mask(exchanged.mask);
    in.under_context_parallelism = true;
    Result result = inner_(in);
    Arriving out = travel(result.out, tokens(kTokens), heads(kHeads, all_heads), options_.float8);
    std::optional<Arriving> lse;
    if (result.lse.defined()) {
      lse = trade(group_, result.lse, tokens(2), heads(1, all_heads));
    }
    if (meanwhile) meanwhile();
    result.out = out.wait();
    if (lse) result.lse = lse->wait();
    return result;
  }

  const Attention& inner_;
  comm::Communicator& group_;
  std::vector<int64_t> lengths_;
  UlyssesOptions options_;
};

}  // namespace

std::unique_ptr<attention::Attention> make_ulysses(const attention::Attention& inner,
                                                   comm::Communicator& group,
                                                   std::vector<int64_t> lengths,
                                                   const UlyssesOptions& options) {
  check_lengths(kWhere, group, lengths);
  check_ulysses_tokens(lengths, options);
  return std::make_unique<UlyssesAttention>(inner, group, std::move(lengths), options);
}

}  // namespace cachedit::parallel
