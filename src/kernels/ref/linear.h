// linear, linear_dgrad, linear_wgrad: one accumulator an output, fma, ascending along the contracted axis
// (spec/training.md 2.11, row "GEMM").
#pragma once
#include "kernels/ref/scalar.h"

namespace nibble::ref {

template <class S>
void linear(const KernelCall& c) {  // y[m, n] = sum_k x[m, k] w[n, k]
  const S *x = c.in[0].as<S>(), *w = c.in[1].as<S>();
  S* y = c.out[0].as<S>();
  const int64_t k = c.in[1].dim(1), n = c.in[1].dim(0), m = c.in[0].type.rows();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      S acc = 0;
      for (int64_t l = 0; l < k; ++l) acc = fma(x[i * k + l], w[j * k + l], acc);
      y[i * n + j] = acc;
    }
}

template <class S>
void linear_dgrad(const KernelCall& c) {  // dx[m, k] = sum over terms, then n, of dy[m, n] w[n, k]
  S* dx = c.out[0].as<S>();
  const int64_t k = c.out[0].dim(-1), m = c.out[0].type.rows();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t l = 0; l < k; ++l) {
      S acc = 0;
      for (size_t t = 0; t < c.in.size(); t += 2) {
        const S *dy = c.in[t].as<S>(), *w = c.in[t + 1].as<S>();
        const int64_t n = c.in[t].dim(-1);
        for (int64_t j = 0; j < n; ++j) acc = fma(dy[i * n + j], w[j * k + l], acc);
      }
      dx[i * k + l] = acc;
    }
}

template <class S>
void linear_wgrad(const KernelCall& c) {  // dw[n, k] += sum_m dy[m, n] x[m, k]
  const S *dy = c.in[1].as<S>(), *x = c.in[2].as<S>();
  S* dw = accumulator<S>(c);
  const int64_t n = c.in[0].dim(0), k = c.in[0].dim(1), m = c.in[1].type.rows();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l) dw[j * k + l] = fma(dy[i * n + j], x[i * k + l], dw[j * k + l]);
}

}  // namespace nibble::ref
