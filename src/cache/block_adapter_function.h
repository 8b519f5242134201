// A user's function as a block of the seam: hands over and checks what its ForwardPattern says.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cachedit/block_adapter.h"
#include "nn/block_runner.h"

namespace cachedit::cache {

struct PatternTraits {
  int64_t number;
  bool takes_encoder;
  bool returns_encoder;
  bool hidden_first;  ///< of two outputs
};

PatternTraits traits(ForwardPattern pattern);

/// What a function block finds in its context.
struct FunctionContext : nn::BlockContext {
  const std::vector<at::Tensor>* extra = nullptr;
};

class FunctionBlock final : public nn::Block {
 public:
  struct Place {
    std::string list;
    int64_t index = 0;
    ForwardPattern pattern = ForwardPattern::kPattern0;
    bool check_outputs = true;
  };

  FunctionBlock(BlockFunction function, Place place);

  /// `context` is a FunctionContext. Throws ConfigError where the outputs are not those of the
  /// pattern.
  nn::Streams forward(const nn::Streams& streams, const nn::BlockContext& context) const override;

 private:
  nn::Streams ordered(const std::vector<at::Tensor>& outputs, const nn::Streams& inputs) const;
  void check_kind(const at::Tensor& output, const at::Tensor& input, const char* name,
                  const std::vector<at::Tensor>& outputs) const;
  [[noreturn]] void mismatch(const std::string& rule, const std::vector<at::Tensor>& outputs) const;

  BlockFunction function_;
  Place place_;
};

/// The streams that a list is called with. Throws ConfigError where they are not those of the
/// pattern.
nn::Streams checked_inputs(const BlockInputs& inputs, ForwardPattern pattern,
                           const std::string& list, bool check);

/// What a list returns: the streams in the pattern's order.
std::vector<at::Tensor> ordered_outputs(const nn::Streams& streams, ForwardPattern pattern);

}  // namespace cachedit::cache
