// cross_entropy and its gradient (kernels/ref/cross_entropy.h; spec/training.md 2.7, 2.11) by tiles of tokens: a tile's
// logits are a product, its softmax rows run in parallel, and in the gradient two products more take the tile's
// dlogits to dh and into the accumulator of dW. Only a tile's logits exist at a time.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/widened.h"
#include "numerics/functions_simd.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// As many tokens as 16 MiB of logits hold, at most 512 and at least 256: each tile packs W anew, twice in the gradient,
// which takes 30 % of the time with 64 tokens, 5 with 256, 3 with 512. `tiles`: no fewer tiles than these. Equal on all
// targets, for the workspace is.
int64_t tile_tokens(int64_t rows, int64_t v, int64_t tiles) {
  const int64_t fit = (int64_t{4} << 20) / v / 64 * 64;
  return smaller(ceil_div(rows, tiles), larger(256, smaller(512, fit)));
}
int64_t least_tiles(const Attrs& attrs) { return attrs.has("tiles") ? attrs.get_int("tiles") : 1; }
int64_t logits_stride(int64_t v) { return ceil_div(v, 16) * 16 + 16; }  // rows 2^n bytes apart share cache sets

struct Head {
  int64_t rows, v, e, tiles;
  int64_t tile = tile_tokens(rows, v, tiles), stride = logits_stride(v);
  int64_t logits_bytes() const { return ceil_div(tile * stride, 16) * 64; }
};

// Largest workspace of the products of a whole tile and of the last one.
int64_t product_bytes(const Head& h, bool gradient, int threads) {
  int64_t bytes = 0;
  for (const int64_t m : {h.tile, h.rows % h.tile}) {
    bytes = larger(bytes, gemm_workspace_bytes(m, h.v, h.e, threads));
    if (!gradient) continue;
    bytes = larger(bytes, gemm_workspace_bytes(m, h.e, h.v, threads));
    bytes = larger(bytes, gemm_workspace_bytes(h.v, h.e, m, threads));
  }
  return bytes;
}

struct TokenLoss {
  float ce = 0, lse = 0, inverse = 0;  // inverse = 1 / sum of e
};

float row_max(const float* x, int64_t v) {
  Word m[4] = {all(x[0]), all(x[0]), all(x[0]), all(x[0])};  // four chains
  int64_t i = 0;
  for (; i + 4 * lanes <= v; i += 4 * lanes)
    for (int k = 0; k < 4; ++k) m[k] = max(m[k], load(x + i + k * lanes));
  for (; i + lanes <= v; i += lanes) m[0] = max(m[0], load(x + i));
  if (i < v) m[0] = max(m[0], select(first(v - i), load_first(x + i, v - i), m[0]));
  return reduce_max(max(max(m[0], m[1]), max(m[2], m[3])));
}

// Logits x[v] to e = exp(x - max) in place.
TokenLoss softmax_loss(float* x, int64_t v, int32_t target) {
  const float m = row_max(x, v), logit = x[target];
  const float l = lane_sum_of(v, [=](int64_t i, auto io, const Lanes16& sum) {
    const Lanes16 e = map16([=](Word a) { return exp_f32(sub(a, all(m))); }, io.get(x + i));
    io.put(x + i, e);
    return add(sum, e);
  });
  const float lse = m + log_f32(l);
  return {lse - logit, lse, 1.0f / l};
}

// e to dlogit = ((p c) - onehot) / N, p = e / l, c = 1 + 2 z lse (no product where z = 0).
void to_gradient(float* x, int64_t v, int32_t target, const TokenLoss& t, float z, float inv_n) {
  const float factor = __builtin_fmaf(z + z, t.lse, 1.0f);
  float at_target = x[target] * t.inverse;
  if (z != 0.0f) at_target *= factor;
  words_of(0, v, [=](int64_t i, auto io) {
    Word p = mul(io.get(x + i), all(t.inverse));
    if (z != 0.0f) p = mul(p, all(factor));
    io.put(x + i, mul(p, all(inv_n)));
  });
  x[target] = (at_target - 1.0f) * inv_n;
}

// The tile's logits.
void logits_of(const Head& head, const float* h, const float* w, int64_t tokens, float* logits, const KernelCall& c,
               std::byte* space) {
  gemm({{h, head.e, 1}, {w, head.e, 1}, logits, head.stride, tokens, head.v, head.e, false}, c.pool, space);
}

void cross_entropy_f32(const KernelCall& c) {
  const Head head{c.in[0].type.rows(), c.in[1].dim(0), c.in[1].dim(1), least_tiles(c.attrs)};
  const float *h = c.in[0].as<float>(), *w = c.in[1].as<float>();
  const int32_t* targets = c.in[2].as<int32_t>();
  float *ce = c.out[0].as<float>(), *lse = c.out[1].as<float>(), *logits = reinterpret_cast<float*>(c.workspace);
  for (int64_t t0 = 0; t0 < head.rows; t0 += head.tile) {
    const int64_t tokens = smaller(head.tile, head.rows - t0);
    logits_of(head, h + t0 * head.e, w, tokens, logits, c, c.workspace + head.logits_bytes());
    for_ranges(c.pool, tokens, head.v, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        TokenLoss t;
        if (const int32_t target = targets[t0 + i]; target >= 0)
          t = softmax_loss(logits + i * head.stride, head.v, target);
        ce[t0 + i] = t.ce, lse[t0 + i] = t.lse;
      }
    });
  }
}
// round: dlogits to bf16, the type of the other operand of their two products.
template <bool round>
void cross_entropy_grad_f32(const KernelCall& c) {
  const Head head{c.in[1].type.rows(), c.in[2].dim(0), c.in[2].dim(1), least_tiles(c.attrs)};
  const int64_t v = head.v, e = head.e;
  const float *h = c.in[1].as<float>(), *w = c.in[2].as<float>();
  const int32_t* targets = c.in[3].as<int32_t>();
  const float inv_n = c.in[4].as<float>()[0], z = c.attrs.get_float("z_loss");
  float *dw = c.out[0].as<float>(), *dh = c.out[1].as<float>(), *ce = c.out[2].as<float>(), *lse = c.out[3].as<float>();
  float* logits = reinterpret_cast<float*>(c.workspace);
  std::byte* space = c.workspace + head.logits_bytes();
  for (int64_t t0 = 0; t0 < head.rows; t0 += head.tile) {
    const int64_t tokens = smaller(head.tile, head.rows - t0);
    logits_of(head, h + t0 * e, w, tokens, logits, c, space);
    for_ranges(c.pool, tokens, v, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* x = logits + i * head.stride;
        TokenLoss t;
        if (const int32_t target = targets[t0 + i]; target >= 0) {
          t = softmax_loss(x, v, target);
          to_gradient(x, v, target, t, z, inv_n);
          if (round) words_of(0, v, [=](int64_t j, auto io) { io.put(x + j, round_word(io.get(x + j))); });
        } else {
          words_of(0, v, [=](int64_t j, auto io) { io.put(x + j, zero()); });
        }
        ce[t0 + i] = t.ce, lse[t0 + i] = t.lse;
      }
    });
    gemm({{logits, head.stride, 1}, {w, 1, e}, dh + t0 * e, e, tokens, e, v, false}, c.pool, space);
    gemm({{logits, 1, head.stride}, {h + t0 * e, 1, e}, dw, e, v, e, tokens, true}, c.pool, space);
  }
}
}  // namespace

void cross_entropy(const KernelCall& c) { run_f32(c, 0, cross_entropy_f32); }
int64_t cross_entropy_workspace(const KernelShape& s) {
  const Head head{s.in[0].rows(), s.in[1].dim(0), s.in[1].dim(1), least_tiles(s.attrs)};
  return widened_bytes(s) + head.logits_bytes() + product_bytes(head, false, s.threads);
}

void cross_entropy_grad(const KernelCall& c) {
  run_f32(c, 1, c.in[1].type.dtype == DType::bf16 ? cross_entropy_grad_f32<true> : cross_entropy_grad_f32<false>);
}
int64_t cross_entropy_grad_workspace(const KernelShape& s) {
  const Head head{s.in[1].rows(), s.in[2].dim(0), s.in[2].dim(1), least_tiles(s.attrs)};
  return widened_bytes(s) + head.logits_bytes() + product_bytes(head, true, s.threads);
}

}  // namespace nibble::NIBBLE_TARGET
