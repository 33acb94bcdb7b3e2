// bf16 forms of f32 kernels: bf16 operands are widened exactly into the workspace, the f32 kernel runs, and its bf16
// results are rounded once. That is the definition of every op in bf16 (docs/numerics.md), and on the CPU the form of
// those kernels whose arithmetic outweighs the copies.
//
// `Convert` is a type of the including file's own namespace, so that its instantiations are too:
//   static void widen(const BFloat16* from, float* to, int64_t n, ThreadPool&), round(const float*, BFloat16*, ...)
#pragma once
#include "core/error.h"
#include "core/kernel.h"
#include "numerics/bf16.h"

namespace nibble {

/// Bytes of the widened operands of a call; the f32 kernel's own workspace comes after them.
template <class Convert>
static int64_t widened_bytes(const KernelShape& s) {
  int64_t bytes = 0;
  for (const auto types : {s.in, s.out})
    for (const Type& t : types)
      if (t.dtype == DType::bf16) bytes += (t.numel() * 4 + 63) / 64 * 64;
  return bytes;
}

template <class Convert>
static void run_widened(const KernelCall& c, KernelRun run) {
  constexpr size_t most = 32;
  Tensor in[most], out[most];
  NIBBLE_CHECK(c.in.size() <= most && c.out.size() <= most, "{} operands", c.in.size());
  std::byte* free = c.workspace;
  const auto place = [&free](const Tensor& t) {
    const Tensor wide{t.type.as(DType::f32), free};
    free += (t.numel() * 4 + 63) / 64 * 64;
    return wide;
  };
  for (size_t i = 0; i < c.in.size(); ++i) {
    in[i] = c.in[i];
    if (in[i].type.dtype != DType::bf16) continue;
    in[i] = place(c.in[i]);
    Convert::widen(c.in[i].as<BFloat16>(), in[i].as<float>(), in[i].numel(), c.pool);
  }
  for (size_t i = 0; i < c.out.size(); ++i) {
    out[i] = c.out[i];
    if (out[i].type.dtype != DType::bf16) continue;
    out[i] = place(c.out[i]);
    for (size_t k = 0; k < c.in.size(); ++k)
      if (c.in[k].data == c.out[i].data) out[i] = in[k];  // in place
  }
  run({{in, c.in.size()}, {out, c.out.size()}, c.attrs, free, c.pool, c.from_zero});
  for (size_t i = 0; i < c.out.size(); ++i)
    if (c.out[i].type.dtype == DType::bf16)
      Convert::round(out[i].as<float>(), c.out[i].as<BFloat16>(), out[i].numel(), c.pool);
}

}  // namespace nibble
