// Goldens of the model FLOPs (spec/training.md 5.4), for the packaged models by name.
#include "plan/flops.h"

#include <gtest/gtest.h>

#include "io/config.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

LlamaConfig model(const std::string& name) {
  const std::vector<std::string> environment;
  ResolveOptions options{.command = "plan"};
  options.environment = &environment;
  return llama_of(resolve({"model_name=" + name, "dataset_type=synthetic"}, options).config);
}

struct Row {
  const char* name;
  int64_t batch;
  double weights, attention, total;  // TFLOP; 0: not published
};
const Row rows[] = {
    {"llama2-7b", 4, 1299.00, 211.11, 1510.11}, {"llama3-8b", 4, 0, 0, 1686.58}, {"llama3.1-405b", 1, 0, 0, 20676.25}};

TEST(TrainingT42, GoldensAt8192) {
  for (const Row& row : rows) {
    const StepFlops flops = maxtext_flops(model(row.name), row.batch, 8192, 1);
    EXPECT_NEAR(flops.total() / 1e12, row.total, 0.005) << row.name;
    if (row.weights == 0) continue;
    EXPECT_NEAR(flops.weights / 1e12, row.weights, 0.005) << row.name;
    EXPECT_NEAR(flops.attention / 1e12, row.attention, 0.005) << row.name;
  }
}

TEST(TrainingT42, AWindowCountsItsKeys) {
  LlamaConfig c{.layers = 1, .width = 8, .heads = 2, .kv_heads = 1, .head_size = 4, .hidden = 8, .vocab = 16};
  const auto attention = [&](int64_t window) {
    c.window = window;
    return maxtext_flops(c, 3, 64, 1).attention;
  };
  EXPECT_EQ(attention(16), 3 * 4.0 * 3 * (64 * 16 - 16 * 16 / 2.0) * 2 * 4);
  EXPECT_EQ(attention(64), attention(0));
  EXPECT_EQ(attention(1000), attention(0));
}

TEST(TrainingT42, AccumulationCountsEveryMicrobatch) {
  const LlamaConfig c = model("nibble-1m");
  EXPECT_EQ(maxtext_flops(c, 4, 128, 3).total(), 3 * maxtext_flops(c, 4, 128, 1).total());
  EXPECT_EQ(maxtext_flops(c, 4, 128, 2).weights, maxtext_flops(c, 8, 128, 1).weights);
}

}  // namespace
}  // namespace nibble
