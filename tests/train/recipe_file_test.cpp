// Recipes of one's own: what a file says is what is trained with, and every mistake in it is named by file, line, key,
// expected and found value.
#include "train/recipe_file.h"

#include <fmt/format.h>

#include <fstream>

#include "core/error.h"
#include "tiny.h"
#include "train/trainer.h"

namespace nibble {
namespace {

std::string file_of(const TemporaryFolder& folder, const std::string& text, const std::string& name = "own.yml") {
  std::ofstream(folder / name) << text;
  return folder / name;
}

// te_nvfp4, operand by operand: also the example of docs/quantization.md.
constexpr const char* spelled_out = R"(fprop:
  x: {format: nvfp4, block: 1x16, rounding: nearest}
  w: {format: nvfp4, block: 16x16}
dgrad:
  dy: {format: nvfp4, rounding: stochastic}
  w: {format: nvfp4, block: 16x16}
wgrad:
  dy: {format: nvfp4, rounding: stochastic, rotation: 16}
  x: {format: nvfp4, rotation: 16, scale: exact, four_six: off}
sites: all
high_precision_first_layers: 0
high_precision_last_layers: 0
)";

bool same_products(const Recipe& a, const Recipe& b) {
  return a.fprop == b.fprop && a.dgrad == b.dgrad && a.wgrad == b.wgrad;
}

TEST(RecipeFile, TheExampleOfTheGuideIsTeNvfp4) {
  const TemporaryFolder folder;
  const Recipe own = read_recipe_file(file_of(folder, spelled_out), 4).recipe, te = *recipe_of("te_nvfp4", 4);
  EXPECT_TRUE(same_products(own, te)) << to_string(own.wgrad);
  EXPECT_EQ(own.name, "own");
  std::string guide = content_of(NIBBLE_SOURCE_DIR "/docs/quantization.md"), example;
  std::istringstream lines(spelled_out);
  for (std::string line; std::getline(lines, line);) example += "    " + line + "\n";
  EXPECT_NE(guide.find(example), std::string::npos) << "docs/quantization.md has another example than this test";
}

TEST(RecipeFile, BitEqualToTeNvfp4) {
  const TemporaryFolder folder;
  const auto weights = [](const std::vector<std::string>& words) {
    StepConfig c = step_of(tiny_config(words));
    Stepper s(c, plan_training(c, 2, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 3);
    for (int64_t step = 0; step < 3; ++step)
      EXPECT_TRUE(s.run(RandomRows(2, 32, 260, static_cast<uint32_t>(step)).rows(), 1e-2, step + 1).updated);
    return hash_of_states(s, StateRole::parameter);
  };
  const std::string own = "recipe_file=" + file_of(folder, spelled_out);
  for (const char* dtype : {"dtype=float32", "dtype=bfloat16"}) {
    EXPECT_EQ(weights({"dataset_type=synthetic", dtype, own}),
              weights({"dataset_type=synthetic", dtype, "quantization=te_nvfp4"}));
    EXPECT_EQ(weights({"dataset_type=synthetic", dtype, own, "recipe_disable=[rht]"}),
              weights({"dataset_type=synthetic", dtype, "quantization=te_nvfp4_no_rht"}));
  }
}

// Every row of the table can be said in a file.
TEST(RecipeFile, EveryRecipeAsABaseAndSpelledOut) {
  const TemporaryFolder folder;
  for (const std::string_view name : recipe_names()) {
    if (name == "bf16" || name == "fp32") continue;
    const Recipe r = read_recipe_file(file_of(folder, fmt::format("base: {}\n", name)), 20).recipe;
    EXPECT_TRUE(same_products(r, *recipe_of(name, 20))) << name;
    EXPECT_EQ(r.last_high, name == "nvfp4" ? 3 : 0);
  }
  const std::pair<const char*, const char*> rows[] = {{"mxfp4_quartet", R"(
fprop: {x: {format: mxfp4, rotation: 32, scale: quest}, w: {format: mxfp4, rotation: 32, scale: quest}}
dgrad: {dy: {format: mxfp4, rounding: stochastic, rotation: 32, scale: floor},
        w: {format: mxfp4, rounding: stochastic, rotation: 32, scale: floor}, from_saved: true}
wgrad: {dy: {format: mxfp4, rounding: stochastic, rotation: 32, scale: floor},
        x: {format: mxfp4, rounding: stochastic, rotation: 32, scale: floor}, from_saved: true}
)"},
                                                      {"quartet2", R"(
fprop: {x: {format: nvfp4, four_six: mse}, w: {format: nvfp4, four_six: mse}}
dgrad: {dy: {format: nvfp4, rounding: eden, rotation: 128}, w: {format: nvfp4, rounding: eden, rotation: 128}, from_saved: true}
wgrad: {dy: {format: nvfp4, rounding: eden, rotation: 128}, x: {format: nvfp4, rounding: eden, rotation: 128}, from_saved: true}
)"},
                                                      {"mxfp4_tseng", R"(
fprop: none
dgrad: {dy: {format: mxfp4, rounding: stochastic, rotation: 64, scale: floor}, w: {format: mxfp4, rounding: stochastic, rotation: 64, scale: floor}}
wgrad: {dy: {format: mxfp4, rounding: stochastic, rotation: 64, scale: floor}, x: {format: mxfp4, rounding: stochastic, rotation: 64, scale: floor}}
)"},
                                                      {"fp8_delayed", R"(
fprop: {x: {format: fp8_e4m3, scale: delayed}, w: {format: fp8_e4m3, scale: delayed}}
dgrad: {dy: {format: fp8_e5m2, scale: delayed}, w: {format: fp8_e4m3, scale: delayed}}
wgrad: {dy: {format: fp8_e5m2, scale: delayed}, x: {format: fp8_e4m3, scale: delayed}}
)"},
                                                      {"fp8_block", R"(
fprop: {x: {format: fp8_block}, w: {format: fp8_block, block: 128x128}}
dgrad: {dy: {format: fp8_block}, w: {format: fp8_block, block: 128x128, scale: pow2}}
wgrad: {dy: {format: fp8_block}, x: {format: fp8_block}}
)"},
                                                      {"mxfp4_rht_sr", R"(
base: mxfp4
fprop: {w: {block: 32x32}}
dgrad: {dy: {rounding: stochastic}, w: {block: 32x32}}
wgrad: {dy: {rounding: stochastic, rotation: 32}, x: {rotation: 32}}
)"}};
  for (const auto& [name, text] : rows) {
    const Recipe r = read_recipe_file(file_of(folder, text), 20).recipe, want = *recipe_of(name, 20);
    for (const Gemm g : all_gemms) EXPECT_EQ(to_string(r.of(g)), to_string(want.of(g))) << name;
    EXPECT_TRUE(same_products(r, want)) << name;
  }
}

// A base and what differs; what stands in the file is overridden by what the user says beside it.
TEST(RecipeFile, SitesLayersAndScheduleOfTheFileAreItsDefaults) {
  const TemporaryFolder folder;
  const std::string own = "recipe_file=" + file_of(folder, R"(base: te_nvfp4
sites: mlp
high_precision_first_layers: 1
finish_high_precision: fwd_bf16
finish_high_precision_start: 7
)");
  const auto step = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"dataset_type=synthetic", "steps=20", own});
    return step_of(tiny_config(more));
  };
  StepConfig c = step({});
  EXPECT_EQ(c.recipe.sites, Sites::mlp);
  EXPECT_EQ(c.recipe.first_high, 1);
  ASSERT_TRUE(c.finish);
  EXPECT_EQ(c.finish->mode, "fwd_bf16");
  EXPECT_EQ(c.finish->step, 7);
  c = step({"quantize_sites=all", "high_precision_first_layers=0", "finish_high_precision=bwd_bf16",
            "finish_high_precision_start=9"});
  EXPECT_EQ(c.recipe.sites, Sites::all);
  EXPECT_EQ(c.recipe.first_high, 0);
  EXPECT_EQ(c.finish->mode, "bwd_bf16");
  EXPECT_EQ(c.finish->step, 9);
  EXPECT_FALSE(step({"finish_high_precision=off"}).finish);
}

TEST(RecipeFile, EveryMistakeIsNamed) {
  const TemporaryFolder folder;
  const struct {
    const char *text, *id, *where, *says;
  } rows[] = {
      {"bas: te_nvfp4\n", "E001", ":1, key bas", "did you mean base?"},
      {"base: te_nvfp5\n", "E502", ":1, key base", "te_nvfp4"},
      {"base: te_nvfp4\nbase: mxfp4\n", "E003", ":2, key base", "stands twice"},
      {"base: te_nvfp4\nwgrad:\n  dy: {rotaton: 16}\n", "E001", ":3, key wgrad/dy/rotaton", "did you mean rotation?"},
      {"base: te_nvfp4\nwgrad:\n  w: {rotation: 16}\n", "E001", ":3, key wgrad/w", "dy, x or from_saved"},
      {"base: te_nvfp4\nfprop: {from_saved: true}\n", "E001", ":2, key fprop/from_saved", "x or w"},
      {"base: te_nvfp4\nwgrad: {dy: {rotation: 12}}\n", "E002", ":2, key wgrad/dy/rotation", "0, 16, 32, 64 or 128"},
      {"base: te_nvfp4\ndgrad: {dy: {rounding: stohastic}}\n", "E002", "key dgrad/dy/rounding",
       "did you mean stochastic?"},
      {"base: te_nvfp4\nfprop: {w: {block: 32x32}}\n", "E002", "key fprop/w/block", "1x16 or 16x16"},
      {"base: te_nvfp4\nfprop: {w: {format: int4}}\n", "E002", "key fprop/w/format", "nvfp4"},
      {"base: te_nvfp4\nfprop: {w: {scale: floor}}\n", "E002", "key fprop/w/scale", "exact, pow2 or unit"},
      {"fprop: {w: {block: 16x16}}\n", "E002", "key fprop/w/block", "format: nvfp4"},
      {"base: te_nvfp4\nfprop: 5\n", "E002", "key fprop", "a mapping with x and w"},
      {"base: te_nvfp4\nsites: attention\n", "E002", "key sites", "all or mlp"},
      {"base: te_nvfp4\nhigh_precision_last_layers: -1\n", "E002", "key high_precision_last_layers", "at least 0"},
      {"base: te_nvfp4\nfinish_high_precision: fwd_fp16\n", "E002", "key finish_high_precision",
       "did you mean fwd_bf16"},
      {"base: [te_nvfp4\n", "E006", ":2:1", "is no YAML"},
      {"- te_nvfp4\n", "E006", ":1", "key: value"},
      {"sites: mlp\n", "E102", "", "quantises nothing"},
      {"base: te_nvfp4\nwgrad: {x: {rotation: 0}}\n", "E102", "", "wgrad: a rotation needs both operands"},
      {"base: te_nvfp4\ndgrad: {dy: {four_six: mse}}\n", "E102", "",
       "four-over-six with stochastic rounding is biased"},
      {"base: te_nvfp4\nfprop: {x: {rounding: stochastic}}\n", "E102", "", "stochastic rounding of the forward pass"},
      {"base: te_nvfp4\nwgrad: {dy: none}\n", "E102", "", "one operand is quantised and the other is not"},
      {"base: quartet2\nfprop: {w: {block: 16x16}}\n", "E102", "", "a saved tile cannot be requantised"},
      {"base: te_nvfp4\nfprop: {w: {format: mxfp4}}\n", "E102", "", "the operands' blocks differ"}};
  for (const auto& row : rows) {
    const std::string path = file_of(folder, row.text);
    std::vector<Error> errors;
    try {
      read_recipe_file(path, 4);
      ADD_FAILURE() << row.text;
    } catch (const Errors& e) {
      errors = e.errors;
    } catch (const Error& e) {
      errors.push_back(e);
    }
    ASSERT_EQ(errors.size(), 1u) << row.text;
    const Error& e = errors[0];
    EXPECT_EQ(e.id, row.id) << row.text << e.message();
    EXPECT_TRUE(e.where_text.starts_with(path) && e.where_text.ends_with(row.where)) << row.text << e.message();
    EXPECT_NE(e.message().find(row.says), std::string::npos) << row.text << e.message();
  }
  try {  // all of a file at once
    read_recipe_file(file_of(folder, "bas: te_nvfp4\nsites: none\nfprop: {z: none}\n"), 4);
    ADD_FAILURE();
  } catch (const Errors& e) {
    EXPECT_EQ(e.errors.size(), 3u);
  }
  EXPECT_THROW(read_recipe_file(folder / "none.yml", 4), Error);
  EXPECT_THROW(read_recipe_file(folder / "", 4), Error);
}

// The checkpoint holds what the file said: a resume under a changed file is said.
TEST(TrainingT57, AResumeUnderAChangedRecipeFileIsSaid) {
  const TemporaryFolder folder;
  const std::string own = file_of(folder, spelled_out);
  const auto said = [&](int steps) {
    const Config config = tiny_config({fmt::format("steps={}", steps), "run_name=run", "recipe_file=" + own,
                                       "learning_rate_schedule_steps=5", "base_output_directory=" + (folder / "out"),
                                       "dataset_type=synthetic"});
    testing::internal::CaptureStdout(), testing::internal::CaptureStderr();
    const int code = run_training(config, {});
    const std::string out = testing::internal::GetCapturedStdout();
    return out + testing::internal::GetCapturedStderr() + fmt::format("code {}", code);
  };
  const std::string first = said(1);
  EXPECT_NE(first.find("precision: own in linear layers"), std::string::npos) << first;
  const std::string same = said(2);
  EXPECT_EQ(same.find("changed since the checkpoint"), std::string::npos) << same;
  file_of(folder, "base: te_nvfp4\nwgrad: {dy: {rotation: 0}, x: {rotation: 0}}\n");
  const std::string other = said(3);
  EXPECT_NE(other.find("recipe/wgrad: \"nvfp4 stochastic hadamard=16 stream=1 . nvfp4 hadamard=16\" -> "
                       "\"nvfp4 stochastic stream=1 . nvfp4\""),
            std::string::npos)
      << other;
}

}  // namespace
}  // namespace nibble
