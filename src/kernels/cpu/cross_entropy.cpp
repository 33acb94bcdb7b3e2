// cross_entropy and its gradient (kernels/ref/cross_entropy.h; spec/training.md 2.7, 2.11) by tiles of tokens: a tile's
// logits are a product, its softmax rows run in parallel, and in the gradient two products more take the tile's
// dlogits to dh and into the accumulator of dW. Only a tile's logits exist at a time. In bf16: cross_entropy_bf16.cpp.
#include "kernels/cpu/cross_entropy_rows.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// As many tokens as 16 MiB of logits hold, at most 512 and at least 256: each tile packs W anew, twice in the gradient,
// which takes 30 % of the time with 64 tokens, 5 with 256, 3 with 512. `tiles`: no fewer tiles than these. Equal on all
// targets, for the workspace is.
int64_t tile_tokens(int64_t rows, int64_t v, int64_t tiles) {
  const int64_t fit = (int64_t{4} << 20) / v / 64 * 64;
  return smaller(ceil_div(rows, tiles), larger(256, smaller(512, fit)));
}
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
          to_gradient(x, v, target, t, z, inv_n, x);
        } else {
          words_of(0, v, [=](int64_t j, auto io) { io.put(x + j, zero()); });
        }
        ce[t0 + i] = t.ce, lse[t0 + i] = t.lse;
      }
    });
    gemm({{logits, head.stride, 1}, {w, 1, e}, dh + t0 * e, e, tokens, e, v, false}, c.pool, space);
    gemm({{logits, 1, head.stride}, {h + t0 * e, 1, e}, dw, e, v, e, tokens, t0 > 0 || !c.from_zero}, c.pool, space);
  }
}
}  // namespace

void cross_entropy(const KernelCall& c) { is_bf16(c.in[0].type) ? cross_entropy_bf16(c) : cross_entropy_f32(c); }
int64_t cross_entropy_workspace(const KernelShape& s) {
  if (is_bf16(s.in[0])) return cross_entropy_bf16_workspace(s);
  const Head head{s.in[0].rows(), s.in[1].dim(0), s.in[1].dim(1), least_tiles(s.attrs)};
  return head.logits_bytes() + product_bytes(head, false, s.threads);
}

void cross_entropy_grad(const KernelCall& c) {
  is_bf16(c.in[1].type) ? cross_entropy_grad_bf16(c) : cross_entropy_grad_f32(c);
}
int64_t cross_entropy_grad_workspace(const KernelShape& s) {
  if (is_bf16(s.in[1])) return cross_entropy_grad_bf16_workspace(s);
  const Head head{s.in[1].rows(), s.in[2].dim(0), s.in[2].dim(1), least_tiles(s.attrs)};
  return head.logits_bytes() + product_bytes(head, true, s.threads);
}

}  // namespace nibble::NIBBLE_TARGET
