// How one copy of a tensor is quantised: what a recipe says and the quantisers do.  Source: spec/precision.md 2 and 3.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/type.h"

namespace nibble {

class Attrs;

enum class Rounding : uint8_t { nearest, stochastic, eden };
/// Of NVFP4: S as in 2.4, rounded down to a power of two (2.7), or 1. Of FP8 with one scale: of the tensor at hand, or
/// of its past.
enum class TensorScale : uint8_t { exact, pow2, unit, delayed };
enum class FourSix : uint8_t { off, mse, mae };

struct QuantSpec {
  DType format = DType::f32;  // f32: not quantised
  Rounding rounding = Rounding::nearest;
  TensorScale tensor_scale = TensorScale::exact;
  FourSix four_six = FourSix::off;
  bool floor_scale = false;  // MX: E8M0 by the floor rule; stochastic rounding then takes 3/4 of the value (2.9)
  bool quest = false;        // MXFP4: E8M0 from the block's standard deviation (3.4, mxfp4_quartet)
  bool vmax = false;         // NVFP4, stochastic: the largest element is scaled to 6 * 16/17 (3.8, sr_vmax)
  int hadamard = 0;          // values a rotation turns together along the blocks' axis: 0, 16, 32, 64, 128
  uint32_t stream = 0;       // of its random bits (4.3)
  uint32_t sign_stream = 0;  // of the signs of RHT-128: 16 dgrad, 17 wgrad
  bool active() const { return is_quantized(format); }
  bool operator==(const QuantSpec&) const = default;
};

inline bool is_nvfp4(const QuantSpec& s) { return s.format == DType::nvfp4 || s.format == DType::nvfp4_2d; }
inline bool is_mx(const QuantSpec& s) {
  return s.format == DType::mxfp4 || s.format == DType::mxfp4_2d || s.format == DType::mxfp8;
}

/// "nvfp4 stochastic hadamard=16 stream=1"; an unquantised operand is "-".
std::string to_string(const QuantSpec& spec);
/// Reads what to_string wrote; anything else is an internal error.
QuantSpec parse_quant_spec(std::string_view text);
/// The attribute of a node, of which the name says which copy it describes ("row", "column"); none: no such copy.
QuantSpec spec_of(const Attrs& attrs, std::string_view name);

/// Elements of an axis of n with what fills its last block and its last rotation group.
int64_t filled(const QuantSpec& spec, int64_t n);

}  // namespace nibble
