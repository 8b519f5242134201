// Every environment variable that cachedit reads, read once per process.
// docs/environment.md lists them for users; keep the two in step.
#pragma once

#include <string>

namespace cachedit {

/// Empty strings stand for variables that are not set.
struct Environment {
  std::string log_level;          // CACHEDIT_LOG_LEVEL
  std::string default_model;      // CACHEDIT_DEFAULT_MODEL: replaces the shipped model
  std::string op_libraries;       // CACHEDIT_OP_LIBRARIES: files, separated by colons
  std::string cpu_isa;            // CACHEDIT_CPU_ISA: instruction level of the CPU kernels
  std::string attention_backend;  // CACHE_DIT_ATTN_BACKEND
  std::string attention_checks;   // CACHE_DIT_ATTN_CHECKS
  std::string comm_timeout;       // CACHEDIT_COMM_TIMEOUT: seconds
  std::string hf_home;            // HF_HOME
  std::string hf_hub_cache;       // HF_HUB_CACHE
  std::string xdg_cache_home;     // XDG_CACHE_HOME
  std::string home;               // HOME
  // Set by launchers: how many processes they started together.
  std::string ompi_comm_world_size;  // OMPI_COMM_WORLD_SIZE: Open MPI
  std::string pmi_size;              // PMI_SIZE: MPICH and its relatives
  std::string slurm_step_num_tasks;  // SLURM_STEP_NUM_TASKS: srun
};

/// The environment as it was at the first call.
const Environment& environment();

/// Reads the variables afresh (tests; everybody else uses environment()).
Environment read_environment();

}  // namespace cachedit
