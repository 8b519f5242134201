#include "progress.h"

#include <unistd.h>

#include <cstdio>

namespace cachedit::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLineInterval = std::chrono::seconds(5);
constexpr auto kBarInterval = std::chrono::milliseconds(50);
constexpr int kBarWidth = 30;

std::string duration(double seconds) {
  char text[32];
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole >= 3600) {
    std::snprintf(text, sizeof(text), "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  } else if (whole >= 60) {
    std::snprintf(text, sizeof(text), "%ld:%02ld", whole / 60, whole % 60);
  } else {
    std::snprintf(text, sizeof(text), "%.1f s", seconds);
  }
  return text;
}

}  // namespace

Progress::Progress(bool quiet, std::string label)
    : quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) == 1),
      label_(std::move(label)),
      start_(Clock::now()),
      last_print_(start_) {}

Progress::~Progress() {
  if (open_line_) std::fputc('\n', stderr);
}

void Progress::update(const StepProgress& step) {
  if (quiet_) return;
  const auto now = Clock::now();
  const bool last = step.step == step.num_steps;
  if (!last && now - last_print_ < (terminal_ ? Clock::duration(kBarInterval) : kLineInterval)) {
    return;
  }
  last_print_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double rate = elapsed > 0 ? static_cast<double>(step.step) / elapsed : 0;
  const std::string left =
      rate > 0 ? duration(static_cast<double>(step.num_steps - step.step) / rate) : "?";
  const std::string head = label_.empty() ? "" : label_ + " ";
  if (!terminal_) {
    std::fprintf(stderr, "%sstep %ld/%ld, %.2f steps/s, %s left\n", head.c_str(),
                 static_cast<long>(step.step), static_cast<long>(step.num_steps), rate,
                 left.c_str());
    return;
  }
  const auto filled = static_cast<int>(kBarWidth * step.step / step.num_steps);
  const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                          std::string(static_cast<size_t>(kBarWidth - filled), '.');
  std::fprintf(stderr, "\r\033[K%s[%s] %ld/%ld  %.2f steps/s  %s left", head.c_str(), bar.c_str(),
               static_cast<long>(step.step), static_cast<long>(step.num_steps), rate, left.c_str());
  open_line_ = !last;
  if (last) std::fputc('\n', stderr);
}

}  // namespace cachedit::cli
