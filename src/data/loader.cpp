#include "data/loader.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/hash.h"
#include "data/permutation.h"

namespace nibble {

Batch::Batch(int64_t row_count, int64_t row_length)
    : rows(row_count),
      length(row_length),
      inputs(static_cast<size_t>(rows * length)),
      targets(inputs.size()),
      segments(inputs.size()),
      positions(inputs.size()),
      weights(inputs.size()),
      row_hashes(static_cast<size_t>(rows)) {}

uint64_t batch_hash(std::span<const uint64_t> row_hashes) {
  return xxh3(row_hashes.data(), row_hashes.size() * sizeof(uint64_t));
}

BatchSource::BatchSource(std::shared_ptr<const RowSource> rows, const BatchOrder& order)
    : rows_(std::move(rows)), order_(order), scratch_(static_cast<size_t>(3 * rows_->length())) {}

int64_t BatchSource::total_rows() const {
  return order_.epochs == 0 ? std::numeric_limits<int64_t>::max() : order_.epochs * rows_->rows();
}

int64_t BatchSource::row_at(int64_t g) const {
  const int64_t n = rows_->rows(), epoch = g / n, index = g % n;
  return order_.shuffle ? permuted_row(index, n, order_.shuffle_seed, static_cast<uint32_t>(epoch)) : index;
}

void BatchSource::fill(Batch& batch, int64_t g) {
  const int64_t T = rows_->length(), end = total_rows();
  NIBBLE_CHECK(batch.length == T, "batch of length {} for rows of {}", batch.length, T);
  batch.first_row = g, batch.target_count = 0, batch.target_bytes = 0;
  for (int64_t b = 0; b < batch.rows; ++b) {
    const size_t at = static_cast<size_t>(b * T), width = static_cast<size_t>(T);
    const RowView out{&batch.inputs[at], &batch.targets[at], &batch.segments[at], &batch.positions[at],
                      &batch.weights[at]};
    if (g + b < end) {
      const RowCount count = rows_->read(row_at(g + b), out);
      batch.target_count += count.targets, batch.target_bytes += count.target_bytes;
    } else {
      std::fill_n(out.inputs, width, rows_->pad_id());
      std::fill_n(out.targets, width, rows_->pad_id());
      std::fill_n(out.segments, width, 0);
      std::fill_n(out.positions, width, 0);
      std::fill_n(out.weights, width, 0.0f);
    }
    std::copy_n(out.inputs, width, scratch_.data());
    std::copy_n(out.targets, width, scratch_.data() + width);
    std::copy_n(out.segments, width, scratch_.data() + 2 * width);
    batch.row_hashes[static_cast<size_t>(b)] = xxh3(scratch_.data(), scratch_.size() * sizeof(int32_t));
  }
  batch.hash = batch_hash(batch.row_hashes);
}

void BatchSource::check_enough(int64_t steps, int64_t rows_per_step) const {
  const int64_t end = total_rows();
  if (steps <= end / rows_per_step) return;
  const int64_t n = rows_->rows(), needed_epochs = (steps * rows_per_step + n - 1) / n;
  throw Error("E304", "the data ends before steps={}: {} rows an epoch, {} epochs needed, num_epoch={} ends at step {}",
              steps, n, needed_epochs, order_.epochs, end / rows_per_step)
      .where("num_epoch={}, {} rows a step", order_.epochs, rows_per_step)
      .expected(fmt::format("{} rows", steps * rows_per_step), fmt::format("{} rows", end))
      .hint("num_epoch={}, or num_epoch=0 for no limit, or steps={}", needed_epochs, end / rows_per_step);
}

}  // namespace nibble
