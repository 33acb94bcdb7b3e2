// The vector words of one target: what a kernel written once needs to run on AVX2 (8 lanes) and AVX-512 (16 lanes).
// Included only by sources that src/kernels compiles once per target; everything here lives in the target's own
// namespace, so the linker never picks an AVX-512 copy of a function for an AVX2 caller.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "numerics/bf16.h"

namespace nibble::NIBBLE_TARGET {

#ifdef __AVX512F__
using Word = __m512;      // f32
using IntWord = __m512i;  // i32
using Mask = __mmask16;   // one flag a lane
constexpr int lanes = 16;

inline Word load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Word a) { _mm512_storeu_ps(p, a); }
inline Word all(float x) { return _mm512_set1_ps(x); }
inline Word zero() { return _mm512_setzero_ps(); }

inline Word add(Word a, Word b) { return _mm512_add_ps(a, b); }
inline Word sub(Word a, Word b) { return _mm512_sub_ps(a, b); }
inline Word mul(Word a, Word b) { return _mm512_mul_ps(a, b); }
inline Word div(Word a, Word b) { return _mm512_div_ps(a, b); }
inline Word sqrt(Word a) { return _mm512_sqrt_ps(a); }
inline Word fma(Word a, Word b, Word c) { return _mm512_fmadd_ps(a, b, c); }         // a b + c
inline Word fnma(Word a, Word b, Word c) { return _mm512_fnmadd_ps(a, b, c); }       // c - a b
inline Word negate(Word a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }       // the sign bit alone
inline Word absolute(Word a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }  // the sign bit alone
inline Word round_even(Word a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

inline Mask less(Word a, Word b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }  // false if either is NaN
inline Mask equal(Word a, Word b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask is_nan(Word a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline Mask first(int64_t n) { return static_cast<Mask>(n >= 16 ? 0xffffu : (1u << n) - 1); }  // lanes < n; n >= 0
inline bool any(Mask m) { return m != 0; }
inline Word select(Mask m, Word yes, Word no) { return _mm512_mask_blend_ps(m, no, yes); }
inline Word load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline void store_first(float* p, Word a, int64_t n) { _mm512_mask_storeu_ps(p, first(n), a); }

// bf16 (numerics/bf16.h): loads widen exactly, stores round to nearest even with NaN quieted.
inline __m256i rounded(Word a) {
  const __m512i u = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i even = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan(a), even, quiet), 16));
}
inline Word widened(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
inline Word load(const BFloat16* p) { return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline void store(BFloat16* p, Word a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded(a)); }
inline Word load_first(const BFloat16* p, int64_t n) { return widened(_mm256_maskz_loadu_epi16(first(n), p)); }
inline void store_first(BFloat16* p, Word a, int64_t n) { _mm256_mask_storeu_epi16(p, first(n), rounded(a)); }

inline IntWord bits_of(Word a) { return _mm512_castps_si512(a); }
inline Word of_bits(IntWord a) { return _mm512_castsi512_ps(a); }
inline IntWord all_int(int32_t x) { return _mm512_set1_epi32(x); }
inline IntWord add(IntWord a, IntWord b) { return _mm512_add_epi32(a, b); }
inline IntWord sub(IntWord a, IntWord b) { return _mm512_sub_epi32(a, b); }
inline IntWord bit_and(IntWord a, IntWord b) { return _mm512_and_si512(a, b); }
inline IntWord bit_or(IntWord a, IntWord b) { return _mm512_or_si512(a, b); }
template <int n>
inline IntWord shift_left(IntWord a) {
  return _mm512_slli_epi32(a, n);
}
template <int n>
inline IntWord shift_right(IntWord a) {
  return _mm512_srai_epi32(a, n);
}  // arithmetic
inline IntWord to_int(Word a) { return _mm512_cvtps_epi32(a); }  // nearest even; out of range: 0x80000000
inline Word to_float(IntWord a) { return _mm512_cvtepi32_ps(a); }
inline Word least(Word a, Word b) { return _mm512_min_ps(a, b); }  // b where a is NaN
inline IntWord least_int(IntWord a, IntWord b) { return _mm512_min_epi32(a, b); }
inline IntWord most_int(IntWord a, IntWord b) { return _mm512_max_epi32(a, b); }
inline IntWord most_bits(IntWord a, IntWord b) { return _mm512_max_epu32(a, b); }
inline IntWord least_bits(IntWord a, IntWord b) { return _mm512_min_epu32(a, b); }
inline IntWord exclusive_or(IntWord a, IntWord b, IntWord c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
inline IntWord multiply_low(IntWord a, IntWord b) { return _mm512_mul_epu32(a, b); }  // 64-bit lanes: low x low
template <int n>
inline IntWord shift_right_zero(IntWord a) {
  return _mm512_srli_epi32(a, n);
}
template <int n>
inline IntWord shift_right_wide(IntWord a) {
  return _mm512_srli_epi64(a, n);
}
template <int n>
inline IntWord shift_left_wide(IntWord a) {
  return _mm512_slli_epi64(a, n);
}
inline IntWord odd_from(IntWord even, IntWord odd) { return _mm512_mask_blend_epi32(0xAAAA, even, odd); }
inline Mask equal_int(IntWord a, IntWord b) { return _mm512_cmpeq_epi32_mask(a, b); }
inline Mask more_int(IntWord a, IntWord b) { return _mm512_cmpgt_epi32_mask(a, b); }
inline IntWord select_int(Mask m, IntWord yes, IntWord no) { return _mm512_mask_blend_epi32(m, no, yes); }
inline IntWord where_not(Mask m, IntWord a) { return _mm512_maskz_mov_epi32(static_cast<Mask>(~m), a); }
inline bool any_bits(IntWord a) { return _mm512_test_epi32_mask(a, a) != 0; }
inline IntWord truncated(Word a) { return _mm512_cvttps_epi32(a); }
inline uint32_t reduce_most(IntWord a) { return _mm512_reduce_max_epu32(a); }
inline IntWord load_int(const void* p) { return _mm512_loadu_si512(p); }
inline void store_int(void* p, IntWord a) { _mm512_storeu_si512(p, a); }
inline IntWord add_wide(IntWord a, IntWord b) { return _mm512_add_epi64(a, b); }
inline IntWord all_wide(uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
#else
using Word = __m256;      // f32
using IntWord = __m256i;  // i32
using Mask = __m256;      // one flag a lane: all its bits
constexpr int lanes = 8;

inline Word load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Word a) { _mm256_storeu_ps(p, a); }
inline Word all(float x) { return _mm256_set1_ps(x); }
inline Word zero() { return _mm256_setzero_ps(); }

inline Word add(Word a, Word b) { return _mm256_add_ps(a, b); }
inline Word sub(Word a, Word b) { return _mm256_sub_ps(a, b); }
inline Word mul(Word a, Word b) { return _mm256_mul_ps(a, b); }
inline Word div(Word a, Word b) { return _mm256_div_ps(a, b); }
inline Word sqrt(Word a) { return _mm256_sqrt_ps(a); }
inline Word fma(Word a, Word b, Word c) { return _mm256_fmadd_ps(a, b, c); }         // a b + c
inline Word fnma(Word a, Word b, Word c) { return _mm256_fnmadd_ps(a, b, c); }       // c - a b
inline Word negate(Word a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }       // the sign bit alone
inline Word absolute(Word a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }  // the sign bit alone
inline Word round_even(Word a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

inline Mask less(Word a, Word b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }  // false if either is NaN
inline Mask equal(Word a, Word b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline Mask is_nan(Word a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
inline Mask first(int64_t n) {  // lanes < n; n >= 0
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n < 8 ? n : 8)),
                                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
inline bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
inline Word select(Mask m, Word yes, Word no) { return _mm256_blendv_ps(no, yes, m); }
inline Word load_first(const float* p, int64_t n) { return _mm256_maskload_ps(p, _mm256_castps_si256(first(n))); }
inline void store_first(float* p, Word a, int64_t n) { _mm256_maskstore_ps(p, _mm256_castps_si256(first(n)), a); }

// bf16 (numerics/bf16.h): loads widen exactly, stores round to nearest even with NaN quieted.
inline __m128i rounded(Word a) {
  const __m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i even = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i bits = _mm256_srli_epi32(_mm256_blendv_epi8(even, quiet, _mm256_castps_si256(is_nan(a))), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}
inline Word widened(__m128i bits) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)); }
inline Word load(const BFloat16* p) { return widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline void store(BFloat16* p, Word a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), rounded(a)); }
inline Word load_first(const BFloat16* p, int64_t n) {
  BFloat16 some[8] = {};
  std::memcpy(some, p, static_cast<size_t>(n < 8 ? n : 8) * sizeof(BFloat16));
  return load(some);
}
inline void store_first(BFloat16* p, Word a, int64_t n) {
  BFloat16 some[8];
  store(some, a);
  std::memcpy(p, some, static_cast<size_t>(n < 8 ? n : 8) * sizeof(BFloat16));
}

inline IntWord bits_of(Word a) { return _mm256_castps_si256(a); }
inline Word of_bits(IntWord a) { return _mm256_castsi256_ps(a); }
inline IntWord all_int(int32_t x) { return _mm256_set1_epi32(x); }
inline IntWord add(IntWord a, IntWord b) { return _mm256_add_epi32(a, b); }
inline IntWord sub(IntWord a, IntWord b) { return _mm256_sub_epi32(a, b); }
inline IntWord bit_and(IntWord a, IntWord b) { return _mm256_and_si256(a, b); }
inline IntWord bit_or(IntWord a, IntWord b) { return _mm256_or_si256(a, b); }
template <int n>
inline IntWord shift_left(IntWord a) {
  return _mm256_slli_epi32(a, n);
}
template <int n>
inline IntWord shift_right(IntWord a) {
  return _mm256_srai_epi32(a, n);
}  // arithmetic
inline IntWord to_int(Word a) { return _mm256_cvtps_epi32(a); }  // nearest even; out of range: 0x80000000
inline Word to_float(IntWord a) { return _mm256_cvtepi32_ps(a); }
inline Word least(Word a, Word b) { return _mm256_min_ps(a, b); }  // b where a is NaN
inline IntWord least_int(IntWord a, IntWord b) { return _mm256_min_epi32(a, b); }
inline IntWord most_int(IntWord a, IntWord b) { return _mm256_max_epi32(a, b); }
inline IntWord most_bits(IntWord a, IntWord b) { return _mm256_max_epu32(a, b); }
inline IntWord least_bits(IntWord a, IntWord b) { return _mm256_min_epu32(a, b); }
inline IntWord exclusive_or(IntWord a, IntWord b, IntWord c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
inline IntWord multiply_low(IntWord a, IntWord b) { return _mm256_mul_epu32(a, b); }  // 64-bit lanes: low x low
template <int n>
inline IntWord shift_right_zero(IntWord a) {
  return _mm256_srli_epi32(a, n);
}
template <int n>
inline IntWord shift_right_wide(IntWord a) {
  return _mm256_srli_epi64(a, n);
}
template <int n>
inline IntWord shift_left_wide(IntWord a) {
  return _mm256_slli_epi64(a, n);
}
inline IntWord odd_from(IntWord even, IntWord odd) { return _mm256_blend_epi32(even, odd, 0xAA); }
inline Mask equal_int(IntWord a, IntWord b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
inline Mask more_int(IntWord a, IntWord b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b)); }
inline IntWord select_int(Mask m, IntWord yes, IntWord no) {
  return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(m));
}
inline IntWord where_not(Mask m, IntWord a) { return _mm256_andnot_si256(_mm256_castps_si256(m), a); }
inline bool any_bits(IntWord a) { return _mm256_testz_si256(a, a) == 0; }
inline IntWord truncated(Word a) { return _mm256_cvttps_epi32(a); }
inline uint32_t reduce_most(IntWord a) {
  const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4E));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 0xB1))));
}
inline IntWord load_int(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_int(void* p, IntWord a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
inline IntWord add_wide(IntWord a, IntWord b) { return _mm256_add_epi64(a, b); }
inline IntWord all_wide(uint64_t x) { return _mm256_set1_epi64x(static_cast<int64_t>(x)); }
#endif

/// Rounded to bf16, still in f32 lanes.
inline Word round_word(Word a) { return widened(rounded(a)); }

/// The larger of two; NaN wins, whichever side it is on (maxps alone returns its second operand).
inline Word max(Word a, Word b) {
#ifdef __AVX512F__
  return select(is_nan(a), a, _mm512_max_ps(a, b));
#else
  return select(is_nan(a), a, _mm256_max_ps(a, b));
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// The 16 virtual lanes of spec/training.md 2.11: lane j takes elements j, j + 16, ... of a row; then the lane tree.
//
//   Lanes16 sum = zero16();
//   int64_t i = 0;
//   for (; i + 16 <= n; i += 16) { const Lanes16 x = load16(p + i); sum = fma(x, x, sum); }
//   if (i < n) { const Lanes16 x = load16_first(p + i, n - i); sum = select_first(n - i, fma(x, x, sum), sum); }
//   const float s = lane_sum(sum);

constexpr int words16 = 16 / lanes;
struct Lanes16 {
  Word w[words16];
};

/// f of every word, for element-wise functions of up to three operands.
template <class F>
inline Lanes16 map16(const F& f, const Lanes16& a) {
  Lanes16 r;
  for (int i = 0; i < words16; ++i) r.w[i] = f(a.w[i]);
  return r;
}
template <class F>
inline Lanes16 map16(const F& f, const Lanes16& a, const Lanes16& b) {
  Lanes16 r;
  for (int i = 0; i < words16; ++i) r.w[i] = f(a.w[i], b.w[i]);
  return r;
}
template <class F>
inline Lanes16 map16(const F& f, const Lanes16& a, const Lanes16& b, const Lanes16& c) {
  Lanes16 r;
  for (int i = 0; i < words16; ++i) r.w[i] = f(a.w[i], b.w[i], c.w[i]);
  return r;
}

inline Lanes16 all16(float x) {
  Lanes16 r;
  for (int i = 0; i < words16; ++i) r.w[i] = all(x);
  return r;
}
inline Lanes16 zero16() { return all16(0); }
template <class T>
inline Lanes16 load16(const T* p) {
  Lanes16 r;
  for (int i = 0; i < words16; ++i) r.w[i] = load(p + i * lanes);
  return r;
}
template <class T>
inline void store16(T* p, const Lanes16& a) {
  for (int i = 0; i < words16; ++i) store(p + i * lanes, a.w[i]);
}
/// How many of the first n (0..16) of 16 elements lie in word i.
inline int64_t part_of(int64_t n, int i) { return n > i * lanes ? n - i * lanes : 0; }
/// The first n elements, zeros after; reads nothing beyond p[n - 1].
template <class T>
inline Lanes16 load16_first(const T* p, int64_t n) {
  Lanes16 r;
  for (int i = 0; i < words16; ++i) r.w[i] = load_first(p + i * lanes, part_of(n, i));
  return r;
}
template <class T>
inline void store16_first(T* p, const Lanes16& a, int64_t n) {
  for (int i = 0; i < words16; ++i) store_first(p + i * lanes, a.w[i], part_of(n, i));
}
/// Lanes < n from yes, the others from no: a short last round adds nothing (adding +0 would turn -0 into +0).
inline Lanes16 select_first(int64_t n, const Lanes16& yes, const Lanes16& no) {
  Lanes16 r;
  for (int i = 0; i < words16; ++i) r.w[i] = select(first(part_of(n, i)), yes.w[i], no.w[i]);
  return r;
}

inline Lanes16 add(const Lanes16& a, const Lanes16& b) {
  return map16([](Word x, Word y) { return add(x, y); }, a, b);
}
inline Lanes16 sub(const Lanes16& a, const Lanes16& b) {
  return map16([](Word x, Word y) { return sub(x, y); }, a, b);
}
inline Lanes16 mul(const Lanes16& a, const Lanes16& b) {
  return map16([](Word x, Word y) { return mul(x, y); }, a, b);
}
inline Lanes16 fma(const Lanes16& a, const Lanes16& b, const Lanes16& c) {
  return map16([](Word x, Word y, Word z) { return fma(x, y, z); }, a, b, c);
}
inline Lanes16 max(const Lanes16& a, const Lanes16& b) {
  return map16([](Word x, Word y) { return max(x, y); }, a, b);
}

/// The lane tree: strides 8, 4, 2, 1, each v[i] = fl(v[i] + v[i + h]).
inline float lane_sum(const Lanes16& v) {
#ifdef __AVX512F__
  const __m256 v8 = _mm256_add_ps(_mm512_castps512_ps256(v.w[0]), _mm512_extractf32x8_ps(v.w[0], 1));
#else
  const __m256 v8 = _mm256_add_ps(v.w[0], v.w[1]);
#endif
  const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
  const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}

/// The largest of a word's lanes. A NaN in any lane gives the quiet NaN 0x7fc00000, and a zero is +0, so the bits do
/// not depend on the order in which lanes meet.
inline float reduce_max(Word v) {
  if (any(is_nan(v))) return __builtin_nanf("");
#ifdef __AVX512F__
  const __m256 v8 = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
  const __m256 v8 = v;
#endif
  const __m128 v4 = _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
  const __m128 v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_max_ss(v2, _mm_movehdup_ps(v2))) + 0.0f;
}
inline float reduce_max(const Lanes16& v) {
  Word m = v.w[0];
  for (int i = 1; i < words16; ++i) m = max(m, v.w[i]);
  return reduce_max(m);
}

}  // namespace nibble::NIBBLE_TARGET
