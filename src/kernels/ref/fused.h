// The ops of ops/fused.cpp: the kernels of their parts, one after the other. What memory keeps between two parts is
// rounded as it is without fusion, so the form in bf16 has the parts' forms in bf16.
#pragma once
#include "kernels/ref/elementwise.h"
#include "kernels/ref/norm.h"
#include "kernels/ref/optimizer.h"

namespace nibble::ref {

template <class Parts>
void residual_rms_norm(const KernelCall& c) {
  Parts::add({c.in.first(2), c.out.first(1), c.attrs, c.workspace, c.pool});
  const Tensor in[] = {c.out[0], c.in[2]};
  Parts::norm({in, c.out.subspan(1), c.attrs, c.workspace, c.pool});
}

template <class Parts>
void residual_rms_norm_grad(const KernelCall& c) {
  Parts::norm_grad({c.in.first(5), c.out, c.attrs, c.workspace, c.pool, c.from_zero});
  const Tensor terms[] = {c.out[1], c.in[5]};
  Parts::add({terms, c.out.subspan(1), c.attrs, c.workspace, c.pool});
}

template <class Parts>
void rope_pair(const KernelCall& c) {
  for (size_t i = 0; i < 2; ++i) {
    const Tensor in[] = {c.in[i], c.in[2], c.in[3]};
    Parts::rope({in, c.out.subspan(i, 1), c.attrs, c.workspace, c.pool});
  }
}

inline void adamw_squares(const KernelCall& c) {
  adamw({c.in, c.out.first(3), c.attrs, c.workspace, c.pool});
  sum_squares({c.out.first(1), c.out.subspan(3), c.attrs, c.workspace, c.pool});
}

}  // namespace nibble::ref
