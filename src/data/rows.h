// Rows of a data set: how documents become sequences of T tokens with targets, segments, positions and weights.
// One interface, so that other packers join beside concat_then_split.  Source: spec/training.md 4.1 and 4.3.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"

namespace nibble {

/// Where one row goes: five arrays of T.
struct RowView {
  int32_t* inputs;
  int32_t* targets;
  int32_t* segments;   // 1, 2, ... by document, 0 = padding
  int32_t* positions;  // from 0 at each piece
  float* weights;      // 1 where the target counts, else 0
};

/// What a row holds. The source bytes of a document are shared out over its targets, so that the sum over all rows is
/// the bytes of all documents: bits per byte = nats / (ln 2 * bytes).
struct RowCount {
  int64_t targets = 0, target_bytes = 0;
};

/// What the start of a run says about its data.
struct DataReport {
  int64_t rows = 0, tokens = 0, targets = 0, documents = 0, longest_document = 0, source_bytes = 0;
  int64_t discarded_tokens = 0, files = 0;
  double padding_share = 0;  // of the input positions of one epoch
};

class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int64_t rows() const = 0;    // of one epoch
  virtual int64_t length() const = 0;  // T
  virtual int32_t pad_id() const = 0;
  virtual DataReport report() const = 0;
  /// Writes row `row` in [0, rows()); thread-safe, allocates nothing. Errors: E303.
  virtual RowCount read(int64_t row, const RowView& out) const = 0;
};

struct RowOptions {
  int64_t length = 0;                   // T
  int pad = -1;                         // the tokenizer's PAD; -1 or >= V: 0
  bool cross_document_targets = false;  // the last token of a document predicts the next document's first
  bool document_mask = true;            // false: one segment a row, positions 0 to T-1
};

/// concat_then_split: the stream cut every T tokens; row s has inputs stream[sT..sT+T) and the next token of each as
/// target. The last row is padded, never dropped; rows without a single target are not made.
/// Errors: E203 when there is no document or no target.
std::unique_ptr<RowSource> concat_then_split(std::shared_ptr<const TokenDataset> data, const RowOptions& options);

/// Random tokens, the same `rows` rows for ever: element c of row r is floor(word * V / 2^32), word number
/// r (T + 1) + c of Philox stream 0x101 with key (seed, 0).  Golden: seed 0, V 32000: 31508 13440 1852 30934.
std::unique_ptr<RowSource> synthetic_rows(int64_t rows, int64_t length, int64_t vocab, uint32_t seed);
/// One element of that table: the token at place `element` = r (T + 1) + c.
int32_t synthetic_token(int64_t element, int64_t vocab, uint32_t seed);

}  // namespace nibble
