// Frequencies and tables of rotary position embeddings: default, linear, llama3.1, yarn (spec/training.md 2.5;
// arXiv 2104.09864, 2309.00071).
#pragma once
#include <cstdint>
#include <vector>

namespace nibble {

struct RopeConfig {
  enum class Kind { standard, linear, llama3, yarn } kind = Kind::standard;
  double theta = 10000;
  double factor = 1;                     // linear, llama3, yarn
  double low = 1, high = 4;              // llama3: wavelengths in units of the original length
  int64_t original = 8192;               // llama3, yarn: positions of the first training
  double beta_fast = 32, beta_slow = 1;  // yarn: rotations at which interpolation starts and ends
  bool truncate = true;                  // yarn: bounds rounded outwards
  bool attention_scaling = false;        // yarn: sines and cosines times 0.1 ln(factor) + 1
  bool operator==(const RopeConfig&) const = default;
};

/// inv_i, i < head_size / 2: radians per position, each rounded once to f32.
std::vector<float> rope_frequencies(const RopeConfig& c, int64_t head_size);
/// Dimensions between which yarn blends, {low, high}.
struct YarnBounds {
  double low, high;
};
YarnBounds yarn_bounds(const RopeConfig& c, int64_t head_size);
/// Factor on sines and cosines: 1, or yarn's.
double rope_magnitude(const RopeConfig& c);
/// Rows [first, first + rows) of the table [P, D]: D/2 cosines, then D/2 sines of fl32(position * inv_i), computed in
/// f64 and rounded once.
void fill_rope_table(const RopeConfig& c, int64_t head_size, int64_t first, int64_t rows, float* out);

}  // namespace nibble
