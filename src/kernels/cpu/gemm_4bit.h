// Packed products of 4-bit operands, NVFP4 and MXFP4 (spec/precision.md 5.1), by integer dot products of whole blocks.
// Per output and term
//   acc = +0;  for blocks in ascending k: acc = fl(acc + p d / 4);  D = fl(alpha acc)
// with d the integer dot product of the doubled codes and p the product of both block scales. The D of the terms are
// added in order. Every blocking, thread count and target gives these bits (which NaN a NaN result is, is left open).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/threads.h"
#include "numerics/bf16.h"

namespace nibble {

/// Rows of codes, two a byte, and of scale bytes; codes behind the last of a row, up to a whole block, are 0.
struct FourBitOperand {
  const uint8_t *codes, *scales;
  int64_t code_pitch, scale_pitch;  // bytes of a row; of a row of tiles
  int64_t tile;                     // rows under one scale: 1, or 16 or 32 in a 2d format
};
struct FourBitTerm {
  FourBitOperand a, b;  // a: m rows, b: n rows
  int64_t blocks;       // of a row
  float alpha;
  const float* row_alphas = nullptr;  // of each row of a, in place of alpha
};
/// What the sum of the D of all terms is added to.
enum class Onto : uint8_t { nothing, zero, sums };

/// Results [m, n], dense; exactly one of `sums` and `rounded` is not null. Only sums are added onto something.
struct FourBitProduct {
  std::span<const FourBitTerm> terms;
  int64_t m, n;
  bool mx;  // blocks of 32 under E8M0 scales; else of 16 under E4M3
  float* sums;
  BFloat16* rounded;
  Onto onto;
};

/// In each target's namespace:
///   gemm_4bit_workspace_bytes: for so many terms with `blocks` blocks of k in all, and a pool of `threads` threads;
///   the
///     same number on every target. At most 8 MiB (more than 5000 blocks: 1.6 KiB a block) and 0.6 MiB a thread.
///   gemm_4bit: runs on all threads of the pool; allocates nothing. workspace: 64-byte aligned.
///   gemm_groups_4bit: the same of NVFP4 with the sums of a Blackwell GPU (spec/precision.md 5.2) in the place of acc.
using FourBitGemm = void(const FourBitProduct& product, ThreadPool& pool, std::byte* workspace);
using FourBitGemmWorkspace = int64_t(int64_t m, int64_t n, int64_t blocks, int64_t terms, bool mx, int threads);
namespace avx2 {
FourBitGemm gemm_4bit, gemm_groups_4bit;
FourBitGemmWorkspace gemm_4bit_workspace_bytes, gemm_groups_4bit_workspace_bytes;
}  // namespace avx2
namespace avx512 {
FourBitGemm gemm_4bit, gemm_groups_4bit;
FourBitGemmWorkspace gemm_4bit_workspace_bytes, gemm_groups_4bit_workspace_bytes;
}  // namespace avx512
namespace avx512_bf16 {
FourBitGemm gemm_4bit, gemm_groups_4bit;
FourBitGemmWorkspace gemm_4bit_workspace_bytes, gemm_groups_4bit_workspace_bytes;
}  // namespace avx512_bf16

}  // namespace nibble
