#include "train/schedule.h"

#include "numerics/functions.h"

namespace nibble {
namespace {

constexpr double pi = 3.14159265358979323846;

// From p at x = 0 to f at x = 1 along half a cosine.
double cosine(double p, double f, double x) {
  const double a = (cos_f64(pi * x) + 1) / 2;
  return p * a + f * (1 - a);
}

}  // namespace

int64_t warmup_from_fraction(int64_t length, double fraction) {
  return static_cast<int64_t>(static_cast<double>(length) * fraction);
}

int64_t Schedule::decay_start() const {
  return length - static_cast<int64_t>(static_cast<double>(length) * decay_fraction);
}

std::optional<int64_t> Schedule::first_decay_step() const {
  if (kind == Kind::constant) return std::nullopt;
  return kind == Kind::wsd ? decay_start() : warmup;
}

double Schedule::rate(int64_t step) const {
  const double p = peak, f = p * final_fraction;
  if (step >= length) return 0;
  if (step < warmup) return p * static_cast<double>(step) / static_cast<double>(warmup);
  const int64_t n = length - warmup;
  const double x = n == 1 ? 1 : static_cast<double>(step - warmup) / static_cast<double>(n - 1);
  switch (kind) {
    case Kind::constant:
      return p;
    case Kind::linear:
      return p + (f - p) * x;
    case Kind::cosine:
      return cosine(p, f, x);
    case Kind::wsd:
      break;
  }
  const int64_t d = length - decay_start();
  if (step < decay_start()) return p;
  const double y =
      d == 1 ? (cosine_decay ? 1 : 0) : static_cast<double>(step - decay_start()) / static_cast<double>(d - 1);
  return cosine_decay ? cosine(p, f, y) : p + (f - p) * y;
}

}  // namespace nibble
