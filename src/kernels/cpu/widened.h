// kernels/widened.h with this target's conversions, shared by the threads.
#pragma once
#include "kernels/cpu/parallel.h"
#include "kernels/widened.h"

namespace nibble::NIBBLE_TARGET {

namespace {  // one copy a source: nothing here may be shared with another target

struct Convert {
  static void widen(const BFloat16* from, float* to, int64_t n, ThreadPool& pool) {
    for_words(pool, n, [=](int64_t i, auto io) { io.put(to + i, io.get(from + i)); });
  }
  static void round(const float* from, BFloat16* to, int64_t n, ThreadPool& pool) {
    for_words(pool, n, [=](int64_t i, auto io) { io.put(to + i, io.get(from + i)); });
  }
};

/// Runs `f32`, through widened copies where operand `i` of the call is bf16.
void run_f32(const KernelCall& c, size_t i, KernelRun f32) {
  if (c.in[i].type.dtype == DType::bf16)
    run_widened<Convert>(c, f32);
  else
    f32(c);
}
int64_t widened_bytes(const KernelShape& s) { return nibble::widened_bytes<Convert>(s); }

}  // namespace

}  // namespace nibble::NIBBLE_TARGET
