#include "data/rows.h"

#include <algorithm>

#include "core/error.h"
#include "core/philox.h"

namespace nibble {
namespace {

// Bytes of a document of `length` tokens and `bytes` bytes that its targets 1..j stand for: they sum to all of them.
int64_t bytes_up_to(int64_t j, int64_t length, int64_t bytes) {
  __extension__ using Wide = __int128;
  return static_cast<int64_t>(static_cast<Wide>(bytes) * j / (length - 1));
}

class ConcatThenSplit final : public RowSource {
 public:
  ConcatThenSplit(std::shared_ptr<const TokenDataset> data, const RowOptions& options)
      : data_(std::move(data)), options_(options), tokens_(data_->tokens()) {
    NIBBLE_CHECK(options_.length >= 1, "row length {}", options_.length);
    if (options_.pad < 0 || options_.pad >= data_->vocab()) options_.pad = 0;
    find_rows_without_target();
    const int64_t T = options_.length;
    rows_ = (tokens_ + T - 1) / T - static_cast<int64_t>(skipped_.size());
    if (rows_ <= 0)
      throw Error("E203", "the data is empty: {} files, {} documents, {} tokens, {} targets", data_->files(),
                  data_->documents(), tokens_, targets())
          .where("train_files or eval_files")
          .expected("at least one document of two tokens", fmt::format("{} documents", data_->documents()))
          .hint("train_files= with more text; with eval_fraction a small corpus may fall on one side");
  }
  int64_t rows() const override { return rows_; }
  int64_t length() const override { return options_.length; }
  int32_t pad_id() const override { return options_.pad; }

  DataReport report() const override {
    DataReport r;
    r.rows = rows_, r.tokens = tokens_, r.targets = targets(), r.documents = data_->documents();
    r.longest_document = data_->longest_document(), r.source_bytes = data_->source_bytes(), r.files = data_->files();
    const int64_t last = stream_row(rows_ - 1) * options_.length;
    const int64_t padding = std::max<int64_t>(0, last + options_.length - tokens_);
    r.padding_share = static_cast<double>(padding) / static_cast<double>(rows_ * options_.length);
    return r;
  }

  RowCount read(int64_t row, const RowView& out) const override {
    const int64_t T = options_.length, begin = stream_row(row) * T, filled = std::min(T, tokens_ - begin);
    const int64_t first_document = data_->document_at(begin);
    data_->read(begin, {out.inputs, static_cast<size_t>(filled)}, first_document);
    std::copy(out.inputs + 1, out.inputs + filled, out.targets);
    if (begin + filled < tokens_)
      data_->read(begin + filled, {out.targets + filled - 1, 1});
    else
      out.targets[filled - 1] = options_.pad;
    RowCount count;
    int32_t segment = 1;
    for (int64_t d = first_document, at = begin; at < begin + filled; ++d, ++segment) {
      const int64_t end = data_->document_end(d), piece_end = std::min(end, begin + filled);
      add_piece(d, at, piece_end, begin, segment, out, count);
      at = piece_end;
    }
    std::fill(out.inputs + filled, out.inputs + T, options_.pad);
    std::fill(out.targets + filled, out.targets + T, options_.pad);
    std::fill(out.segments + filled, out.segments + T, 0);
    std::fill(out.positions + filled, out.positions + T, 0);
    std::fill(out.weights + filled, out.weights + T, 0.0f);
    return count;
  }

 private:
  // The tokens [at, end) of document d, in the row that starts at `begin`.
  void add_piece(int64_t d, int64_t at, int64_t end, int64_t begin, int32_t segment, const RowView& out,
                 RowCount& count) const {
    const int64_t document_begin = data_->document_begin(d), document_end = data_->document_end(d);
    for (int64_t p = at; p < end; ++p) {
      const int64_t i = p - begin;
      out.segments[i] = options_.document_mask ? segment : 1;
      out.positions[i] = static_cast<int32_t>(options_.document_mask ? p - at : i);
      out.weights[i] = 1;
    }
    const bool last = end == document_end;  // its last token has its target in the next document, or none
    const bool across = last && options_.cross_document_targets && end < tokens_;
    if (last && !across) out.weights[end - 1 - begin] = 0;
    count.targets += end - at - (last && !across ? 1 : 0);
    const int64_t length = document_end - document_begin;
    if (length < 2) return;
    const int64_t bytes = data_->document_bytes(d);
    count.target_bytes += bytes_up_to(std::min(end, document_end - 1) - document_begin, length, bytes) -
                          bytes_up_to(at - document_begin, length, bytes);
  }

  int64_t targets() const {
    return options_.cross_document_targets ? std::max<int64_t>(0, tokens_ - 1) : tokens_ - data_->documents();
  }

  // Rows of the stream whose every token is the last of its document (or of the stream) have no target.
  void find_rows_without_target() {
    const int64_t T = options_.length;
    const auto skip = [&](int64_t begin, int64_t end) {  // tokens [begin, end) have no target
      for (int64_t s = (begin + T - 1) / T; s * T < end && std::min(s * T + T, tokens_) <= end; ++s)
        skipped_.push_back(s);
    };
    if (options_.cross_document_targets) {
      if (tokens_ > 0) skip(tokens_ - 1, tokens_);
      return;
    }
    int64_t run = 0;  // start of the run of tokens without target that ends here
    for (int64_t d = 0; d < data_->documents(); ++d) {
      const int64_t begin = data_->document_begin(d), end = data_->document_end(d);
      if (end - begin == 1) continue;
      skip(run, begin);
      run = end - 1;
    }
    skip(run, tokens_);
  }

  // The row of the stream behind row number `row`: the skipped ones in between are counted by binary search.
  int64_t stream_row(int64_t row) const {
    int64_t low = 0, high = static_cast<int64_t>(skipped_.size());
    while (low < high) {
      const int64_t k = (low + high) / 2;
      if (skipped_[static_cast<size_t>(k)] - k <= row)
        low = k + 1;
      else
        high = k;
    }
    return row + low;
  }

  std::shared_ptr<const TokenDataset> data_;
  RowOptions options_;
  int64_t tokens_, rows_ = 0;
  std::vector<int64_t> skipped_;  // ascending
};

class SyntheticRows final : public RowSource {
 public:
  SyntheticRows(int64_t rows, int64_t length, int64_t vocab, uint32_t seed)
      : rows_(rows), length_(length), vocab_(vocab), seed_(seed) {}
  int64_t rows() const override { return rows_; }
  int64_t length() const override { return length_; }
  int32_t pad_id() const override { return 0; }
  DataReport report() const override {
    DataReport r;
    r.rows = rows_, r.tokens = rows_ * (length_ + 1), r.targets = rows_ * length_;
    r.documents = rows_, r.longest_document = length_ + 1;
    return r;
  }
  RowCount read(int64_t row, const RowView& out) const override {
    const int64_t first = row * (length_ + 1);
    for (int64_t i = 0; i < length_; ++i) {
      out.inputs[i] = synthetic_token(first + i, vocab_, seed_);
      out.targets[i] = synthetic_token(first + i + 1, vocab_, seed_);
      out.segments[i] = 1, out.positions[i] = static_cast<int32_t>(i), out.weights[i] = 1;
    }
    return {length_, 0};  // random tokens stand for no text
  }

 private:
  int64_t rows_, length_, vocab_;
  uint32_t seed_;
};

}  // namespace

std::unique_ptr<RowSource> concat_then_split(std::shared_ptr<const TokenDataset> data, const RowOptions& options) {
  return std::make_unique<ConcatThenSplit>(std::move(data), options);
}

std::unique_ptr<RowSource> synthetic_rows(int64_t rows, int64_t length, int64_t vocab, uint32_t seed) {
  return std::make_unique<SyntheticRows>(rows, length, vocab, seed);
}

int32_t synthetic_token(int64_t element, int64_t vocab, uint32_t seed) {
  const uint64_t block = static_cast<uint64_t>(element) >> 2;
  const PhiloxWords words =
      philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, stream_synthetic}, seed, 0);
  return static_cast<int32_t>(words[static_cast<size_t>(element & 3)] * static_cast<uint64_t>(vocab) >> 32);
}

}  // namespace nibble
