// gen_recipe: generation and evaluation with 4-bit weights, and with the forward pass of a recipe under the amax scope
// `row` (spec/generation.md 1.2, spec/precision.md 6).
#include <fmt/format.h>

#include <regex>

#include "program.h"

namespace nibble {
namespace {

/// Trained once, with te_nvfp4; the tests only read it.
const Workplace& trained() {
  static const Workplace place;
  static const Ended r = place(place.train({"steps=30", "run_name=run", "eval_fraction=0.1", "eval_holdout=tail",
                                            "checkpoint_period=30", "quantization=te_nvfp4"}));
  EXPECT_EQ(r.exit, 0) << r.err;
  return place;
}
const std::string run_folder = "nibble_output/run";
const std::string prompt = "prompt=line 12 is a line of some length, longer than a chunk of the prompt";

Ended generate(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"generate", run_folder, prompt, "temperature=0", "max_new_tokens=20", "n_ctx=100"};
  words.insert(words.end(), more.begin(), more.end());
  return trained()(words);
}
double loss(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"eval", run_folder, "json=true"};
  words.insert(words.end(), more.begin(), more.end());
  const Ended r = trained()(words);
  EXPECT_EQ(r.exit, 0) << r.err;
  return r.exit == 0 ? Json::parse(r.out)["loss"].get<double>() : 0;
}

// G5, G6: a prompt in one piece, in chunks or token by token; one thread or two; the same text.
TEST(GenerationG6, ARecipesTextDoesNotDependOnChunksAndThreads) {
  for (const char* recipe : {"te_nvfp4", "nvfp4", "quartet2", "mxfp4", "te_fp8_currentscaling", "fp8_block",
                             "weight_only", "weight_only_all"}) {
    const std::string key = fmt::format("gen_recipe={}", recipe);
    const Ended want = generate({key, "threads=1", "prefill_chunk=64", "cpu_target=avx2"});
    ASSERT_EQ(want.exit, 0) << recipe << want.err;
    for (const char* chunk : {"prefill_chunk=1", "prefill_chunk=7", "prefill_chunk=128"}) {
      const Ended got = generate({key, "threads=2", chunk, "cpu_target=avx2"});
      ASSERT_EQ(got.exit, 0) << got.err;
      EXPECT_EQ(got.out, want.out) << recipe << ", " << chunk;
    }
  }
}

TEST(GenerationG6, FourBitRecipesGiveTheSameTextOnEveryTarget) {
  for (const char* recipe : {"te_nvfp4", "mxfp4", "weight_only_all"}) {
    const std::string key = fmt::format("gen_recipe={}", recipe);
    const Ended want = generate({key});
    ASSERT_EQ(want.exit, 0) << recipe << want.err;
    EXPECT_EQ(generate({key, "cpu_target=ref"}).out, want.out) << recipe;
    EXPECT_EQ(generate({key, "cpu_target=avx2"}).out, want.out) << recipe;
  }
}

TEST(GenRecipe, SameIsAsTrainedAndFp32AreTheMasters) {
  const Ended same = generate({}), named = generate({"gen_recipe=te_nvfp4"}), masters = generate({"gen_recipe=fp32"});
  ASSERT_EQ(same.exit, 0) << same.err;
  EXPECT_EQ(same.out, named.out);
  EXPECT_NE(same.err.find("recipe te_nvfp4, amax of a row"), std::string::npos) << same.err;
  EXPECT_NE(masters.err.find("recipe float32,"), std::string::npos) << masters.err;
  const Ended weights = generate({"gen_recipe=weight_only"});
  EXPECT_NE(weights.err.find("weights nvfp4_2d, activations float32"), std::string::npos) << weights.err;
}

// An export is not rounded again: its codes are what is multiplied, with the numbers that they stand for.
TEST(GenRecipe, AnExportGeneratesWithItsOwnCodes) {
  const Ended exported = trained()({"ckpt", "export", "nibble_output/run", "small", "format=nvfp4", "overwrite=true"});
  ASSERT_EQ(exported.exit, 0) << exported.err;
  const auto from = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "small", "prompt=the", "max_new_tokens=24", "temperature=0"});
    return trained()(more);
  };
  const Ended codes = from({}), decoded = from({"gen_recipe=fp32"});
  ASSERT_EQ(codes.exit, 0) << codes.err;
  EXPECT_EQ(codes.out, decoded.out);
  EXPECT_NE(codes.err.find("recipe weights as packed, activations float32"), std::string::npos) << codes.err;
  EXPECT_NE(codes.err.find("of codes and"), std::string::npos) << codes.err;
  EXPECT_EQ(decoded.err.find("of codes and"), std::string::npos) << decoded.err;
}

// What generate says it holds: with all weights as codes a seventh of float32, for 4.5 bits stand for 32.
TEST(GenRecipe, WeightsAreHeldAsCodes) {
  const auto bytes = [](const std::string& recipe) {
    const std::string err = generate({"gen_recipe=" + recipe}).err;
    std::smatch m;
    EXPECT_TRUE(std::regex_search(err, m, std::regex("weights (.*?), recipe"))) << err;
    return m[1].str();
  };
  EXPECT_EQ(bytes("fp32").find("codes"), std::string::npos) << bytes("fp32");
  EXPECT_NE(bytes("weight_only").find("of codes and"), std::string::npos) << bytes("weight_only");
  EXPECT_NE(bytes("weight_only"), bytes("weight_only_all"));
}

// P52: evaluation in batches of one row and of many is the same number, bit for bit.
TEST(PrecisionP52, TheLossOfARecipeDoesNotDependOnTheBatch) {
  for (const char* recipe : {"te_nvfp4", "te_fp8_currentscaling", "fp8_block"}) {
    const std::string key = fmt::format("quantization={}", recipe);
    const double one = loss({key, "eval_per_device_batch_size=1", "cpu_target=avx2"});
    EXPECT_EQ(loss({key, "eval_per_device_batch_size=5", "cpu_target=avx2"}), one) << recipe;
    EXPECT_NE(one, loss({})) << recipe;
  }
}

TEST(GenRecipe, EvaluatesTheWeightsThatGenerateHas) {
  const double masters = loss({}), weights = loss({"gen_recipe=weight_only"}),
               all = loss({"gen_recipe=weight_only_all"});
  EXPECT_NE(weights, masters);
  EXPECT_NE(all, weights);
  EXPECT_NEAR(weights, masters, 0.1);
  EXPECT_NEAR(all, masters, 0.2);
  EXPECT_EQ(loss({"gen_recipe=te_nvfp4"}), loss({"quantization=te_nvfp4"}));
  EXPECT_EQ(loss({"gen_recipe=same"}), loss({"quantization=te_nvfp4"}));
}

TEST(GenRecipe, WhatItCannotDoIsRefused) {
  const Ended typo = generate({"gen_recipe=weight_onl"});
  EXPECT_EQ(typo.exit, 64);
  EXPECT_NE(typo.err.find("E502"), std::string::npos) << typo.err;
  EXPECT_NE(typo.err.find("weight_only_all"), std::string::npos) << typo.err;
  for (const char* key : {"quantization=auto", "gen_recipe=auto"}) {
    const Ended chosen = generate({key});
    EXPECT_EQ(chosen.exit, 78) << chosen.err;
    EXPECT_NE(chosen.err.find("E102"), std::string::npos) << chosen.err;
  }
  const Ended delayed = generate({"gen_recipe=fp8_delayed"});
  EXPECT_EQ(delayed.exit, 78);
  EXPECT_NE(delayed.err.find("E102"), std::string::npos) << delayed.err;
  EXPECT_NE(delayed.err.find("gen_recipe=fp8_current"), std::string::npos) << delayed.err;
}

}  // namespace
}  // namespace nibble
