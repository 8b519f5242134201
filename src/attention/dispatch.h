// Operators of other libraries, called through LibTorch's dispatcher by the names of their
// arguments: versions of a library may add arguments or move them, as long as those here exist.
#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

namespace cachedit::attention {

struct OperatorCall {
  std::string where;  ///< for errors: "attention _flash_3"
  std::string name;   ///< "flash_attn_3::fwd"
  std::map<std::string, c10::IValue> arguments;
};

/// Whether some library registered the operator; loads those of CACHEDIT_OP_LIBRARIES first.
bool has_operator(const std::string& name);

/// Fills in the schema's defaults and calls. Throws UnsupportedError, with the schema, where there
/// is no such operator, it lacks one of the arguments, or it has a further one without a default.
std::vector<c10::IValue> call_operator(const OperatorCall& call);

}  // namespace cachedit::attention
