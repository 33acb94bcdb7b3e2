// remat_policy: which forward values of a microbatch are kept for its backward pass, and which are computed again
// (passes/recompute). Never changes a result. Names and their meaning are MaxText's; `auto` is nibble's.
// Source: spec/training.md 1.5 (memory); MaxText's layers/decoders.py.
#pragma once
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "io/config.h"
#include "models/tensor_names.h"
#include "runtime/program.h"

namespace nibble {

struct RematPolicy {
  enum class Kind { none, named, automatic };
  Kind kind = Kind::none;
  std::string name = "none";   // as configured
  std::set<std::string> kept;  // named: tensors that stay (models/tensor_names); a layer's input always does
  int64_t limit = std::numeric_limits<int64_t>::max();  // automatic: bytes of the arena
};

/// remat_policy with its per-tensor keys; limit: the arena may take so many bytes.
RematPolicy remat_of(const Config& config, int64_t limit);

/// Values of remat_policy that name kept tensors, from the one that recomputes least to the one that recomputes most.
const std::vector<std::string>& named_remat_policies();

/// Plans the executable `name` ("microbatch") again so that it recomputes what the policy says. `microbatch`: its graph
/// after grad.
/// automatic: nothing if the program fits; else the tensors that cost the fewest FLOPs a byte, in as many layers as it
/// takes, and no more; if nothing fits, what needs the fewest bytes.
void apply_remat(const RematPolicy& policy, const std::string& name, const Graph& microbatch, ProgramPlan& plan,
                 bool fused);

}  // namespace nibble
