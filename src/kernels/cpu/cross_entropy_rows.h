// Softmax, loss and gradient of one token's logits (kernels/ref/cross_entropy.h; spec/training.md 2.7, 2.11).
#pragma once
#include "kernels/cpu/parallel.h"
#include "numerics/functions_simd.h"

namespace nibble::NIBBLE_TARGET {

/// No fewer tiles of tokens than these.
inline int64_t least_tiles(const Attrs& attrs) { return attrs.has("tiles") ? attrs.get_int("tiles") : 1; }

struct TokenLoss {
  float ce = 0, lse = 0, inverse = 0;  // inverse = 1 / sum of e
};

inline float row_max(const float* x, int64_t v) {
  Word m[4] = {all(x[0]), all(x[0]), all(x[0]), all(x[0])};  // four chains
  int64_t i = 0;
  for (; i + 4 * lanes <= v; i += 4 * lanes)
    for (int k = 0; k < 4; ++k) m[k] = max(m[k], load(x + i + k * lanes));
  for (; i + lanes <= v; i += lanes) m[0] = max(m[0], load(x + i));
  if (i < v) m[0] = max(m[0], select(first(v - i), load_first(x + i, v - i), m[0]));
  return reduce_max(max(max(m[0], m[1]), max(m[2], m[3])));
}

// Logits x[v] to e = exp(x - max) in place.
inline TokenLoss softmax_loss(float* x, int64_t v, int32_t target) {
  const float m = row_max(x, v), logit = x[target];
  const float l = lane_sum_of(v, [=](int64_t i, auto io, const Lanes16& sum) {
    const Lanes16 e = map16([=](Word a) { return exp_f32(sub(a, all(m))); }, io.get(x + i));
    io.put(x + i, e);
    return add(sum, e);
  });
  const float lse = m + log_f32(l);
  return {lse - logit, lse, 1.0f / l};
}

inline void store_one(float* p, float x) { *p = x; }
inline void store_one(BFloat16* p, float x) { *p = round_bf16(x); }

// e to dlogit = ((p c) - onehot) / N, p = e / l, c = 1 + 2 z lse (no product where z = 0). `to` may be x.
template <class T>
void to_gradient(const float* x, int64_t v, int32_t target, const TokenLoss& t, float z, float inv_n, T* to) {
  const float factor = __builtin_fmaf(z + z, t.lse, 1.0f);
  float at_target = x[target] * t.inverse;
  if (z != 0.0f) at_target *= factor;
  words_of(0, v, [=](int64_t i, auto io) {
    Word p = mul(io.get(x + i), all(t.inverse));
    if (z != 0.0f) p = mul(p, all(factor));
    io.put(to + i, mul(p, all(inv_n)));
  });
  store_one(to + target, (at_target - 1.0f) * inv_n);
}

}  // namespace nibble::NIBBLE_TARGET
