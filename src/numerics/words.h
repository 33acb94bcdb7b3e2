// What the functions of functions.h need from a number type: float, double, or a whole vector register of them. With
// these few primitives one text of exp or log is the scalar definition and every vector version: they agree because
// they are the same operations in the same order, each rounded once (IEEE 754), and -ffp-contract=off adds none.
//
// Everything is static and always inlined. An inline function of external linkage compiled for AVX-512 could be the
// copy that the linker keeps for plain x86-64, where it would stop the program.
#pragma once
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <cstdint>
#include <type_traits>

#define NIBBLE_WORD_FN [[gnu::always_inline]] static inline

namespace nibble {

#ifdef __AVX2__
// GCC vectors rather than __m256: + - * / < and ?: work on them lane by lane, and they can be template arguments.
using F32x8 [[gnu::vector_size(32)]] = float;
using F64x4 [[gnu::vector_size(32)]] = double;
using U32x8 [[gnu::vector_size(32)]] = uint32_t;
using U64x4 [[gnu::vector_size(32)]] = uint64_t;
#endif
#ifdef __AVX512F__
using F32x16 [[gnu::vector_size(64)]] = float;
using F64x8 [[gnu::vector_size(64)]] = double;
using U32x16 [[gnu::vector_size(64)]] = uint32_t;
using U64x8 [[gnu::vector_size(64)]] = uint64_t;
#endif

/// Bits: the unsigned integers of the same width and number of lanes. Lane: float or double.
template <class F>
struct WordTypes;
template <>
struct WordTypes<float> {
  using Bits = uint32_t;
  using Lane = float;
};
template <>
struct WordTypes<double> {
  using Bits = uint64_t;
  using Lane = double;
};
#ifdef __AVX2__
template <>
struct WordTypes<F32x8> {
  using Bits = U32x8;
  using Lane = float;
};
template <>
struct WordTypes<F64x4> {
  using Bits = U64x4;
  using Lane = double;
};
#endif
#ifdef __AVX512F__
template <>
struct WordTypes<F32x16> {
  using Bits = U32x16;
  using Lane = float;
};
template <>
struct WordTypes<F64x8> {
  using Bits = U64x8;
  using Lane = double;
};
#endif
template <class F>
using BitsOf = typename WordTypes<F>::Bits;
template <class F>
using LaneOf = typename WordTypes<F>::Lane;
template <class F>
constexpr int lanes_of = sizeof(F) / sizeof(LaneOf<F>);

template <class F>
NIBBLE_WORD_FN BitsOf<F> bits_of(F x) {
  return __builtin_bit_cast(BitsOf<F>, x);
}
template <class F>
NIBBLE_WORD_FN F from_bits(BitsOf<F> b) {
  return __builtin_bit_cast(F, b);
}

/// c in every lane.
template <class F>
NIBBLE_WORD_FN F all(LaneOf<F> c) {
  return c - F{};  // c - 0 is c, also for -0
}

/// The integer c in every lane.
template <class F>
NIBBLE_WORD_FN BitsOf<F> all_bits(std::conditional_t<sizeof(LaneOf<F>) == 4, uint32_t, uint64_t> c) {
  return c + BitsOf<F>{};
}

/// a where the comparison holds, else b. On scalars by masks: from ?: GCC makes branches, and a loop with one stays
/// scalar.
template <class F, class Mask>
NIBBLE_WORD_FN F select_of(Mask holds, F a, F b) {
  if constexpr (lanes_of<F> == 1) {
    const BitsOf<F> mask = BitsOf<F>{0} - static_cast<BitsOf<F>>(holds);
    return from_bits<F>((bits_of(a) & mask) | (bits_of(b) & ~mask));
  } else {
    return holds ? a : b;
  }
}

/// a * b + c, rounded once. Without FMA instructions (plain x86-64) this calls fma of libm, which rounds the same.
template <class F>
NIBBLE_WORD_FN F fma_of(F a, F b, F c) {
  if constexpr (std::is_same_v<F, float>) {
    return __builtin_fmaf(a, b, c);
  } else if constexpr (std::is_same_v<F, double>) {
    return __builtin_fma(a, b, c);
#ifdef __AVX512F__
  } else if constexpr (std::is_same_v<F, F32x16>) {
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  } else if constexpr (std::is_same_v<F, F64x8>) {
    return (F)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#endif
#ifdef __AVX2__
  } else if constexpr (std::is_same_v<F, F32x8>) {
    return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  } else {
    static_assert(std::is_same_v<F, F64x4>);
    return (F)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#endif
  }
}
template <class F>
NIBBLE_WORD_FN F fma_of(F a, F b, LaneOf<F> c) requires(lanes_of<F> > 1) {
  return fma_of(a, b, all<F>(c));
}
template <class F>
NIBBLE_WORD_FN F fma_of(F a, LaneOf<F> b, F c) requires(lanes_of<F> > 1) {
  return fma_of(a, all<F>(b), c);
}
template <class F>
NIBBLE_WORD_FN F fma_of(F a, LaneOf<F> b, LaneOf<F> c) requires(lanes_of<F> > 1) {
  return fma_of(a, all<F>(b), all<F>(c));
}

/// Square root, correctly rounded.
template <class F>
NIBBLE_WORD_FN F sqrt_of(F x) {
  if constexpr (std::is_same_v<F, double>) {
    return __builtin_sqrt(x);
#ifdef __AVX512F__
  } else if constexpr (std::is_same_v<F, F64x8>) {
    return (F)_mm512_sqrt_pd((__m512d)x);
#endif
#ifdef __AVX2__
  } else {
    static_assert(std::is_same_v<F, F64x4>);
    return (F)_mm256_sqrt_pd((__m256d)x);
#endif
  }
}

/// Low 32 bits of a times the 32-bit m, as 64 bits. F: double or a vector of them; its Bits hold the numbers.
template <class F>
NIBBLE_WORD_FN BitsOf<F> multiply_low32(BitsOf<F> a, uint32_t m) {
  if constexpr (std::is_same_v<F, double>) {
    return (a & 0xffffffff) * m;
#ifdef __AVX512F__
  } else if constexpr (std::is_same_v<F, F64x8>) {
    return (BitsOf<F>)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m));
#endif
#ifdef __AVX2__
  } else {
    static_assert(std::is_same_v<F, F64x4>);
    return (BitsOf<F>)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m));
#endif
  }
}

/// Lanes from and to memory, any alignment.
template <class F>
NIBBLE_WORD_FN F load_of(const LaneOf<F>* p) {
  F x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
template <class F>
NIBBLE_WORD_FN void store_of(LaneOf<F>* p, F x) {
  __builtin_memcpy(p, &x, sizeof x);
}

}  // namespace nibble
