// add, scale, swiglu and its gradient, rope, zeros, ones.
#pragma once
#include "kernels/ref/scalar.h"

namespace nibble::ref {

template <class S>
void add(const KernelCall& c) {
  const S *x = c.in[0].as<S>(), *y = c.in[1].as<S>();
  for (int64_t i = 0; i < c.out[0].numel(); ++i) c.out[0].as<S>()[i] = x[i] + y[i];
}

template <class S>
void scale(const KernelCall& c) {
  const S factor = static_cast<S>(c.attrs.get_float("factor"));
  for (int64_t i = 0; i < c.out[0].numel(); ++i) c.out[0].as<S>()[i] = c.in[0].as<S>()[i] * factor;
}

template <class S>
void swiglu(const KernelCall& c) {  // silu(g) u, silu(g) = g / (1 + exp(-g))
  const S *gate = c.in[0].as<S>(), *up = c.in[1].as<S>();
  S* y = c.out[0].as<S>();
  for (int64_t i = 0; i < c.out[0].numel(); ++i) y[i] = (gate[i] / (S(1) + exp(-gate[i]))) * up[i];
}

template <class S>
void swiglu_grad(const KernelCall& c) {  // s = 1 / (1 + exp(-g)):  dg = ((dy u) s) (1 + g (1 - s)),  du = dy silu(g)
  const S *dy = c.in[0].as<S>(), *gate = c.in[1].as<S>(), *up = c.in[2].as<S>();
  S *dgate = c.out[0].as<S>(), *dup = c.out[1].as<S>();
  for (int64_t i = 0; i < c.out[0].numel(); ++i) {
    const S d = dy[i], g = gate[i], u = up[i];  // first: dgate and dup may lie where they do
    const S e = S(1) + exp(-g), s = S(1) / e;
    dgate[i] = ((d * u) * s) * fma(g, S(1) - s, S(1));
    dup[i] = d * (g / e);
  }
}

template <class S>
void rope(const KernelCall& c) {  // out_i = x_i cos - x_j sin, out_j = x_j cos + x_i sin, j = i + D/2
  const S *x = c.in[0].as<S>(), *table = c.in[1].as<S>();
  const int32_t* positions = c.in[2].as<int32_t>();
  S* y = c.out[0].as<S>();
  const int64_t d = c.in[0].dim(-1), half = d / 2, heads = c.in[0].dim(-2), rows = c.in[2].numel();
  const S sign = c.attrs.get_int("inverse") != 0 ? S(-1) : S(1);
  for (int64_t r = 0; r < rows; ++r) {
    const S *cosine = table + positions[r] * d, *sine = cosine + half;
    for (int64_t h = 0; h < heads; ++h, x += d, y += d)
      for (int64_t i = 0; i < half; ++i) {
        const S s = sign * sine[i], a = x[i], b = x[i + half];  // y may be x
        y[i] = fma(a, cosine[i], -(b * s));
        y[i + half] = fma(b, cosine[i], a * s);
      }
  }
}

template <class S>
void zeros(const KernelCall& c) {
  for (int64_t i = 0; i < c.out[0].numel(); ++i) c.out[0].as<S>()[i] = S(0);
}
template <class S>
void ones(const KernelCall& c) {
  for (int64_t i = 0; i < c.out[0].numel(); ++i) c.out[0].as<S>()[i] = S(1);
}

}  // namespace nibble::ref
