#include "cache/block_adapter_function.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "base/fail.h"

namespace cachedit::cache {
namespace {

constexpr const char* kWhere = "ForwardPattern mismatch";

std::string text(const at::Tensor& t) {
  return t.defined() ? c10::str(t.scalar_type(), t.sizes()) : std::string("an undefined tensor");
}

std::string text(const std::vector<at::Tensor>& tensors) {
  std::string all = c10::str(tensors.size(), tensors.size() == 1 ? " tensor" : " tensors");
  for (size_t i = 0; i < tensors.size(); ++i) all += (i == 0 ? ": " : ", ") + text(tensors[i]);
  return all;
}

std::string outputs_of(const PatternTraits& p) {
  if (!p.returns_encoder) return "hidden_states";
  return p.hidden_first ? "(hidden_states, encoder_hidden_states)"
                        : "(encoder_hidden_states, hidden_states)";
}

}  // namespace

PatternTraits traits(ForwardPattern pattern) {
  switch (pattern) {
    case ForwardPattern::kPattern0:
      return {0, true, true, true};
    case ForwardPattern::kPattern1:
      return {1, true, true, false};
    case ForwardPattern::kPattern2:
      return {2, true, false, false};
    case ForwardPattern::kPattern3:
      return {3, false, false, false};
    case ForwardPattern::kPattern4:
      return {4, false, true, true};
    case ForwardPattern::kPattern5:
      return {5, false, true, false};
  }
  fail<ConfigError>("BlockAdapter", "forward_pattern has no such value");
}

FunctionBlock::FunctionBlock(BlockFunction function, Place place)
    : function_(std::move(function)), place_(std::move(place)) {}

nn::Streams FunctionBlock::forward(const nn::Streams& streams,
                                   const nn::BlockContext& context) const {
  const auto& extra = *static_cast<const FunctionContext&>(context).extra;
  std::vector<at::Tensor> inputs{streams.hidden};
  if (traits(place_.pattern).takes_encoder) inputs.push_back(streams.encoder);
  inputs.insert(inputs.end(), extra.begin(), extra.end());
  return ordered(function_(inputs), streams);
}

nn::Streams FunctionBlock::ordered(const std::vector<at::Tensor>& outputs,
                                   const nn::Streams& inputs) const {
  const PatternTraits p = traits(place_.pattern);
  const size_t expected = p.returns_encoder ? 2 : 1;
  const bool fits = place_.check_outputs ? outputs.size() == expected
                                         : outputs.size() == 1 || outputs.size() == 2;
  if (!fits) mismatch("must return " + outputs_of(p), outputs);
  const size_t hidden = outputs.size() == 2 && !p.hidden_first ? 1 : 0;
  nn::Streams result{.hidden = outputs[hidden]};
  check_kind(result.hidden, inputs.hidden, "hidden_states", outputs);
  if (outputs.size() == 2) {
    result.encoder = outputs[1 - hidden];
    if (place_.check_outputs || result.encoder.defined()) {
      check_kind(result.encoder, inputs.encoder, "encoder_hidden_states", outputs);
    }
  } else if (p.takes_encoder) {
    result.encoder = inputs.encoder;
  }
  return result;
}

void FunctionBlock::check_kind(const at::Tensor& output, const at::Tensor& input, const char* name,
                               const std::vector<at::Tensor>& outputs) const {
  if (!output.defined()) mismatch(c10::str("must return defined ", name), outputs);
  // Patterns 4 and 5: the first block makes the encoder's states.
  if (!input.defined()) return;
  if (output.sizes() != input.sizes() || output.scalar_type() != input.scalar_type() ||
      output.device() != input.device()) {
    mismatch(c10::str("must keep shape, dtype and device of ", name, ", ", text(input)), outputs);
  }
}

void FunctionBlock::mismatch(const std::string& rule,
                             const std::vector<at::Tensor>& outputs) const {
  const PatternTraits p = traits(place_.pattern);
  fail<ConfigError>(kWhere, "block ", place_.index, " of '", place_.list, "' ", rule, " (pattern ",
                    p.number, "): got ", text(outputs));
}

nn::Streams checked_inputs(const BlockInputs& inputs, ForwardPattern pattern,
                           const std::string& list, bool check) {
  const PatternTraits p = traits(pattern);
  const at::Tensor& hidden = inputs.hidden_states;
  const at::Tensor& encoder = inputs.encoder_hidden_states;
  if (!hidden.defined() || hidden.dim() == 0) {
    fail<ConfigError>(kWhere, "'", list, "' takes hidden_states (pattern ", p.number, "): got ",
                      text(hidden));
  }
  if (p.takes_encoder && !encoder.defined() && check) {
    fail<ConfigError>(kWhere, "'", list,
                      "' takes hidden_states and encoder_hidden_states (pattern ", p.number,
                      "): got hidden_states only; patterns 3 to 5 take those alone");
  }
  if (!p.takes_encoder && encoder.defined()) {
    fail<ConfigError>(kWhere, "'", list, "' takes hidden_states only (pattern ", p.number,
                      "): got encoder_hidden_states ", text(encoder),
                      " as well; hand over as `extra` what is no stream");
  }
  return {.hidden = hidden, .encoder = encoder};
}

std::vector<at::Tensor> ordered_outputs(const nn::Streams& streams, ForwardPattern pattern) {
  const PatternTraits p = traits(pattern);
  if (!p.returns_encoder) return {streams.hidden};
  return p.hidden_first ? std::vector<at::Tensor>{streams.hidden, streams.encoder}
                        : std::vector<at::Tensor>{streams.encoder, streams.hidden};
}

}  // namespace cachedit::cache
