// linear, linear_dgrad, linear_wgrad of bf16 operands: the packed product of gemm_bf16.h in its three forms.
#include <new>

#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace nibble::NIBBLE_TARGET {

void linear_bf16(const KernelCall& c) {  // y[m, n] = sum_k x[m, k] w[n, k]
  const int64_t n = c.in[1].dim(0), k = c.in[1].dim(1), m = c.in[0].type.rows();
  const Bf16Term term{{c.in[0].as<BFloat16>(), k, 1}, {c.in[1].as<BFloat16>(), k, 1}, k};
  gemm_bf16({{&term, 1}, m, n, nullptr, c.out[0].as<BFloat16>(), n, false}, c.pool, c.workspace);
}
int64_t linear_bf16_workspace(const KernelShape& s) {
  return gemm_bf16_workspace_bytes(s.in[0].rows(), s.in[1].dim(0), s.in[1].dim(1), 1, true, s.threads);
}

// The terms of the product lie at the start of the workspace.
static int64_t term_bytes(size_t terms) { return (static_cast<int64_t>(terms * sizeof(Bf16Term)) + 63) / 64 * 64; }

void linear_dgrad_bf16(const KernelCall& c) {  // dx[m, k] = sum over terms, then n, of dy[m, n] w[n, k], rounded once
  const int64_t k = c.out[0].dim(-1), m = c.out[0].type.rows();
  const size_t count = c.in.size() / 2;
  auto* terms = reinterpret_cast<Bf16Term*>(c.workspace);
  for (size_t t = 0; t < count; ++t) {
    const int64_t n = c.in[2 * t].dim(-1);
    new (terms + t) Bf16Term{{c.in[2 * t].as<BFloat16>(), n, 1}, {c.in[2 * t + 1].as<BFloat16>(), 1, k}, n};
  }
  gemm_bf16({{terms, count}, m, k, nullptr, c.out[0].as<BFloat16>(), k, false}, c.pool,
            c.workspace + term_bytes(count));
}
int64_t linear_dgrad_bf16_workspace(const KernelShape& s) {
  const size_t count = s.in.size() / 2;
  int64_t n = 0;
  for (size_t t = 0; t < count; ++t) n += (s.in[2 * t].dim(-1) + 1) / 2 * 2;
  return term_bytes(count) +
         gemm_bf16_workspace_bytes(s.out[0].rows(), s.out[0].dim(-1), n, static_cast<int64_t>(count), true, s.threads);
}

void linear_wgrad_bf16(const KernelCall& c) {  // dw[n, k] += sum_m dy[m, n] x[m, k], in f32
  const int64_t n = c.in[0].dim(0), k = c.in[0].dim(1), m = c.in[1].type.rows();
  const Bf16Term term{{c.in[1].as<BFloat16>(), 1, n}, {c.in[2].as<BFloat16>(), 1, k}, m};
  gemm_bf16({{&term, 1}, n, k, c.out[0].as<float>(), nullptr, k, !c.from_zero}, c.pool, c.workspace);
}
int64_t linear_wgrad_bf16_workspace(const KernelShape& s) {
  return gemm_bf16_workspace_bytes(s.in[0].dim(0), s.in[0].dim(1), s.in[1].rows(), 1, false, s.threads);
}

}  // namespace nibble::NIBBLE_TARGET
