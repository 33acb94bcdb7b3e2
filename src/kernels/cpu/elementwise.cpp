// add, scale, swiglu and its gradient, rope: the formulas of kernels/ref/elementwise.h on whole words.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "numerics/functions_simd.h"

namespace nibble::NIBBLE_TARGET {
namespace {

template <class T>
void add_of(const KernelCall& c) {
  const T *x = c.in[0].as<T>(), *y = c.in[1].as<T>();
  T* z = c.out[0].as<T>();
  for_words(c.pool, c.out[0].numel(), [=](int64_t i, auto io) { io.put(z + i, add(io.get(x + i), io.get(y + i))); });
}

template <class T>
void scale_of(const KernelCall& c) {
  const T* x = c.in[0].as<T>();
  T* y = c.out[0].as<T>();
  const Word factor = all(c.attrs.get_float("factor"));
  for_words(c.pool, c.out[0].numel(), [=](int64_t i, auto io) { io.put(y + i, mul(io.get(x + i), factor)); });
}

template <class T>
void swiglu_of(const KernelCall& c) {  // silu(g) u, silu(g) = g / (1 + exp(-g))
  const T *gate = c.in[0].as<T>(), *up = c.in[1].as<T>();
  T* y = c.out[0].as<T>();
  for_words(c.pool, c.out[0].numel(), [=](int64_t i, auto io) {
    const Word g = io.get(gate + i);
    io.put(y + i, mul(div(g, add(all(1.0f), exp_f32(negate(g)))), io.get(up + i)));
  });
}

template <class T>
void swiglu_grad_of(const KernelCall& c) {  // s = 1 / (1 + exp(-g)):  dg = ((dy u) s) (1 + g (1 - s)),  du = dy silu(g)
  const T *dy = c.in[0].as<T>(), *gate = c.in[1].as<T>(), *up = c.in[2].as<T>();
  T *dgate = c.out[0].as<T>(), *dup = c.out[1].as<T>();
  for_words(c.pool, c.out[0].numel(), [=](int64_t i, auto io) {
    const Word one = all(1.0f), g = io.get(gate + i), d = io.get(dy + i);
    const Word e = add(one, exp_f32(negate(g))), s = div(one, e);
    io.put(dgate + i, mul(mul(mul(d, io.get(up + i)), s), fma(g, sub(one, s), one)));
    io.put(dup + i, mul(d, div(g, e)));
  });
}

template <class T>
void rope_of(const KernelCall& c) {  // out_i = x_i cos - x_j sin, out_j = x_j cos + x_i sin, j = i + D/2
  const T* x = c.in[0].as<T>();
  const float* table = c.in[1].as<float>();
  const int32_t* positions = c.in[2].as<int32_t>();
  T* y = c.out[0].as<T>();
  const int64_t d = c.in[0].dim(-1), half = d / 2, heads = c.in[0].dim(-2), rows = c.in[2].numel();
  const bool inverse = c.attrs.get_int("inverse") != 0;
  for_ranges(c.pool, rows, heads * d, 1, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* angles = table + positions[r] * d;  // cosines, then sines
      words_of(0, half, [=](int64_t i, auto io) {
        const Word cosine = io.get(angles + i), sine = io.get(angles + half + i);
        const Word s = inverse ? negate(sine) : sine;
        for (int64_t at = r * heads * d + i, h = 0; h < heads; ++h, at += d) {
          const Word a = io.get(x + at), b = io.get(x + at + half);
          io.put(y + at, fma(a, cosine, negate(mul(b, s))));
          io.put(y + at + half, fma(b, cosine, mul(a, s)));
        }
      });
    }
  });
}

}  // namespace

void add(const KernelCall& c) {
  with_storage(c.in[0].type.dtype, [&]<class T>() { add_of<T>(c); });
}
void scale(const KernelCall& c) {
  with_storage(c.in[0].type.dtype, [&]<class T>() { scale_of<T>(c); });
}
void swiglu(const KernelCall& c) {
  with_storage(c.in[0].type.dtype, [&]<class T>() { swiglu_of<T>(c); });
}
void swiglu_grad(const KernelCall& c) {
  with_storage(c.in[0].type.dtype, [&]<class T>() { swiglu_grad_of<T>(c); });
}
void rope(const KernelCall& c) {
  with_storage(c.in[0].type.dtype, [&]<class T>() { rope_of<T>(c); });
}

}  // namespace nibble::NIBBLE_TARGET
