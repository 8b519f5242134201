#include "parallel/context_call.h"

#include "attention/contract.h"
#include "base/fail.h"

namespace cachedit::parallel {
namespace {

at::Tensor as_four_dimensional(std::string_view where, const at::Tensor& mask) {
  switch (mask.dim()) {
    case 1:
      return mask.unsqueeze(0).unsqueeze(0).unsqueeze(0);
    case 2:
      return mask.unsqueeze(1).unsqueeze(1);
    case 3:
      return mask.unsqueeze(0);
    case 4:
      return mask;
    default:
      fail<InputError>(where, "a mask must have 1 to 4 dimensions: got ", mask.sizes());
  }
}

}  // namespace

void check_lengths(std::string_view where, const comm::Communicator& group,
                   const std::vector<int64_t>& lengths) {
  const bool negative =
      std::any_of(lengths.begin(), lengths.end(), [](int64_t n) { return n < 0; });
  if (static_cast<int64_t>(lengths.size()) == group.size() && !negative) return;
  fail<InputError>(where, "each of ", group.size(), " ranks needs its number of tokens: got ",
                   lengths);
}

void check_not_causal(std::string_view where, const attention::Inputs& inputs) {
  if (inputs.is_causal) {
    fail<UnsupportedError>(where,
                           "is_causal has no meaning here, since ranks hold parts of several "
                           "sequences: got is_causal; give a mask of queries by keys");
  }
}

void check_context_call(std::string_view where, const attention::Inputs& inputs, int64_t tokens) {
  attention::Inputs bare = inputs;
  bare.mask = at::Tensor();
  attention::normalise(where, bare);
  check_not_causal(where, inputs);
  if (inputs.query.size(1) != tokens || inputs.key.size(1) != tokens) {
    fail<InputError>(where, "this rank has ", tokens, " tokens: got query ", inputs.query.sizes(),
                     " and key ", inputs.key.sizes());
  }
}

ContextMask read_context_mask(std::string_view where, const at::Tensor& mask,
                              const at::Tensor& query) {
  if (!mask.defined()) return {};
  const at::Tensor view = as_four_dimensional(where, mask);
  const int64_t batch = query.size(0), tokens = query.size(1), heads = query.size(2);
  const bool fits_batch = view.size(0) == 1 || view.size(0) == batch;
  const bool for_keys = view.size(1) == 1 && view.size(2) == 1 && view.size(3) == tokens;
  if (fits_batch && for_keys) return {MaskForm::kKeys, view};
  const bool for_rows =
      mask.dim() >= 3 && view.size(2) == tokens && (view.size(1) == 1 || view.size(1) == heads);
  if (fits_batch && for_rows) return {MaskForm::kRows, view};
  fail<InputError>(where, "a mask must be one for this rank's keys, [", batch, ", ", tokens,
                   "], or have its queries as rows and the keys of all ranks as columns, [", batch,
                   ", ", heads, ", ", tokens, ", keys]: got ", mask.sizes());
}

}  // namespace cachedit::parallel
