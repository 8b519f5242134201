#include "nn/block_runner.h"

namespace cachedit::nn {

Streams PlainBlockRunner::run(const BlockList& list, Streams streams, const BlockContext& context,
                              const StepInfo& /*step*/) {
  for (const Block* block : list.blocks) streams = block->forward(streams, context);
  return streams;
}

}  // namespace cachedit::nn
