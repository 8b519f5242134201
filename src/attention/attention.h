// The attention seam: one object per transformer decides which kernel runs. Models call it and
// know nothing else; later it may be a wrapper that exchanges heads or keys between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string_view>

namespace cachedit::attention {

/// Query [B, Nq, H, D], key and value [B, Nkv, H, D], as in diffusers. Any strides.
struct Inputs {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  /// Optional, broadcasts to [B, H, Nq, Nkv]: bool (true takes part) or additive float. [Nkv] and
  /// [B, Nkv] say which keys take part for all queries; contract.h has every rule.
  at::Tensor mask = {};
  bool is_causal = false;
  /// Default 1 / sqrt(D).
  std::optional<double> scale = std::nullopt;
  /// Key and value may have fewer heads, whose number divides the query's: query head h reads key
  /// head h / (H / Hkv).
  bool enable_gqa = false;
  /// Asks for Result::lse.
  bool return_lse = false;
  /// Set by what wraps attention over several ranks: some backends take masks only without it.
  bool under_context_parallelism = false;
};

struct Result {
  at::Tensor out;  ///< [B, Nq, H, D], dtype of the query
  at::Tensor lse;  ///< natural log, fp32, [B, H, Nq]; defined exactly where return_lse asked for it
  /// The backend that computed it; refers to a name in a registry, which outlives it.
  std::string_view backend = {};
};

/// Query, key and value as functions, so that one can travel to other ranks while the next is
/// computed. Each is called once, in an order that the attention chooses.
struct Projections {
  std::function<at::Tensor()> query;
  std::function<at::Tensor()> key;
  std::function<at::Tensor()> value;
  /// Work of the caller that needs no attention, or empty: called once, where it hides the most
  /// communication.
  std::function<void()> meanwhile = {};
};

class Attention {
 public:
  virtual ~Attention() = default;
  /// Rows that no key takes part in give zeros and lse = -inf. Throws InputError where the inputs
  /// contradict each other or the contract, UnsupportedError where only this backend cannot.
  virtual Result operator()(const Inputs& inputs) const = 0;

  /// The same, query, key and value in `rest` being undefined. Without ranks to talk to: all
  /// projections, attention, `meanwhile`.
  virtual Result project_and_attend(const Projections& projections, Inputs rest) const;
};

/// ATen's scaled_dot_product_attention on whichever device the inputs are: for the parts of a
/// model whose attention is nobody's to choose (text encoders, VAE).
const Attention& native_attention();

}  // namespace cachedit::attention
