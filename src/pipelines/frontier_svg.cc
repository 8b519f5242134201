// The tuner's trials as a plot, written as SVG text.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/fail.h"
#include "cachedit/tune.h"

namespace cachedit {
namespace {

constexpr double kWidth = 720, kHeight = 440;
constexpr double kLeft = 60, kRight = 700, kTop = 50, kBottom = 390;

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[512];
  std::snprintf(text, sizeof(text), pattern, args...);
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

/// Maps values to pixels.
struct Axis {
  double low, high, from, to;
  double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

std::string grid(const Axis& x, const Axis& y) {
  std::string svg;
  const double x_step = std::max(0.5, std::ceil((x.high - x.low) / 8 * 2) / 2);
  for (double v = std::ceil(x.low / x_step) * x_step; v <= x.high; v += x_step) {
    svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#ddd'/>\n", x.at(v), kTop,
                  x.at(v), kBottom);
    svg += format("<text x='%.1f' y='%.1f' text-anchor='middle'>%gx</text>\n", x.at(v),
                  kBottom + 18, v);
  }
  const double y_step = std::max(1.0, std::ceil((y.high - y.low) / 8));
  for (double v = std::ceil(y.low / y_step) * y_step; v <= y.high; v += y_step) {
    svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#ddd'/>\n", kLeft, y.at(v),
                  kRight, y.at(v));
    svg +=
        format("<text x='%.1f' y='%.1f' text-anchor='end'>%g</text>\n", kLeft - 6, y.at(v) + 4, v);
  }
  return svg;
}

}  // namespace

std::string frontier_svg(const TuneResult& result) {
  if (result.trials.empty()) fail<InputError>("tune", "there is no trial to plot");
  double fastest = 1, low = result.target_psnr, high = result.target_psnr;
  for (const TuneTrial& t : result.trials) {
    fastest = std::max(fastest, t.speedup);
    low = std::min(low, t.psnr);
    high = std::max(high, t.psnr);
  }
  const Axis x{0.5, std::ceil(fastest * 2 + 0.5) / 2, kLeft, kRight};
  const Axis y{std::floor(std::max(low, result.target_psnr - 20)) - 1, std::ceil(high) + 1, kBottom,
               kTop};
  std::string svg = format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %g %g' font-family='sans-serif' "
      "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n"
      "<text x='%g' y='24' font-size='15'>PSNR against uncached (dB) over speed-up of denoising"
      "</text>\n",
      kWidth, kHeight, kLeft);
  svg += grid(x, y);
  svg += format(
      "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#c33' "
      "stroke-dasharray='5 4'/>\n<text x='%.1f' y='%.1f' fill='#c33'>target</text>\n",
      kLeft, y.at(result.target_psnr), kRight, y.at(result.target_psnr), kRight - 40,
      y.at(result.target_psnr) - 5);
  std::vector<const TuneTrial*> frontier;
  for (const TuneTrial& t : result.trials) {
    if (t.on_frontier) frontier.push_back(&t);
  }
  std::sort(frontier.begin(), frontier.end(),
            [](const TuneTrial* a, const TuneTrial* b) { return a->speedup < b->speedup; });
  std::string points;
  for (const TuneTrial* t : frontier) {
    points += format("%.1f,%.1f ", x.at(t->speedup), std::min(y.at(t->psnr), kBottom));
  }
  svg += "<polyline fill='none' stroke='#357' stroke-width='1.5' points='" + points + "'/>\n";
  for (size_t i = 0; i < result.trials.size(); ++i) {
    const TuneTrial& t = result.trials[i];
    const bool best = result.best && *result.best == i;
    svg += format("<circle cx='%.1f' cy='%.1f' r='%d' fill='%s'><title>", x.at(t.speedup),
                  std::min(y.at(t.psnr), kBottom), best ? 7 : 4,
                  best            ? "#c33"
                  : t.on_frontier ? "#357"
                                  : "#aac");
    svg += escaped(t.name) + format(": %.2fx, %.1f dB</title></circle>\n", t.speedup, t.psnr);
  }
  return svg + "</svg>\n";
}

}  // namespace cachedit
