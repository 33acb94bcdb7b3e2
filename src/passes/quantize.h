// Puts a recipe into a graph: the products of its linear layers take quantised operands, and nodes that make these
// operands appear. The only reader of a Recipe.  Source: spec/precision.md 3; in use: docs/quantization.md.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "recipes/recipe.h"

namespace nibble {

/// One linear layer of the model.
struct QuantizedSite {
  std::string label;   // "layers.3/mlp/up_proj"
  std::string weight;  // the parameter's name
  std::string codes;   // the name of the states that hold its codes: the same, and what was given for a second recipe
  int64_t ordinal;     // among the linear layers of the model, in forward order: keys its random bits
  int64_t layer;
  Shape shape;                     // of the weight [N, K]
  GemmRecipe fprop, dgrad, wgrad;  // inactive: operands of the run's dtype
  std::string why;                 // it is left as it is, or ""
  const GemmRecipe& of(Gemm g) const { return g == Gemm::fprop ? fprop : g == Gemm::dgrad ? dgrad : wgrad; }
  bool active() const { return fprop.active() || dgrad.active() || wgrad.active(); }
};

/// The linear layers of a forward graph and what the recipe does to each. other_codes: where a program has a second
/// recipe whose codes are of other types, what the names of their states end in (" finish").
std::vector<QuantizedSite> quantized_sites(const Graph& graph, const Recipe& recipe, std::string_view other_codes = "");

/// Over what the amax of an activation is taken that has a tensor scale: the tensor, or each row alone, so that no row
/// depends on another one (spec/precision.md 6; forward graphs only).
enum class AmaxScope { tensor, row };

/// Rewrites a graph, with or without its gradient. Weights become reads of the states `codes` and `codes_transposed`;
/// activations and gradients are quantised once, in one node for both copies, and a copy that only the backward pass
/// reads is made in the forward pass, so that 4 bits are kept and not the numbers. Adds the input
/// random i32[4] {seed, step, first row of the microbatch in the batch, 0} where anything is quantised.
void quantize(Graph& graph, const std::vector<QuantizedSite>& sites, AmaxScope scope = AmaxScope::tensor);

/// What turns delayed scales after an optimizer step: one advance_scale for each history that `graph` records into.
Graph scales_graph(const Graph& graph);

/// What rounds or quantises the weights that `graphs` read, from their f32 masters: once an optimizer step. Empty
/// graph: they read the masters themselves.
Graph weights_graph(const std::vector<const Graph*>& graphs, const std::vector<QuantizedSite>& sites);

}  // namespace nibble
