// linear, linear_dgrad, linear_wgrad: the packed product of gemm.h in its three forms; bf16 operands: linear_bf16.cpp.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace nibble::NIBBLE_TARGET {
namespace {

void linear_f32(const KernelCall& c) {  // y[m, n] = sum_k x[m, k] w[n, k]
  const int64_t n = c.in[1].dim(0), k = c.in[1].dim(1), m = c.in[0].type.rows();
  gemm({{c.in[0].as<float>(), k, 1}, {c.in[1].as<float>(), k, 1}, c.out[0].as<float>(), n, m, n, k, false}, c.pool,
       c.workspace);
}

void linear_dgrad_f32(const KernelCall& c) {  // dx[m, k] = sum over terms, then n, of dy[m, n] w[n, k]
  const int64_t k = c.out[0].dim(-1), m = c.out[0].type.rows();
  for (size_t t = 0; t < c.in.size(); t += 2) {
    const int64_t n = c.in[t].dim(-1);
    gemm({{c.in[t].as<float>(), n, 1}, {c.in[t + 1].as<float>(), 1, k}, c.out[0].as<float>(), k, m, k, n, t != 0},
         c.pool, c.workspace);
  }
}

void linear_wgrad_f32(const KernelCall& c) {  // dw[n, k] += sum_m dy[m, n] x[m, k]
  const int64_t n = c.in[0].dim(0), k = c.in[0].dim(1), m = c.in[1].type.rows();
  gemm({{c.in[1].as<float>(), 1, n}, {c.in[2].as<float>(), 1, k}, c.out[0].as<float>(), k, n, k, m, !c.from_zero},
       c.pool, c.workspace);
}

}  // namespace

void linear(const KernelCall& c) { is_bf16(c.in[0].type) ? linear_bf16(c) : linear_f32(c); }
void linear_dgrad(const KernelCall& c) { is_bf16(c.in[0].type) ? linear_dgrad_bf16(c) : linear_dgrad_f32(c); }
void linear_wgrad(const KernelCall& c) { is_bf16(c.in[1].type) ? linear_wgrad_bf16(c) : linear_wgrad_f32(c); }

int64_t linear_workspace(const KernelShape& s) {
  if (is_bf16(s.in[0])) return linear_bf16_workspace(s);
  return gemm_workspace_bytes(s.in[0].rows(), s.in[1].dim(0), s.in[1].dim(1), s.threads);
}
int64_t linear_dgrad_workspace(const KernelShape& s) {
  if (is_bf16(s.in[0])) return linear_dgrad_bf16_workspace(s);
  int64_t bytes = 0;
  for (size_t t = 0; t < s.in.size(); t += 2)
    bytes = larger(bytes, gemm_workspace_bytes(s.out[0].rows(), s.out[0].dim(-1), s.in[t].dim(-1), s.threads));
  return bytes;
}
int64_t linear_wgrad_workspace(const KernelShape& s) {
  if (is_bf16(s.in[1])) return linear_wgrad_bf16_workspace(s);
  return gemm_workspace_bytes(s.in[0].dim(0), s.in[0].dim(1), s.in[1].rows(), s.threads);
}

}  // namespace nibble::NIBBLE_TARGET
