// Weights as 4-bit codes, activations as they are: for generation and evaluation of any model (spec/generation.md 1.2,
// gen_recipe = weight_only). No number of the products changes but the weights': ops/linear_w4.cpp.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "passes/quantize.h"

namespace nibble {

/// How the codes of a weight are made, by parameter name: what fills a program's `codes` states.
using WeightSpecs = std::map<std::string, QuantSpec, std::less<>>;

/// Of the sites whose fprop is quantised; with `table` active also of the embedding and the head.
WeightSpecs weight_specs(const Graph& graph, const std::vector<QuantizedSite>& sites, const QuantSpec& table = {});

/// Products and embeddings of these parameters read codes: the states `codes` instead of parameters. All specs are
/// NVFP4's. Of a forward graph. Products that share their input become one node.
void weights_to_codes(Graph& graph, const WeightSpecs& specs);

}  // namespace nibble
