// rms_norm and its gradient (spec/training.md 2.4; lane sums and column sums of 2.11).
#pragma once
#include "kernels/ref/scalar.h"

namespace nibble::ref {

template <class S>
void rms_norm(const KernelCall& c) {
  const S *x = c.in[0].as<S>(), *w = c.in[1].as<S>();
  S *y = c.out[0].as<S>(), *rstd = c.out[1].as<S>();
  const int64_t n = c.in[0].dim(-1), rows = c.in[0].type.rows();
  const S eps = static_cast<S>(c.attrs.get_float("eps"));
  for (int64_t i = 0; i < rows; ++i, x += n, y += n) {
    LaneSum<S> sum;
    for (int64_t j = 0; j < n; ++j) sum.fma(j, x[j], x[j]);
    const S r = S(1) / sqrt(sum.total() / static_cast<S>(n) + eps);
    rstd[i] = r;
    for (int64_t j = 0; j < n; ++j) y[j] = (x[j] * r) * w[j];
  }
}

// t = dy w;  dx = r (t - x k),  k = (mean(t x) r) r.   dw: rows ascending within blocks of 64, fma(dy, x r), from +0;
// blocks added ascending to the accumulator.
template <class S>
void rms_norm_grad(const KernelCall& c) {
  const S *dy = c.in[1].as<S>(), *x = c.in[2].as<S>(), *w = c.in[3].as<S>(), *rstd = c.in[4].as<S>();
  S *dw = accumulator<S>(c), *dx = c.out[1].as<S>();
  const int64_t n = c.in[2].dim(-1), rows = c.in[2].type.rows();
  for (int64_t i = 0; i < rows; ++i) {
    const S *d = dy + i * n, *xi = x + i * n, r = rstd[i];
    LaneSum<S> sum;
    for (int64_t j = 0; j < n; ++j) sum.fma(j, d[j] * w[j], xi[j]);
    const S k = ((sum.total() / static_cast<S>(n)) * r) * r;
    for (int64_t j = 0; j < n; ++j) dx[i * n + j] = r * fma(-k, xi[j], d[j] * w[j]);
  }
  for (int64_t j = 0; j < n; ++j)
    for (int64_t block = 0; block < rows; block += 64) {
      S p = 0;
      for (int64_t i = block; i < std::min(rows, block + 64); ++i) p = fma(dy[i * n + j], x[i * n + j] * rstd[i], p);
      dw[j] += p;
    }
}

}  // namespace nibble::ref
