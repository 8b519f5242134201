// STAND-INS, not the real operators: this machine has no CUDA device and no NPU. Operators with the
// official schemas are registered for CPU tensors, compute attention by its definition and keep
// their arguments, so that the tests see what a backend would have sent.
#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <string>

namespace cachedit::attention::stand_in {

/// Arguments of the last call of each operator, by its name ("flash_attn_3::fwd") and theirs.
using Arguments = std::map<std::string, c10::IValue>;
const Arguments& last_call(const std::string& name);

}  // namespace cachedit::attention::stand_in
