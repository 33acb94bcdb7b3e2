// quantize_rows, qlinear_rows: each row as quantize makes it alone; sums as qlinear's, with a factor of the row.
#include "kernels/row_scaled.h"

#include "kernels/ref/quantized.h"
#include "kernels/ref/row_scaled.h"

namespace nibble::ref {

int64_t quantize_rows_workspace(const KernelShape& s) {
  const Type row{s.out[0].dtype, {1, s.out[0].dim(-1)}};
  return row_bytes(s.out[0]) + quantize_workspace({s.in, {&row, 1}, s.attrs, s.threads});
}
void quantize_rows(const KernelCall& c) {
  for (int64_t i = 0; i < c.in[0].type.rows(); ++i)
    quantize_one_row(c, i, ref::quantize, c.workspace, c.workspace + row_bytes(c.out[0].type));
  finish_rows(c);
}

// qlinear of one row at a time, under that row's header.
int64_t qlinear_rows_workspace(const KernelShape& s) { return row_bytes(s.in[0]); }
void qlinear_rows(const KernelCall& c) {
  const Tensor &x = c.in[0], &y = c.out[0];
  const QuantizedView all(x);
  const Type one = {x.type.dtype, {1, x.dim(-1)}}, result{y.type.dtype, {1, y.dim(-1)}};
  const QuantizedView row(Tensor{one, c.workspace});
  for (int64_t i = 0; i < x.type.rows(); ++i) {
    row.header() = all.header();
    row.header().amax = c.in[1].as<float>()[2 * i], row.header().decode = c.in[1].as<float>()[2 * i + 1];
    std::memcpy(row.codes(0), all.codes(i), static_cast<size_t>(row.layout.code_pitch));
    std::memcpy(row.scales(0), all.scales(i), static_cast<size_t>(row.layout.scale_pitch));
    const Tensor in[] = {{one, c.workspace}, c.in[2]},
                 out[] = {{result, static_cast<std::byte*>(y.data) + i * result.nbytes()}};
    qlinear({in, out, c.attrs, nullptr, c.pool});
  }
}

}  // namespace nibble::ref
