#include "attention/attention.h"

namespace cachedit::attention {

Result Attention::project_and_attend(const Projections& projections, Inputs rest) const {
  rest.query = projections.query();
  rest.key = projections.key();
  rest.value = projections.value();
  Result result = (*this)(rest);
  if (projections.meanwhile) projections.meanwhile();
  return result;
}

}  // namespace cachedit::attention
