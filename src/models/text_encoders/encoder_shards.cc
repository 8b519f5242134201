#include "models/text_encoders/encoder_shards.h"

#include <numeric>
#include <string>
#include <utility>

#include "base/divisors.h"
#include "base/fail.h"

namespace cachedit::models {

void check_encoder_shards(std::string_view where, const std::vector<SharedSize>& sizes,
                          const nn::TensorParallel& parallel) {
  const int64_t ranks = parallel.group == nullptr ? 1 : parallel.group->size();
  int64_t common = 0;
  std::string text;
  for (const SharedSize& size : sizes) {
    common = std::gcd(common, size.value);
    text += c10::str(text.empty() ? "" : " and ", size.key, " ", size.value);
  }
  if (common % ranks == 0) return;
  fail<UnsupportedError>(where, "tensor parallelism shares out ", text,
                         ", which must divide by the number of ranks: got ", ranks, "; use ",
                         divisors_text(common));
}

nn::WeightOptions with_rules(nn::WeightOptions options, std::vector<nn::ShardRule> rules) {
  options.tensor_parallel.rules = std::move(rules);
  return options;
}

}  // namespace cachedit::models
