// Precision recipes: for each of a linear layer's three products, how both operands are quantised. Data only; the one
// reader is passes/quantize.  Source: spec/precision.md 3.
#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/quant_spec.h"

namespace nibble {

/// The products of a linear layer y = x w^T.
enum class Gemm { fprop, dgrad, wgrad };
inline constexpr std::array all_gemms = {Gemm::fprop, Gemm::dgrad, Gemm::wgrad};
std::string_view name_of(Gemm gemm);

/// Operands of one product, both with blocks along the contracted axis. fprop: x, w; dgrad: dy, w; wgrad: dy, x (their
/// transposes). Not quantised: the product has operands of the run's dtype.
struct GemmRecipe {
  QuantSpec a, b;
  float factor = 1;           // on the result: 16/9 where both operands were scaled by 3/4
  bool b_from_saved = false;  // b is made from the 4-bit operand that fprop saved, not from the numbers
  bool blackwell = false;     // sums as a Blackwell GPU rounds them (5.2): NVFP4 only
  bool active() const { return a.active() && b.active(); }
  bool operator==(const GemmRecipe&) const = default;
};

/// "nvfp4 stochastic . nvfp4_2d", then "saved", "x 1.7777778" and "blackwell" where they hold.
std::string to_string(const GemmRecipe& product);

/// Which linear layers of a decoder layer.
enum class Sites { all, mlp };

struct Recipe {
  std::string name;  // "te_nvfp4"; empty: nothing is quantised
  GemmRecipe fprop, dgrad, wgrad;
  Sites sites = Sites::all;
  int64_t first_high = 0, last_high = 0;  // decoder layers that stay in the run's dtype
  std::vector<std::string> idle;          // of RecipeOptions: what changes nothing in this recipe
  const GemmRecipe& of(Gemm g) const { return g == Gemm::fprop ? fprop : g == Gemm::dgrad ? dgrad : wgrad; }
  GemmRecipe& of(Gemm g) { return g == Gemm::fprop ? fprop : g == Gemm::dgrad ? dgrad : wgrad; }
  bool active() const { return fprop.active() || dgrad.active() || wgrad.active(); }
};

/// What a configuration adds to a recipe's table.
struct RecipeOptions {
  std::vector<std::string> disable;  // two_level, high_precision, weight_2d, rht, sr
  Sites sites = Sites::all;
  std::optional<int64_t> first_high, last_high;  // else the recipe's
  bool pow2 = false;                             // tensor_scale=pow2
  bool sr_vmax = false;                          // recipe_addons=[sr_vmax]
  bool blackwell = false;                        // gemm_accumulation=blackwell
};

/// Names that recipe_of knows, in the order of the documentation. "" (none) is not among them.
std::span<const std::string_view> recipe_names();
/// The recipe `name` (aliases such as te_mxfp8 included) for a model of `layers` decoder layers. nullopt: unknown.
/// Throws E102 with the rule where options and recipe exclude each other (spec/precision.md 3.7).
std::optional<Recipe> recipe_of(std::string_view name, int64_t layers, const RecipeOptions& options = {});

/// What `options` make of a recipe; `layers` of the model, for a share of them. Throws E102 as recipe_of.
Recipe with_options(Recipe recipe, const RecipeOptions& options);

/// How a run ends (3.5): "fwd_bf16", "bwd_bf16", "all_mxfp8". Sites and layers are those of `recipe`.
/// Throws E102 where nothing is left of it: a backward pass that needs what the forward pass saved.
Recipe finished(const Recipe& recipe, std::string_view mode);

/// The rule of spec/precision.md 3.7 that a recipe breaks; "" if none.
std::string broken_rule(const Recipe& recipe);

}  // namespace nibble
