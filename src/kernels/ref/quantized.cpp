#include "kernels/ref/quantized.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/philox.h"
#include "core/quant_spec.h"
#include "core/quantized.h"
#include "kernels/tensor_scale.h"
#include "numerics/eden.h"
#include "numerics/hadamard.h"
#include "numerics/mx.h"
#include "numerics/nvfp4_rule.h"
#include "numerics/quantized_product.h"

namespace nibble::ref {
namespace {

// Where the random bits of a tensor come from (spec/precision.md 4.3): key (seed, site), counter (block, step, stream).
struct Bits {
  uint32_t seed, step, site;
  int64_t first_block;         // of this tensor in that of the whole batch
  int64_t per_row, per_block;  // the index of block j of vector i: first + i * per_row + j * per_block
  PhiloxWords draw(uint32_t stream, int64_t i, int64_t j) const {
    const auto index = static_cast<uint64_t>(first_block + i * per_row + j * per_block);
    return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), step, stream}, seed, site);
  }
};

// The vectors that a copy's blocks run along: row i of the result is vector i, of `length` values with the fill.
struct Source {
  int64_t vectors, length;
  bool columns;         // of x
  int64_t first_group;  // of 128, along the vectors, in the whole batch
  Bits bits;
  const void* context;
  void (*load)(const void* context, int64_t i, float* values);  // one vector, fill included
};

// Values to be quantised: read, then rotated.
void load_vector(const Source& s, const QuantSpec& spec, int64_t i, float* v) {
  s.load(s.context, i, v);
  if (spec.hadamard == 0) return;
  for (int64_t j = 0; j < s.length; j += spec.hadamard) {
    if (spec.hadamard == 128) {
      const auto group = static_cast<uint32_t>(s.first_group + j / 128);
      rht128(v + j, philox4x32({group, 0, s.bits.step, spec.sign_stream}, s.bits.seed, s.bits.site));
      continue;
    }
    BFloat16 turned[64];
    hadamard_to_bf16(v + j, spec.hadamard, rht16_signs, turned);
    for (int k = 0; k < spec.hadamard; ++k) v[j + k] = widen(turned[k]);
  }
}

float amax_of(const float* v, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, magnitude_bits(v[i]));
  return std::bit_cast<float>(most);
}

void put_code(uint8_t* codes, int64_t i, int code) {
  uint8_t& byte = codes[i / 2];
  byte = static_cast<uint8_t>(i % 2 == 0 ? (byte & 0xF0) | code : (byte & 0x0F) | code << 4);
}

class Quantizer {
 public:
  Quantizer(const QuantSpec& spec, const Source& source, const Tensor& to, float* buffer)
      : spec_(spec), s_(source), to_(to), v_(buffer) {}

  /// scale: the delayed one, else unused.
  void run(float scale) {
    uint32_t most = 0;
    for (int64_t i = 0; i < s_.vectors; ++i) {
      load_vector(s_, spec_, i, v_);
      most = std::max(most, magnitude_bits(amax_of(v_, s_.length)));
    }
    const TensorScales scales = write_header(spec_, most, scale, &to_.header());
    tensor_ = scales.nvfp4, element_scale_ = scales.element;
    std::memset(to_.base + to_.layout.codes, 0, static_cast<size_t>(to_.layout.scales - to_.layout.codes));
    std::memset(to_.base + to_.layout.scales, scales.poisoned ? poison_byte(spec_) : 0,
                static_cast<size_t>(to_.layout.bytes - to_.layout.scales));
    if (scales.poisoned) return;
    const int64_t rows = to_.format.rows;
    for (int64_t i = 0; i < s_.vectors; i += rows) {
      const int64_t n = std::min(rows, s_.vectors - i);
      for (int64_t k = 0; k < n; ++k) load_vector(s_, spec_, i + k, v_ + k * s_.length);
      if (spec_.rounding == Rounding::eden) {
        for (int64_t j = 0; j < s_.length; j += eden_group) eden_blocks(i, j);
      } else {
        for (int64_t j = 0; j < to_.layout.blocks; ++j) block(i, n, j);
      }
    }
  }

 private:
  // The scale byte of a block and what its elements are multiplied with.
  std::pair<int, float> block_scale(int64_t n, int64_t j, float amax) const {
    if (spec_.quest) {
      const int64_t first = j * mx_block, count = std::min<int64_t>(mx_block, s_.length - first);
      const int byte = mxfp4_quest_scale(v_ + first, static_cast<int>(count));
      return {byte, byte == e8m0_nan ? 0 : e8m0_inverse(byte)};
    }
    if (is_nvfp4(spec_)) {
      const int byte = spec_.four_six == FourSix::off ? nvfp4_block_scale(amax, tensor_) : four_or_six(n, j, amax);
      return {byte, nvfp4_encode_scale(byte, tensor_)};
    }
    if (!to_.format.scales) return {0, element_scale_};
    if (is_mx(spec_)) {
      const int byte = block_format(spec_.format).bits == 8 ? mxfp8_e4m3_scale(amax)
                       : spec_.floor_scale                  ? mxfp4_floor_scale(amax)
                                                            : mxfp4_scale(amax);
      if (byte == e8m0_nan) return {byte, 0};
      return {byte, e8m0_inverse(byte) * (spec_.floor_scale && spec_.rounding == Rounding::stochastic ? 0.75f : 1)};
    }
    const float scale = fp8_scale(amax, e4m3_max, true);
    return {static_cast<int>(254 - (std::bit_cast<uint32_t>(scale) >> 23)), scale};
  }

  int four_or_six(int64_t n, int64_t j, float amax) const {
    const auto [six, four] = four_six_bytes(amax, tensor_);
    const FourSixError kind = spec_.four_six == FourSix::mse ? FourSixError::mse : FourSixError::mae;
    const int64_t width = std::min<int64_t>(16, s_.length - j * 16);
    // A tile's rows are those of x in both copies, so that both have the same byte.
    const bool across = s_.columns && to_.format.rows > 1;
    const int64_t lines = across ? width : n, count = across ? n : width;
    float error6[16] = {}, error4[16] = {};
    for (int64_t k = 0; k < lines; ++k) {
      float x[16];
      for (int64_t e = 0; e < count; ++e) x[e] = v_[(across ? e : k) * s_.length + j * 16 + (across ? k : e)];
      error6[k] = four_six_error(x, static_cast<int>(count), six, tensor_, kind),
      error4[k] = four_six_error(x, static_cast<int>(count), four, tensor_, kind);
    }
    return tree_sum16(error4) < tree_sum16(error6) ? four : six;
  }

  // Block j of vectors i .. i + n - 1, which lie in the buffer.
  void block(int64_t i, int64_t n, int64_t j) {
    const int64_t width = to_.format.columns, first = j * width, count = std::min(width, s_.length - first);
    uint32_t most = 0;
    for (int64_t k = 0; k < n; ++k) most = std::max(most, magnitude_bits(amax_of(v_ + k * s_.length + first, count)));
    const auto [byte, encode] = block_scale(n, j, std::bit_cast<float>(most));
    if (to_.format.scales) to_.scales(i)[j] = static_cast<uint8_t>(byte);
    if (is_mx(spec_) && byte == e8m0_nan) return;  // codes stay 0
    for (int64_t k = 0; k < n; ++k) codes(i + k, v_ + k * s_.length, first, count, byte, encode);
  }

  void codes(int64_t row, const float* v, int64_t first, int64_t count, int byte, float encode) {
    PhiloxWords words{};
    for (int64_t e = first; e < first + count; ++e) {
      const float x = v[e] * encode;
      if (to_.format.bits == 8) {
        const int code = spec_.format == DType::e5m2 ? e5m2_encode(x) : e4m3_encode(x);
        to_.codes(row)[e] = static_cast<uint8_t>(code);
        if ((code & 0x7F) != 0) to_.header().blank = 0;
        continue;
      }
      if (spec_.rounding == Rounding::stochastic && e % 16 == 0) words = s_.bits.draw(spec_.stream, row, e / 16);
      const int code = spec_.rounding == Rounding::stochastic
                           ? e2m1_encode_stochastic(x, words[static_cast<size_t>(e % 16 / 4)] >> (e % 4 * 8) & 255)
                           : e2m1_encode(x);
      put_code(to_.codes(row), e, code);
      if ((code & 7) != 0 && (byte != 0 || is_mx(spec_))) to_.header().blank = 0;
    }
  }

  void eden_blocks(int64_t row, int64_t first) {
    uint32_t words[8];
    for (int64_t k = 0; k < 8; ++k) words[k] = s_.bits.draw(spec_.stream, row, first / 16 + k)[0];
    const EdenGroup g = eden(v_ + first, tensor_, words);
    for (int64_t k = 0; k < 8; ++k) to_.scales(row)[first / 16 + k] = static_cast<uint8_t>(g.bytes[k]);
    for (int64_t e = 0; e < eden_group; ++e) {
      put_code(to_.codes(row), first + e, g.codes[e]);
      if ((g.codes[e] & 7) != 0 && g.bytes[e / 16] != 0) to_.header().blank = 0;
    }
  }

  const QuantSpec& spec_;
  const Source& s_;
  QuantizedView to_;
  float* v_;  // format.rows vectors
  Nvfp4Scale tensor_{};
  float element_scale_ = 1;
};

// A matrix of numbers [rows, width], cut into sequences of `tokens` rows.
struct Numbers {
  const Tensor* x;
  int64_t tokens, width;
  int64_t row_length;  // with the fill
  int64_t sequence;    // tokens with the fill
  float get(int64_t r, int64_t c) const {
    const int64_t i = r * width + c;
    return x->type.dtype == DType::bf16 ? widen(x->as<BFloat16>()[i]) : widen(round_bf16(x->as<float>()[i]));
  }
};
void load_row(const void* context, int64_t i, float* v) {
  const auto& m = *static_cast<const Numbers*>(context);
  for (int64_t c = 0; c < m.row_length; ++c) v[c] = c < m.width ? m.get(i, c) : 0;
}
template <class M>
void load_column(const void* context, int64_t i, float* v) {
  const auto& m = *static_cast<const M*>(context);
  for (int64_t s = 0; s < m.x->type.rows() / m.tokens; ++s)
    for (int64_t t = 0; t < m.sequence; ++t) v[s * m.sequence + t] = t < m.tokens ? m.get(s * m.tokens + t, i) : 0;
}

// A saved 4-bit operand: its exact products of element and block scale; the tensor's own scale goes into the factor.
struct Saved : Numbers {
  QuantizedView q;
  float get(int64_t r, int64_t c) const {
    const DType format = x->type.dtype;
    return element_value(format, q.codes(r), c) * block_scale_value(format, q.scales(r)[c / q.format.columns]);
  }
};

// random: i32 {seed, step, first row of x in the whole batch, 0}.
Source column_source(const Attrs& attrs, const QuantSpec& spec, const Tensor& x, const int32_t* random) {
  const int64_t tokens = attrs.get_int("tokens"), width = x.dim(-1), sequence = filled(spec, tokens);
  const int64_t first = random[2] / tokens * sequence;
  const Bits bits{static_cast<uint32_t>(random[0]),
                  static_cast<uint32_t>(random[1]),
                  static_cast<uint32_t>(attrs.get_int("site")),
                  first / 16 * width,
                  1,
                  width};
  return {width, x.type.rows() / tokens * sequence, true, first / 128, bits, nullptr, nullptr};
}

Source row_source(const Attrs& attrs, const QuantSpec& spec, const Tensor& x, const int32_t* random) {
  const int64_t width = x.dim(-1), length = spec.hadamard > 0 ? filled(spec, width) : width,
                blocks = (length + 15) / 16;
  const Bits bits{static_cast<uint32_t>(random[0]),
                  static_cast<uint32_t>(random[1]),
                  static_cast<uint32_t>(attrs.get_int("site")),
                  random[2] * blocks,
                  blocks,
                  1};
  return {x.type.rows(), length, false, 0, bits, nullptr, nullptr};
}

void make_copies(const KernelCall& c, const Tensor& x, const int32_t* random, float delayed) {
  auto* buffer = reinterpret_cast<float*>(c.workspace);
  const QuantSpec row = spec_of(c.attrs, "row"), column = spec_of(c.attrs, "column");
  const int64_t tokens = c.attrs.get_int("tokens"), width = x.dim(-1);
  size_t k = 0;
  if (row.active()) {
    Source source = row_source(c.attrs, row, x, random);
    const Numbers m{&x, tokens, width, source.length, tokens};
    source.context = &m, source.load = load_row;
    Quantizer(row, source, c.out[k++], buffer).run(delayed);
  }
  if (column.active()) {
    Source source = column_source(c.attrs, column, x, random);
    const Numbers m{&x, tokens, width, 0, filled(column, tokens)};
    source.context = &m, source.load = load_column<Numbers>;
    Quantizer(column, source, c.out[k], buffer).run(delayed);
  }
}

// The product of two operands: D = fl(alpha acc) of a row of a and a row of b.
class Product {
 public:
  Product(const Attrs& attrs, const Tensor& a, const Tensor& b)
      : a_(a), b_(b), fa_(a.type.dtype), fb_(b.type.dtype), width_(a_.format.columns) {
    const float more = attrs.has("factor") ? attrs.get_float("factor") : 1.0f;
    alpha_ = product_factor(a_.header(), b_.header(), more);
    const bool blackwell = attrs.has("accumulation") && attrs.get_string("accumulation") == "blackwell";
    sum_ = a_.format.bits == 8 ? &Product::elements : blackwell ? &Product::groups : &Product::blocks;
  }
  int64_t columns() const { return b_.layout.rows; }
  int64_t size() const { return a_.layout.rows * columns(); }
  float operator()(int64_t i) const { return alpha_ * (this->*sum_)(i / columns(), i % columns()); }

 private:
  float a(int64_t i, int64_t e) const { return element_value(fa_, a_.codes(i), e); }
  float b(int64_t j, int64_t e) const { return element_value(fb_, b_.codes(j), e); }
  float scale(int64_t i, int64_t j, int64_t k) const {
    return block_scale_value(fa_, a_.scales(i)[k]) * block_scale_value(fb_, b_.scales(j)[k]);
  }
  int64_t end(int64_t k) const { return std::min(a_.layout.columns, (k + 1) * width_); }

  // The dot product of block k of 4-bit codes, in integers of doubled codes.
  float block(int64_t i, int64_t j, int64_t k) const {
    int d = 0;
    for (int64_t e = k * width_; e < end(k); ++e) d += static_cast<int>(2 * a(i, e)) * static_cast<int>(2 * b(j, e));
    return static_cast<float>(d) * 0.25f;
  }
  float blocks(int64_t i, int64_t j) const {
    float acc = 0;
    for (int64_t k = 0; k < a_.layout.blocks; ++k) acc = std::fma(scale(i, j, k), block(i, j, k), acc);
    return acc;
  }
  // As a Blackwell GPU adds: the exact sum of four blocks, rounded, then added towards zero (5.2).
  float groups(int64_t i, int64_t j) const {
    float acc = 0;
    for (int64_t k = 0; k < a_.layout.blocks; k += 4) {
      double terms = 0;
      for (int64_t n = k; n < std::min(k + 4, a_.layout.blocks); ++n)
        terms += static_cast<double>(scale(i, j, n)) * static_cast<double>(block(i, j, n));
      acc = add_towards_zero(acc, static_cast<float>(terms));
    }
    return acc;
  }
  // 8-bit elements: one sum of all products, those of MXFP8 times their scales; of fp8_block a sum a block, then
  // scaled.
  float elements(int64_t i, int64_t j) const {
    const bool inside = fa_ == DType::mxfp8, scaled = a_.format.scales;
    float acc = 0;
    for (int64_t k = 0; k < a_.layout.blocks; ++k) {
      const float p = scaled ? scale(i, j, k) : 1;
      float sum = scaled && !inside ? 0 : acc;
      for (int64_t e = k * width_; e < end(k); ++e) sum = std::fma(inside ? a(i, e) * p : a(i, e), b(j, e), sum);
      acc = scaled && !inside ? std::fma(p, sum, acc) : sum;
    }
    return acc;
  }

  QuantizedView a_, b_;
  DType fa_, fb_;
  int64_t width_;
  float alpha_;
  float (Product::*sum_)(int64_t, int64_t) const;
};

void put_number(const Tensor& y, int64_t i, float d) {
  if (y.type.dtype == DType::bf16)
    y.as<BFloat16>()[i] = round_bf16(d);
  else
    y.as<float>()[i] = d;
}

}  // namespace

void quantize(const KernelCall& c) {
  make_copies(c, c.in[0], c.in[1].as<int32_t>(), c.in.size() > 2 ? c.in[2].as<float>()[0] : 1);
}

void quantize_weights(const KernelCall& c) {
  make_copies(c, c.in[c.in.size() - 2], c.in[c.in.size() - 1].as<int32_t>(), 1);
}

void requantize(const KernelCall& c) {
  const Tensor& x = c.in[0];
  const QuantSpec column = spec_of(c.attrs, "column");
  Source source = column_source(c.attrs, column, x, c.in[1].as<int32_t>());
  const int64_t tokens = c.attrs.get_int("tokens");
  const Saved m{{&x, tokens, x.dim(-1), 0, filled(column, tokens)}, QuantizedView(x)};
  source.context = &m, source.load = load_column<Saved>;
  Quantizer(column, source, c.out[0], reinterpret_cast<float*>(c.workspace)).run(1);
  QuantizedHeader& h = QuantizedView(c.out[0]).header();
  h.saved = m.q.header().decode, h.by_amax = 0;
}

void visit_values(const Attrs& attrs, bool column, const Tensor& x, const int32_t* random,
                  const ValueVisitor& visitor) {
  const QuantSpec spec = spec_of(attrs, column ? "column" : "row");
  const int64_t tokens = attrs.get_int("tokens"), width = x.dim(-1);
  Source source = column ? column_source(attrs, spec, x, random) : row_source(attrs, spec, x, random);
  const Numbers numbers{&x, tokens, width, source.length, filled(spec, tokens)};
  std::optional<Saved> saved;
  source.context = &numbers, source.load = column ? load_column<Numbers> : load_row;
  if (is_quantized(x.type.dtype))
    source.context = &saved.emplace(Saved{numbers, QuantizedView(x)}), source.load = load_column<Saved>;
  for (int64_t i = 0; i < source.vectors; ++i) {
    load_vector(source, spec, i, visitor.buffer);
    visitor.see(visitor.context, i, visitor.buffer);
  }
}

void record_amax(const KernelCall& c) {
  float& slot = c.out[0].as<float>()[0];
  slot = std::bit_cast<float>(std::max(magnitude_bits(slot), magnitude_bits(QuantizedView(c.in[1]).header().amax)));
}

void advance_scale(const KernelCall& c) {
  float& scale = c.out[0].as<float>()[0];
  scale = fp8_delayed_update({c.out[1].as<float>(), static_cast<size_t>(c.out[1].numel())}, scale,
                             c.attrs.get_float("largest"));
}

int64_t quantize_workspace(const KernelShape& s) {
  int64_t bytes = 0;
  for (const Type& t : s.out)
    bytes = std::max(bytes, block_format(t.dtype).rows * filled({.format = t.dtype}, t.dim(-1)) * 4);
  return bytes;
}

void qlinear(const KernelCall& c) {
  const Product d(c.attrs, c.in[0], c.in[1]);
  for (int64_t i = 0; i < d.size(); ++i) put_number(c.out[0], i, d(i));
}

void qlinear_dgrad(const KernelCall& c) {
  for (int64_t i = 0; i < c.out[0].numel(); ++i) {
    float sum = 0;
    for (size_t t = 0; t < c.in.size(); t += 2) {
      const float d = Product(c.attrs, c.in[t], c.in[t + 1])(i);
      sum = t == 0 ? d : sum + d;
    }
    put_number(c.out[0], i, sum);
  }
}

void qlinear_wgrad(const KernelCall& c) {
  const Product d(c.attrs, c.in[1], c.in[2]);
  float* dw = c.out[0].as<float>();
  for (int64_t i = 0; i < d.size(); ++i) dw[i] = (c.from_zero ? 0.0f : dw[i]) + d(i);
}

}  // namespace nibble::ref
