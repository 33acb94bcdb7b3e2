// Quantised tensors for tests: memory that owns itself, copies made by the reference kernels as a plan would ask for
// them, products of those, and the values that codes stand for.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/quant_spec.h"
#include "core/quantized.h"
#include "kernels/ref/quantized.h"
#include "numerics/bf16.h"
#include "numerics/quantized_product.h"
#include "ops/ops.h"

namespace nibble::testing {

/// A tensor with its memory, every byte 0xFF at first.
class Owned {
 public:
  explicit Owned(const Type& type) : type_(type), lines_(static_cast<size_t>(type.nbytes() + 63) / 64) {
    std::memset(lines_.data(), 0xff, lines_.size() * 64);
  }
  /// Numbers, rounded to the type.
  Owned(const Type& type, std::span<const float> x) : Owned(type) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (type.dtype == DType::bf16)
        tensor().as<BFloat16>()[i] = round_bf16(x[i]);
      else
        tensor().as<float>()[i] = x[i];
    }
  }
  Tensor tensor() const { return {type_, const_cast<Line*>(lines_.data())}; }
  const Type& type() const { return type_; }
  QuantizedView view() const { return QuantizedView(tensor()); }
  QuantizedHeader& header() const { return view().header(); }
  bool operator==(const Owned& o) const {
    return type_ == o.type_ && std::memcmp(lines_.data(), o.lines_.data(), static_cast<size_t>(type_.nbytes())) == 0;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  Type type_;
  std::vector<Line> lines_;
};

inline Owned matrix(int64_t rows, int64_t columns, std::span<const float> x, DType dtype = DType::f32) {
  return Owned({dtype, {rows, columns}}, x);
}

/// What names the random bits of a copy.
struct Place {
  int32_t seed = 1234, step = 3, first_row = 0;
  int64_t site = 7, tokens = 0;  // of a sequence; 0: all rows
};

inline std::vector<Owned> run_reference(const Op& op, KernelRun kernel, std::span<const Owned> in, const Attrs& attrs) {
  static ThreadPool pool(1);
  std::vector<Type> in_types;
  std::vector<Tensor> ins, outs;
  for (const Owned& o : in) in_types.push_back(o.type()), ins.push_back(o.tensor());
  const Types out_types = op.shape({op, in_types, {}, attrs, "test"});
  std::vector<Owned> out(out_types.begin(), out_types.end());
  for (const Owned& o : out) outs.push_back(o.tensor());
  const int64_t bytes = ref::quantize_workspace({in_types, out_types, attrs, 1});
  const Owned workspace({DType::f32, {bytes / 4 + 1}});
  kernel({ins, outs, attrs, workspace.tensor().as<std::byte>(), pool, true});
  return out;
}

/// Row and column copies, "-" for none.
inline std::vector<Owned> quantize(const Owned& x, const std::string& row, const std::string& column = "-",
                                   const Place& at = {}, KernelRun kernel = ref::quantize) {
  Owned random({DType::i32, {quantize_words}});
  const int32_t words[] = {at.seed, at.step, at.first_row, 0};
  std::memcpy(random.tensor().data, words, sizeof words);
  const Attrs attrs{
      {"row", row}, {"column", column}, {"tokens", at.tokens == 0 ? x.type().rows() : at.tokens}, {"site", at.site}};
  const Owned in[] = {x, random};
  return run_reference(kernel == ref::requantize ? requantize_op : quantize_op, kernel, in, attrs);
}
/// One copy of a tensor.
inline Owned row_copy(const Owned& x, const std::string& spec, const Place& at = {}) {
  return std::move(quantize(x, spec, "-", at)[0]);
}
inline Owned column_copy(const Owned& x, const std::string& spec, const Place& at = {}) {
  return std::move(quantize(x, "-", spec, at)[0]);
}
inline Owned requantized(const Owned& saved, const std::string& spec, const Place& at = {}) {
  return std::move(quantize(saved, "-", spec, at, ref::requantize)[0]);
}

inline Owned product(const Owned& a, const Owned& b, const char* dtype = "f32", Attrs attrs = {}) {
  attrs.set("dtype", std::string(dtype));
  const Owned in[] = {a, b};
  return std::move(run_reference(qlinear_op, ref::qlinear, in, attrs)[0]);
}
inline std::vector<float> numbers_of(const Owned& t) {
  std::vector<float> x;
  for (int64_t i = 0; i < t.type().numel(); ++i)
    x.push_back(t.type().dtype == DType::bf16 ? widen(t.tensor().as<BFloat16>()[i]) : t.tensor().as<float>()[i]);
  return x;
}

/// Of rows, as the code of each element, fill included.
inline std::vector<int> codes_of(const Owned& t) {
  const QuantizedView v = t.view();
  std::vector<int> codes;
  for (int64_t r = 0; r < v.layout.rows; ++r)
    for (int64_t i = 0; i < v.layout.columns; ++i)
      codes.push_back(v.format.bits == 8 ? v.codes(r)[i] : v.codes(r)[i / 2] >> (i % 2 * 4) & 15);
  return codes;
}
/// Of rows of blocks, or rows of tiles.
inline std::vector<int> scales_of(const Owned& t) {
  const QuantizedView v = t.view();
  std::vector<int> scales;
  for (int64_t r = 0; r < v.layout.rows; r += v.format.rows)
    scales.insert(scales.end(), v.scales(r), v.scales(r) + v.layout.scale_pitch);
  return scales;
}
inline std::string packed_row(const Owned& t, int64_t r) {
  std::string hex;
  for (int64_t i = 0; i < t.view().layout.code_pitch; ++i) {
    const int byte = t.view().codes(r)[i];
    hex += "0123456789abcdef"[byte >> 4], hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}
/// What the codes stand for (spec/precision.md 2.4 step 6, 2.7 to 2.10); 4/3 more where 3/4 was taken is the caller's.
inline std::vector<float> values_of(const Owned& t) {
  const QuantizedView v = t.view();
  const QuantizedHeader& h = v.header();
  std::vector<float> x;
  for (int64_t r = 0; r < v.layout.rows; ++r)
    for (int64_t i = 0; i < v.layout.columns; ++i) {
      const float element = element_value(t.type().dtype, v.codes(r), i);
      const float scale = v.format.scales ? block_scale_value(t.type().dtype, v.scales(r)[i / v.format.columns]) : 1;
      x.push_back(element * (h.by_amax != 0 ? (scale * h.amax) * rcp_2688 : scale * h.decode * h.saved));
    }
  return x;
}

}  // namespace nibble::testing
