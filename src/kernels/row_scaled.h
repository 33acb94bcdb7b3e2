// What the reference and the fast kernels of quantize_rows and qlinear_rows share: a row at a time through the
// quantiser of whole tensors, and a row's factor.
#pragma once
#include <cstring>

#include "core/kernel.h"
#include "core/quantized.h"
#include "numerics/quantized_product.h"

namespace nibble {

/// Bytes for one row of `codes` as a tensor of its own.
static inline int64_t row_bytes(const Type& codes) {
  return (Type{codes.dtype, {1, codes.dim(-1)}}.nbytes() + 63) / 64 * 64;
}

/// Row i of c: quantised by `quantize` as a tensor of its own, in `own` (row_bytes), then put where it belongs.
static inline void quantize_one_row(const KernelCall& c, int64_t i, KernelRun quantize, std::byte* own,
                                    std::byte* workspace) {
  const Tensor &x = c.in[0], &codes = c.out[0];
  const int64_t width = x.dim(-1);
  const Type row{x.type.dtype, {1, width}};
  const Tensor in[] = {{row, static_cast<std::byte*>(x.data) + i * row.nbytes()}, c.in[1]};
  const Tensor out[] = {{{codes.type.dtype, {1, width}}, own}};
  quantize({in, out, c.attrs, workspace, c.pool});
  const QuantizedView from(out[0]), to(codes);
  std::memcpy(to.codes(i), from.codes(0), static_cast<size_t>(from.layout.code_pitch));
  std::memcpy(to.scales(i), from.scales(0), static_cast<size_t>(from.layout.scale_pitch));
  float* const scales = c.out[1].as<float>() + 2 * i;
  scales[0] = from.header().amax, scales[1] = from.header().decode;
  if (i == 0) to.header() = from.header();  // by_amax is the same for all rows
}

/// After all rows: the header of the whole. Its amax is the largest of the rows', NaN if one row is poisoned; which
/// rows are blank is a question of training only.
static inline void finish_rows(const KernelCall& c) {
  QuantizedHeader& h = QuantizedView(c.out[0]).header();
  uint32_t most = 0;
  for (int64_t i = 0; i < c.out[1].dim(0); ++i) {
    const uint32_t bits = magnitude_bits(c.out[1].as<float>()[2 * i]);
    most = bits > most ? bits : most;
  }
  h.amax = stored_amax(most), h.decode = 1, h.saved = 1, h.blank = 0;
}

/// The factor on the sums of row i of qlinear_rows {x, rows, w}.
static inline float row_factor(const KernelCall& c, int64_t i) {
  QuantizedHeader row = QuantizedView(c.in[0]).header();
  row.amax = c.in[1].as<float>()[2 * i], row.decode = c.in[1].as<float>()[2 * i + 1];
  return product_factor(row, QuantizedView(c.in[2]).header(),
                        c.attrs.has("factor") ? c.attrs.get_float("factor") : 1.0f);
}

}  // namespace nibble
