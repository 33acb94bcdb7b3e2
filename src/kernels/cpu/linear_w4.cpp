// linear_w4: numbers times 4-bit weights, with the bits of `linear` on the decoded weights (ops/linear_w4.cpp).
//   Up to `few` rows (decoding): one walk over the codes, decoded in registers (w4_panel.h).
//   More rows: a block of w is decoded to memory, then the packed product of gemm.h; each block is decoded once.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/w4_panel.h"
#include "kernels/cpu/widened.h"

namespace nibble::NIBBLE_TARGET {
namespace {

constexpr int64_t few = 4;
constexpr int group_panels = 4;                                               // at a time
constexpr int64_t group_rows = group_panels * lanes, task_bytes = 48 * 1024;  // of codes
constexpr int64_t block_floats = int64_t{2} << 20;                            // of decoded w

// Groups of rows of all weights, one after the other: the threads take some at a time.
template <int rows>
void few_rows(const KernelCall& c) {
  const float* x = c.in[0].as<float>();
  const int64_t k = c.in[0].dim(-1);
  int64_t groups = 0;
  for (const Tensor& w : c.in.subspan(1)) groups += ceil_div(w.dim(0), group_rows);
  const int64_t most = larger(1, task_bytes / (group_rows * ceil_div(k, 16) * 8));
  const int64_t step = larger(1, smaller(most, groups / (4 * c.pool.size())));
  c.pool.run(ceil_div(groups, step), [&](int64_t task, int) {
    int64_t before = 0;
    for (size_t t = 0; t < c.out.size(); ++t) {
      const W4Operand w{QuantizedView(c.in[1 + t])};
      const int64_t own = ceil_div(w.rows, group_rows);
      const int64_t begin = larger(0, task * step - before), end = smaller(own, (task + 1) * step - before);
      float* const y = c.out[t].as<float>();
      for (int64_t g = begin; g < end; ++g) {
        if (w.tile == 1)
          multiply_panels<rows, group_panels, false>(w, x, k, g * group_rows, y, w.rows);
        else
          multiply_panels<rows, group_panels, true>(w, x, k, g * group_rows, y, w.rows);
      }
      before += own;
    }
  });
}

// Rows of w of a decoded block: as many as fit, in whole 64.
int64_t block_rows(int64_t n, int64_t k) { return smaller(n, larger(64, block_floats / k / 64 * 64)); }
int64_t decoded_bytes(int64_t n, int64_t k) { return ceil_div(block_rows(n, k) * k * 4, 64) * 64; }

void many_rows(const KernelCall& c, size_t t) {
  const W4Operand w{QuantizedView(c.in[1 + t])};
  const float* x = c.in[0].as<float>();
  float* y = c.out[t].as<float>();
  const int64_t m = c.in[0].type.rows(), step = block_rows(w.rows, w.k);
  auto* numbers = reinterpret_cast<float*>(c.workspace);
  for (int64_t j = 0; j < w.rows; j += step) {
    const int64_t n = smaller(step, w.rows - j);
    for_ranges(c.pool, n, w.k, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) decode_row(w, j + r, numbers + r * w.k);
    });
    gemm({{x, w.k, 1}, {numbers, w.k, 1}, y + j, w.rows, m, n, w.k, false}, c.pool,
         c.workspace + decoded_bytes(w.rows, w.k));
  }
}

void linear_w4_f32(const KernelCall& c) {
  const int64_t m = c.in[0].type.rows();
  if (m == 1) return few_rows<1>(c);
  if (m == 2) return few_rows<2>(c);
  if (m == 3) return few_rows<3>(c);
  if (m == few) return few_rows<4>(c);
  for (size_t t = 0; t < c.out.size(); ++t) many_rows(c, t);
}

}  // namespace

void linear_w4(const KernelCall& c) { run_f32(c, 0, linear_w4_f32); }
int64_t linear_w4_workspace(const KernelShape& s) {
  const int64_t m = s.in[0].rows();
  if (m <= few) return widened_bytes(s);
  int64_t bytes = 0;
  for (const Type& w : s.in.subspan(1)) {
    const int64_t n = w.dim(0), k = w.dim(1);
    bytes = larger(bytes, decoded_bytes(n, k) + gemm_workspace_bytes(m, block_rows(n, k), k, s.threads));
  }
  return widened_bytes(s) + bytes;
}

}  // namespace nibble::NIBBLE_TARGET
