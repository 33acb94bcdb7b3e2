// Numbers for tests of graphs: a small generator with a fixed sequence, access to a tensor's elements whatever scalar
// the interpreter runs with, and the message of an expected error.
#pragma once
#include <gtest/gtest.h>

#include <complex>
#include <string>

#include "core/error.h"
#include "core/type.h"
#include "numerics/bf16.h"
#include "runtime/interpreter.h"

namespace nibble {

/// SplitMix64 (Steele et al., OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53; }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

/// Things that store() and load() count: elements, of a quantised tensor its bytes.
inline int64_t stored(const Type& type) { return is_quantized(type.dtype) ? type.nbytes() : type.numel(); }

inline void store(const Tensor& t, Scalar scalar, int64_t i, std::complex<double> x) {
  if (is_quantized(t.type.dtype))
    t.as<uint8_t>()[i] = static_cast<uint8_t>(x.real());
  else if (t.type.dtype == DType::i32)
    t.as<int32_t>()[i] = static_cast<int32_t>(x.real());
  else if (t.type.dtype == DType::bf16)
    t.as<BFloat16>()[i] = round_bf16(static_cast<float>(x.real()));
  else if (t.type.dtype == DType::f64 || scalar == Scalar::f64)
    t.as<double>()[i] = x.real();
  else if (scalar == Scalar::f32)
    t.as<float>()[i] = static_cast<float>(x.real());
  else
    t.as<std::complex<double>>()[i] = x;
}

inline std::complex<double> load(const Tensor& t, Scalar scalar, int64_t i) {
  if (is_quantized(t.type.dtype)) return t.as<uint8_t>()[i];
  if (t.type.dtype == DType::i32) return t.as<int32_t>()[i];
  if (t.type.dtype == DType::bf16) return widen(t.as<BFloat16>()[i]);
  if (t.type.dtype == DType::f64 || scalar == Scalar::f64) return t.as<double>()[i];
  if (scalar == Scalar::f32) return t.as<float>()[i];
  return t.as<std::complex<double>>()[i];
}

/// "E901: text; where" of the Error that f throws, or "nothing thrown".
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.id + ": " + e.what_text + "; " + e.where_text;
  }
  return "nothing thrown";
}

inline testing::AssertionResult says(const std::string& text, std::string_view words) {
  if (text.find(words) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << words << "\" is not in \"" << text << "\"";
}

}  // namespace nibble
