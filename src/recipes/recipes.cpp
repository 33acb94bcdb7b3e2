// The table of recipes (spec/precision.md 3.4). One row is one recipe; a word of the row is one operand.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "recipes/recipe.h"

namespace nibble {
namespace {

// Streams of random bits (4.3).
enum Stream : uint32_t { dy_row, dy_column, w_dgrad, x_column, x_row, w_fprop, signs_dgrad = 16, signs_wgrad = 17 };

constexpr QuantSpec nearest(DType format) { return {.format = format}; }
constexpr QuantSpec stochastic(DType format, uint32_t stream) {
  return {.format = format, .rounding = Rounding::stochastic, .stream = stream};
}
constexpr QuantSpec turned(QuantSpec s, int group) {
  s.hadamard = group;
  return s;
}
constexpr QuantSpec floored(QuantSpec s) {
  s.floor_scale = true;
  return s;
}
constexpr QuantSpec quest(QuantSpec s) {
  s.quest = true;
  return s;
}
constexpr QuantSpec four_six(QuantSpec s, FourSix error) {
  s.four_six = error;
  return s;
}
constexpr QuantSpec delayed(QuantSpec s) {
  s.tensor_scale = TensorScale::delayed;
  return s;
}
constexpr QuantSpec eden(uint32_t stream, uint32_t signs) {
  return {.format = DType::nvfp4, .rounding = Rounding::eden, .hadamard = 128, .stream = stream, .sign_stream = signs};
}

struct Row {
  std::string_view name;
  GemmRecipe fprop, dgrad, wgrad;
  double last_high = 0;  // share of the layers
};

constexpr QuantSpec e4m3 = nearest(DType::e4m3), e5m2 = nearest(DType::e5m2), nvfp4 = nearest(DType::nvfp4),
                    tiles = nearest(DType::nvfp4_2d), mxfp4 = nearest(DType::mxfp4), mxfp8 = nearest(DType::mxfp8),
                    fp8_block = nearest(DType::fp8_block), saved = four_six(nvfp4, FourSix::mse);
constexpr GemmRecipe plain;
constexpr GemmRecipe te_dgrad{stochastic(DType::nvfp4, dy_row), tiles},
    te_wgrad{turned(stochastic(DType::nvfp4, dy_column), 16), turned(nvfp4, 16)};
constexpr float tseng = 16.0f / 9;
constexpr QuantSpec three_quarters(uint32_t stream, int group) {
  return floored(turned(stochastic(DType::mxfp4, stream), group));
}

constexpr Row rows[] = {
    {"bf16", plain, plain, plain},
    {"fp32", plain, plain, plain},
    {"fp8_delayed", {delayed(e4m3), delayed(e4m3)}, {delayed(e5m2), delayed(e4m3)}, {delayed(e5m2), delayed(e4m3)}},
    {"fp8_current", {e4m3, e4m3}, {e5m2, e4m3}, {e5m2, e4m3}},
    {"fp8_block",
     {fp8_block, nearest(DType::fp8_block_2d)},
     {fp8_block, nearest(DType::fp8_block_2d)},
     {fp8_block, fp8_block}},
    {"mxfp8", {mxfp8, mxfp8}, {mxfp8, mxfp8}, {mxfp8, mxfp8}},
    {"mxfp4", {mxfp4, mxfp4}, {mxfp4, mxfp4}, {mxfp4, mxfp4}},
    {"mxfp4_rht_sr",
     {mxfp4, nearest(DType::mxfp4_2d)},
     {stochastic(DType::mxfp4, dy_row), nearest(DType::mxfp4_2d)},
     {turned(stochastic(DType::mxfp4, dy_column), 32), turned(mxfp4, 32)}},
    {"mxfp4_tseng",
     plain,
     {three_quarters(dy_row, 64), three_quarters(w_dgrad, 64), tseng},
     {three_quarters(dy_column, 64), three_quarters(x_column, 64), tseng}},
    {"mxfp4_quartet",
     {quest(turned(mxfp4, 32)), quest(turned(mxfp4, 32))},
     {three_quarters(dy_row, 32), three_quarters(w_dgrad, 32), tseng, true},
     {three_quarters(dy_column, 32), three_quarters(x_column, 32), tseng, true}},
    {"te_nvfp4", {nvfp4, tiles}, te_dgrad, te_wgrad},
    {"te_nvfp4_no_rht", {nvfp4, tiles}, te_dgrad, {stochastic(DType::nvfp4, dy_column), nvfp4}},
    {"te_nvfp4_46",
     {four_six(nvfp4, FourSix::mae), four_six(tiles, FourSix::mae)},
     {te_dgrad.a, four_six(tiles, FourSix::mae)},
     te_wgrad},
    {"nvfp4", {nvfp4, tiles}, te_dgrad, te_wgrad, 0.15},
    {"quartet2",
     {saved, saved},
     {eden(dy_row, signs_dgrad), eden(w_dgrad, signs_dgrad), 1, true},
     {eden(dy_column, signs_wgrad), eden(x_column, signs_wgrad), 1, true}}};

constexpr std::pair<std::string_view, std::string_view> aliases[] = {{"te_fp8_delayedscaling", "fp8_delayed"},
                                                                     {"fp8", "fp8_delayed"},
                                                                     {"te_fp8_currentscaling", "fp8_current"},
                                                                     {"te_mxfp8", "mxfp8"}};

template <class F>
void each_operand(Recipe& r, const F& f) {
  for (const Gemm g : all_gemms) f(g, r.of(g).a), f(g, r.of(g).b);
}

bool has_tensor_scale(const QuantSpec& s) { return is_nvfp4(s) || !block_format(s.format).scales; }

void leave_out(Recipe& r, std::string_view part) {
  if (part == "high_precision") r.first_high = r.last_high = 0;
  if (part == "sr")
    for (const Gemm g : all_gemms) r.of(g).factor = 1;  // 3/4 goes with stochastic rounding
  each_operand(r, [&](Gemm g, QuantSpec& s) {
    if (part == "two_level" && is_nvfp4(s)) s.tensor_scale = TensorScale::unit;
    if (part == "sr" && s.rounding == Rounding::stochastic) s.rounding = Rounding::nearest, s.stream = 0;
    if (part == "rht") s.hadamard = 0;
    if (part == "weight_2d" && g != Gemm::wgrad && &s == &r.of(g).b)
      s.format = s.format == DType::nvfp4_2d       ? DType::nvfp4
                 : s.format == DType::mxfp4_2d     ? DType::mxfp4
                 : s.format == DType::fp8_block_2d ? DType::fp8_block
                                                   : s.format;
  });
}

}  // namespace

std::string_view name_of(Gemm gemm) { return gemm == Gemm::fprop ? "fprop" : gemm == Gemm::dgrad ? "dgrad" : "wgrad"; }

std::string to_string(const GemmRecipe& g) {
  std::string text = to_string(g.a) + " . " + to_string(g.b);
  if (g.factor != 1) text += fmt::format(" x {}", g.factor);
  if (g.b_from_saved) text += " saved";
  if (g.blackwell) text += " blackwell";
  return text;
}

std::span<const std::string_view> recipe_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> list;
    for (const Row& row : rows) list.push_back(row.name);
    return list;
  }();
  return names;
}

std::string broken_rule(const Recipe& r) {
  const auto is_tile = [](const QuantSpec& s) { return block_format(s.format).rows > 1; };
  int delayed = 0, others = 0;
  for (const Gemm g : all_gemms)
    for (const QuantSpec& s : {r.of(g).a, r.of(g).b})
      if (s.active()) ++(s.tensor_scale == TensorScale::delayed ? delayed : others);
  if (delayed > 0 && others > 0) return "delayed scales are for all operands or for none";
  for (const Gemm g : all_gemms) {
    const GemmRecipe& p = r.of(g);
    const std::string where = std::string(name_of(g)) + ": ";
    if (p.a.active() != p.b.active()) return where + "one operand is quantised and the other is not";
    if (!p.active()) continue;
    if (p.a.hadamard != p.b.hadamard)
      return where + "a rotation needs both operands, or the product is of other vectors";
    if (p.a.sign_stream != p.b.sign_stream) return where + "both operands need the same signs";
    const QuantSpec& saved_from = g == Gemm::dgrad ? r.fprop.b : r.fprop.a;
    if (p.b_from_saved && !saved_from.active()) return where + "nothing is saved that could be requantised";
    if (p.b_from_saved && is_tile(saved_from)) return where + "a saved tile cannot be requantised";
    if (p.b_from_saved && saved_from.format != p.b.format)
      return where + "a saved operand is requantised in its own format";
    if (p.b_from_saved && block_format(p.b.format).bits != 4) return where + "only 4-bit operands are requantised";
    if (p.b_from_saved && saved_from.hadamard != 0 && !saved_from.quest)
      return where + "a saved operand that is rotated needs the QuEST scale, whose mask turns the gradient back";
    if (p.blackwell && (!is_nvfp4(p.a) || !is_nvfp4(p.b)))
      return where + "the sums of a Blackwell GPU are defined for NVFP4 only";
    const BlockFormat fa = block_format(p.a.format), fb = block_format(p.b.format);
    if (fa.bits != fb.bits || fa.columns != fb.columns) return where + "the operands' blocks differ";
    for (const QuantSpec& s : {p.a, p.b}) {
      if (s.four_six != FourSix::off && s.rounding == Rounding::stochastic)
        return where + "four-over-six with stochastic rounding is biased";
      if (s.four_six != FourSix::off && s.hadamard != 0)
        return where + "four-over-six is not defined on a rotated operand";
      if ((s.four_six != FourSix::off || s.rounding == Rounding::eden) && !is_nvfp4(s))
        return where + "four-over-six and EDEN are NVFP4 quantisers";
      if (s.quest && (s.format != DType::mxfp4 || s.rounding != Rounding::nearest || s.floor_scale || g != Gemm::fprop))
        return where + "the QuEST scale is for MXFP4 rows to nearest, in the forward pass";
      if (s.quest && s.hadamard != 0 && s.hadamard != 32)
        return where + "the QuEST scale is of blocks of 32: rotate these or none";
      if ((s.tensor_scale == TensorScale::unit && !is_nvfp4(s)) ||
          (s.tensor_scale == TensorScale::delayed && block_format(s.format).scales))
        return where + "no tensor scale that could be so";
      if (s.floor_scale && block_format(s.format).columns != 32) return where + "the floor rule is one of MX scales";
      if (s.vmax && (!is_nvfp4(s) || s.rounding != Rounding::stochastic))
        return where + "sr_vmax is for NVFP4 with stochastic rounding";
      if (s.hadamard == 128 && s.sign_stream == 0)
        return where + "signs of a rotation of 128 are drawn for dgrad and wgrad only";
      if (s.hadamard != 0 && is_tile(s)) return where + "a rotated tile is not shared with the transpose";
      if (s.rounding == Rounding::eden && is_tile(s)) return where + "EDEN has no tiles";
      if (s.rounding == Rounding::eden && s.hadamard != 128) return where + "EDEN needs the rotation of 128";
      if (s.rounding == Rounding::stochastic && block_format(s.format).bits != 4)
        return where + "stochastic rounding is for 4-bit elements";
      if (g == Gemm::fprop && s.rounding != Rounding::nearest)
        return where + "stochastic rounding of the forward pass diverges";
    }
  }
  return "";
}

std::optional<Recipe> recipe_of(std::string_view name, int64_t layers, const RecipeOptions& o) {
  for (const auto& [alias, of] : aliases)
    if (name == alias) name = of;
  const Row* const row = std::ranges::find(rows, name, &Row::name);
  if (row == std::end(rows)) return std::nullopt;
  Recipe r{std::string(name), row->fprop, row->dgrad, row->wgrad, o.sites, 0, 0, {}};
  r.last_high = static_cast<int64_t>(std::ceil(row->last_high * static_cast<double>(layers) - 1e-9));
  return with_options(std::move(r), o);
}

Recipe with_options(Recipe r, const RecipeOptions& o) {
  r.sites = o.sites;
  const auto change = [&r](std::string option, const auto& f) {
    const Recipe before = r;
    f();
    if (r.fprop == before.fprop && r.dgrad == before.dgrad && r.wgrad == before.wgrad &&
        r.last_high == before.last_high)
      r.idle.push_back(std::move(option));
  };
  for (const std::string& part : o.disable) change("recipe_disable=" + part, [&] { leave_out(r, part); });
  if (o.first_high) r.first_high = *o.first_high;
  if (o.last_high) r.last_high = *o.last_high;
  if (o.pow2)
    change("tensor_scale=pow2", [&] {
      each_operand(r, [](Gemm, QuantSpec& s) {
        if (s.active() && has_tensor_scale(s) && s.tensor_scale == TensorScale::exact)
          s.tensor_scale = TensorScale::pow2;
      });
    });
  if (o.sr_vmax)
    change("recipe_addons=sr_vmax", [&] {
      each_operand(r, [](Gemm, QuantSpec& s) { s.vmax = is_nvfp4(s) && s.rounding == Rounding::stochastic; });
    });
  if (o.blackwell)
    change("gemm_accumulation=blackwell", [&] {
      for (const Gemm g : all_gemms) r.of(g).blackwell = is_nvfp4(r.of(g).a) && is_nvfp4(r.of(g).b);
    });
  if (const std::string rule = broken_rule(r); !rule.empty())
    throw Error("E102", "{} with these options is no legal recipe: {}", r.name, rule)
        .hint("recipe_disable=[] recipe_addons=[] tensor_scale=exact");
  return r;
}

Recipe finished(const Recipe& recipe, std::string_view mode) {
  Recipe r = recipe;
  r.name = fmt::format("{}, finished by {}", recipe.name, mode), r.idle.clear();
  if (mode == "fwd_bf16") r.fprop = {};
  if (mode == "bwd_bf16") r.dgrad = r.wgrad = {};
  if (mode == "all_mxfp8")
    for (const Gemm g : all_gemms) r.of(g) = {mxfp8, mxfp8};
  if (const std::string rule = broken_rule(r); !rule.empty())
    throw Error("E102", "finish_high_precision={} makes no legal recipe of {}: {}", mode, recipe.name, rule)
        .hint("finish_high_precision={}", mode == "fwd_bf16" ? "bwd_bf16" : "off");
  return r;
}

}  // namespace nibble
