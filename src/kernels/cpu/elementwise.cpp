// add, scale, swiglu and its gradient, rope and rope_pair: the formulas of kernels/ref/elementwise.h on whole words.
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

// Heads of every position, to be rotated from x to y, which may be the same.
template <class T>
struct Heads {
  const T* x;
  T* y;
  int64_t count;
};

// out_i = x_i cos - x_j sin, out_j = x_j cos + x_i sin, j = i + D/2; a position's angles are read once for all lists.
template <class T, size_t n>
void rotate(const KernelCall& c, const Heads<T> (&lists)[n], const Tensor& angle_table, const Tensor& at_positions) {
  const float* table = angle_table.as<float>();
  const int32_t* positions = at_positions.as<int32_t>();
  const int64_t d = angle_table.dim(-1), half = d / 2;
  const bool inverse = c.attrs.get_int("inverse") != 0;
  int64_t heads = 0;
  for (const Heads<T>& list : lists) heads += list.count;
  for_ranges(c.pool, at_positions.numel(), heads * d, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* angles = table + positions[r] * d;  // cosines, then sines
      words_of(0, half, [&](int64_t i, auto io) {
        const Word cosine = io.get(angles + i), sine = io.get(angles + half + i);
        const Word s = inverse ? negate(sine) : sine;
        for (const auto& [x, y, count] : lists)
          for (int64_t at = r * count * d + i, h = 0; h < count; ++h, at += d) {
            const Word a = io.get(x + at), b = io.get(x + at + half);
            io.put(y + at, fma(a, cosine, negate(mul(b, s))));
            io.put(y + at + half, fma(b, cosine, mul(a, s)));
          }
      });
    }
  });
}

template <class T>
Heads<T> heads_of(const KernelCall& c, size_t i) {
  return {c.in[i].as<T>(), c.out[i].as<T>(), c.in[i].dim(-2)};
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
  with_storage(c.in[0].type.dtype, [&]<class T>() { rotate<T>(c, {heads_of<T>(c, 0)}, c.in[1], c.in[2]); });
}
void rope_pair(const KernelCall& c) {
  with_storage(c.in[0].type.dtype, [&]<class T>() {
    rotate<T>(c, {heads_of<T>(c, 0), heads_of<T>(c, 1)}, c.in[2], c.in[3]);
  });
}

}  // namespace nibble::NIBBLE_TARGET
