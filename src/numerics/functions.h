// exp, log, tanh in f32 and exp, log, sin, cos in f64: the definitions.  Source: spec/training.md 2.11 ("Functions").
// Each is one text over words (words.h), so plain x86-64, AVX2 and AVX-512 return the same bits; no libm but fma and
// sqrt. No branches: selects only, so loops over the scalar forms vectorise. Vector forms: functions_simd.h.
//
// The method is the usual one: reduce the argument with FMA, a short polynomial, put the exponent back. Coefficients
// are minimax (Remez exchange in 220 bits, then rounded); the error of each fit stands beside it.
//
// Largest errors in ulps, f32 over all 2^32 inputs, f64 over 10^7 random ones (2.11 allows 1, tanh 2):
//   f32  exp 0.921 at 0x1.4ccb74p+2   log 0.872 at 0x1.558b5ap+0   tanh 1.499 at 0x1.e7fc44p+1
//   f64  exp 0.879   log 0.846   sin 0.708   cos 0.712
// A NaN result is the one NaN 0x7fc00000 (f64: 0x7ff8000000000000), whatever NaN came in; only silu, whose
// numerator is x itself, keeps the sign and payload of x.
#pragma once
#include <cstdint>

#include "numerics/words.h"

namespace nibble {

constexpr float inf_f32 = __builtin_inff(), nan_f32 = __builtin_nanf("");
constexpr double inf_f64 = __builtin_inf(), nan_f64 = __builtin_nan("");

/// c[0] + x (c[1] + x (c[2] + ...)), each step one fma. A recursion: GCC vectorises no loop around an inner loop.
template <int first = 0, class F, int n>
NIBBLE_WORD_FN F polynomial(F x, const LaneOf<F> (&c)[n]) {
  if constexpr (first == n - 1) {
    return all<F>(c[first]);
  } else {
    return fma_of(polynomial<first + 1>(x, c), x, c[first]);
  }
}

// ---- f32 ----

// x = k ln2 + r, |r| <= ln2 / 2. Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves k in the low bits.
// ln2 is split so that k times the high part (16 bits) is exact.
template <class F>
struct ReducedF32 {
  BitsOf<F> k_bits;  // k + 0x4b400000
  F r;
};
template <class F>
NIBBLE_WORD_FN ReducedF32<F> reduce_exp_f32(F x) {
  constexpr float round = 0x1.8p23f;
  const F t = fma_of(x, 0x1.715476p+0f, round);
  const F k = t - round;
  const F r = fma_of(k, -0x1.62e4p-1f, x);
  return {bits_of(t), fma_of(k, -0x1.7f7d1cp-20f, r)};
}

// (exp(r) - 1 - r) / r^2 on |r| <= ln2 / 2; error 2^-26.0 of expm1(r), 2^-27.5 of exp(r).
constexpr float exp_f32_c[] = {0x1p-1f, 0x1.5554b6p-3f, 0x1.5555bap-5f, 0x1.1223a8p-7f, 0x1.6c5558p-10f};

template <class F>
NIBBLE_WORD_FN F exp_f32_word(F x) {
  const ReducedF32<F> a = reduce_exp_f32(x);
  const F q = polynomial(a.r, exp_f32_c);
  const F y = fma_of(fma_of(q, a.r, 1.0f), a.r, 1.0f);
  // k + 0x4b400000 shifted by 23 is k << 23. Within the limits below the sum is a normal number, k = 128 included.
  F z = from_bits<F>(bits_of(y) + (a.k_bits << 23));
  z = select_of(x < -0x1.5d589ep+6f, F{}, z);
  z = select_of(x > 0x1.62e42ep+6f, all<F>(inf_f32), z);
  return select_of(x == x, z, all<F>(nan_f32));  // NOLINT(misc-redundant-expression): false for NaN
}

// (log(1 + f) - f) / f^2 on |f| <= 1/3; error 2^-27.4 of log(1 + f).
constexpr float log_f32_c[] = {-0x1p-1f,       0x1.555506p-2f,  -0x1.fffefp-3f, 0x1.99d028p-3f, -0x1.559dccp-3f,
                               0x1.1ed718p-3f, -0x1.f3113cp-4f, 0x1.1e66b8p-3f, -0x1.080592p-3f};

template <class F>
NIBBLE_WORD_FN F log_f32_word(F x) {
  constexpr uint32_t low = 0x3f2aaaab, bias = 200;  // 2/3: m runs from there to 4/3; bias keeps the exponent positive
  const F scaled = select_of(x < 0x1p-126f, x * 0x1p23f, x);
  const F shift = select_of(x < 0x1p-126f, all<F>(8388608.0f + bias + 23), all<F>(8388608.0f + bias));
  const BitsOf<F> i = bits_of(scaled) - low;
  const F e = from_bits<F>(((i + (bias << 23)) >> 23) + 0x4b000000u) - shift;  // 0x4b000000: 2^23, whose unit is 1
  const F f = from_bits<F>((i & 0x7fffffu) + low) - 1.0f;
  const F u = f * polynomial(f, log_f32_c);
  const F big = e * 0x1.62e4p-1f;  // exact, and 0 or above |f|: h + l is exactly big + f
  const F h = big + f, l = (big - h) + f;
  F y = h + (l + fma_of(f, u, e * 0x1.7f7d1cp-20f));
  y = select_of(x == inf_f32, x, y);
  y = select_of(x == 0.0f, all<F>(-inf_f32), y);
  return select_of(x >= 0.0f, y, all<F>(nan_f32));
}

// (tanh(a) - a) / a^3 in z = a^2 on |a| <= 0.4; error 2^-29.0 of tanh(a).
constexpr float tanh_f32_c[] = {-0x1.55553ep-2f, 0x1.1105f4p-3f, -0x1.b6c786p-5f, 0x1.331a4ap-6f};

// Below 0.4 a polynomial; from there expm1(2a) / (expm1(2a) + 2), which there stays below 1.5 ulp.
template <class F>
NIBBLE_WORD_FN F tanh_f32_word(F x) {
  const BitsOf<F> sign = bits_of(x) & 0x80000000u;
  const F size = from_bits<F>(bits_of(x) ^ sign);
  const F z = size * size;
  const F small = fma_of(size * z, polynomial(z, tanh_f32_c), size);
  const F a = select_of(size > 9.1f, all<F>(9.1f), size);  // tanh rounds to 1 from 9.02 on
  const ReducedF32<F> v = reduce_exp_f32(a + a);
  const F p = fma_of(v.r * v.r, polynomial(v.r, exp_f32_c), v.r);  // expm1(r)
  const F s = from_bits<F>((v.k_bits << 23) + 0x3f800000u);        // 2^k
  const F d = fma_of(s, p, s - 1.0f);                              // expm1(2a)
  const F large = d / (d + 2.0f);
  const F y = from_bits<F>(bits_of(select_of(size < 0.4f, small, large)) | sign);
  return select_of(x == x, y, all<F>(nan_f32));  // NOLINT(misc-redundant-expression): false for NaN
}

template <class F>
NIBBLE_WORD_FN F sigmoid_f32_word(F x) {
  return 1.0f / (1.0f + exp_f32_word(-x));
}
template <class F>
NIBBLE_WORD_FN F silu_f32_word(F x) {
  return x / (1.0f + exp_f32_word(-x));
}

/// e^x.
NIBBLE_WORD_FN float exp_f32(float x) { return exp_f32_word(x); }
/// Natural logarithm.
NIBBLE_WORD_FN float log_f32(float x) { return log_f32_word(x); }
/// Hyperbolic tangent; odd, never above 1.
NIBBLE_WORD_FN float tanh_f32(float x) { return tanh_f32_word(x); }
/// fl(1 / fl(1 + exp(-x))).
NIBBLE_WORD_FN float sigmoid_f32(float x) { return sigmoid_f32_word(x); }
/// fl(x / fl(1 + exp(-x))), not x times the rounded sigmoid: one rounding less. NaN at -Inf.
NIBBLE_WORD_FN float silu_f32(float x) { return silu_f32_word(x); }

// ---- f64 ----

// (exp(r) - 1 - r) / r^2 on |r| <= ln2 / 2; error 2^-55.1 of expm1(r), 2^-56.6 of exp(r).
constexpr double exp_f64_c[] = {0x1p-1,
                                0x1.555555555553ep-3,
                                0x1.5555555553afap-5,
                                0x1.1111111118d73p-7,
                                0x1.6c16c17a065d9p-10,
                                0x1.a01a01719090p-13,
                                0x1.a019b3803a8c6p-16,
                                0x1.71de979bd162ap-19,
                                0x1.289786aeaea1cp-22,
                                0x1.ae48fc7f479bp-26};

template <class F>
NIBBLE_WORD_FN F exp_f64_word(F x) {
  constexpr double round = 0x1.8p52;
  const F t = fma_of(x, 0x1.71547652b82fep+0, round);
  const F k = t - round;
  F r = fma_of(k, -0x1.62e42fefa4p-1, x);  // the high part of ln2 has 41 bits: exact
  r = fma_of(k, 0x1.8432a1b0e2634p-43, r);
  const F y = fma_of(fma_of(polynomial(r, exp_f64_c), r, 1.0), r, 1.0);
  // Two factors 2^(k/2): the first product is exact, the second rounds once, into subnormal results too.
  const BitsOf<F> n = bits_of(t) - 0x4338000000000000u;  // k
  const BitsOf<F> half = (n + 2048u) >> 1;               // floor(k / 2) + 1024
  F z = y * from_bits<F>((half - 1u) << 52) * from_bits<F>((n + 2047u - half) << 52);
  z = select_of(x < -0x1.74910d52d3051p+9, F{}, z);
  z = select_of(x > 0x1.62e42fefa39efp+9, all<F>(inf_f64), z);
  return select_of(x == x, z, all<F>(nan_f64));  // NOLINT(misc-redundant-expression): false for NaN
}

// With s = f / (2 + f): log(1 + f) = 2 atanh(s) = f - f^2/2 + s (f^2/2 + R), where R = z P(z), z = s^2.
// P on sqrt(1/2) <= 1 + f <= sqrt(2); error 2^-59.5 of log(1 + f).
constexpr double log_f64_c[] = {0x1.5555555555592p-1, 0x1.999999997ff05p-2, 0x1.24924941e32bcp-2, 0x1.c71c5212606bcp-3,
                                0x1.74663d6680b12p-3, 0x1.39a1daeb07166p-3, 0x1.2f0454d13c14ep-3};

template <class F>
NIBBLE_WORD_FN F log_f64_word(F x) {
  constexpr uint64_t low = 0x3fe6a09e667f3bcd, bias = 2000;  // sqrt(1/2); bias keeps the exponent positive
  const F scaled = select_of(x < 0x1p-1022, x * 0x1p54, x);
  const F shift = select_of(x < 0x1p-1022, all<F>(0x1p52 + bias + 54), all<F>(0x1p52 + bias));
  const BitsOf<F> i = bits_of(scaled) - low;
  const F e = from_bits<F>(((i + (bias << 52)) >> 52) + 0x4330000000000000u) - shift;
  const F f = from_bits<F>((i & 0xfffffffffffffu) + low) - 1.0;
  const F s = f / (f + 2.0), z = s * s, square = 0.5 * f * f;
  const F tail = fma_of(s, fma_of(z, polynomial(z, log_f64_c), square), -square);
  const F big = e * 0x1.62e42fefa4p-1;  // exact, and 0 or above |f|: h + l is exactly big + f
  const F h = big + f, l = (big - h) + f;
  F y = h + (l + fma_of(e, -0x1.8432a1b0e2634p-43, tail));
  y = select_of(x == inf_f64, x, y);
  y = select_of(x == 0.0, all<F>(-inf_f64), y);
  return select_of(x >= 0.0, y, all<F>(nan_f64));
}

// x = k pi/2 + high + low, |high| <= pi/4, for |x| <= 2^30. pi/2 in three parts of 53 bits. The first fma is exact
// (its result is a multiple of 2^-53 below 1); the second product is kept with its error; the third reaches 2^-133.
// No double up to 2^30 comes nearer to a multiple of pi/2 than about 2^-62, so `high` has all its bits.
template <class F>
struct ReducedF64 {
  BitsOf<F> k;  // low bits only
  F high, low;
};
template <class F>
NIBBLE_WORD_FN ReducedF64<F> reduce_half_pi(F x) {
  constexpr double round = 0x1.8p52, pi_2a = 0x1.921fb54442d18p+0, pi_2b = 0x1.1a62633145c07p-54,
                   pi_2c = -0x1.f1976b7ed8fbcp-110;
  const F t = fma_of(x, 0x1.45f306dc9c883p-1, round);
  const F k = t - round;
  const F r = fma_of(k, -pi_2a, x);
  const F p = k * pi_2b, p_low = fma_of(k, pi_2b, -p);
  const F s = r - p, back = s - r;
  const F s_low = (r - (s - back)) - (p + back);
  const F low = fma_of(k, -pi_2c, s_low - p_low);
  const F high = s + low;
  return {bits_of(t), high, (s - high) + low};
}

// (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 in z = r^2 on |r| <= pi/4; errors 2^-58.0 and 2^-64.2.
constexpr double sin_f64_c[] = {-0x1.5555555555549p-3, 0x1.111111110f8a1p-7,   -0x1.a01a019c151a9p-13,
                                0x1.71de357a04d76p-19, -0x1.ae5e67a1d4319p-26, 0x1.5d9352ddcbb37p-33};
constexpr double cos_f64_c[] = {0x1.555555555554cp-5,   -0x1.6c16c16c1521bp-10, 0x1.a01a019cbeb6dp-16,
                                -0x1.27e4f812121eep-22, 0x1.1ee9f0cc895a2p-29,  -0x1.8fb0e1c63e824p-37};

// sin of (k + turn) quarter turns plus the rest: turn 0 is sin, 1 is cos.
template <class F>
NIBBLE_WORD_FN F sine_f64_word(F x, uint64_t turn) {
  const ReducedF64<F> a = reduce_half_pi(x);
  const BitsOf<F> k = a.k + turn;
  const F z = a.high * a.high, z_low = fma_of(a.high, a.high, -z), half = 0.5 * z;
  const F sine = a.high + fma_of(z * a.high, polynomial(z, sin_f64_c), fma_of(-half, a.low, a.low));
  const F w = 1.0 - half, w_low = (1.0 - w) - half;
  const F rest = fma_of(a.high, -a.low, fma_of(z_low, -0.5, w_low));
  const F cosine = w + fma_of(z * z, polynomial(z, cos_f64_c), rest);
  F y = select_of((k & 1u) == 0u, sine, cosine);
  y = from_bits<F>(bits_of(y) ^ ((k & 2u) << 62));
  const F size = from_bits<F>(bits_of(x) & 0x7fffffffffffffffu);
  return select_of(size <= 0x1p30, y, all<F>(nan_f64));
}
template <class F>
NIBBLE_WORD_FN F sin_f64_word(F x) {
  return select_of(x == 0.0, x, sine_f64_word(x, 0));  // keeps -0
}
template <class F>
NIBBLE_WORD_FN F cos_f64_word(F x) {
  return sine_f64_word(x, 1);
}

/// e^x, subnormal results included.
NIBBLE_WORD_FN double exp_f64(double x) { return exp_f64_word(x); }
/// Natural logarithm, subnormal x included.
NIBBLE_WORD_FN double log_f64(double x) { return log_f64_word(x); }
/// Sine of x radians, |x| <= 2^30; NaN beyond.
NIBBLE_WORD_FN double sin_f64(double x) { return sin_f64_word(x); }
/// Cosine of x radians, |x| <= 2^30; NaN beyond.
NIBBLE_WORD_FN double cos_f64(double x) { return cos_f64_word(x); }
/// base^y as exp(y * log(base)), base > 0: what RoPE's frequencies are defined by.
NIBBLE_WORD_FN double pow_f64(double base, double y) { return exp_f64(y * log_f64(base)); }

/// base^n, n >= 0, by squaring from the highest bit of n down: r = r * r, then r = r * base where the bit is set.
NIBBLE_WORD_FN double ipow_f64(double base, int64_t n) {
  double r = 1.0;
  for (int bit = 62; bit >= 0; --bit) {
    r *= r;  // 1 until the first set bit
    if ((n >> bit) & 1) r *= base;
  }
  return r;
}

}  // namespace nibble
