// Packed f32 matrix product under the numeric contract (spec/training.md 2.11): one accumulator an output, fused
// multiply-add, ascending k. Every blocking, thread count and target gives the bits of the scalar loop
//   acc = accumulate ? C(i,j) : +0;  for k: acc = fma(A(i,k), B(j,k), acc);  C(i,j) = acc
// (which NaN a NaN result is, sign and payload, is left open).
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/threads.h"

namespace nibble {

/// Element (i, k) of an operand is data[i * row_stride + k * k_stride]. One of the two strides must be 1 (for a single
/// row or a single k the other one does not matter).
struct GemmOperand {
  const float* data;
  int64_t row_stride;
  int64_t k_stride;
};

/// C[m, n] (+)= sum over k of A(i, k) * B(j, k), with rows of C c_stride >= n apart.
///   fprop  Y[M,N] = X[M,K] W[N,K]^T:   a = {X, K, 1}, b = {W, K, 1}
///   dgrad  dX[M,K] = dY[M,N] W[N,K]:   a = {dY, N, 1}, b = {W, 1, K}
///   wgrad  dW[N,K] += dY^T X:          a = {dY, 1, N}, b = {X, 1, K}, accumulate
/// k = 0 leaves C unchanged (accumulate) or sets it to +0. C must not overlap an operand.
struct GemmCall {
  GemmOperand a, b;
  float* c;
  int64_t c_stride;
  int64_t m, n, k;
  bool accumulate;
};

/// In each target's namespace:
///   gemm_workspace_bytes: what gemm needs for these sizes and a pool of `threads` threads. The same number on every
///     target, so that a plan does not depend on the machine; at most 8 MiB and about 0.3 MiB a thread (up to 64 rows:
///     4 (m + 1) k bytes and 32 KiB a thread).
///   gemm: runs on all threads of the pool; allocates nothing. workspace: at least that many bytes for pool.size().
namespace avx2 {
int64_t gemm_workspace_bytes(int64_t m, int64_t n, int64_t k, int threads);
void gemm(const GemmCall& call, ThreadPool& pool, std::byte* workspace);
}  // namespace avx2
namespace avx512 {
int64_t gemm_workspace_bytes(int64_t m, int64_t n, int64_t k, int threads);
void gemm(const GemmCall& call, ThreadPool& pool, std::byte* workspace);
}  // namespace avx512

}  // namespace nibble
