// rms_norm and its gradient (kernels/ref/norm.h; spec/training.md 2.4, 2.11): rows in parallel, one visit for dx and
// the column sums of a block of 64 rows. With a residual (ops/fused.cpp) the same, and the sum in the same visit.
#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace nibble::NIBBLE_TARGET {
namespace {

constexpr int64_t block_rows = 64;  // of the contract's column sums

float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// What memory of type T keeps of a value.
template <class T>
Word stored(Word x) {
  if constexpr (std::is_same_v<T, float>) return x;
  return round_word(x);
}
template <class T>
Lanes16 stored(const Lanes16& x) {
  return map16([](Word a) { return stored<T>(a); }, x);
}

// Row i of y and r from row i of x, as w scales it; read(j, io) is elements j... of x.
template <class T, class Read>
void norm_row(int64_t i, int64_t n, float eps, const T* x, const T* w, T* y, float* rstd, const Read& read) {
  const float sum = lane_sum_of(n, [&](int64_t j, auto io, const Lanes16& s) {
    const Lanes16 v = read(j, io);
    return fma(v, v, s);
  });
  const float r = 1.0f / square_root(sum / static_cast<float>(n) + eps);
  rstd[i] = r;
  words_of(0, n,
           [&](int64_t j, auto io) { io.put(y + i * n + j, mul(mul(io.get(x + i * n + j), all(r)), io.get(w + j))); });
}

template <class T>
void norm_rows(const KernelCall& c) {
  const T *x = c.in[0].as<T>(), *w = c.in[1].as<T>();
  const int64_t n = c.in[0].dim(-1);
  const float eps = c.attrs.get_float("eps");
  for_ranges(c.pool, c.in[0].type.rows(), n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      norm_row<T>(i, n, eps, x, w, c.out[0].as<T>(), c.out[1].as<float>(),
                  [xi = x + i * n](int64_t j, auto io) { return io.get(xi + j); });
  });
}

// h = x + residual is written in the norm's first visit of a row, and read in its second.
template <class T>
void residual_norm_rows(const KernelCall& c) {
  const T *x = c.in[0].as<T>(), *residual = c.in[1].as<T>(), *w = c.in[2].as<T>();
  T* h = c.out[0].as<T>();
  const int64_t n = c.in[0].dim(-1);
  const float eps = c.attrs.get_float("eps");
  for_ranges(c.pool, c.in[0].type.rows(), n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      norm_row<T>(i, n, eps, h, w, c.out[1].as<T>(), c.out[2].as<float>(), [&, at = i * n](int64_t j, auto io) {
        const Lanes16 sum = add(io.get(x + at + j), io.get(residual + at + j));
        io.put(h + at + j, sum);
        return stored<T>(sum);
      });
  });
}

// With `residual`, dx is the norm's plus dh.
template <class T, bool residual>
struct NormGrad {
  const T *dy, *x, *w, *dh;
  const float* rstd;
  T* dx;
  int64_t n;
  explicit NormGrad(const KernelCall& c)
      : dy(c.in[1].as<T>()),
        x(c.in[2].as<T>()),
        w(c.in[3].as<T>()),
        dh(residual ? c.in[5].as<T>() : nullptr),
        rstd(c.in[4].as<float>()),
        dx(c.out[1].as<T>()),
        n(c.in[2].dim(-1)) {}

  void row_dx(int64_t i) const {
    const T *d = dy + i * n, *xi = x + i * n;
    const float sum = lane_sum_of(n, [&](int64_t j, auto io, const Lanes16& s) {
      return fma(mul(io.get(d + j), io.get(w + j)), io.get(xi + j), s);
    });
    const float k = ((sum / static_cast<float>(n)) * rstd[i]) * rstd[i];
    const Word minus_k = all(-k), r = all(rstd[i]);
    words_of(0, n, [&](int64_t j, auto io) {
      Word g = mul(r, fma(minus_k, io.get(xi + j), mul(io.get(d + j), io.get(w + j))));
      if constexpr (residual) g = add(stored<T>(g), io.get(dh + i * n + j));
      io.put(dx + i * n + j, g);
    });
  }

  // dx of rows [begin, end), and their column sums into sums[n].
  void block(int64_t begin, int64_t end, float* sums) const {
    words_of(0, n, [&](int64_t j, auto io) { io.put(sums + j, zero()); });
    for (int64_t i = begin; i < end; ++i) {
      row_dx(i);
      const T *d = dy + i * n, *xi = x + i * n;
      const Word r = all(rstd[i]);
      words_of(0, n, [&](int64_t j, auto io) {
        io.put(sums + j, fma(io.get(d + j), mul(io.get(xi + j), r), io.get(sums + j)));
      });
    }
  }
};

template <class T, bool residual>
void norm_rows_grad(const KernelCall& c) {
  const int64_t n = c.in[2].dim(-1), rows = c.in[2].type.rows(), blocks = ceil_div(rows, block_rows);
  const NormGrad<T, residual> g(c);
  float *dw = c.out[0].as<float>(), *sums = reinterpret_cast<float*>(c.workspace);  // [blocks, n]
  for_ranges(c.pool, blocks, block_rows * n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) g.block(b * block_rows, smaller(rows, (b + 1) * block_rows), sums + b * n);
  });
  for_ranges(c.pool, n, blocks, 16, [&](int64_t begin, int64_t end) {
    words_of(begin, end, [&](int64_t j, auto io) {
      Word acc = c.from_zero ? zero() : io.get(dw + j);
      for (int64_t b = 0; b < blocks; ++b) acc = add(acc, io.get(sums + b * n + j));
      io.put(dw + j, acc);
    });
  });
}

}  // namespace

void rms_norm(const KernelCall& c) {
  with_storage(c.in[0].type.dtype, [&]<class T>() { norm_rows<T>(c); });
}

void rms_norm_grad(const KernelCall& c) {
  with_storage(c.in[2].type.dtype, [&]<class T>() { norm_rows_grad<T, false>(c); });
}
void residual_rms_norm(const KernelCall& c) {
  with_storage(c.in[0].type.dtype, [&]<class T>() { residual_norm_rows<T>(c); });
}
void residual_rms_norm_grad(const KernelCall& c) {
  with_storage(c.in[2].type.dtype, [&]<class T>() { norm_rows_grad<T, true>(c); });
}

int64_t rms_norm_grad_workspace(const KernelShape& s) {
  return ceil_div(s.in[2].rows(), block_rows) * s.in[2].dim(-1) * int64_t{sizeof(float)};
}

}  // namespace nibble::NIBBLE_TARGET
