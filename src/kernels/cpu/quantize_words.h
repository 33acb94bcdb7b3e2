// Whole-word codecs of the quantisers: elements, block scales, rotations, random bits, packing. Each equals its scalar
// in src/numerics for every input it can meet; what it cannot meet is said where it matters.
#pragma once
#include <cfloat>

#include "kernels/cpu/words.h"
#include "numerics/fp8.h"
#include "numerics/hadamard.h"

namespace nibble::NIBBLE_TARGET {

// ---- codes and lanes ----

#ifdef __AVX512F__
/// The 4-bit codes of `lanes` elements: the low bits of each lane, garbage above.
inline IntWord codes_at(const uint8_t* p) {
  const __m512i both = _mm512_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m512i halves =
      _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), both);
  return _mm512_srlv_epi32(halves, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
}
inline IntWord bytes_at(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// The low byte of every lane.
inline void store_bytes(uint8_t* p, IntWord a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}
/// Bit 3 of the codes from the signs: garbage above bit 15 stays.
inline IntWord with_sign(IntWord index, Word x) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(8), _mm512_srli_epi32(bits_of(x), 28), index, 0xCA);
}
/// e2m1_decode of codes, whatever is above bit 3.
inline Word e2m1_values_of(IntWord code) {
  return _mm512_permutexvar_ps(code, _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f,
                                                    -1.5f, -2.0f, -3.0f, -4.0f, -6.0f));
}
/// Lanes i and i ^ n change places.
template <int n>
inline IntWord swap_lanes(IntWord a) {
  if constexpr (n == 1) return _mm512_shuffle_epi32(a, _MM_PERM_CDAB);
  if constexpr (n == 2) return _mm512_shuffle_epi32(a, _MM_PERM_BADC);
  return _mm512_shuffle_i32x4(a, a, 0xB1);
}
/// Lane g: the largest lane of m[g], unsigned.
inline IntWord transposed_maxima(const IntWord* m) {
  IntWord four[4];
  for (int i = 0; i < 4; ++i) {
    const IntWord* p = m + 4 * i;
    const IntWord a = most_bits(_mm512_unpacklo_epi32(p[0], p[1]), _mm512_unpackhi_epi32(p[0], p[1]));
    const IntWord b = most_bits(_mm512_unpacklo_epi32(p[2], p[3]), _mm512_unpackhi_epi32(p[2], p[3]));
    four[i] = most_bits(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  const auto halves = [](IntWord a, IntWord b) {
    return most_bits(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
  };
  return halves(halves(four[0], four[1]), halves(four[2], four[3]));
}
#else
/// The 4-bit codes of `lanes` elements: the low bits of each lane, garbage above.
inline IntWord codes_at(const uint8_t* p) {
  int32_t eight;
  std::memcpy(&eight, p, 4);
  return _mm256_srlv_epi32(_mm256_set1_epi32(eight), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
}
inline IntWord bytes_at(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
/// The low byte of every lane.
inline void store_bytes(uint8_t* p, IntWord a) {
  const __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(255));
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
/// Bit 3 of the codes from the signs, and nothing above.
inline IntWord with_sign(IntWord index, Word x) {
  return bit_or(bit_and(index, all_int(7)), bit_and(shift_right_zero<28>(bits_of(x)), all_int(8)));
}
/// e2m1_decode of codes.
inline Word e2m1_values_of(IntWord code) {
  const Word a = _mm256_permutevar8x32_ps(_mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f), code);
  return of_bits(bit_or(bits_of(a), bit_and(shift_left<28>(code), all_int(INT32_MIN))));
}
/// Lanes i and i ^ n change places.
template <int n>
inline IntWord swap_lanes(IntWord a) {
  if constexpr (n == 1) return _mm256_shuffle_epi32(a, 0xB1);
  if constexpr (n == 2) return _mm256_shuffle_epi32(a, 0x4E);
  return _mm256_permute2x128_si256(a, a, 1);
}
/// Lane g: the largest lane of m[g], unsigned.
inline IntWord transposed_maxima(const IntWord* m) {
  IntWord half[2];
  for (int i = 0; i < 2; ++i) {
    const IntWord* p = m + 4 * i;
    const IntWord a = most_bits(_mm256_unpacklo_epi32(p[0], p[1]), _mm256_unpackhi_epi32(p[0], p[1]));
    const IntWord b = most_bits(_mm256_unpacklo_epi32(p[2], p[3]), _mm256_unpackhi_epi32(p[2], p[3]));
    half[i] = most_bits(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  }
  return most_bits(_mm256_permute2x128_si256(half[0], half[1], 0x20),
                   _mm256_permute2x128_si256(half[0], half[1], 0x31));
}
#endif

inline IntWord exponent_bits() { return all_int(0x7f800000); }
inline IntWord magnitudes(Word a) { return bit_and(bits_of(a), all_int(0x7fffffff)); }

/// Bits of a rounded to BF16 under a mask of the upper half; not NaN, of which the result is unspecified.
inline IntWord rounded_bits(Word a, uint32_t mask) {
  const IntWord u = bits_of(a);
#ifdef __AVX512F__
  const Mask odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  const IntWord up = _mm512_mask_add_epi32(add(u, all_int(0x7fff)), odd, u, all_int(0x8000));
#else
  const IntWord up = add(add(u, all_int(0x7fff)), bit_and(shift_right_zero<16>(u), all_int(1)));
#endif
  return bit_and(up, all_int(static_cast<int32_t>(mask)));
}
/// Rounded to BF16, not NaN; what came from BF16 memory stays as it is.
template <class T>
inline Word rounded_finite(Word a) {
  if constexpr (sizeof(T) == 2) return a;
  return of_bits(rounded_bits(a, 0xffff0000u));
}
/// The same without the sign.
template <class T>
inline Word rounded_magnitude(Word a) {
  if constexpr (sizeof(T) == 2) return absolute(a);
  return of_bits(rounded_bits(a, 0x7fff0000u));
}

// ---- elements ----

/// e2m1_encode of a >= 0, not NaN, with the signs of `sign`. AVX-512: garbage above bit 15, for packing to cut off.
/// The index rises by 2 a unit below 2, by 1 below 4, by 1/2 from there: it is the least of three lines, each rounded
/// to an integer as one FMA rounds it into the last bits of 1.5 * 2^23, and at most 7.
inline IntWord e2m1_codes(Word a, Word sign) {
  constexpr float ruler = 0x1.8p+23f;
  const IntWord low = bits_of(fma(a, all(2.0f), all(ruler))), middle = bits_of(add(a, all(ruler + 2)));
  const IntWord high = bits_of(fma(a, all(0.5f), all(ruler + 4)));  // integers order positive numbers
  return with_sign(least_int(least_int(low, middle), least_int(high, bits_of(all(ruler + 7)))), sign);
}
/// e2m1_encode_stochastic of the same. The upper bits as above.
/// t < 8: its index is that of 2 t cut to an integer below 2, else the upper bits of t: exponent and half.
inline IntWord e2m1_stochastic_codes(Word magnitude, Word sign, IntWord byte) {
  const Word a = least(magnitude, all(6.0f));
  const Word two_steps = of_bits(most_int(bit_and(bits_of(a), exponent_bits()), bits_of(all(1.0f))));
  const Word t = fma(mul(to_float(byte), all(0x1p-9f)), two_steps, a);
  const IntWord upper = sub(shift_right_zero<22>(bits_of(t)), all_int(252));
  return with_sign(least_int(truncated(add(t, t)), most_int(upper, all_int(1))), sign);
}

/// minifloat_encode of every lane.
template <int mantissa, int bias, int most>
inline IntWord minifloat_codes(Word x) {
  constexpr int shift = 23 - mantissa;
  const IntWord a = magnitudes(x);
  const Word base = of_bits(all_int((128 - bias + 23 - mantissa) << 23));
  const IntWord small = sub(bits_of(add(of_bits(a), base)), bits_of(base));
  const IntWord odd = bit_and(shift_right_zero<shift>(a), all_int(1));
  const IntWord rounded = add(add(a, all_int((1 << (shift - 1)) - 1)), odd);
  const IntWord large =
      least_int(sub(shift_right_zero<shift>(rounded), all_int((127 - bias) << mantissa)), all_int(most));
  const IntWord code = select_int(more_int(all_int((128 - bias) << 23), a), small, large);
  const IntWord sign = bit_and(shift_right_zero<24>(bits_of(x)), all_int(0x80));
  return select_int(is_nan(x), all_int(0x7F), bit_or(code, sign));
}

// ---- scale bytes ----

/// e4m3_encode of what is neither negative nor NaN.
inline IntWord e4m3_bytes(Word t) {
  const IntWord a = bits_of(t), odd = bit_and(shift_right_zero<20>(a), all_int(1));
  const Word base = all(0x1p14f);  // its last place is the step of subnormal bytes
  const IntWord small = sub(bits_of(add(t, base)), bits_of(base));
  const IntWord large = sub(shift_right_zero<20>(add(add(a, all_int(0x7ffff)), odd)), all_int(120 << 3));
  return select_int(more_int(all_int(121 << 23), a), small, least_int(large, all_int(0x7E)));
}
/// e4m3_decode of bytes up to 0x7E.
inline Word e4m3_values(IntWord byte) {
  const Word normal = of_bits(add(shift_left<20>(byte), all_int(120 << 23)));
  return select(more_int(all_int(8), byte), mul(to_float(byte), all(0x1p-9f)), normal);
}
/// mx_scale.
inline IntWord e8m0_bytes(Word amax, float reciprocal_largest) {
  const IntWord bits = bits_of(mul(amax, all(reciprocal_largest)));
  const IntWord up = add(bits, all_int(0x7fffff));  // carries into the exponent unless the mantissa is 0
  const IntWord normal = least_int(shift_right_zero<23>(up), all_int(254));
  const IntWord small = select_int(more_int(bits, all_int(0x00400000)), all_int(1), all_int(0));
  const IntWord byte = select_int(more_int(all_int(0x00800000), bits), small, normal);
  return select_int(less(amax, all(__builtin_inff())), byte, all_int(e8m0_nan));
}
/// mxfp4_floor_scale.
inline IntWord e8m0_floor_bytes(Word amax) {
  const IntWord byte = most_int(sub(shift_right_zero<23>(bits_of(amax)), all_int(2)), all_int(0));
  return select_int(less(amax, all(__builtin_inff())), byte, all_int(e8m0_nan));
}
/// e8m0_inverse of bytes up to 254; of 255 something finite.
inline Word e8m0_inverses(IntWord byte) {
  const IntWord inverse = sub(all_int(254), byte);
  return of_bits(select_int(more_int(inverse, all_int(0)), shift_left<23>(inverse), all_int(0x00400000)));
}

// ---- rotation ----

template <class W>
inline void cross(W& a, W& b) {
  const W sum = add(a, b);
  b = sub(a, b), a = sum;
}
/// butterfly of 16: four values at a time, so that few words are alive where there are few registers.
template <class W>
inline void butterfly16(W* v) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
    cross(v[i], v[i + 1]), cross(v[i + 2], v[i + 3]), cross(v[i], v[i + 2]), cross(v[i + 1], v[i + 3]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    cross(v[i], v[i + 4]), cross(v[i + 8], v[i + 12]), cross(v[i], v[i + 8]), cross(v[i + 4], v[i + 12]);
}

// Half a word in f64.
#ifdef __AVX512F__
using Wide = __m512d;
inline Wide half_of(Word a, int i) {
  return _mm512_cvtps_pd(i == 0 ? _mm512_castps512_ps256(a) : _mm512_extractf32x8_ps(a, 1));
}
inline Wide add(Wide a, Wide b) { return _mm512_add_pd(a, b); }
inline Wide sub(Wide a, Wide b) { return _mm512_sub_pd(a, b); }
inline Wide scaled(Wide a, double factor) {  // a product rounds, and then -0 becomes +0
  return _mm512_add_pd(_mm512_mul_pd(a, _mm512_set1_pd(factor)), _mm512_setzero_pd());
}
/// factor * a + 0 in f64, rounded to odd in f32.
inline __m256 odd_f32(Wide a, double factor) {
  const Wide y = scaled(a, factor);
  const __m256 f = _mm512_cvt_roundpd_ps(y, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(f), y, _CMP_NEQ_OQ);
  const __m256i bits = _mm256_castps_si256(f);
  return _mm256_castsi256_ps(_mm256_mask_or_epi32(bits, inexact, bits, _mm256_set1_epi32(1)));
}
inline Word of_halves(__m256 low, __m256 high) { return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1); }
using HalfWord = __m256;
#else
using Wide = __m256d;
inline Wide half_of(Word a, int i) {
  return _mm256_cvtps_pd(i == 0 ? _mm256_castps256_ps128(a) : _mm256_extractf128_ps(a, 1));
}
inline Wide add(Wide a, Wide b) { return _mm256_add_pd(a, b); }
inline Wide sub(Wide a, Wide b) { return _mm256_sub_pd(a, b); }
inline Wide scaled(Wide a, double factor) {
  return _mm256_add_pd(_mm256_mul_pd(a, _mm256_set1_pd(factor)), _mm256_setzero_pd());
}
/// factor * a + 0 in f64, rounded to odd in f32: one too far from 0 goes back by one place.
inline __m128 odd_f32(Wide a, double factor) {
  const Wide y = scaled(a, factor);
  const __m128 f = _mm256_cvtpd_ps(y);
  const Wide back = _mm256_cvtps_pd(f), sign = _mm256_set1_pd(-0.0);
  const auto narrow = [](Wide mask) {  // of four flags of 64 bits
    return _mm_castps_si128(_mm_shuffle_ps(_mm_castpd_ps(_mm256_castpd256_pd128(mask)),
                                           _mm_castpd_ps(_mm256_extractf128_pd(mask, 1)), 0x88));
  };
  const __m128i inexact = narrow(_mm256_cmp_pd(back, y, _CMP_NEQ_OQ));
  const __m128i beyond = narrow(_mm256_cmp_pd(_mm256_andnot_pd(sign, back), _mm256_andnot_pd(sign, y), _CMP_GT_OQ));
  const __m128i bits = _mm_add_epi32(_mm_castps_si128(f), beyond);
  return _mm_castsi128_ps(_mm_or_si128(bits, _mm_and_si128(inexact, _mm_set1_epi32(1))));
}
inline Word of_halves(__m128 low, __m128 high) { return _mm256_set_m128(high, low); }
using HalfWord = __m128;
#endif

template <int n, int h>
inline void wide_stage(Wide* t) {
#pragma GCC unroll 16
  for (int k = 0; k < n / 2; ++k) {
    const int i = k / h * 2 * h + k % h;
    const Wide a = t[i], b = t[i + h];
    t[i] = add(a, b), t[i + h] = sub(a, b);
  }
}
/// hadamard_to_bf16 of n signed BF16 values a lane, in f64.
template <int n, bool finite>
[[gnu::noinline]] void rotate_in_f64(const Word* from, Word* to) {
  HalfWord halves[2][n];
  for (int half = 0; half < 2; ++half) {
    Wide t[n];
#pragma GCC unroll 16
    for (int e = 0; e < n; ++e) t[e] = half_of(from[e], half);
    wide_stage<n, 1>(t), wide_stage<n, 2>(t), wide_stage<n, 4>(t), wide_stage<n, 8>(t);
    if constexpr (n >= 32) wide_stage<n, 16>(t);
    if constexpr (n == 64) wide_stage<n, 32>(t);
#pragma GCC unroll 16
    for (int e = 0; e < n; ++e)
      halves[half][e] = odd_f32(t[e], n == 16 ? 0.25 : n == 32 ? 0x1.6a09e667f3bcdp-3 : 0.125);
  }
#pragma GCC unroll 16
  for (int e = 0; e < n; ++e) {
    const Word odd = of_halves(halves[0][e], halves[1][e]);
    to[e] = finite ? rounded_finite<float>(odd) : round_word(odd);
  }
}

/// v = element e of every lane's group of 16, rounded to BF16, with the signs of the rotation.
template <class T, class Load>
inline void load_signed(const Load& load, Word* v) {
#pragma GCC unroll 16
  for (int e = 0; e < 16; ++e) {
    const Word x = rounded_finite<T>(load(e));
    v[e] = (rht16_signs >> e & 1u) != 0 ? negate(x) : x;
  }
}
/// The same with NaN kept.
template <int n, class T, class Load>
inline void load_signed_safely(const Load& load, Word* v) {
  for (int e = 0; e < n; ++e) {
    Word x = load(e);
    if constexpr (sizeof(T) == 4) x = round_word(x);
    v[e] = (rht16_signs >> (e % 16) & 1u) != 0 ? negate(x) : x;
  }
}

/// load_signed, and whether sums in f32 are exact: the magnitudes other than 0 of each lane lie within 12 binades (8
/// bits each, 4 more by sixteen terms: 24), and no sum reaches 2^128. `most` takes the largest magnitudes before
/// rounding.
template <class T, class Load>
inline bool load_checked(const Load& load, Word* v, IntWord* most) {
  IntWord largest = all_int(0), less_one = all_int(-1);
#pragma GCC unroll 16
  for (int e = 0; e < 16; ++e) {
    const Word raw = load(e), x = rounded_finite<T>(raw);
    const IntWord size = magnitudes(raw);  // rounding makes none smaller by a binade
    largest = most_bits(largest, size);
    less_one = least_bits(less_one, sub(size, all_int(1)));  // a zero becomes the largest
    v[e] = (rht16_signs >> e & 1u) != 0 ? negate(x) : x;
  }
  *most = largest;
  const IntWord high = shift_right_zero<23>(bits_of(rounded_finite<T>(of_bits(largest))));
  const IntWord low = shift_right_zero<23>(add(less_one, all_int(1))), span = sub(high, low);
  return !any_bits(bit_or(where_not(more_int(all_int(251), shift_right_zero<23>(largest)), all_int(1)),
                          where_not(more_int(all_int(13), span), all_int(1))));
}

/// How the sums of a word's groups are made.
enum class Sums : uint8_t { in_f32, in_f64, unknown };

/// Rotated groups of 16 without NaN and Inf, as BF16 values.
template <class T, class Load>
inline void rotate16(const Load& load, Word* v, Sums sums) {
  IntWord most;
  if (sums == Sums::unknown)
    sums = load_checked<T>(load, v, &most) ? Sums::in_f32 : Sums::in_f64;
  else
    load_signed<T>(load, v);
  if (sums == Sums::in_f64) return rotate_in_f64<16, true>(v, v);
  butterfly16(v);
#pragma GCC unroll 16
  for (int e = 0; e < 16; ++e) v[e] = rounded_finite<float>(fma(v[e], all(0.25f), zero()));
}
/// hadamard_to_bf16 of 64 BF16 values a lane in integers, or false: where a lane's magnitudes other than 0 span more
/// than 16 binades (8 bits each, 6 more by 64 terms: 31), are not finite or lie near the ends, or where a sum of more
/// than 24 bits rounds to a tie of BF16.
inline bool rotate64_in_integers(const Word* v, Word* to) {
  IntWord largest = all_int(0), less_one = all_int(-1);
  for (int e = 0; e < 64; ++e) {
    const IntWord size = magnitudes(v[e]);
    largest = most_bits(largest, size);
    less_one = least_bits(less_one, sub(size, all_int(1)));  // a zero becomes the largest
  }
  const Mask zeros = equal_int(largest, all_int(0));
  const IntWord high = select_int(zeros, all_int(100), shift_right_zero<23>(largest));
  const IntWord low = select_int(zeros, all_int(100), shift_right_zero<23>(add(less_one, all_int(1))));
  const auto unless = [](Mask m) { return where_not(m, all_int(1)); };
  if (any_bits(bit_or(unless(more_int(all_int(17), sub(high, low))),
                      bit_or(unless(more_int(high, all_int(40))), unless(more_int(all_int(240), high))))))
    return false;
  const Word up = of_bits(shift_left<23>(sub(all_int(277), high)));  // the largest lies below 2^24
  const Word down = of_bits(shift_left<23>(sub(high, all_int(26))));
  IntWord k[64];
  for (int i = 0; i < 64; i += 16) {
#pragma GCC unroll 16
    for (int e = 0; e < 16; ++e) k[i + e] = truncated(mul(v[i + e], up));
    butterfly16(k + i);
  }
  IntWord ties = all_int(0);
  for (int i = 0; i < 16; ++i) {
    IntWord t[4] = {k[i], k[16 + i], k[32 + i], k[48 + i]};
    cross(t[0], t[1]), cross(t[2], t[3]), cross(t[0], t[2]), cross(t[1], t[3]);
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const Word sum = to_float(t[s]);
      const Mask tie = equal_int(shift_left<16>(bits_of(sum)), all_int(INT32_MIN));
      ties = bit_or(ties, select_int(tie, sub(truncated(sum), t[s]), all_int(0)));
      to[16 * s + i] = mul(rounded_finite<float>(sum), down);
    }
  }
  return !any_bits(ties);
}

/// Rotated groups of n, NaN and Inf kept.
template <int n, class T, class Load>
inline void rotate_safely(const Load& load, Word* to) {
  Word v[n];
  load_signed_safely<n, T>(load, v);
  if constexpr (n == 64)
    if (rotate64_in_integers(v, to)) return;
  rotate_in_f64<n, false>(v, to);
}

/// Of one word's groups of 16: the largest magnitudes as they are and rotated, NaN > Inf > finite.
struct RotatedMaxima {
  IntWord plain, rotated;
  Sums sums;
};
template <class T, class Load>
inline RotatedMaxima rotated_maxima(const Load& load) {
  Word v[16];
  RotatedMaxima m{all_int(0), all_int(0), Sums::in_f64};
  if (load_checked<T>(load, v, &m.plain)) {
    butterfly16(v);
#pragma GCC unroll 16
    for (int e = 0; e < 16; ++e) m.rotated = most_bits(m.rotated, magnitudes(v[e]));
    m.rotated = bits_of(rounded_finite<float>(mul(of_bits(m.rotated), all(0.25f))));
    m.sums = Sums::in_f32;
    return m;
  }
  if (any_bits(where_not(more_int(all_int(0x7f000000), m.plain), all_int(1)))) load_signed_safely<16, T>(load, v);
  rotate_in_f64<16, false>(v, v);
  for (int e = 0; e < 16; ++e) m.rotated = most_bits(m.rotated, magnitudes(v[e]));
  return m;
}

// ---- random bits ----

/// Philox4x32-10 of many counters under one key: all but the block index.
struct PhiloxKey {
  uint32_t k0[10] = {}, k1[10] = {}, step = 0, stream = 0;
  int64_t lane[2][lanes / 2] = {};  // what even and odd lanes add to the block index
  PhiloxKey() = default;
  PhiloxKey(uint32_t seed, uint32_t site, uint32_t at_step, uint32_t at_stream, int64_t stride)
      : step(at_step), stream(at_stream) {
    for (uint32_t i = 0; i < 10; ++i) k0[i] = seed + i * 0x9E3779B9u, k1[i] = site + i * 0xBB67AE85u;
    for (int l = 0; l < lanes; ++l) lane[l % 2][l / 2] = l * stride;
  }
};
struct PhiloxLanes {
  IntWord word[4];
  /// Byte e of a lane's sixteen.
  IntWord byte(int e) const {
    const IntWord w = word[e / 4];
    return bit_and(e % 4 == 0   ? w
                   : e % 4 == 1 ? shift_right_zero<8>(w)
                   : e % 4 == 2 ? shift_right_zero<16>(w)
                                : shift_right_zero<24>(w),
                   all_int(255));
  }
};
/// Lane l: block index first + l strides of the key. Even and odd lanes run by themselves, in the low halves of 64-bit
/// lanes, since products of 32 bits need 64; what gathers in the upper halves never comes back.
inline PhiloxLanes philox(const PhiloxKey& key, uint64_t first) {
  IntWord c[2][4];
  for (int s = 0; s < 2; ++s) {
    c[s][0] = add_wide(all_wide(first), load_int(key.lane[s])), c[s][1] = shift_right_wide<32>(c[s][0]);
    c[s][2] = all_int(static_cast<int32_t>(key.step)), c[s][3] = all_int(static_cast<int32_t>(key.stream));
  }
  const IntWord m0 = all_int(static_cast<int32_t>(0xD2511F53u)), m1 = all_int(static_cast<int32_t>(0xCD9E8D57u));
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const IntWord k0 = all_int(static_cast<int32_t>(key.k0[round])), k1 = all_int(static_cast<int32_t>(key.k1[round]));
    for (auto& s : c) {
      const IntWord p0 = multiply_low(s[0], m0), p1 = multiply_low(s[2], m1);
      s[0] = exclusive_or(shift_right_wide<32>(p1), s[1], k0), s[1] = p1;
      s[2] = exclusive_or(shift_right_wide<32>(p0), s[3], k1), s[3] = p0;
    }
  }
  PhiloxLanes r;
  for (int k = 0; k < 4; ++k) r.word[k] = odd_from(c[0][k], shift_left_wide<32>(c[1][k]));
  return r;
}

// ---- packing ----

/// Where store_by_lane puts the sixteen bytes of lane l.
constexpr int by_lane(int l) { return l % 4 * (4 * lanes) + l / 4 * 16; }

#ifdef __AVX512F__
inline void store_by_lane(const IntWord* r, uint8_t* p) {
  const IntWord a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
  const IntWord c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
  store_int(p, _mm512_unpacklo_epi64(a, c)), store_int(p + 64, _mm512_unpackhi_epi64(a, c));
  store_int(p + 128, _mm512_unpacklo_epi64(b, d)), store_int(p + 192, _mm512_unpackhi_epi64(b, d));
}
/// Codes of four groups of 16 elements, a lane each, to 4 x 8 bytes.
inline void pack_four_groups(const IntWord* code, uint8_t* p) {
  const auto upper = [](IntWord low, IntWord high) {  // 16 bits each
    return _mm512_mask_blend_epi16(0xAAAAAAAA, low, _mm512_slli_epi32(high, 16));
  };
  // Bytes of a lane: groups 0, 2, 1, 3.
  const IntWord four = bit_or(upper(code[0], code[1]), _mm512_slli_epi32(upper(code[2], code[3]), 8));
  const IntWord pairs = bit_or(four, _mm512_srli_epi64(four, 28));  // elements 2i and 2i + 1 in the low half
  const __m256i eight = _mm512_cvtepi64_epi32(pairs);
  const __m256i grouped = _mm256_shuffle_epi8(
      eight, _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permutevar8x32_epi32(grouped, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}
/// Bytes of four words of 16 elements.
inline void pack_bytes(const IntWord* code, uint8_t* p) {
  for (int i = 0; i < 4; ++i) store_bytes(p + 16 * i, code[i]);
}
/// Sixteen codes of a lane to words of that lane.
template <int bits>
inline void pack_lanes(const IntWord* code, IntWord* word) {
  if constexpr (bits == 8) {
    for (int i = 0; i < 4; ++i)
      word[i] = bit_or(bit_or(code[4 * i], shift_left<8>(code[4 * i + 1])),
                       bit_or(shift_left<16>(code[4 * i + 2]), shift_left<24>(code[4 * i + 3])));
  } else {
    IntWord sixteen[4];
    for (int i = 0; i < 4; ++i)
      sixteen[i] = bit_or(bit_or(code[4 * i], shift_left<4>(code[4 * i + 1])),
                          bit_or(shift_left<8>(code[4 * i + 2]), shift_left<12>(code[4 * i + 3])));
    for (int i = 0; i < 2; ++i)
      word[i] = _mm512_mask_blend_epi16(0xAAAAAAAA, sixteen[2 * i], _mm512_slli_epi32(sixteen[2 * i + 1], 16));
  }
}
/// Word k of every lane: four words of lane l to 16 bytes at p + l * pitch.
inline void store_each_lane(const IntWord* r, uint8_t* p, int64_t pitch) {
  const IntWord a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
  const IntWord c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
  const IntWord four[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                           _mm512_unpackhi_epi64(b, d)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // lanes i, 4 + i, 8 + i, 12 + i
    const auto to = [&](int l) { return reinterpret_cast<__m128i*>(p + l * pitch); };
    _mm_storeu_si128(to(i), _mm512_castsi512_si128(four[i]));
    _mm_storeu_si128(to(4 + i), _mm512_extracti32x4_epi32(four[i], 1));
    _mm_storeu_si128(to(8 + i), _mm512_extracti32x4_epi32(four[i], 2));
    _mm_storeu_si128(to(12 + i), _mm512_extracti32x4_epi32(four[i], 3));
  }
}
#else
inline void store_by_lane(const IntWord* r, uint8_t* p) {
  const IntWord a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
  const IntWord c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
  store_int(p, _mm256_unpacklo_epi64(a, c)), store_int(p + 32, _mm256_unpackhi_epi64(a, c));
  store_int(p + 64, _mm256_unpacklo_epi64(b, d)), store_int(p + 96, _mm256_unpackhi_epi64(b, d));
}
/// Codes of four groups of 16 elements, two words each, to 4 x 8 bytes.
inline void pack_four_groups(const IntWord* code, uint8_t* p) {
  IntWord two[2];  // of two groups: pairs of elements, a byte in 16 bits
  for (int i = 0; i < 2; ++i) {
    const IntWord* c = code + 4 * i;
    const IntWord bytes = _mm256_packus_epi16(_mm256_packus_epi32(c[0], c[1]), _mm256_packus_epi32(c[2], c[3]));
    two[i] = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001));
  }
  const IntWord all_four = _mm256_packus_epi16(two[0], two[1]);  // half 0: elements 0-3 of every word, half 1: 4-7
  const __m128i low = _mm256_castsi256_si128(all_four), high = _mm256_extracti128_si256(all_four, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi16(low, high));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16), _mm_unpackhi_epi16(low, high));
}
/// Bytes of eight words of 8 elements.
inline void pack_bytes(const IntWord* code, uint8_t* p) {
  for (int i = 0; i < 8; ++i) store_bytes(p + 8 * i, code[i]);
}
/// Sixteen codes of a lane to words of that lane.
template <int bits>
inline void pack_lanes(const IntWord* code, IntWord* word) {
  constexpr int each = 32 / bits;
  for (int i = 0; i < bits / 2; ++i) {
    const IntWord* c = code + each * i;
    if constexpr (bits == 8)
      word[i] = bit_or(bit_or(c[0], shift_left<8>(c[1])), bit_or(shift_left<16>(c[2]), shift_left<24>(c[3])));
    else
      word[i] = bit_or(bit_or(bit_or(c[0], shift_left<4>(c[1])), bit_or(shift_left<8>(c[2]), shift_left<12>(c[3]))),
                       bit_or(bit_or(shift_left<16>(c[4]), shift_left<20>(c[5])),
                              bit_or(shift_left<24>(c[6]), shift_left<28>(c[7]))));
  }
}
/// Word k of every lane: four words of lane l to 16 bytes at p + l * pitch.
inline void store_each_lane(const IntWord* r, uint8_t* p, int64_t pitch) {
  const IntWord a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
  const IntWord c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
  const IntWord four[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
                           _mm256_unpackhi_epi64(b, d)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // lanes i and 4 + i
    const auto to = [&](int l) { return reinterpret_cast<__m128i*>(p + l * pitch); };
    _mm_storeu_si128(to(i), _mm256_castsi256_si128(four[i]));
    _mm_storeu_si128(to(4 + i), _mm256_extracti128_si256(four[i], 1));
  }
}
#endif
}  // namespace nibble::NIBBLE_TARGET
