#include "interrupt.h"

#include <signal.h>

#include "cachedit/error.h"

namespace cachedit::cli {
namespace {

// A signal handler can reach nothing but a global.
volatile sig_atomic_t stop_requested = 0;

extern "C" void on_signal(int /*signal*/) { stop_requested = 1; }

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND | SA_RESTART;  // the next one has the default effect
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return stop_requested != 0; }

void stop_if_interrupted() {
  if (interrupted()) throw Cancelled("stopped; finished outputs were kept");
}

}  // namespace cachedit::cli
