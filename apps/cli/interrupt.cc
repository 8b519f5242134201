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
  // A closed terminal says so twice, by itself and through the shell.
  action.sa_flags = SA_RESTART;
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup ignores it
}

bool interrupted() { return stop_requested != 0; }

void stop_if_interrupted() {
  if (interrupted()) throw Cancelled("stopped; finished outputs were kept");
}

}  // namespace cachedit::cli
