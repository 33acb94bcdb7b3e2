// cross_entropy and its gradient with the head's products (spec/training.md 2.7; orders in 2.11). The reference walks
// one token at a time; the number of tokens in a tile changes no bit.
#pragma once
#include <algorithm>

#include "kernels/ref/scalar.h"
#include "numerics/bf16.h"

namespace nibble::ref {

/// Logits of one token to e_v = exp(x_v - max) in place; returns the loss terms. x: [V].
template <class S>
struct TokenLoss {
  S ce, lse, inverse;  // inverse = 1 / sum of e
};
template <class S>
TokenLoss<S> softmax_loss(S* x, int64_t v, int32_t target) {
  S m = x[0];
  for (int64_t i = 1; i < v; ++i) m = larger(m, x[i]);
  const S logit = x[target];
  LaneSum<S> sum;
  for (int64_t i = 0; i < v; ++i) x[i] = exp(x[i] - m), sum.add(i, x[i]);
  const S l = sum.total(), lse = m + log(l);
  return {lse - logit, lse, S(1) / l};
}

template <class S>
void token_logits(const S* h, const S* w, int64_t v, int64_t e, S* x) {
  for (int64_t i = 0; i < v; ++i) {
    S acc = 0;
    for (int64_t j = 0; j < e; ++j) acc = fma(h[j], w[i * e + j], acc);
    x[i] = acc;
  }
}

// One row of logits.
inline int64_t token_workspace(const KernelShape& s) { return s.in[1].dim(0) * 4; }
inline int64_t token_gradient_workspace(const KernelShape& s) { return s.in[2].dim(0) * 4; }

template <class S>
void cross_entropy(const KernelCall& c) {
  const S *h = c.in[0].as<S>(), *w = c.in[1].as<S>();
  const int32_t* targets = c.in[2].as<int32_t>();
  const int64_t e = c.in[1].dim(1), v = c.in[1].dim(0), rows = c.in[0].type.rows();
  S* x = reinterpret_cast<S*>(c.workspace);
  for (int64_t i = 0; i < rows; ++i) {
    TokenLoss<S> t{0, 0, 0};
    if (targets[i] >= 0) {
      token_logits(h + i * e, w, v, e, x);
      t = softmax_loss(x, v, targets[i]);
    }
    c.out[0].as<S>()[i] = t.ce, c.out[1].as<S>()[i] = t.lse;
  }
}

// dlogit = ((p c) - onehot) / N, p = e / l, c = 1 + 2 z lse (no product where z = 0); a token without target has dlogit
// +0. dh over ascending v, dW over ascending tokens, continuing the accumulator. `Operand` rounds dlogit to the type of
// the other operand of these two products.
struct Unrounded {
  template <class S>
  static S of(S x) {
    return x;
  }
};
struct ToBf16 {
  static float of(float x) { return widen(round_bf16(x)); }
};
template <class S, class Operand = Unrounded>
void cross_entropy_grad(const KernelCall& c) {
  const S *h = c.in[1].as<S>(), *w = c.in[2].as<S>();
  const int32_t* targets = c.in[3].as<int32_t>();
  const S inv_n = c.in[4].as<S>()[0], z = static_cast<S>(c.attrs.get_float("z_loss"));
  S *dw = accumulator<S>(c), *dh = c.out[1].as<S>();
  const int64_t e = c.in[2].dim(1), v = c.in[2].dim(0), rows = c.in[1].type.rows();
  S* x = reinterpret_cast<S*>(c.workspace);
  for (int64_t i = 0; i < rows; ++i) {
    TokenLoss<S> t{0, 0, 0};
    std::fill_n(x, v, S(0));
    if (targets[i] >= 0) {
      token_logits(h + i * e, w, v, e, x);
      t = softmax_loss(x, v, targets[i]);
      const S factor = fma(z + z, t.lse, S(1));
      for (int64_t j = 0; j < v; ++j) {
        S p = x[j] * t.inverse;
        if (z != S(0)) p *= factor;
        x[j] = Operand::of((j == targets[i] ? p - S(1) : p) * inv_n);
      }
    }
    c.out[2].as<S>()[i] = t.ce, c.out[3].as<S>()[i] = t.lse;
    for (int64_t j = 0; j < e; ++j) {
      S acc = 0;
      for (int64_t l = 0; l < v; ++l) acc = fma(x[l], w[l * e + j], acc);
      dh[i * e + j] = acc;
    }
    for (int64_t l = 0; l < v; ++l)
      for (int64_t j = 0; j < e; ++j) dw[l * e + j] = fma(x[l], h[i * e + j], dw[l * e + j]);
  }
}

}  // namespace nibble::ref
