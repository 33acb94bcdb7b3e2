// Loops that reach the machine's own limits: `nibble bench` prints its speeds as shares of them.
#pragma once
#include <cstdint>

namespace nibble {

/// Runs `rounds` rounds of independent FMAs in registers; returns the floating-point operations done (a multiply-add
/// counts as two) and writes one number to `sink` so that nothing is optimised away.
using PeakLoop = int64_t(int64_t rounds, float* sink);

namespace avx2 {
PeakLoop fma_loop;
}
namespace avx512 {
PeakLoop fma_loop;
}

}  // namespace nibble
