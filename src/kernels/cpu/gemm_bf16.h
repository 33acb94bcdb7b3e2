// Packed products of BF16 operands with f32 accumulation (spec/training.md 2.3): f32 results, or BF16 results that are
// rounded once, to nearest even, after the last k of the last term.
//
// avx2, avx512: operands are widened to f32, which is exact, while they are packed; then one accumulator an output,
//   fused multiply-add, ascending k through the terms in order: the bits of the f32 product of the widened operands.
// avx512_bf16: vdpbf16ps takes k in pairs (2 i, 2 i + 1) of a term, a missing last one as zero, ascending; it adds the
//   two products of a pair in its own way and takes subnormal operands and results as zero. Per output
//     |difference from the exact sum| <= (k + 2) 2^-23 sum |a b|  +  k (2^-126 (max |a| + max |b|) + 2^-126)
//   where max |a| runs over the row's operand values. The bits do not depend on blocking, threads or the other rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/threads.h"
#include "numerics/bf16.h"

namespace nibble {

/// Element (i, k) is data[i * row_stride + k * k_stride]; one of the strides is 1.
struct Bf16Operand {
  const BFloat16* data;
  int64_t row_stride, k_stride;
};
struct Bf16Term {
  Bf16Operand a, b;  // a: m rows, b: n rows
  int64_t k;
};

/// C[m, n] = (accumulate ? C : +0) + sum over the terms and their k of A(i, k) B(j, k), rows of C c_stride >= n apart.
/// The three forms of gemm.h. Exactly one of `sums` and `rounded` is not null; only sums can accumulate.
struct Bf16Product {
  std::span<const Bf16Term> terms;
  int64_t m, n;
  float* sums;
  BFloat16* rounded;
  int64_t c_stride;
  bool accumulate;
};

/// In each target's namespace:
///   gemm_bf16_workspace_bytes: what gemm_bf16 needs for so many terms, with k in all (each term's rounded up to even),
///     and a pool of `threads` threads; the same number on every target. At most 8 MiB (BF16 results of more than 8192
///     k: 1 KiB a k) and 0.6 MiB a thread.
///   gemm_bf16: runs on all threads of the pool; allocates nothing.
using Bf16Gemm = void(const Bf16Product& product, ThreadPool& pool, std::byte* workspace);
using Bf16GemmWorkspace = int64_t(int64_t m, int64_t n, int64_t k, int64_t terms, bool rounded, int threads);
namespace avx2 {
Bf16Gemm gemm_bf16;
Bf16GemmWorkspace gemm_bf16_workspace_bytes;
}  // namespace avx2
namespace avx512 {
Bf16Gemm gemm_bf16;
Bf16GemmWorkspace gemm_bf16_workspace_bytes;
}  // namespace avx512
namespace avx512_bf16 {
Bf16Gemm gemm_bf16;
Bf16GemmWorkspace gemm_bf16_workspace_bytes;
}  // namespace avx512_bf16

}  // namespace nibble
