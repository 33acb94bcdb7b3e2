// MaxText's names of a decoder layer's tensors, found in a graph by the weights that make them: what remat_policy and
// its per-tensor keys speak of.  Source: MaxText's layers/attentions.py, layers/linears.py (checkpoint_name).
#pragma once
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace nibble {

struct TensorName {
  int64_t layer = -1;     // -1: outside of the layers
  std::string_view name;  // "query_proj"; empty: a tensor of the layer without a name (norm, swiglu, sum)
};

/// By node, of the first `forward` nodes of a graph of models/llama:
///   decoder_layer_input   the residual stream where a layer starts, or the last one ends
///   query_proj, key_proj  after RoPE, and the products before it      value_proj   the product
///   context               attention's output with its statistics      out_proj     the product
///   mlpwi_0, mlpwi_1      gate, up                                    mlpwo        down
std::vector<TensorName> tensor_names(const Graph& graph, size_t forward);

}  // namespace nibble
