// What the tests of the quantisers share: blocks quantised one by one with the scalar functions, normal numbers that
// BF16 holds, and the errors of section 8.1 of spec/precision.md.
#pragma once
#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/normal.h"
#include "numerics/nvfp4.h"

namespace nibble::testing {

inline float amax_of(std::span<const float> x) {
  uint32_t most = 0;
  for (const float v : x) most = std::max(most, magnitude_bits(v));
  return stored_amax(most);
}

struct Block {
  int byte;
  float encode;
  std::vector<int> codes;
};
inline Block encode_block(std::span<const float> x, int byte, const Nvfp4Scale& s) {
  Block b{byte, nvfp4_encode_scale(byte, s), {}};
  for (const float v : x) b.codes.push_back(e2m1_encode(v * b.encode));
  return b;
}
inline Block quantize_block(std::span<const float> x, const Nvfp4Scale& s) {
  return encode_block(x, nvfp4_block_scale(amax_of(x), s), s);
}
/// Blocks of `block` elements one after the other: 16 values, or 256 for the tiles of a 16-row matrix laid out by tile.
inline std::vector<Block> quantize_blocks(std::span<const float> x, const Nvfp4Scale& s, size_t block = 16) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < x.size(); i += block)
    blocks.push_back(quantize_block(x.subspan(i, std::min(block, x.size() - i)), s));
  return blocks;
}
/// The byte that four over six chooses.
inline int four_six_choice(std::span<const float> x, const Nvfp4Scale& s, FourSixError kind) {
  const auto [six, four] = four_six_bytes(amax_of(x), s);
  const int n = static_cast<int>(x.size());
  return four_six_error(x.data(), n, four, s, kind) < four_six_error(x.data(), n, six, s, kind) ? four : six;
}

inline std::vector<float> normal(size_t n, const char* name, double std = 1) {
  std::vector<float> x(n);
  fill_normal(x.data(), 0, static_cast<int64_t>(n), 20260608, name, std, false);
  for (float& v : x) v = widen(round_bf16(v));
  return x;
}

/// Of what became of x: error relative to the squares (mean over the rows), 1 - sum(x y)/sum(x x), and the share of
/// non-zero values that became zero, in per cent.
struct Errors {
  double mse, shrink, zeros;
  double db() const { return -10 * std::log10(mse); }
};
inline Errors errors_of(std::span<const float> x, std::span<const float> y, size_t row) {
  double mse = 0, squares = 0, products = 0, zeros = 0, values = 0;
  for (size_t r = 0; r < x.size(); r += row) {
    double error = 0, size = 0;
    for (size_t i = r; i < r + row; ++i) {
      const double a = x[i], b = y[i];
      error += (a - b) * (a - b), size += a * a, products += a * b;
      values += a != 0, zeros += a != 0 && b == 0;
    }
    mse += error / size, squares += size;
  }
  return {mse / static_cast<double>(x.size() / row), 1 - products / squares, 100 * zeros / values};
}

}  // namespace nibble::testing
