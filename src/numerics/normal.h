// Initial weights drawn from a normal distribution: what a parameter's name and a seed determine, and nothing else.
// Source: spec/training.md 2.2. The kernels have faster copies of the same loop (kernels/cpu/init_normal.cpp).
#pragma once
#include <cstdint>
#include <string_view>

namespace nibble {

/// PHI^-1(p): the x below which a standard normal variable falls with probability p. Relative error below 1e-15.
/// 0 and 1 give -Inf and +Inf; anything outside [0, 1], and NaN, gives NaN.
double normal_quantile(double p);

/// Second word of the key of a parameter's bits: the low half of XXH3-64 of its Hugging Face name.
uint32_t init_name_hash(std::string_view name);

/// out[i] = element first + i, i < count, of the parameter `name` (flat index, row-major):
///   word w = Philox((seed, init_name_hash(name)), (e >> 2, stream_init))[e & 3], u = (w + 1/2) 2^-32, and
///   std PHI^-1(u), or truncated at two standard deviations: std / 0.8796... PHI^-1(PHI(-2) + u (PHI(2) - PHI(-2)))
/// in f64, rounded once to f32. Any cut of a parameter into ranges gives the same elements. first, count >= 0.
void fill_normal(float* out, int64_t first, int64_t count, uint32_t seed, std::string_view name, double std,
                 bool truncated);

}  // namespace nibble
