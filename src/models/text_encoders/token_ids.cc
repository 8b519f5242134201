#include "models/text_encoders/token_ids.h"

#include "base/fail.h"

namespace cachedit::models {

void check_token_ids(const at::Tensor& ids, int64_t vocab_size, std::string_view where) {
  if (!ids.defined() || ids.scalar_type() != at::kLong || ids.dim() != 2 || ids.numel() == 0) {
    fail<InputError>(where, "token ids must be int64 [batch, tokens], neither of them 0: got ",
                     ids.defined() ? c10::str(ids.scalar_type(), " ", ids.sizes()) : "nothing",
                     "; give one row of ids a prompt");
  }
  // Read on the host: an out-of-range lookup on an accelerator would poison its context.
  const at::Tensor host = ids.to(at::kCPU).contiguous();
  const int64_t* values = host.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < host.numel(); ++i) {
    if (values[i] >= 0 && values[i] < vocab_size) continue;
    fail<InputError>(where, "token ids must be from 0 to ", vocab_size - 1, ": got ", values[i],
                     " in row ", i / ids.size(1), " at position ", i % ids.size(1),
                     "; use the tokenizer of the same checkpoint");
  }
}

}  // namespace cachedit::models
