#include "models/flux/flux_shards.h"

#include "base/divisors.h"
#include "base/fail.h"

namespace cachedit::models {

std::vector<nn::ShardRule> flux_shard_rules(const FluxConfig& config) {
  using nn::Shard;
  return {
      // The projections of the conditioning vector are a third of a double block's weights, and
      // their outputs are tiny.
      {"transformer_blocks.*.norm1.linear", Shard::kGatheredColumns},
      {"transformer_blocks.*.norm1_context.linear", Shard::kGatheredColumns},
      {"transformer_blocks.*.attn.to_q", Shard::kColumns},
      {"transformer_blocks.*.attn.to_k", Shard::kColumns},
      {"transformer_blocks.*.attn.to_v", Shard::kColumns},
      {"transformer_blocks.*.attn.add_q_proj", Shard::kColumns},
      {"transformer_blocks.*.attn.add_k_proj", Shard::kColumns},
      {"transformer_blocks.*.attn.add_v_proj", Shard::kColumns},
      {"transformer_blocks.*.attn.to_out.0", Shard::kRows},
      {"transformer_blocks.*.attn.to_add_out", Shard::kRows},
      {"transformer_blocks.*.ff.net.0.proj", Shard::kColumns},
      {"transformer_blocks.*.ff.net.2", Shard::kRows},
      {"transformer_blocks.*.ff_context.net.0.proj", Shard::kColumns},
      {"transformer_blocks.*.ff_context.net.2", Shard::kRows},
      {"single_transformer_blocks.*.norm.linear", Shard::kGatheredColumns},
      {"single_transformer_blocks.*.attn.to_q", Shard::kColumns},
      {"single_transformer_blocks.*.attn.to_k", Shard::kColumns},
      {"single_transformer_blocks.*.attn.to_v", Shard::kColumns},
      {"single_transformer_blocks.*.proj_mlp", Shard::kColumns},
      // Its input is attention's output, then the MLP's.
      {"single_transformer_blocks.*.proj_out", Shard::kRows, {config.width(), 4 * config.width()}},
  };
}

void check_flux_shards(const FluxConfig& config, int64_t ranks) {
  const int64_t heads = config.num_attention_heads;
  if (ranks >= 1 && heads % ranks == 0) return;
  fail<UnsupportedError>("flux",
                         "tensor parallelism shares out the attention heads, so tp_size must "
                         "divide ",
                         heads, ": got ", ranks, "; use ", divisors_text(heads));
}

}  // namespace cachedit::models
