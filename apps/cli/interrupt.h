// Ctrl-C as a request: the first one stops after the current step, the second one at once. A closed
// terminal stops like the first one.
#pragma once

namespace cachedit::cli {

void install_interrupt_handler();
bool interrupted();
/// Throws Cancelled if interrupted.
void stop_if_interrupted();

}  // namespace cachedit::cli
