// embedding and its gradient; take_row and append of decoding, which copy rows too.
#pragma once
#include <algorithm>

#include "kernels/ref/scalar.h"

namespace nibble::ref {

template <class S>
void embedding(const KernelCall& c) {
  const int32_t* tokens = c.in[0].as<int32_t>();
  const int64_t e = c.in[1].dim(1);
  for (int64_t i = 0; i < c.in[0].numel(); ++i)
    std::copy_n(c.in[1].as<S>() + tokens[i] * e, e, c.out[0].as<S>() + i * e);
}

// For each block of 64 token rows, ascending: the rows with one id are summed from +0 in ascending order, the sum is
// added to the id's accumulator (spec/training.md 2.11, column sums).
template <class S>
void embedding_grad(const KernelCall& c) {
  const int32_t* tokens = c.in[1].as<int32_t>();
  const S* dx = c.in[2].as<S>();
  S* table = accumulator<S>(c);
  const int64_t rows = c.in[1].numel(), e = c.in[0].dim(1);
  for (int64_t block = 0; block < rows; block += 64) {
    const int64_t end = std::min(rows, block + 64);
    for (int64_t i = block; i < end; ++i) {
      if (std::find(tokens + block, tokens + i, tokens[i]) != tokens + i) continue;  // summed with its first row
      for (int64_t j = 0; j < e; ++j) {
        S p = 0;
        for (int64_t r = i; r < end; ++r)
          if (tokens[r] == tokens[i]) p += dx[r * e + j];
        table[tokens[i] * e + j] += p;
      }
    }
  }
}

template <class S>
void append(const KernelCall& c) {  // span = {start, count}
  const int32_t* span = c.in[2].as<int32_t>();
  const int64_t row = c.in[1].dim(1) * c.in[1].dim(2);
  std::copy_n(c.in[1].as<S>(), span[1] * row, c.out[0].as<S>() + span[0] * row);
}

template <class S>
void take_row(const KernelCall& c) {
  std::copy_n(c.in[0].as<S>() + c.in[1].as<int32_t>()[0] * c.in[0].dim(1), c.in[0].dim(1), c.out[0].as<S>());
}

}  // namespace nibble::ref
