// cross_entropy and its gradient with h and W in bf16, by tiles of tokens as in cross_entropy.cpp. Logits, their
// softmax and the sums of dW are f32; dlogits are rounded to bf16, in place, before their two products; dh is rounded
// once.
#include "kernels/cpu/cross_entropy_rows.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/kernels.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// Each tile packs W anew and passes over dW, which costs more against the faster products than in f32: as many tokens
// as 48 MiB of logits hold, at most 1024 and at least 256. `tiles`: no fewer tiles than these. An even number, so that
// dW adds the same pairs of tokens whatever the tiles are.
int64_t tile_tokens(int64_t rows, int64_t v, int64_t tiles) {
  const int64_t fit = (int64_t{12} << 20) / v / 64 * 64,
                tile = smaller(ceil_div(rows, tiles), larger(256, smaller(1024, fit)));
  return ceil_div(tile, 2) * 2;
}

struct Head {
  int64_t rows, v, e, tiles;
  int64_t tile = tile_tokens(rows, v, tiles),
          stride = ceil_div(v, 16) * 16 + 16;  // rows 2^n bytes apart share cache sets
  // The workspace: logits of a tile, f32 dh of a tile, then that of the products.
  int64_t logits_bytes() const { return ceil_div(tile * stride, 16) * 64; }
  int64_t dh_bytes() const { return ceil_div(tile * e, 16) * 64; }
};

// Largest workspace of the products of a whole tile and of the last one.
int64_t product_bytes(const Head& h, bool gradient, int threads) {
  int64_t bytes = 0;
  const auto need = [&](int64_t m, int64_t n, int64_t k) {
    bytes = larger(bytes, gemm_bf16_workspace_bytes(m, n, k, 1, false, threads));
  };
  for (const int64_t m : {smaller(h.rows, h.tile), h.rows % h.tile}) {
    need(m, h.v, h.e);
    if (gradient) need(m, h.e, h.v), need(h.v, h.e, m);
  }
  return bytes;
}

void product(const KernelCall& c, const Bf16Operand& a, const Bf16Operand& b, int64_t m, int64_t n, int64_t k,
             float* sums, int64_t stride, bool accumulate, std::byte* space) {
  const Bf16Term term{a, b, k};
  gemm_bf16({{&term, 1}, m, n, sums, nullptr, stride, accumulate}, c.pool, space);
}

}  // namespace

void cross_entropy_bf16(const KernelCall& c) {
  const Head head{c.in[0].type.rows(), c.in[1].dim(0), c.in[1].dim(1), least_tiles(c.attrs)};
  const BFloat16 *h = c.in[0].as<BFloat16>(), *w = c.in[1].as<BFloat16>();
  const int32_t* targets = c.in[2].as<int32_t>();
  float *ce = c.out[0].as<float>(), *lse = c.out[1].as<float>(), *logits = reinterpret_cast<float*>(c.workspace);
  for (int64_t t0 = 0; t0 < head.rows; t0 += head.tile) {
    const int64_t tokens = smaller(head.tile, head.rows - t0);
    product(c, {h + t0 * head.e, head.e, 1}, {w, head.e, 1}, tokens, head.v, head.e, logits, head.stride, false,
            c.workspace + head.logits_bytes());
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
int64_t cross_entropy_bf16_workspace(const KernelShape& s) {
  const Head head{s.in[0].rows(), s.in[1].dim(0), s.in[1].dim(1), least_tiles(s.attrs)};
  return head.logits_bytes() + product_bytes(head, false, s.threads);
}

void cross_entropy_grad_bf16(const KernelCall& c) {
  const Head head{c.in[1].type.rows(), c.in[2].dim(0), c.in[2].dim(1), least_tiles(c.attrs)};
  const int64_t v = head.v, e = head.e, stride = 2 * head.stride;  // of bf16 dlogits in the place of f32 logits
  const BFloat16 *h = c.in[1].as<BFloat16>(), *w = c.in[2].as<BFloat16>();
  const int32_t* targets = c.in[3].as<int32_t>();
  const float inv_n = c.in[4].as<float>()[0], z = c.attrs.get_float("z_loss");
  float *dw = c.out[0].as<float>(), *ce = c.out[2].as<float>(), *lse = c.out[3].as<float>();
  float* logits = reinterpret_cast<float*>(c.workspace);
  const auto* gradients = reinterpret_cast<const BFloat16*>(c.workspace);
  float* sums = reinterpret_cast<float*>(c.workspace + head.logits_bytes());
  std::byte* space = c.workspace + head.logits_bytes() + head.dh_bytes();
  for (int64_t t0 = 0; t0 < head.rows; t0 += head.tile) {
    const int64_t tokens = smaller(head.tile, head.rows - t0);
    product(c, {h + t0 * e, e, 1}, {w, e, 1}, tokens, v, e, logits, head.stride, false, space);
    for_ranges(c.pool, tokens, v, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* x = logits + i * head.stride;
        auto* dx = reinterpret_cast<BFloat16*>(x);
        TokenLoss t;
        if (const int32_t target = targets[t0 + i]; target >= 0) {
          t = softmax_loss(x, v, target);
          to_gradient(x, v, target, t, z, inv_n, dx);
        } else {
          words_of(0, v, [=](int64_t j, auto io) { io.put(dx + j, zero()); });
        }
        ce[t0 + i] = t.ce, lse[t0 + i] = t.lse;
      }
    });
    product(c, {gradients, stride, 1}, {w, 1, e}, tokens, e, v, sums, e, false, space);
    BFloat16* dh = c.out[1].as<BFloat16>() + t0 * e;
    for_words(c.pool, tokens * e, [=](int64_t i, auto io) { io.put(dh + i, io.get(sums + i)); });
    product(c, {gradients, 1, stride}, {h + t0 * e, 1, e}, v, e, tokens, dw, e, t0 > 0 || !c.from_zero, space);
  }
}
int64_t cross_entropy_grad_bf16_workspace(const KernelShape& s) {
  const Head head{s.in[1].rows(), s.in[2].dim(0), s.in[2].dim(1), least_tiles(s.attrs)};
  return head.logits_bytes() + head.dh_bytes() + product_bytes(head, true, s.threads);
}

}  // namespace nibble::NIBBLE_TARGET
