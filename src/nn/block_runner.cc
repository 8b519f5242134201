#include "nn/block_runner.h"

namespace cachedit::nn {

Streams PlainBlockRunner::run(const std::vector<BlockList>& lists, Streams streams,
                              const BlockContext& context, const StepInfo& /*step*/) {
  for (const BlockList& list : lists) {
    for (const Block* block : list.blocks) streams = block->forward(streams, context);
  }
  return streams;
}

}  // namespace cachedit::nn
