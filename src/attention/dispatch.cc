#include "attention/dispatch.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "attention/op_library.h"
#include "base/fail.h"

namespace cachedit::attention {
namespace {

std::optional<c10::OperatorHandle> find_operator(const std::string& name) {
  load_environment_op_libraries();
  return c10::Dispatcher::singleton().findSchema({name, ""});
}

[[noreturn]] void refuse_schema(const OperatorCall& call, const c10::FunctionSchema& schema,
                                const std::string& fault) {
  fail<UnsupportedError>(call.where, "the loaded ", call.name, " ", fault, ": got ", schema,
                         "; load a version of the library that has these arguments");
}

}  // namespace

bool has_operator(const std::string& name) { return find_operator(name).has_value(); }

std::vector<c10::IValue> call_operator(const OperatorCall& call) {
  const std::optional<c10::OperatorHandle> handle = find_operator(call.name);
  if (!handle) {
    fail<UnsupportedError>(call.where, "no library registered the operator: got ", call.name,
                           "; load one with --op-library or CACHEDIT_OP_LIBRARIES");
  }
  const c10::FunctionSchema& schema = handle->schema();
  std::vector<c10::IValue> stack;
  for (const c10::Argument& argument : schema.arguments()) {
    const auto given = call.arguments.find(argument.name());
    if (given != call.arguments.end()) {
      stack.push_back(given->second);
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else {
      refuse_schema(call, schema, "needs an argument '" + argument.name() + "'");
    }
  }
  for (const auto& [name, value] : call.arguments) {
    if (!schema.argumentIndexWithName(name)) {
      refuse_schema(call, schema, "has no argument '" + name + "'");
    }
  }
  handle->callBoxed(stack);
  return stack;
}

}  // namespace cachedit::attention
