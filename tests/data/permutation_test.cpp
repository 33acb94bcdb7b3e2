// T32 of spec/training.md 9: the order of rows.
#include "data/permutation.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble {
namespace {

std::vector<int64_t> order(int64_t n, uint32_t seed, uint32_t epoch) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(permuted_row(i, n, seed, epoch));
  return rows;
}

TEST(TrainingT32, Goldens) {
  EXPECT_EQ(order(10, 0, 0), (std::vector<int64_t>{6, 8, 9, 2, 0, 1, 4, 3, 7, 5}));
  EXPECT_EQ(order(10, 0, 1), (std::vector<int64_t>{7, 5, 6, 3, 8, 9, 2, 0, 1, 4}));
  EXPECT_EQ(order(7, 123, 0), (std::vector<int64_t>{6, 2, 5, 0, 3, 4, 1}));
  EXPECT_EQ(order(1, 5, 9), (std::vector<int64_t>{0}));
}

TEST(TrainingT32, BijectiveForEveryCount) {
  std::vector<int64_t> seen(4097, 0);  // n of the last permutation that reached a row
  for (int64_t n = 1; n <= 4096; ++n) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = permuted_row(i, n, 42, 3);
      ASSERT_TRUE(row >= 0 && row < n) << n << ", " << i;
      ASSERT_NE(seen[static_cast<size_t>(row)], n) << "row " << row << " twice, n " << n;
      seen[static_cast<size_t>(row)] = n;
    }
  }
}

TEST(TrainingT32, ACountBeyondMemoryNeedsNone) {  // 2^50 rows: a table would not fit any machine
  const int64_t n = (int64_t{1} << 50) + 12345;
  EXPECT_NE(permuted_row(0, n, 1, 0), permuted_row(1, n, 1, 0));
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t row = permuted_row(n - 1 - i, n, 1, 0);
    EXPECT_TRUE(row >= 0 && row < n);
  }
}

}  // namespace
}  // namespace nibble
