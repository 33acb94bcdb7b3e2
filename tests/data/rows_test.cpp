// T33 and T34 of spec/training.md 9: synthetic rows, and concat_then_split.
#include "data/rows.h"

#include <gtest/gtest.h>

#include <map>

#include "corpus.h"
#include "data/loader.h"

namespace nibble {
namespace {

TEST(TrainingT33, Goldens) {
  std::vector<int32_t> first;
  for (int64_t e = 0; e < 8; ++e) first.push_back(synthetic_token(e, 32000, 0));
  EXPECT_EQ(first, (std::vector<int32_t>{31508, 13440, 1852, 30934, 10890, 13011, 14175, 21404}));
}

TEST(TrainingT33, TheSameBatchAtEveryStep) {
  const int64_t rows = 3, T = 5;
  BatchSource source(synthetic_rows(rows, T, 32000, 0), {.shuffle = false, .epochs = 0});
  Batch first(rows, T), later(rows, T);
  source.fill(first, 0);
  source.fill(later, 7 * rows);
  EXPECT_EQ(first.inputs, later.inputs);
  EXPECT_EQ(first.hash, later.hash);
  EXPECT_EQ(first.target_count, rows * T);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < T; ++c) {
      const size_t i = static_cast<size_t>(r * T + c);
      EXPECT_EQ(first.inputs[i], synthetic_token(r * (T + 1) + c, 32000, 0));
      EXPECT_EQ(first.targets[i], synthetic_token(r * (T + 1) + c + 1, 32000, 0));
      EXPECT_EQ(first.segments[i], 1);
      EXPECT_EQ(first.positions[i], c);
      EXPECT_EQ(first.weights[i], 1.0f);
    }
}

using Documents = std::vector<std::vector<int32_t>>;

// Documents of the given lengths, every token of all of them with an id of its own.
Documents numbered(const std::vector<int64_t>& lengths, int32_t first = 1) {
  Documents documents;
  for (const int64_t length : lengths) {
    documents.emplace_back();
    for (int64_t i = 0; i < length; ++i) documents.back().push_back(first++);
  }
  return documents;
}

struct Rows {
  std::vector<int32_t> inputs, targets, segments, positions;
  std::vector<float> weights;
  std::vector<RowCount> counts;
};
Rows all_rows(const RowSource& source) {
  const size_t T = static_cast<size_t>(source.length()), n = static_cast<size_t>(source.rows()) * T;
  Rows r{std::vector<int32_t>(n), std::vector<int32_t>(n), std::vector<int32_t>(n),
         std::vector<int32_t>(n), std::vector<float>(n),   {}};
  for (size_t at = 0; at < n; at += T)
    r.counts.push_back(source.read(static_cast<int64_t>(at / T),
                                   {&r.inputs[at], &r.targets[at], &r.segments[at], &r.positions[at], &r.weights[at]}));
  return r;
}

std::unique_ptr<RowSource> rows_of(const TemporaryFolder& folder, const Documents& documents, RowOptions options) {
  const std::string path = write_shard(folder / "a.nbt", documents);
  return concat_then_split(std::make_shared<TokenDataset>(std::vector<std::string>{path}, 65536), options);
}

TEST(TrainingT34, RowsByHand) {  // stream 1 2 3 | 4 | 5 6 7 8 9, cut every 4
  TemporaryFolder folder;
  const Rows r = all_rows(*rows_of(folder, numbered({3, 1, 5}), {.length = 4, .pad = 258}));
  EXPECT_EQ(r.inputs, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));  // a row that began at 9 would have no target
  EXPECT_EQ(r.targets, (std::vector<int32_t>{2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(r.segments, (std::vector<int32_t>{1, 1, 1, 2, 1, 1, 1, 1}));
  EXPECT_EQ(r.positions, (std::vector<int32_t>{0, 1, 2, 0, 0, 1, 2, 3}));
  EXPECT_EQ(r.weights, (std::vector<float>{1, 1, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(r.counts[0].targets, 2);
  EXPECT_EQ(r.counts[1].targets, 4);
}

TEST(TrainingT34, ACutDocumentBeginsAgainAtPositionZero) {  // stream 1 2 | 3 4 5 6 7 8, cut every 3
  TemporaryFolder folder;
  const Rows r = all_rows(*rows_of(folder, numbered({2, 6}), {.length = 3, .pad = 300}));
  EXPECT_EQ(r.inputs, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 300}));
  EXPECT_EQ(r.targets, (std::vector<int32_t>{2, 3, 4, 5, 6, 7, 8, 300, 300}));
  EXPECT_EQ(r.segments, (std::vector<int32_t>{1, 1, 2, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(r.positions, (std::vector<int32_t>{0, 1, 0, 0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(r.weights, (std::vector<float>{1, 0, 1, 1, 1, 1, 1, 0, 0}));
}

TEST(TrainingT34, WithoutDocumentMaskARowIsOneSegment) {
  TemporaryFolder folder;
  const Rows r = all_rows(
      *rows_of(folder, numbered({3, 2}), {.length = 4, .cross_document_targets = true, .document_mask = false}));
  EXPECT_EQ(r.segments, (std::vector<int32_t>{1, 1, 1, 1}));
  EXPECT_EQ(r.positions, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(r.weights, (std::vector<float>{1, 1, 1, 1}));  // 3 -> 4 crosses the documents
  EXPECT_EQ(r.counts[0].targets, 4);
}

// The invariant for a set of documents: every token but the first of its document is a target once, with the token
// before it as input; segments and positions follow from the pieces; bytes of the targets sum to those of the text.
void check_invariant(const TemporaryFolder& folder, const std::vector<int64_t>& lengths, int64_t T) {
  const Documents documents = numbered(lengths);
  std::map<int32_t, int32_t> expected;  // target -> input
  int64_t bytes = 0;
  for (const auto& d : documents) {
    for (size_t i = 1; i < d.size(); ++i) expected[d[i]] = d[i - 1];
    if (d.size() > 1) bytes += static_cast<int64_t>(d.size());
  }
  const auto source = rows_of(folder, documents, {.length = T});
  const Rows r = all_rows(*source);
  int64_t targets = 0, target_bytes = 0;
  for (const RowCount& count : r.counts) {
    EXPECT_GT(count.targets, 0) << "a row without a target, T " << T;
    targets += count.targets, target_bytes += count.target_bytes;
  }
  std::map<int32_t, int32_t> found;
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    if (r.weights[i] == 1.0f) {
      EXPECT_TRUE(found.emplace(r.targets[i], r.inputs[i]).second) << "target " << r.targets[i] << " twice, T " << T;
      EXPECT_NE(r.segments[i], 0);
    }
    if (r.positions[i] > 0) {  // a position continues the piece of the one before it
      EXPECT_EQ(r.segments[i], r.segments[i - 1]);
      EXPECT_EQ(r.positions[i], r.positions[i - 1] + 1);
    }
  }
  EXPECT_EQ(found, expected) << "T " << T;
  EXPECT_EQ(targets, static_cast<int64_t>(expected.size()));
  EXPECT_EQ(target_bytes, bytes);
  EXPECT_EQ(source->report().targets, targets);
}

TEST(TrainingT34, EveryTokenButTheFirstIsATargetOnce) {
  TemporaryFolder folder;
  for (int64_t T = 1; T <= 64; ++T) {
    std::vector<int64_t> every, ones = {2};
    for (int64_t length = 0; length <= 3 * T; length += T < 8 ? 1 : T / 4) every.push_back(length);
    check_invariant(folder, every, T);
    ones.insert(ones.end(), static_cast<size_t>(3 * T), 1);  // rows in the middle and at the end without a target
    ones.push_back(T + 1);
    ones.insert(ones.end(), static_cast<size_t>(2 * T), 1);
    check_invariant(folder, ones, T);
  }
}

TEST(TrainingT34, CrossDocumentTargetsMakeEveryTokenButTheFirstATarget) {
  TemporaryFolder folder;
  for (const int64_t T : {1, 3, 4, 64}) {
    const auto source = rows_of(folder, numbered({1, 4, 1, 2, 5}), {.length = T, .cross_document_targets = true});
    int64_t targets = 0;
    for (const RowCount& count : all_rows(*source).counts) targets += count.targets;
    EXPECT_EQ(targets, 12);
    EXPECT_EQ(source->report().targets, 12);
  }
}

TEST(TrainingT34, ReportAtTheStart) {
  TemporaryFolder folder;
  const DataReport r = rows_of(folder, numbered({3, 7}), {.length = 4})->report();
  EXPECT_EQ(r.rows, 3);
  EXPECT_EQ(r.tokens, 10);
  EXPECT_EQ(r.documents, 2);
  EXPECT_EQ(r.longest_document, 7);
  EXPECT_EQ(r.targets, 8);
  EXPECT_EQ(r.discarded_tokens, 0);
  EXPECT_DOUBLE_EQ(r.padding_share, 2.0 / 12);
}

TEST(TrainingT57, E203DataWithoutATarget) {
  TemporaryFolder folder;
  expect_error([&] { rows_of(folder, {}, {.length = 4}); }, "E203", 66,
               {"1 files", "0 documents", "0 tokens", "0 targets"});
  expect_error(
      [&] {
        rows_of(folder, numbered({1, 1}), {.length = 4});
      },
      "E203", 66, {"2 documents", "2 tokens", "0 targets"});
}

}  // namespace
}  // namespace nibble
