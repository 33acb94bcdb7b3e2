// The table of recipes, word by word (spec/precision.md 3.4), what options make of it (3.1, 2.7), and the combinations
// that are none (3.7, obligation P28).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "recipes/recipe.h"

namespace nibble {
namespace {

Recipe recipe(std::string_view name, const RecipeOptions& o = {}, int64_t layers = 20) {
  const std::optional<Recipe> r = recipe_of(name, layers, o);
  EXPECT_TRUE(r) << name;
  return r.value_or(Recipe{});
}

std::string text_of(const GemmRecipe& g) {
  std::string text = to_string(g.a) + " . " + to_string(g.b);
  if (g.factor != 1) text += fmt::format(" x {}", g.factor);
  if (g.b_from_saved) text += " saved";
  return text;
}

struct Row {
  const char *name, *fprop, *dgrad, *wgrad;
  int64_t last_high = 0;  // of 20 layers
};

// Streams (4.3): dy row 0, which is not printed, dy column 1, w for dgrad 2, x column 3; signs 16 and 17.
// clang-format off
const Row table[] = {
    {"bf16", "- . -", "- . -", "- . -"},
    {"fp32", "- . -", "- . -", "- . -"},
    {"fp8_delayed", "e4m3 delayed . e4m3 delayed", "e5m2 delayed . e4m3 delayed", "e5m2 delayed . e4m3 delayed"},
    {"fp8_current", "e4m3 . e4m3", "e5m2 . e4m3", "e5m2 . e4m3"},
    {"fp8_block", "fp8_block . fp8_block_2d", "fp8_block . fp8_block_2d", "fp8_block . fp8_block"},
    {"mxfp8", "mxfp8 . mxfp8", "mxfp8 . mxfp8", "mxfp8 . mxfp8"},
    {"mxfp4", "mxfp4 . mxfp4", "mxfp4 . mxfp4", "mxfp4 . mxfp4"},
    {"mxfp4_rht_sr", "mxfp4 . mxfp4_2d", "mxfp4 stochastic . mxfp4_2d", "mxfp4 stochastic hadamard=32 stream=1 . mxfp4 hadamard=32"},
    {"mxfp4_tseng", "- . -", "mxfp4 stochastic floor hadamard=64 . mxfp4 stochastic floor hadamard=64 stream=2 x 1.7777778",
                    "mxfp4 stochastic floor hadamard=64 stream=1 . mxfp4 stochastic floor hadamard=64 stream=3 x 1.7777778"},
    {"mxfp4_quartet", "mxfp4 quest hadamard=32 . mxfp4 quest hadamard=32",
                      "mxfp4 stochastic floor hadamard=32 . mxfp4 stochastic floor hadamard=32 stream=2 x 1.7777778 saved",
                      "mxfp4 stochastic floor hadamard=32 stream=1 . mxfp4 stochastic floor hadamard=32 stream=3 x 1.7777778 saved"},
    {"te_nvfp4", "nvfp4 . nvfp4_2d", "nvfp4 stochastic . nvfp4_2d", "nvfp4 stochastic hadamard=16 stream=1 . nvfp4 hadamard=16"},
    {"te_nvfp4_no_rht", "nvfp4 . nvfp4_2d", "nvfp4 stochastic . nvfp4_2d", "nvfp4 stochastic stream=1 . nvfp4"},
    {"te_nvfp4_46", "nvfp4 four_six=mae . nvfp4_2d four_six=mae", "nvfp4 stochastic . nvfp4_2d four_six=mae",
                    "nvfp4 stochastic hadamard=16 stream=1 . nvfp4 hadamard=16"},
    {"nvfp4", "nvfp4 . nvfp4_2d", "nvfp4 stochastic . nvfp4_2d", "nvfp4 stochastic hadamard=16 stream=1 . nvfp4 hadamard=16", 3},
    {"quartet2", "nvfp4 four_six=mse . nvfp4 four_six=mse",
                 "nvfp4 eden hadamard=128 signs=16 . nvfp4 eden hadamard=128 stream=2 signs=16 saved",
                 "nvfp4 eden hadamard=128 stream=1 signs=17 . nvfp4 eden hadamard=128 stream=3 signs=17 saved"}};
// clang-format on

TEST(PrecisionP49, TheTableIsTheStatedOne) {
  std::vector<std::string_view> names;
  for (const Row& row : table) {
    names.push_back(row.name);
    const Recipe r = recipe(row.name);
    EXPECT_EQ(r.name, row.name);
    EXPECT_EQ(text_of(r.fprop), row.fprop) << row.name;
    EXPECT_EQ(text_of(r.dgrad), row.dgrad) << row.name;
    EXPECT_EQ(text_of(r.wgrad), row.wgrad) << row.name;
    EXPECT_EQ(r.first_high, 0) << row.name;
    EXPECT_EQ(r.last_high, row.last_high) << row.name;
    EXPECT_EQ(r.sites, Sites::all) << row.name;
    EXPECT_EQ(r.active(), std::string_view(row.dgrad) != "- . -") << row.name;
    EXPECT_EQ(broken_rule(r), "") << row.name;
  }
  EXPECT_TRUE(std::ranges::equal(recipe_names(), names));
}

TEST(PrecisionP49, Aliases) {
  for (const auto& [alias, name] : {std::pair("te_mxfp8", "mxfp8"),
                                    {"te_fp8_currentscaling", "fp8_current"},
                                    {"te_fp8_delayedscaling", "fp8_delayed"},
                                    {"fp8", "fp8_delayed"}}) {
    const Recipe a = recipe(alias), r = recipe(name);
    EXPECT_EQ(a.name, name);
    for (const Gemm g : all_gemms) EXPECT_EQ(a.of(g), r.of(g)) << alias;
  }
  for (const char* name : {"", "auto", "te_nvfp5", "quartet", "NVFP4"}) EXPECT_FALSE(recipe_of(name, 4)) << name;
}

// Two operands of one product are drawn from streams of their own, and no stream of another product.
TEST(PrecisionP33, StreamsAreApart) {
  for (const std::string_view name : recipe_names()) {
    const Recipe r = recipe(name);
    std::vector<uint32_t> drawn;
    for (const Gemm g : all_gemms)
      for (const QuantSpec& s : {r.of(g).a, r.of(g).b})
        if (s.active() && s.rounding != Rounding::nearest) drawn.push_back(s.stream);
    std::ranges::sort(drawn);
    EXPECT_EQ(std::ranges::adjacent_find(drawn), drawn.end()) << name;
  }
}

// ---- options ----

TEST(PrecisionRecipes, EachTechniqueCanBeLeftOut) {
  // clang-format off
  const struct {
    const char *name, *part, *fprop, *dgrad, *wgrad;
  } rows[] = {
      {"nvfp4", "two_level", "nvfp4 unit . nvfp4_2d unit", "nvfp4 stochastic unit . nvfp4_2d unit", "nvfp4 stochastic unit hadamard=16 stream=1 . nvfp4 unit hadamard=16"},
      {"nvfp4", "weight_2d", "nvfp4 . nvfp4", "nvfp4 stochastic . nvfp4", "nvfp4 stochastic hadamard=16 stream=1 . nvfp4 hadamard=16"},
      {"nvfp4", "rht", "nvfp4 . nvfp4_2d", "nvfp4 stochastic . nvfp4_2d", "nvfp4 stochastic stream=1 . nvfp4"},
      {"nvfp4", "sr", "nvfp4 . nvfp4_2d", "nvfp4 . nvfp4_2d", "nvfp4 hadamard=16 . nvfp4 hadamard=16"},
      {"nvfp4", "high_precision", "nvfp4 . nvfp4_2d", "nvfp4 stochastic . nvfp4_2d", "nvfp4 stochastic hadamard=16 stream=1 . nvfp4 hadamard=16"},
      {"mxfp4_rht_sr", "weight_2d", "mxfp4 . mxfp4", "mxfp4 stochastic . mxfp4", "mxfp4 stochastic hadamard=32 stream=1 . mxfp4 hadamard=32"},
      {"mxfp4_rht_sr", "two_level", "mxfp4 . mxfp4_2d", "mxfp4 stochastic . mxfp4_2d", "mxfp4 stochastic hadamard=32 stream=1 . mxfp4 hadamard=32"},
      {"mxfp4_tseng", "rht", "- . -", "mxfp4 stochastic floor . mxfp4 stochastic floor stream=2 x 1.7777778", "mxfp4 stochastic floor stream=1 . mxfp4 stochastic floor stream=3 x 1.7777778"},
      {"mxfp4_tseng", "sr", "- . -", "mxfp4 floor hadamard=64 . mxfp4 floor hadamard=64", "mxfp4 floor hadamard=64 . mxfp4 floor hadamard=64"},
      {"te_nvfp4_46", "weight_2d", "nvfp4 four_six=mae . nvfp4 four_six=mae", "nvfp4 stochastic . nvfp4 four_six=mae", "nvfp4 stochastic hadamard=16 stream=1 . nvfp4 hadamard=16"},
      {"fp8_block", "weight_2d", "fp8_block . fp8_block", "fp8_block . fp8_block", "fp8_block . fp8_block"}};
  // clang-format on
  for (const auto& row : rows) {
    const Recipe r = recipe(row.name, {.disable = {row.part}});
    EXPECT_EQ(text_of(r.fprop), row.fprop) << row.name << " " << row.part;
    EXPECT_EQ(text_of(r.dgrad), row.dgrad) << row.name << " " << row.part;
    EXPECT_EQ(text_of(r.wgrad), row.wgrad) << row.name << " " << row.part;
    EXPECT_EQ(r.last_high,
              std::string_view(row.name) == "nvfp4" && std::string_view(row.part) != "high_precision" ? 3 : 0);
  }
}

// The words of options beside each other; what the user says of layers goes before the recipe.
TEST(PrecisionRecipes, OptionsAddUp) {
  const Recipe none = recipe("nvfp4", {.disable = {"two_level", "high_precision", "weight_2d", "rht", "sr"}});
  for (const Gemm g : all_gemms) EXPECT_EQ(text_of(none.of(g)), "nvfp4 unit . nvfp4 unit");
  EXPECT_EQ(none.last_high, 0);
  const Recipe layers = recipe("nvfp4", {.disable = {"high_precision"}, .first_high = 2, .last_high = 5});
  EXPECT_EQ(layers.first_high, 2);
  EXPECT_EQ(layers.last_high, 5);
  EXPECT_EQ(recipe("nvfp4", {.last_high = 0}).last_high, 0);
  EXPECT_EQ(recipe("te_nvfp4", {.sites = Sites::mlp}).sites, Sites::mlp);
  for (int64_t n = 1; n <= 200; ++n) EXPECT_EQ(recipe("nvfp4", {}, n).last_high, (15 * n + 99) / 100) << n;
}

TEST(PrecisionRecipes, Pow2IsAScaleOfTheTensor) {
  const RecipeOptions pow2{.pow2 = true};
  EXPECT_EQ(text_of(recipe("te_nvfp4", pow2).wgrad),
            "nvfp4 stochastic pow2 hadamard=16 stream=1 . nvfp4 pow2 hadamard=16");
  EXPECT_EQ(text_of(recipe("te_nvfp4_46", pow2).fprop), "nvfp4 pow2 four_six=mae . nvfp4_2d pow2 four_six=mae");
  EXPECT_EQ(text_of(recipe("fp8_current", pow2).dgrad), "e5m2 pow2 . e4m3 pow2");
  EXPECT_EQ(text_of(recipe("fp8_delayed", pow2).fprop), text_of(recipe("fp8_delayed").fprop));
  for (const char* name : {"bf16", "mxfp8", "mxfp4", "mxfp4_rht_sr", "mxfp4_tseng", "fp8_block"})  // have none
    for (const Gemm g : all_gemms) EXPECT_EQ(recipe(name, pow2).of(g), recipe(name).of(g)) << name;
  EXPECT_EQ(text_of(recipe("te_nvfp4", {.disable = {"two_level"}, .pow2 = true}).fprop), "nvfp4 unit . nvfp4_2d unit");
}

TEST(PrecisionRecipes, AddOnsAndAccumulation) {
  EXPECT_EQ(text_of(recipe("te_nvfp4", {.sr_vmax = true}).wgrad),
            "nvfp4 stochastic vmax hadamard=16 stream=1 . nvfp4 hadamard=16");
  EXPECT_EQ(text_of(recipe("te_nvfp4", {.sr_vmax = true}).fprop), "nvfp4 . nvfp4_2d");
  EXPECT_EQ(to_string(recipe("te_nvfp4", {.sr_vmax = true, .blackwell = true}).dgrad),
            "nvfp4 stochastic vmax . nvfp4_2d blackwell");
  EXPECT_EQ(recipe("quartet2", {.blackwell = true}).idle, std::vector<std::string>{});
  EXPECT_EQ(recipe("quartet2", {.sr_vmax = true}).idle, std::vector<std::string>{"recipe_addons=sr_vmax"});
  EXPECT_EQ(recipe("te_nvfp4", {.disable = {"sr"}, .sr_vmax = true}).idle,
            std::vector<std::string>{"recipe_addons=sr_vmax"});
  for (const char* name : {"mxfp4", "mxfp8", "fp8_current", "bf16"})
    EXPECT_EQ(recipe(name, {.blackwell = true}).idle, std::vector<std::string>{"gemm_accumulation=blackwell"}) << name;
}

TEST(PrecisionP57, HowARunEnds) {
  const Recipe te = recipe("nvfp4", {.sites = Sites::mlp});
  const Recipe forward = finished(te, "fwd_bf16"), backward = finished(te, "bwd_bf16"), all = finished(te, "all_mxfp8");
  EXPECT_EQ(text_of(forward.fprop), "- . -");
  EXPECT_EQ(forward.dgrad, te.dgrad);
  EXPECT_EQ(forward.wgrad, te.wgrad);
  EXPECT_EQ(backward.fprop, te.fprop);
  EXPECT_EQ(text_of(backward.dgrad), "- . -");
  EXPECT_EQ(text_of(backward.wgrad), "- . -");
  for (const Gemm g : all_gemms) EXPECT_EQ(text_of(all.of(g)), "mxfp8 . mxfp8");
  for (const Recipe* r : {&forward, &backward, &all}) {
    EXPECT_EQ(r->sites, Sites::mlp);
    EXPECT_EQ(r->last_high, te.last_high);
  }
  for (const char* name : {"quartet2", "mxfp4_quartet"})  // their backward pass needs what the forward pass saved
    try {
      finished(recipe(name), "fwd_bf16");
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E102");
      EXPECT_NE(e.what_text.find("nothing is saved that could be requantised"), std::string::npos) << e.what_text;
      EXPECT_EQ(e.hint_text, "finish_high_precision=bwd_bf16");
    }
  for (const std::string_view name : recipe_names())
    for (const char* mode : {"bwd_bf16", "all_mxfp8"}) EXPECT_EQ(broken_rule(finished(recipe(name), mode)), "") << name;
}

// ---- combinations that are none ----

TEST(PrecisionP28, EveryIllegalCombinationIsNamed) {
  using Change = std::function<void(Recipe&)>;
  constexpr auto eden = Rounding::eden;
  constexpr auto sr = Rounding::stochastic;
  const auto both = [](GemmRecipe& g, auto member, auto value) { g.a.*member = value, g.b.*member = value; };
  // clang-format off
  const struct {
    const char* why;
    const char* from;
    Change change;
    const char* rule;
  } rows[] = {
      {"4/6 with SR", "te_nvfp4", [](Recipe& r) { r.dgrad.a.four_six = FourSix::mse; }, "dgrad: four-over-six with stochastic rounding is biased"},
      {"4/6 of MAE with SR", "te_nvfp4_no_rht", [](Recipe& r) { r.wgrad.a.four_six = FourSix::mae; }, "wgrad: four-over-six with stochastic rounding is biased"},
      {"4/6 on a rotated operand", "te_nvfp4", [](Recipe& r) { r.wgrad.b.four_six = FourSix::mse; }, "wgrad: four-over-six is not defined on a rotated operand"},
      {"RHT on x alone", "te_nvfp4_no_rht", [](Recipe& r) { r.wgrad.b.hadamard = 16; }, "wgrad: a rotation needs both operands"},
      {"RHT on dy alone", "te_nvfp4", [](Recipe& r) { r.wgrad.b.hadamard = 0; }, "wgrad: a rotation needs both operands"},
      {"two rotations", "mxfp4_tseng", [](Recipe& r) { r.wgrad.b.hadamard = 32; }, "wgrad: a rotation needs both operands"},
      {"RHT on tiles", "te_nvfp4", [&](Recipe& r) { both(r.dgrad, &QuantSpec::hadamard, 16); }, "dgrad: a rotated tile is not shared"},
      {"RHT on tiles of MXFP4", "mxfp4_rht_sr", [&](Recipe& r) { both(r.fprop, &QuantSpec::hadamard, 32); }, "fprop: a rotated tile is not shared"},
      {"SR on x", "te_nvfp4", [](Recipe& r) { r.fprop.a.rounding = sr; }, "fprop: stochastic rounding of the forward pass diverges"},
      {"SR on w", "mxfp4", [](Recipe& r) { r.fprop.b.rounding = sr; }, "fprop: stochastic rounding of the forward pass diverges"},
      {"EDEN of x in fprop", "quartet2", [](Recipe& r) { r.fprop = r.dgrad; }, "fprop: "},
      {"EDEN without rotation", "quartet2", [&](Recipe& r) { both(r.wgrad, &QuantSpec::hadamard, 0); }, "wgrad: EDEN needs the rotation of 128"},
      {"EDEN with another rotation", "quartet2", [&](Recipe& r) { both(r.dgrad, &QuantSpec::hadamard, 16); }, "dgrad: EDEN needs the rotation of 128"},
      {"EDEN of tiles", "quartet2", [](Recipe& r) { r.dgrad.b.format = DType::nvfp4_2d; }, "dgrad: "},
      {"EDEN requantises a saved tile", "quartet2", [](Recipe& r) { r.fprop.b.format = DType::nvfp4_2d; }, "dgrad: a saved tile cannot be requantised"},
      {"what is requantised is not saved", "quartet2", [](Recipe& r) { r.fprop = {}; }, "dgrad: nothing is saved"},
      {"MXFP8 with 4/6", "mxfp8", [](Recipe& r) { r.fprop.a.four_six = FourSix::mse; }, "fprop: four-over-six and EDEN are NVFP4 quantisers"},
      {"FP8 with 4/6", "fp8_current", [](Recipe& r) { r.dgrad.b.four_six = FourSix::mae; }, "dgrad: four-over-six and EDEN are NVFP4 quantisers"},
      {"FP8 blocks with 4/6", "fp8_block", [](Recipe& r) { r.wgrad.b.four_six = FourSix::mae; }, "wgrad: four-over-six and EDEN are NVFP4 quantisers"},
      {"MXFP8 with EDEN", "mxfp8", [&](Recipe& r) { both(r.wgrad, &QuantSpec::rounding, eden); }, "wgrad: four-over-six and EDEN are NVFP4 quantisers"},
      {"MXFP4 with EDEN", "mxfp4", [](Recipe& r) { r.dgrad.a.rounding = eden; }, "dgrad: four-over-six and EDEN are NVFP4 quantisers"},
      {"FP8 with EDEN", "fp8_current", [](Recipe& r) { r.wgrad.a.rounding = eden; }, "wgrad: four-over-six and EDEN are NVFP4 quantisers"},
      {"MXFP8 with SR", "mxfp8", [](Recipe& r) { r.dgrad.a.rounding = sr; }, "dgrad: stochastic rounding is for 4-bit elements"},
      {"one operand in high precision", "te_nvfp4", [](Recipe& r) { r.wgrad.b = {}; }, "wgrad: one operand is quantised and the other is not"},
      {"blocks of 16 and of 32", "te_nvfp4", [](Recipe& r) { r.fprop.b.format = DType::mxfp4; }, "fprop: the operands' blocks differ"},
      {"4 bits times 8", "mxfp4", [](Recipe& r) { r.dgrad.b.format = DType::mxfp8; }, "dgrad: the operands' blocks differ"},
      {"signs of their own", "quartet2", [](Recipe& r) { r.dgrad.b.sign_stream = 17; }, "dgrad: both operands need the same signs"},
      {"QuEST of NVFP4", "te_nvfp4", [](Recipe& r) { r.fprop.a.quest = true; }, "fprop: the QuEST scale is for MXFP4 rows"},
      {"QuEST in dgrad", "mxfp4", [](Recipe& r) { r.dgrad.a.quest = true; }, "dgrad: the QuEST scale is for MXFP4 rows"},
      {"QuEST of turned pairs of blocks", "mxfp4_quartet", [&](Recipe& r) { both(r.fprop, &QuantSpec::hadamard, 64); }, "fprop: the QuEST scale is of blocks of 32"},
      {"a saved rotated operand without mask", "mxfp4_quartet", [&](Recipe& r) { both(r.fprop, &QuantSpec::quest, false); }, "dgrad: a saved operand that is rotated"},
      {"requantised in another format", "mxfp4_quartet", [](Recipe& r) { r.dgrad = r.wgrad = {{DType::mxfp8}, {DType::mxfp8}}, r.dgrad.b_from_saved = true; }, "dgrad: a saved operand is requantised in its own format"},
      {"8 bits requantised", "mxfp8", [](Recipe& r) { r.wgrad.b_from_saved = true; }, "wgrad: only 4-bit operands are requantised"},
      {"Blackwell's sums of MXFP4", "mxfp4", [](Recipe& r) { r.fprop.blackwell = true; }, "fprop: the sums of a Blackwell GPU are defined for NVFP4 only"},
      {"the wider range without SR", "te_nvfp4", [](Recipe& r) { r.fprop.a.vmax = true; }, "fprop: sr_vmax is for NVFP4 with stochastic rounding"},
      {"the wider range of MXFP4", "mxfp4_rht_sr", [](Recipe& r) { r.dgrad.a.vmax = true; }, "dgrad: sr_vmax is for NVFP4 with stochastic rounding"},
      {"a floor of E4M3", "te_nvfp4", [](Recipe& r) { r.fprop.a.floor_scale = true; }, "fprop: the floor rule is one of MX scales"},
      {"RHT-128 in fprop", "mxfp4", [&](Recipe& r) { both(r.fprop, &QuantSpec::hadamard, 128); }, "fprop: signs of a rotation of 128 are drawn for dgrad and wgrad only"},
      {"delayed scales of one operand", "fp8_current", [](Recipe& r) { r.fprop.a.tensor_scale = TensorScale::delayed; }, "delayed scales are for all operands or for none"},
      {"no tensor scale to leave out", "mxfp4", [](Recipe& r) { r.fprop.a.tensor_scale = TensorScale::unit; }, "fprop: no tensor scale that could be so"}};
  // clang-format on
  for (const auto& row : rows) {
    Recipe r = recipe(row.from);
    row.change(r);
    const std::string rule = broken_rule(r);
    EXPECT_TRUE(rule.starts_with(row.rule)) << row.why << ": \"" << rule << "\"";
  }
}

// No option alone or with others gives a recipe that is none, but one: EDEN needs its rotation.
TEST(PrecisionP28, OptionsThatExcludeTheRecipe) {
  const std::string parts[] = {"two_level", "high_precision", "weight_2d", "rht", "sr"};
  for (const std::string_view name : recipe_names())
    for (unsigned set = 0; set < 32; ++set)
      for (const bool pow2 : {false, true}) {
        RecipeOptions o{.pow2 = pow2};
        for (unsigned i = 0; i < 5; ++i)
          if ((set >> i & 1) != 0) o.disable.push_back(parts[i]);
        const bool illegal = name == "quartet2" && std::ranges::count(o.disable, "rht") > 0;
        try {
          const Recipe r = *recipe_of(name, 8, o);
          EXPECT_FALSE(illegal) << name << " " << set;
          EXPECT_EQ(broken_rule(r), "");
        } catch (const Error& e) {
          EXPECT_TRUE(illegal) << name << " " << set << ": " << e.what_text;
          EXPECT_EQ(e.id, "E102");
          EXPECT_TRUE(e.what_text.starts_with("quartet2 with these options")) << e.what_text;
          EXPECT_NE(e.what_text.find("EDEN needs the rotation of 128"), std::string::npos) << e.what_text;
          EXPECT_FALSE(e.hint_text.empty());
        }
      }
}

}  // namespace
}  // namespace nibble
