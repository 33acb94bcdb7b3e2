// attention, its gradient, and attention over a cache (spec/training.md 2.6; order of every sum in 2.11: keys in tiles
// of 64 on an absolute grid, ascending; excluded keys are skipped, never multiplied by zero).
#pragma once
#include <limits>

#include "kernels/ref/scalar.h"

namespace nibble::ref {

/// Which keys a query row may see: an ascending range of key rows, of which those with its segment count.
struct KeyRange {
  int64_t first, last;      // inclusive; empty if first > last
  const int32_t* segments;  // of the row's keys; nullptr: all count
  int32_t segment;
  bool allows(int64_t k) const { return segments == nullptr || segments[k] == segment; }
};
inline KeyRange causal_keys(int64_t query, int64_t window, const int32_t* segments) {
  const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, query - window + 1);
  if (segments == nullptr) return {first, query, nullptr, 1};
  return {first, segments[query] == 0 ? -1 : query, segments, segments[query]};
}

template <class S>
S dot(const S* a, const S* b, int64_t d) {
  S acc = 0;
  for (int64_t i = 0; i < d; ++i) acc = fma(a[i], b[i], acc);
  return acc;
}

/// One query row and head over keys k + row * stride: online softmax by tiles of 64. No allowed key: out 0, lse 0.
template <class S>
void attention_row(const S* q, const S* k, const S* v, int64_t stride, int64_t d, S scale, const KeyRange& keys, S* out,
                   S* lse) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  S m = static_cast<S>(-inf), l = 0;
  for (int64_t i = 0; i < d; ++i) out[i] = 0;
  bool any = false;
  for (int64_t tile = keys.first / 64; tile * 64 <= keys.last; ++tile) {
    S s[64], e[64];
    bool in[64], some = false;
    S m_new = m;
    for (int64_t j = 0; j < 64; ++j) {
      const int64_t r = tile * 64 + j;
      in[j] = r >= keys.first && r <= keys.last && keys.allows(r);
      if (!in[j]) continue;
      s[j] = dot(q, k + r * stride, d) * scale;
      m_new = larger(m_new, s[j]);
      some = true;
    }
    if (!some) continue;
    const S f = any ? exp(m - m_new) : S(0);
    LaneSum<S> sum;
    for (int64_t j = 0; j < 64; ++j)
      if (in[j]) e[j] = exp(s[j] - m_new), sum.add(j, e[j]);
    l = l * f + sum.total();
    for (int64_t i = 0; i < d; ++i) {
      S acc = out[i] * f;
      for (int64_t j = 0; j < 64; ++j)
        if (in[j]) acc = fma(e[j], v[(tile * 64 + j) * stride + i], acc);
      out[i] = acc;
    }
    m = m_new;
    any = true;
  }
  *lse = any ? m + log(l) : S(0);
  if (!any) return;
  const S r = S(1) / l;
  for (int64_t i = 0; i < d; ++i) out[i] *= r;
}

template <class S>
void attention(const KernelCall& c) {
  const S *q = c.in[0].as<S>(), *k = c.in[1].as<S>(), *v = c.in[2].as<S>();
  const int32_t* segments = c.in[3].as<int32_t>();
  const int64_t batch = c.in[0].dim(0), t = c.in[0].dim(1), h = c.in[0].dim(2), d = c.in[0].dim(3), kv = c.in[1].dim(2);
  const S scale = static_cast<S>(c.attrs.get_float("scale"));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < t; ++i)
      for (int64_t a = 0; a < h; ++a) {
        const int64_t head = b * t * kv * d + (a * kv / h) * d, row = (b * t + i) * h + a;
        attention_row(q + row * d, k + head, v + head, kv * d, d, scale,
                      causal_keys(i, c.attrs.get_int("window"), segments + b * t), c.out[0].as<S>() + row * d,
                      c.out[1].as<S>() + row);
      }
}

template <class S>
void attention_cached(const KernelCall& c) {
  const S *q = c.in[0].as<S>(), *k = c.in[1].as<S>(), *v = c.in[2].as<S>();
  const int32_t* span = c.in[3].as<int32_t>();
  const int64_t rows = c.in[0].dim(0), h = c.in[0].dim(1), d = c.in[0].dim(2), kv = c.in[1].dim(1);
  const S scale = static_cast<S>(c.attrs.get_float("scale"));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t a = 0; a < h; ++a) {
      S lse;
      S* out = c.out[0].as<S>() + (i * h + a) * d;
      if (i < span[1])
        attention_row(q + (i * h + a) * d, k + (a * kv / h) * d, v + (a * kv / h) * d, kv * d, d, scale,
                      causal_keys(span[0] + i, c.attrs.get_int("window"), nullptr), out, &lse);
      else
        for (int64_t j = 0; j < d; ++j) out[j] = 0;
    }
}

// p = exp(s - lse), delta = lane sum of dout out, ds = (p (dp - delta)) scale. dq: one accumulator over ascending keys;
// dk, dv: one accumulator over the heads of the group, then query rows, ascending.
template <class S>
void attention_grad(const KernelCall& c) {
  const S *dout = c.in[0].as<S>(), *q = c.in[1].as<S>(), *k = c.in[2].as<S>(), *v = c.in[3].as<S>();
  const S *out = c.in[4].as<S>(), *lse = c.in[5].as<S>();
  const int32_t* segments = c.in[6].as<int32_t>();
  S *dq = c.out[0].as<S>(), *dk = c.out[1].as<S>(), *dv = c.out[2].as<S>();
  const int64_t batch = c.in[1].dim(0), t = c.in[1].dim(1), h = c.in[1].dim(2), d = c.in[1].dim(3), kv = c.in[2].dim(2);
  const S scale = static_cast<S>(c.attrs.get_float("scale"));
  for (int64_t i = 0; i < c.out[0].numel(); ++i) dq[i] = 0;
  for (int64_t i = 0; i < c.out[1].numel(); ++i) dk[i] = dv[i] = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t a = 0; a < h; ++a)
      for (int64_t i = 0; i < t; ++i) {
        const KeyRange keys = causal_keys(i, c.attrs.get_int("window"), segments + b * t);
        const int64_t row = (b * t + i) * h + a;
        LaneSum<S> sum;
        for (int64_t j = 0; j < d; ++j) sum.fma(j, dout[row * d + j], out[row * d + j]);
        const S delta = sum.total();
        for (int64_t r = keys.first; r <= keys.last; ++r) {
          if (!keys.allows(r)) continue;
          const int64_t key = ((b * t + r) * kv + a * kv / h) * d;
          const S p = exp(dot(q + row * d, k + key, d) * scale - lse[row]);
          const S ds = (p * (dot(dout + row * d, v + key, d) - delta)) * scale;
          for (int64_t j = 0; j < d; ++j) {
            dq[row * d + j] = fma(ds, k[key + j], dq[row * d + j]);
            dk[key + j] = fma(ds, q[row * d + j], dk[key + j]);
            dv[key + j] = fma(p, dout[row * d + j], dv[key + j]);
          }
        }
      }
}

}  // namespace nibble::ref
