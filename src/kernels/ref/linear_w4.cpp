// linear_w4, embedding_w4: one accumulator an output, fma, ascending k (spec/training.md 2.11, row "GEMM"), on the
// numbers that the codes stand for (spec/precision.md 2.4).
#include "kernels/ref/linear_w4.h"

#include <cmath>

#include "numerics/decoded.h"

namespace nibble::ref {

void linear_w4(const KernelCall& c) {
  const bool half = c.in[0].type.dtype == DType::bf16;
  for (size_t t = 0; t < c.out.size(); ++t) {
    const QuantizedView w(c.in[1 + t]);
    const int64_t m = c.in[0].type.rows(), n = w.layout.rows, k = w.layout.columns;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        float acc = 0;
        for (int64_t l = 0; l < k; ++l) {
          const float x = half ? widen(c.in[0].as<BFloat16>()[i * k + l]) : c.in[0].as<float>()[i * k + l];
          acc = std::fma(x, decoded_value(w, j, l), acc);
        }
        if (half)
          c.out[t].as<BFloat16>()[i * n + j] = round_bf16(acc);
        else
          c.out[t].as<float>()[i * n + j] = acc;
      }
  }
}

void embedding_w4(const KernelCall& c) {
  const QuantizedView table(c.in[1]);
  const int64_t width = table.layout.columns;
  for (int64_t i = 0; i < c.in[0].numel(); ++i)
    for (int64_t e = 0; e < width; ++e)
      c.out[0].as<float>()[i * width + e] = decoded_value(table, c.in[0].as<int32_t>()[i], e);
}

}  // namespace nibble::ref
