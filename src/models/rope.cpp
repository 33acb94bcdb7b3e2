#include "models/rope.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "numerics/functions.h"

namespace nibble {
namespace {

constexpr double pi = 3.14159265358979323846;

double llama3(double inv, const RopeConfig& c) {
  const double wavelength = 2 * pi / inv, old = static_cast<double>(c.original);
  if (wavelength < old / c.high) return inv;
  if (wavelength > old / c.low) return inv / c.factor;
  const double s = (old / wavelength - c.low) / (c.high - c.low);
  return (1 - s) * inv / c.factor + s * inv;
}

}  // namespace

YarnBounds yarn_bounds(const RopeConfig& c, int64_t head_size) {
  const auto dimension = [&](double rotations) {
    return static_cast<double>(head_size) * log_f64(static_cast<double>(c.original) / (2 * pi * rotations)) /
           (2 * log_f64(c.theta));
  };
  YarnBounds b{dimension(c.beta_fast), dimension(c.beta_slow)};
  if (c.truncate) b.low = std::floor(b.low), b.high = std::ceil(b.high);
  b.low = std::max(b.low, 0.0), b.high = std::min(b.high, static_cast<double>(head_size - 1));
  if (b.low == b.high) b.high += 0.001;
  return b;
}

double rope_magnitude(const RopeConfig& c) {
  return c.kind == RopeConfig::Kind::yarn && c.attention_scaling ? 0.1 * log_f64(c.factor) + 1 : 1;
}

std::vector<float> rope_frequencies(const RopeConfig& c, int64_t head_size) {
  NIBBLE_CHECK(head_size > 0 && head_size % 2 == 0, "head size {} must be even", head_size);
  std::vector<float> inv(static_cast<size_t>(head_size / 2));
  const YarnBounds yarn = c.kind == RopeConfig::Kind::yarn ? yarn_bounds(c, head_size) : YarnBounds{0, 1};
  for (size_t i = 0; i < inv.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_size);
    const double base = static_cast<float>(pow_f64(c.theta, exponent));
    double scaled = base;
    if (c.kind == RopeConfig::Kind::linear) scaled = base / c.factor;
    if (c.kind == RopeConfig::Kind::llama3) scaled = llama3(base, c);
    if (c.kind == RopeConfig::Kind::yarn) {
      const double ramp = std::clamp((static_cast<double>(i) - yarn.low) / (yarn.high - yarn.low), 0.0, 1.0);
      scaled = base / c.factor * ramp + base * (1 - ramp);
    }
    inv[i] = static_cast<float>(scaled);
  }
  return inv;
}

void fill_rope_table(const RopeConfig& c, int64_t head_size, int64_t first, int64_t rows, float* out) {
  const std::vector<float> inv = rope_frequencies(c, head_size);
  const double magnitude = rope_magnitude(c);
  const int64_t half = head_size / 2;
  for (int64_t r = 0; r < rows; ++r, out += head_size)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<float>(first + r) * inv[static_cast<size_t>(i)];
      out[i] = static_cast<float>(cos_f64(angle) * magnitude);
      out[half + i] = static_cast<float>(sin_f64(angle) * magnitude);
    }
}

}  // namespace nibble
