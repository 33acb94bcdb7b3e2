// quantize_rows: the quantiser of quantize.cpp on one row after the other, the rows shared by the threads.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/row_scaled.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// A row of less is quantised by the thread that calls (parallel.h): then rows can be shared out.
bool alone(int64_t width) { return width < small_work; }

}  // namespace

int64_t quantize_rows_workspace(const KernelShape& s) { return s.threads * row_bytes(s.out[0]); }

void quantize_rows(const KernelCall& c) {
  const int64_t rows = c.in[0].type.rows(), width = c.in[0].dim(-1), bytes = row_bytes(c.out[0].type);
  const auto one = [&](int64_t i, int thread) {
    quantize_one_row(c, i, NIBBLE_TARGET::quantize, c.workspace + thread * bytes, nullptr);
  };
  if (alone(width)) {
    const int64_t step = larger(1, small_work / width), tasks = ceil_div(rows, step);
    c.pool.run(tasks, [&](int64_t task, int thread) {
      for (int64_t i = task * step; i < smaller(rows, (task + 1) * step); ++i) one(i, thread);
    });
  } else {
    for (int64_t i = 0; i < rows; ++i) one(i, 0);
  }
  finish_rows(c);
}

}  // namespace nibble::NIBBLE_TARGET
