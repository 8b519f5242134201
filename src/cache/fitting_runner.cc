#include "cache/fitting_runner.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>

#include <algorithm>

namespace cachedit::cache {

const LinearWeights& FittingRunner::fit(const History& history, const at::Tensor& residual,
                                        int64_t step) {
  LinearWeights fitted;
  std::vector<at::Tensor> sources;
  const size_t terms = std::min(history.size(), static_cast<size_t>(options_.history));
  for (size_t j = 0; j < terms; ++j) {
    fitted.from.push_back(history[j].first);
    sources.push_back(history[j].second);
  }
  fitted.weights = fit_weights({sources}, {residual});
  return table_.contexts[context_]["hidden"][step] = std::move(fitted);
}

nn::Streams FittingRunner::run(const std::vector<nn::BlockList>& lists, nn::Streams streams,
                               const nn::BlockContext& context, const nn::StepInfo& step) {
  context_ = std::string(lists.front().name);
  table_.num_inference_steps = step.num_steps;
  const auto branch = static_cast<size_t>(step.branch);
  branches_.resize(std::max(branches_.size(), branch + 1));
  History& history = branches_[branch];
  const at::Tensor input = streams.hidden;
  streams = nn::PlainBlockRunner().run(lists, std::move(streams), context, step);
  const at::Tensor residual = streams.hidden - input;
  if (options_.steps_computation_mask.at(static_cast<size_t>(step.step)) == 1) {
    history.emplace_front(step.step, residual);
    if (static_cast<int64_t>(history.size()) > options_.history) history.pop_back();
    return streams;
  }
  const LinearWeights& fitted = step.branch == 0
                                    ? fit(history, residual, step.step)
                                    : table_.contexts[context_]["hidden"].at(step.step);
  at::Tensor forecast = input;
  for (size_t j = 0; j < fitted.weights.size(); ++j) {
    forecast = at::add(forecast, history[j].second, fitted.weights[j]);
  }
  streams.hidden = forecast;
  return streams;
}

}  // namespace cachedit::cache
