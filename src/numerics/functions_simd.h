// The functions of functions.h on whole registers, for the kernels: the same templates, so the same bits lane by lane.
// Only what the including file's target has is declared: __m256 under AVX2 (with FMA), __m512 under AVX-512F.
#pragma once
#include "numerics/functions.h"

namespace nibble {
#ifdef __AVX2__
NIBBLE_WORD_FN __m256 exp_f32(__m256 x) { return (__m256)exp_f32_word((F32x8)x); }
NIBBLE_WORD_FN __m256 log_f32(__m256 x) { return (__m256)log_f32_word((F32x8)x); }
NIBBLE_WORD_FN __m256 tanh_f32(__m256 x) { return (__m256)tanh_f32_word((F32x8)x); }
NIBBLE_WORD_FN __m256 sigmoid_f32(__m256 x) { return (__m256)sigmoid_f32_word((F32x8)x); }
NIBBLE_WORD_FN __m256 silu_f32(__m256 x) { return (__m256)silu_f32_word((F32x8)x); }
NIBBLE_WORD_FN __m256d exp_f64(__m256d x) { return (__m256d)exp_f64_word((F64x4)x); }
NIBBLE_WORD_FN __m256d log_f64(__m256d x) { return (__m256d)log_f64_word((F64x4)x); }
NIBBLE_WORD_FN __m256d sin_f64(__m256d x) { return (__m256d)sin_f64_word((F64x4)x); }
NIBBLE_WORD_FN __m256d cos_f64(__m256d x) { return (__m256d)cos_f64_word((F64x4)x); }
#endif
#ifdef __AVX512F__
NIBBLE_WORD_FN __m512 exp_f32(__m512 x) { return (__m512)exp_f32_word((F32x16)x); }
NIBBLE_WORD_FN __m512 log_f32(__m512 x) { return (__m512)log_f32_word((F32x16)x); }
NIBBLE_WORD_FN __m512 tanh_f32(__m512 x) { return (__m512)tanh_f32_word((F32x16)x); }
NIBBLE_WORD_FN __m512 sigmoid_f32(__m512 x) { return (__m512)sigmoid_f32_word((F32x16)x); }
NIBBLE_WORD_FN __m512 silu_f32(__m512 x) { return (__m512)silu_f32_word((F32x16)x); }
NIBBLE_WORD_FN __m512d exp_f64(__m512d x) { return (__m512d)exp_f64_word((F64x8)x); }
NIBBLE_WORD_FN __m512d log_f64(__m512d x) { return (__m512d)log_f64_word((F64x8)x); }
NIBBLE_WORD_FN __m512d sin_f64(__m512d x) { return (__m512d)sin_f64_word((F64x8)x); }
NIBBLE_WORD_FN __m512d cos_f64(__m512d x) { return (__m512d)cos_f64_word((F64x8)x); }
#endif
}  // namespace nibble
