// T35 and T40 of spec/training.md 9: batches by position, and evaluation in batches of any size.
#include "data/loader.h"

#include <gtest/gtest.h>

#include "core/hash.h"
#include "corpus.h"

namespace nibble {
namespace {

std::shared_ptr<const RowSource> some_rows(const TemporaryFolder& folder, int64_t documents, int64_t T) {
  std::vector<std::vector<int32_t>> lists;
  for (int32_t d = 0; d < documents; ++d) {
    lists.emplace_back();
    for (int32_t i = 0; i <= d % 11; ++i) lists.back().push_back(d * 31 + i);
  }
  const std::string path = write_shard(folder / "a.nbt", lists);
  return concat_then_split(std::make_shared<TokenDataset>(std::vector<std::string>{path}, 65536),
                           {.length = T, .pad = 9});
}

TEST(TrainingT35, HashesDoNotDependOnAccumulationOrWhereARunBegan) {
  TemporaryFolder folder;
  const auto rows = some_rows(folder, 97, 8);
  const int64_t global = 8, steps = 50;
  BatchSource source(rows, {.shuffle_seed = 5, .epochs = 0});
  ASSERT_LT(rows->rows(), steps * global) << "several epochs are meant";
  std::vector<uint64_t> whole;
  Batch batch(global, 8);
  for (int64_t step = 0; step < steps; ++step) {
    source.fill(batch, step * global);
    EXPECT_EQ(batch.first_row, step * global);
    whole.push_back(batch.hash);
  }
  for (const int64_t parts : {2, 4, 8}) {  // micro-batches of a step, or ranks
    Batch part(global / parts, 8);
    for (int64_t step = steps - 1; step >= 0; --step) {  // backwards: every step is a resume
      BatchSource resumed(rows, {.shuffle_seed = 5, .epochs = 0});
      std::vector<uint64_t> hashes;
      for (int64_t k = 0; k < parts; ++k) {
        resumed.fill(part, step * global + k * part.rows);
        hashes.insert(hashes.end(), part.row_hashes.begin(), part.row_hashes.end());
      }
      EXPECT_EQ(batch_hash(hashes), whole[static_cast<size_t>(step)]) << parts << " parts, step " << step;
    }
  }
}

TEST(TrainingT35, TheHashIsThatOfTheFormula) {
  TemporaryFolder folder;
  BatchSource source(some_rows(folder, 20, 4), {.shuffle = false});
  Batch batch(2, 4);
  source.fill(batch, 0);
  std::vector<uint64_t> hashes;
  for (size_t r = 0; r < 2; ++r) {
    std::vector<int32_t> row;
    for (const auto* array : {&batch.inputs, &batch.targets, &batch.segments})
      row.insert(row.end(), array->begin() + static_cast<int64_t>(r) * 4,
                 array->begin() + static_cast<int64_t>(r) * 4 + 4);
    hashes.push_back(xxh3(row.data(), row.size() * 4));
  }
  EXPECT_EQ(batch.row_hashes, hashes);
  EXPECT_EQ(batch.hash, xxh3(hashes.data(), 16));
}

TEST(TrainingT35, AnEpochUsesEveryRowOnce) {
  TemporaryFolder folder;
  const auto rows = some_rows(folder, 97, 8);
  BatchSource source(rows, {.shuffle_seed = 1, .epochs = 2});
  std::vector<int> first(static_cast<size_t>(rows->rows())), second(first.size());
  for (int64_t g = 0; g < rows->rows(); ++g) {
    ++first[static_cast<size_t>(source.row_at(g))];
    ++second[static_cast<size_t>(source.row_at(g + rows->rows()))];
  }
  EXPECT_EQ(first, std::vector<int>(first.size(), 1));
  EXPECT_EQ(second, first);
  EXPECT_EQ(source.total_rows(), 2 * rows->rows());
}

TEST(TrainingT40, EvaluationIsEqualForBatchSizes) {
  TemporaryFolder folder;
  const auto rows = some_rows(folder, 61, 8);
  BatchSource source(rows, {.shuffle = false, .epochs = 1});
  const auto evaluate = [&](int64_t size) {  // a loss that depends on every counted token and its place
    Batch batch(size, 8);
    int64_t sum = 0, count = 0, bytes = 0;
    for (int64_t g = 0; g < source.rows(); g += size) {
      source.fill(batch, g);
      for (size_t i = 0; i < batch.inputs.size(); ++i) {
        if (batch.weights[i] == 0) continue;
        sum += (batch.inputs[i] * 7 + batch.targets[i] * 3 + batch.positions[i]) % 1009;
      }
      count += batch.target_count, bytes += batch.target_bytes;
    }
    return std::array<int64_t, 3>{sum, count, bytes};
  };
  const auto expected = evaluate(1);
  EXPECT_EQ(expected[1], rows->report().targets);
  for (int64_t size = 2; size <= 7; ++size) EXPECT_EQ(evaluate(size), expected) << "batch size " << size;
}

TEST(TrainingT40, TheLastBatchIsFilledWithRowsOfNoWeight) {
  TemporaryFolder folder;
  const auto rows = some_rows(folder, 20, 8);
  BatchSource source(rows, {.shuffle = false, .epochs = 1});
  Batch batch(3, 8);
  source.fill(batch, source.rows() - 1);
  for (size_t i = 8; i < 24; ++i) {
    EXPECT_EQ(batch.inputs[i], 9);
    EXPECT_EQ(batch.segments[i], 0);
    EXPECT_EQ(batch.weights[i], 0.0f);
  }
}

TEST(TrainingT57, E304DataEndsBeforeSteps) {
  TemporaryFolder folder;
  const auto rows = some_rows(folder, 97, 8);
  const int64_t n = rows->rows();
  const BatchSource source(rows, {.epochs = 1});
  source.check_enough(n / 4, 4);
  expect_error([&] { source.check_enough(n, 4); }, "E304", 78,
               {fmt::format("{} rows", n), "4 epochs needed", fmt::format("ends at step {}", n / 4), "num_epoch=4"});
  BatchSource(rows, {.epochs = 4}).check_enough(n, 4);  // the hint helps
  BatchSource(rows, {.epochs = 0}).check_enough(1000000, 4);
}

}  // namespace
}  // namespace nibble
