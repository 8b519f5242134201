// Which attention backend a pipeline's transformer uses, and which one really ran.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "attention/attention.h"
#include "cachedit/enable_cache.h"
#include "cachedit/pipeline.h"

namespace cachedit::pipelines {

/// The names that were chosen, kept apart so that the order of the calls does not matter.
class AttentionChoice {
 public:
  /// `fallback` is the environment's choice; empty: "native". Throws ConfigError naming the
  /// variable for an unknown one.
  AttentionChoice(at::Device device, const std::string& fallback);

  /// Throws InputError for an unknown name, UnsupportedError for a backend that is not available.
  void choose(const std::string& name, AttentionSource source);

  /// The name that is obeyed.
  const std::string& name() const;

  /// An object for one run. Throws UnsupportedError where the backend is not available.
  std::unique_ptr<attention::Attention> make() const;

 private:
  at::Device device_;
  std::string explicit_;
  std::string config_;
  std::string fallback_;
};

/// The backend that enable_cache()'s options name; empty: none. Throws InputError where the two
/// fields name different ones.
std::string configured_attention(const EnableCacheOptions& options);

/// Notes which backends computed something, and, given a profile, how long it took.
class RecordingAttention final : public attention::Attention {
 public:
  RecordingAttention(const attention::Attention& inner, std::set<std::string>& seen,
                     StepProfile* profile = nullptr)
      : inner_(inner), seen_(seen), profile_(profile) {}
  attention::Result operator()(const attention::Inputs& inputs) const override;

 private:
  const attention::Attention& inner_;
  std::set<std::string>& seen_;
  StepProfile* profile_;
};

/// "ffpa, flash"
std::string join_names(const std::set<std::string>& names);

}  // namespace cachedit::pipelines
