// Gradients through operands that were rotated and cut off before they were multiplied (mxfp4_quartet):
//   quest_mask      words of 32 bits, one a block: bit i is set where value i was beyond 6 times the block's scale
//   quest_back      g [.., F] -> [.., K]: 0 where the mask is set, then the rotation turned back, block by block
//   quest_back_add  the same, added to an accumulator [N, K]
// F is K with its last block filled. One bit a value is what has to wait for the backward pass, not the value.
// Source: spec/precision.md 3.4; Quartet, arXiv 2505.14669, algorithm 1.
#include "core/quant_spec.h"
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace accumulates[] = {{0, 0}};
constexpr int64_t block = 32;

int64_t blocks_of(int64_t n) { return (n + block - 1) / block; }

void require_rotation(const OpCall& c) {
  const int64_t hadamard = c.attrs.get_int("hadamard");
  c.require(hadamard == 0 || hadamard == block, "hadamard must be 0 or {}, got {}", block, hadamard);
}

Types mask_shape(const OpCall& c) {
  c.require(c.in[0].dtype == DType::f32 || c.in[0].dtype == DType::bf16, "x must be f32 or bf16, got {}",
            to_string(c.in[0]));
  require_rotation(c);
  return {c.in[0].with_last(blocks_of(c.in[0].dim(-1))).as(DType::i32)};
}
Cost mask_cost(const OpCall& c) { return {8 * c.in[0].numel(), c.io_bytes()}; }

// g and the mask of its blocks.
void require_masked(const OpCall& c, const Type& g, const Type& mask, int64_t width) {
  require_rotation(c);
  c.require(g.dtype == DType::f32 && g.dim(-1) == blocks_of(width) * block,
            "g must be f32 [.., {}], whole blocks of {}, got {}", blocks_of(width) * block, width, to_string(g));
  c.require(mask == g.with_last(blocks_of(width)).as(DType::i32), "the mask must be {}, got {}",
            to_string(g.with_last(blocks_of(width)).as(DType::i32)), to_string(mask));
}
Types back_shape(const OpCall& c) {
  const int64_t width = c.attrs.get_int("width");
  require_masked(c, c.in[0], c.in[1], width);
  Type x = c.in[0].with_last(width);
  c.require(parse_dtype(c.attrs.get_string("dtype"), &x.dtype) && (x.dtype == DType::f32 || x.dtype == DType::bf16),
            "dtype must be f32 or bf16, got {}", c.attrs.get_string("dtype"));
  return {x};
}
Cost back_cost(const OpCall& c) { return {6 * c.in[0].numel(), c.io_bytes()}; }

Types back_add_shape(const OpCall& c) {
  const Type& acc = c.in[0];
  c.require(acc.dtype == DType::f32 && acc.rank() == 2, "the accumulator must be f32 [N, K], got {}", to_string(acc));
  require_masked(c, c.in[1], c.in[2], acc.dim(1));
  c.require(c.in[1].rank() == 2 && c.in[1].dim(0) == acc.dim(0), "g {} has not the rows of the accumulator {}",
            to_string(c.in[1]), to_string(acc));
  return {acc};
}
Cost back_add_cost(const OpCall& c) { return {7 * c.in[1].numel(), c.io_bytes()}; }

}  // namespace

constinit const Op quest_mask_op{.name = "quest_mask",
                                 .shape = mask_shape,
                                 .vjp = nullptr,
                                 .cost = mask_cost,
                                 .sharding = "...c -> ...m | c whole, m whole",
                                 .composed = nullptr};
constinit const Op quest_back_op{.name = "quest_back",
                                 .shape = back_shape,
                                 .vjp = nullptr,
                                 .cost = back_cost,
                                 .sharding = "...f, ...m -> ...k | f whole, m whole, k whole",
                                 .composed = nullptr};
constinit const Op quest_back_add_op{.name = "quest_back_add",
                                     .shape = back_add_shape,
                                     .vjp = nullptr,
                                     .cost = back_add_cost,
                                     .sharding = "+nk, nf, nm -> nk | f whole, m whole, k whole",
                                     .composed = nullptr,
                                     .in_place = accumulates};

}  // namespace nibble
