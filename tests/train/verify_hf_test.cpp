// Obligation T30 of spec/training.md: tiny random Llamas agree with transformers in logits, loss, gradients and greedy
// text, on every CPU target and with one and two threads.
#include "train/verify_hf.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

const std::string golden = std::string(NIBBLE_GOLDEN_DIR) + "/hf/";

class TrainingT30 : public testing::TestWithParam<const char*> {};

TEST_P(TrainingT30, EqualsTransformers) {
  for (const CpuTarget target : cpu_targets()) {
    const std::vector<Comparison> list = compare_with_golden(golden + GetParam(), 2, target);
    EXPECT_GE(list.size(), 3u + 2 * 9 + 2);  // logits, loss, greedy text; a gradient of every parameter
    for (const Comparison& c : list) {
      EXPECT_LE(c.relative, c.limit) << c.name << " on " << name_of(target);
      EXPECT_EQ(c.differing, 0) << c.name << " on " << name_of(target);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TrainingT30, testing::Values("llama", "llama_tied", "llama3"),
                         [](const auto& i) { return i.param; });

TEST(TrainingT30Bits, TargetsAndThreadsAgreeToTheBit) {
  const std::vector<Comparison> want = compare_with_golden(golden + "llama", 1, CpuTarget::ref);
  for (const CpuTarget target : cpu_targets())
    for (const int threads : {1, 3}) {
      const std::vector<Comparison> got = compare_with_golden(golden + "llama", threads, target);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(got[i].relative, want[i].relative) << got[i].name << " on " << name_of(target);
    }
}

}  // namespace
}  // namespace nibble
