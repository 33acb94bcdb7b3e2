// Normal numbers from counter-based bits: the inverse normal distribution and the loop that fills a parameter with it.
// Source: spec/training.md 2.2; Wichura's AS 241, PPND16 (Applied Statistics 37, 1988), relative accuracy about 1e-16.
//
// One text for every build (words.h): double for plain x86-64 (normal.cpp), registers of 4 or 8 for the kernels
// (kernels/cpu/init_normal.cpp). The quotients are Horner sums of separate products and sums, in f64; the only fma are
// those inside our log. So a parameter has the same bits on every machine, whatever thread draws which part of it.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/philox.h"
#include "numerics/functions.h"

namespace nibble {

// AS 241: numerator and denominator in 0.180625 - q^2 for |q| = |p - 1/2| <= 0.425; in r - 1.6 for r <= 5 and in r - 5
// above, where r = sqrt(-log(min(p, 1 - p))).
constexpr double normal_centre_a[] = {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                                      1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                                      3.3430575583588128105e4, 2.5090809287301226727e3};
constexpr double normal_centre_b[] = {1.0,
                                      4.2313330701600911252e1,
                                      6.8718700749205790830e2,
                                      5.3941960214247511077e3,
                                      2.1213794301586595867e4,
                                      3.9307895800092710610e4,
                                      2.8729085735721942674e4,
                                      5.2264952788528545610e3};
constexpr double normal_tail_c[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                    3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                    2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double normal_tail_d[] = {1.0,
                                    2.05319162663775882187e0,
                                    1.67638483018380384940e0,
                                    6.89767334985100004550e-1,
                                    1.48103976427480074590e-1,
                                    1.51986665636164571966e-2,
                                    5.47593808499534494600e-4,
                                    1.05075007164441684324e-9};
constexpr double normal_far_e[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                   2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr double normal_far_f[] = {1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};

/// c[0] + x (c[1] + ...), product and sum rounded apart.
template <int first = 0, class F, int n>
NIBBLE_WORD_FN F plain_polynomial(F x, const LaneOf<F> (&c)[n]) {
  if constexpr (first == n - 1) {
    return all<F>(c[first]);
  } else {
    return plain_polynomial<first + 1>(x, c) * x + c[first];
  }
}

// PHI^-1(1/2 + q) for |q| <= 0.425.
template <class F>
NIBBLE_WORD_FN F normal_centre(F q) {
  const F r = 0.180625 - q * q;
  return q * plain_polynomial(r, normal_centre_a) / plain_polynomial(r, normal_centre_b);
}

// -PHI^-1(p) for exp(-25) <= p < 0.075.
template <class F>
NIBBLE_WORD_FN F normal_tail(F p) {
  const F r = sqrt_of(-log_f64_word(p)) - 1.6;
  return plain_polynomial(r, normal_tail_c) / plain_polynomial(r, normal_tail_d);
}

constexpr int normal_chunk = 512;  // elements in flight: 2 KiB of words, 8 of doubles

// The words of elements 4 block .. 4 block + normal_chunk - 1. Philox4x32-10 (core/philox.h) on 64-bit lanes: only
// their low halves count, so the words that move to a low half need no masks.
template <class F>
static inline void normal_words(uint64_t block, uint32_t seed, uint32_t name_hash, uint32_t* words) {
  using Bits = BitsOf<F>;
  constexpr int lanes = lanes_of<F>, blocks = normal_chunk / 4;
  Bits lane_number;
  for (int i = 0; i < lanes; ++i) {
    const uint64_t number = static_cast<uint64_t>(i);
    std::memcpy(reinterpret_cast<char*>(&lane_number) + int64_t{8} * i, &number, 8);
  }
  for (int b = 0; b < blocks; b += lanes) {
    const Bits index = lane_number + (block + static_cast<uint64_t>(b));
    Bits c0 = index, c1 = index >> 32, c2 = Bits{}, c3 = all_bits<F>(stream_init);
    uint32_t k0 = seed, k1 = name_hash;
    for (int round = 0; round < 10; ++round) {
      const Bits p0 = multiply_low32<F>(c0, 0xD2511F53), p1 = multiply_low32<F>(c2, 0xCD9E8D57);
      c0 = (p1 >> 32) ^ c1 ^ uint64_t { k0 };
      c2 = (p0 >> 32) ^ c3 ^ uint64_t { k1 };
      c1 = p1, c3 = p0;
      k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
    const Bits low = (c0 & 0xffffffffu) | (c1 << 32), high = (c2 & 0xffffffffu) | (c3 << 32);
    uint64_t pairs[2][lanes];
    std::memcpy(pairs[0], &low, sizeof low);
    std::memcpy(pairs[1], &high, sizeof high);
    for (int i = 0; i < lanes; ++i) {
      std::memcpy(words + int64_t{4} * (b + i), &pairs[0][i], 8);
      std::memcpy(words + int64_t{4} * (b + i) + 2, &pairs[1][i], 8);
    }
  }
}

// z[i] = PHI^-1(u[i]): the centre formula for all, then the tails (15 % of normal draws), gathered so that their
// logarithms fill registers. u >= 2^-33, so r <= 4.8: the far formula of AS 241 is never reached.
template <class F>
static inline void normal_quantiles(const double* u, double* z) {
  constexpr int lanes = lanes_of<F>;
  int tail_index[normal_chunk], tails = 0;
  double tail_p[normal_chunk + lanes];
  for (int i = 0; i < normal_chunk; i += lanes) store_of<F>(z + i, normal_centre<F>(load_of<F>(u + i) - 0.5));
  for (int i = 0; i < normal_chunk; ++i) {
    // No branch: which side u falls on cannot be predicted.
    const double other = 1.0 - u[i];
    tail_index[tails] = i;
    tail_p[tails] = other < u[i] ? other : u[i];
    tails += __builtin_fabs(u[i] - 0.5) > 0.425;
  }
  for (int i = tails; i < tails + lanes; ++i) tail_p[i] = 0.05;  // fills the last register
  for (int i = 0; i < tails; i += lanes) store_of<F>(tail_p + i, normal_tail<F>(load_of<F>(tail_p + i)));
  for (int i = 0; i < tails; ++i) z[tail_index[i]] = __builtin_copysign(tail_p[i], u[tail_index[i]] - 0.5);
}

/// Elements first .. first + count - 1 of a parameter; see fill_normal (normal.h). F: double or a register of doubles.
template <class F>
static inline void fill_normal_words(float* out, int64_t first, int64_t count, uint32_t seed, uint32_t name_hash,
                                     double std, bool truncated) {
  constexpr double tail = 0.022750131948179207, body = 0.9544997361036416;  // PHI(-2), PHI(2) - PHI(-2)
  const double scale = truncated ? std / 0.87962566103423978 : std;         // truncation at 2 shrinks the spread
  uint32_t words[normal_chunk];
  double u[normal_chunk], z[normal_chunk];
  for (int64_t start = first / 4 * 4; start < first + count; start += normal_chunk) {
    normal_words<F>(static_cast<uint64_t>(start) >> 2, seed, name_hash, words);
    for (int i = 0; i < normal_chunk; ++i) u[i] = (words[i] + 0.5) * 0x1p-32;
    if (truncated)
      for (int i = 0; i < normal_chunk; ++i) u[i] = tail + u[i] * body;
    normal_quantiles<F>(u, z);
    const int64_t from = start < first ? first - start : 0;
    const int64_t to = first + count - start < normal_chunk ? first + count - start : normal_chunk;
    for (int64_t i = from; i < to; ++i) out[start - first + i] = static_cast<float>(scale * z[i]);
  }
}

}  // namespace nibble
