// The floating-point mode that the numeric contract is written for: round to nearest even, subnormals kept. A caller,
// or a library that it loaded, may have set another one; results must not depend on it.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace nibble {

inline constexpr uint32_t contract_float_mode = 0x1F80;  // MXCSR: all exceptions masked, no FTZ, no DAZ, nearest

/// The contract's mode while the object lives, the caller's afterwards.
class FloatMode {
 public:
  FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(contract_float_mode); }
  ~FloatMode() { _mm_setcsr(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  uint32_t before_;
};

}  // namespace nibble
