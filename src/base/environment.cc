#include "base/environment.h"

#include <cstdlib>

namespace cachedit {
namespace {

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Environment read_environment() {
  return {.log_level = value_of("CACHEDIT_LOG_LEVEL"),
          .default_model = value_of("CACHEDIT_DEFAULT_MODEL"),
          .op_libraries = value_of("CACHEDIT_OP_LIBRARIES"),
          .cpu_isa = value_of("CACHEDIT_CPU_ISA"),
          .attention_backend = value_of("CACHE_DIT_ATTN_BACKEND"),
          .attention_checks = value_of("CACHE_DIT_ATTN_CHECKS"),
          .comm_timeout = value_of("CACHEDIT_COMM_TIMEOUT"),
          .hf_home = value_of("HF_HOME"),
          .hf_hub_cache = value_of("HF_HUB_CACHE"),
          .xdg_cache_home = value_of("XDG_CACHE_HOME"),
          .home = value_of("HOME"),
          .ompi_comm_world_size = value_of("OMPI_COMM_WORLD_SIZE"),
          .pmi_size = value_of("PMI_SIZE"),
          .slurm_step_num_tasks = value_of("SLURM_STEP_NUM_TASKS")};
}

const Environment& environment() {
  static const Environment instance = read_environment();
  return instance;
}

}  // namespace cachedit
