// Products of 8-bit operands (E4M3, E5M2, MXFP8, FP8 by blocks; spec/precision.md 5.4). Elements times their block's
// power of two are widened, a tile of the product at a time, and go through the packed products of gemm.h and
// gemm_bf16.h; then D = fl(alpha acc), and the D of the terms are added in order.
//
// avx2, avx512: widened to f32; one accumulator an output, fused multiply-add, ascending k. These are the bits of the
//   definition as long as no element times its scale leaves the range of f32; but for FP8 by blocks, whose definition
//   adds a block at a time: within the bound.
// avx512_bf16: widened to BF16, which is exact for normal numbers; within the bound of gemm_bf16.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/threads.h"
#include "core/type.h"
#include "kernels/cpu/gemm_4bit.h"

namespace nibble {

struct EightBitOperand {
  const uint8_t *codes, *scales;    // scales: E8M0, not read where the format has none
  int64_t code_pitch, scale_pitch;  // bytes of a row; of a row of tiles
  DType format;
};
struct EightBitTerm {
  EightBitOperand a, b;  // a: m rows, b: n rows
  int64_t k;
  float alpha;
  const float* row_alphas = nullptr;  // of each row of a, in place of alpha
};
/// As FourBitProduct.
struct EightBitProduct {
  std::span<const EightBitTerm> terms;
  int64_t m, n;
  float* sums;
  BFloat16* rounded;
  Onto onto;
};

/// In each target's namespace:
///   gemm_8bit_workspace_bytes: for terms of at most k; the same number on every target. At most 8 MiB and 0.6 MiB a
///     thread.
///   gemm_8bit: runs on all threads of the pool; allocates nothing. workspace: 64-byte aligned.
using EightBitGemm = void(const EightBitProduct& product, ThreadPool& pool, std::byte* workspace);
using EightBitGemmWorkspace = int64_t(int64_t m, int64_t n, int64_t k, int64_t terms, int threads);
namespace avx2 {
EightBitGemm gemm_8bit;
EightBitGemmWorkspace gemm_8bit_workspace_bytes;
}  // namespace avx2
namespace avx512 {
EightBitGemm gemm_8bit;
EightBitGemmWorkspace gemm_8bit_workspace_bytes;
}  // namespace avx512
namespace avx512_bf16 {
EightBitGemm gemm_8bit;
EightBitGemmWorkspace gemm_8bit_workspace_bytes;
}  // namespace avx512_bf16

}  // namespace nibble
