// Batches by position: the whole place in the data is one integer, rows consumed, so a batch is the same after a
// resume, at any number of ranks and any accumulation.  Source: spec/training.md 4.4 and 4.5.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/rows.h"

namespace nibble {

/// The buffers of `rows` rows of T tokens, allocated once; every array is [rows, T] row-major.
struct Batch {
  Batch(int64_t rows, int64_t length);
  int64_t rows, length;
  std::vector<int32_t> inputs, targets, segments, positions;
  std::vector<float> weights;
  std::vector<uint64_t> row_hashes;  // [rows]
  int64_t first_row = 0;             // rows consumed before this batch
  int64_t target_count = 0;          // N: sum of the weights
  int64_t target_bytes = 0;          // source bytes the targets stand for (RowCount)
  uint64_t hash = 0;                 // batch_hash(row_hashes)
};

/// XXH3-64 over the rows' hashes in row order; a row's is XXH3-64 of (i32 inputs, i32 targets, i32 segments). A step of
/// several micro-batches hashes the row hashes of all of them.
uint64_t batch_hash(std::span<const uint64_t> row_hashes);

struct BatchOrder {
  bool shuffle = true;  // false: rows in order, every epoch
  uint32_t shuffle_seed = 0;
  int64_t epochs = 1;  // num_epoch: passes over the data, 0 = no limit
};

class BatchSource {
 public:
  BatchSource(std::shared_ptr<const RowSource> rows, const BatchOrder& order);
  /// Fills every row of the batch from position g (rows consumed so far) on. Rows beyond the last epoch are padding
  /// with weight 0: the last batch of an evaluation. Allocates nothing. Errors: E303.
  void fill(Batch& batch, int64_t g);
  /// Row of the data set at position g, which lies within the epochs.
  int64_t row_at(int64_t g) const;
  /// Rows of one epoch; rows until the data ends (INT64_MAX without limit).
  int64_t rows() const { return rows_->rows(); }
  int64_t total_rows() const;
  DataReport report() const { return rows_->report(); }
  const RowSource& source() const { return *rows_; }
  /// Errors: E304 when `steps` steps of `rows_per_step` rows need more than the epochs give; called before training.
  void check_enough(int64_t steps, int64_t rows_per_step) const;

 private:
  std::shared_ptr<const RowSource> rows_;
  BatchOrder order_;
  std::vector<int32_t> scratch_;  // [3 T] the bytes a row is hashed by
};

}  // namespace nibble
