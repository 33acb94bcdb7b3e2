// Loops that reach the machine's own limits: `nibble bench` prints its speeds as shares of them.
#pragma once
#include <cstdint>

namespace nibble {

/// Runs `rounds` rounds of independent multiply-adds in registers; returns the operations done (a multiply-add counts
/// as two) and writes one number to `sink` so that nothing is optimised away.
using PeakLoop = int64_t(int64_t rounds, float* sink);
/// Passes `times` over n floats, n a multiple of 128, both arrays 64-byte aligned: all of them read, all of them
/// written, or both. `sink` as above.
using MemoryLoop = void(const float* from, float* to, int64_t n, int64_t times, float* sink);

namespace avx2 {
PeakLoop fma_loop;
PeakLoop int8_loop;  ///< products of bytes as maddubs + maddwd + paddd: what VNNI does in one instruction
MemoryLoop read_loop, copy_loop, stream_copy_loop, stream_fill_loop;  ///< stream: stores that pass by the caches
}  // namespace avx2
namespace avx512 {
PeakLoop fma_loop;
PeakLoop bf16_loop;  ///< vdpbf16ps; needs AVX512_BF16
PeakLoop int8_loop;  ///< vpdpbusd; needs AVX512_VNNI
MemoryLoop read_loop, copy_loop, stream_copy_loop, stream_fill_loop;
}  // namespace avx512

}  // namespace nibble
