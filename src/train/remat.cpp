#include "train/remat.h"

#include <algorithm>
#include <map>
#include <optional>

#include "graph/verify.h"
#include "ops/ops.h"
#include "passes/recompute.h"

namespace nibble {
namespace {

constexpr std::string_view layer_input = "decoder_layer_input";

const std::set<std::string> projections = {"query_proj", "key_proj", "value_proj"};
const std::set<std::string> dots = {"query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo"};

std::set<std::string> operator+(std::set<std::string> a, const std::set<std::string>& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// What each policy keeps beside the layers' inputs. Copies that a recipe makes for the backward pass are made again
// with what they come from, and what MaxText moves to host memory lies there already.
const std::map<std::string, std::set<std::string>, std::less<>>& kept_by_name() {
  static const std::map<std::string, std::set<std::string>, std::less<>> table = {
      {"full", {}},
      {"minimal", dots},
      {"minimal_with_quantization", dots},
      {"minimal_offloaded", dots},
      {"minimal_with_context", dots + std::set<std::string>{"context"}},
      {"minimal_flash", dots + std::set<std::string>{"context"}},
      {"minimal_with_context_and_quantization", dots + std::set<std::string>{"context"}},
      {"save_dot_with_context_except_mlp", projections + std::set<std::string>{"context", "out_proj"}},
      {"save_dot_except_mlpwi", projections + std::set<std::string>{"out_proj", "mlpwo"}},
      {"save_dot_except_mlp", projections + std::set<std::string>{"out_proj"}},
      {"save_qkv_proj", projections},
      {"qkv_proj_offloaded", projections},
      {"save_out_proj", {"out_proj"}}};
  return table;
}

// The keys of remat_policy=custom and the tensors that each stands for.
struct CustomKey {
  std::string_view key;
  std::vector<std::string> tensors;
};
const std::vector<CustomKey>& custom_keys() {
  static const std::vector<CustomKey> table = {{"context", {"context"}},
                                               {"attention_out", {"context"}},
                                               {"query_proj", {"query_proj"}},
                                               {"key_proj", {"key_proj"}},
                                               {"value_proj", {"value_proj"}},
                                               {"qkv_proj", {"query_proj", "key_proj", "value_proj"}},
                                               {"kv_proj", {"key_proj", "value_proj"}},
                                               {"out_proj", {"out_proj"}},
                                               {"mlpwi", {"mlpwi_0", "mlpwi_1"}},
                                               {"mlpwi_0", {"mlpwi_0"}},
                                               {"mlpwi_1", {"mlpwi_1"}},
                                               {"mlpwo", {"mlpwo"}}};
  return table;
}

// One microbatch graph and what may be recomputed of it.
class Candidates {
 public:
  explicit Candidates(const Graph& graph)
      : g_(graph), forward_(forward_nodes(graph)), names_(tensor_names(graph, forward_)), read_(graph.values.size()) {
    for (size_t i = forward_; i < g_.nodes.size(); ++i)
      for (const Value v : g_.nodes[i].in) read_[static_cast<size_t>(g_.behind_views(v).id)] = true;
  }

  // Nodes that a policy of tensor names recomputes.
  std::vector<bool> without(const std::set<std::string>& kept) const {
    std::vector<bool> again(forward_);
    for (size_t i = 0; i < forward_; ++i) again[i] = in_a_layer(i) && !kept.contains(std::string(names_[i].name));
    return again;
  }

  // Tensors of one kind in all layers, first layer first: what waits longest for its gradient.
  struct Kind {
    std::vector<size_t> nodes;
    double flops_per_byte = 0;
  };
  // Cheapest first.
  std::vector<Kind> kinds() const {
    std::map<std::string, Kind> by_name;
    for (size_t i = 0; i < forward_; ++i) {
      const Node& n = g_.nodes[i];
      const int64_t bytes = kept_bytes(i);
      if (bytes == 0 || !(in_a_layer(i) || n.op == &embedding_op)) continue;
      Kind& kind = by_name[fmt::format("{} {}", n.op->name, label_in_layer(n, names_[i].layer))];
      kind.nodes.push_back(i);
      kind.flops_per_byte = flops_to_make(i) / static_cast<double>(bytes);
    }
    std::vector<Kind> list;
    for (auto& [name, kind] : by_name) list.push_back(std::move(kind));
    std::ranges::stable_sort(list, {}, &Kind::flops_per_byte);
    return list;
  }

  // Nothing of what the backward pass reads is recomputed; what it does not read is never worth keeping.
  std::vector<bool> nothing() const {
    std::vector<bool> again(forward_);
    for (size_t i = 0; i < forward_; ++i) again[i] = in_a_layer(i) && kept_bytes(i) == 0;
    return again;
  }

 private:
  bool in_a_layer(size_t i) const { return names_[i].layer >= 0 && names_[i].name != layer_input; }

  int64_t kept_bytes(size_t i) const {
    int64_t bytes = 0;
    const Node& n = g_.nodes[i];
    if (n.op == &input_op || n.op == &read_op || n.op->view) return 0;
    for (const Value v : n.out)
      if (read_[static_cast<size_t>(v.id)]) bytes += g_.type(v).nbytes();
    return bytes;
  }

  // Of the node and of those before it whose results nobody keeps.
  double flops_to_make(size_t i) const {
    auto flops = static_cast<double>(cost_of(g_, g_.nodes[i]).flops);
    for (const Value v : g_.nodes[i].in) {
      const auto from = static_cast<size_t>(g_.values[static_cast<size_t>(g_.behind_views(v).id)].node);
      if (kept_bytes(from) == 0 && !g_.nodes[from].in.empty()) flops += flops_to_make(from);
    }
    return flops;
  }

  static std::string label_in_layer(const Node& n, int64_t layer) {
    const std::string number = fmt::format(".{}/", layer);
    const size_t at = n.label.find(number);
    return at == std::string::npos ? n.label : n.label.substr(at + number.size());
  }

  const Graph& g_;
  size_t forward_;
  std::vector<TensorName> names_;
  std::vector<bool> read_;  // by Value::id: a node of the backward pass reads it
};

// A choice of nodes, tried.
struct Trial {
  ExecutablePlan plan;
  Recomputation done;
};
Trial try_again(const std::string& name, const Graph& microbatch, const std::vector<bool>& again,
                const ProgramPlan& plan, bool fused) {
  Graph graph = microbatch;
  Recomputation done = recompute(graph, again);
  verify(graph, "recompute");
  return {plan_executable({name, std::move(graph)}, plan.threads, plan.target, fused), done};
}

// The least recomputation that fits: kinds of tensors from the cheapest on, the last one in as few layers as possible,
// then back to fewer layers of every kind, the dearest first. If nothing fits, what needs the fewest bytes; a limit of
// just these bytes then gives the same choice.
class Search {
 public:
  Search(const std::string& name, const Graph& microbatch, const ProgramPlan& plan, int64_t bytes, bool fused)
      : name_(name),
        graph_(microbatch),
        plan_(plan),
        candidates_(microbatch),
        kinds_(candidates_.kinds()),
        bytes_(bytes),
        fused_(fused) {}

  Trial run() const {
    Layers layers(kinds_.size(), 0), best;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (size_t k = 0; k < kinds_.size(); ++k) {
      layers[k] = kinds_[k].nodes.size();
      const int64_t bytes = bytes_of(layers);
      if (bytes <= bytes_) return trial(fewest(layers, bytes_));
      if (bytes < least) least = bytes, best = layers;
    }
    NIBBLE_CHECK(!best.empty(), "the microbatch has nothing to recompute");
    for (int64_t before = 0; before != least;) {
      before = least;
      best = fewest(best, least);
      least = shrink(best, least);
    }
    return trial(least < bytes_ ? fewest(best, bytes_) : best);
  }

 private:
  using Layers = std::vector<size_t>;  // by kind: in how many layers it is recomputed

  Trial trial(const Layers& layers) const {
    std::vector<bool> again = candidates_.nothing();
    for (size_t k = 0; k < kinds_.size(); ++k)
      for (size_t i = 0; i < layers[k]; ++i) again[kinds_[k].nodes[i]] = true;
    return try_again(name_, graph_, again, plan_, fused_);
  }
  int64_t bytes_of(const Layers& layers) const { return trial(layers).plan.memory.bytes; }

  // `layers` fit; the smallest numbers that do, by bisection.
  Layers fewest(Layers layers, int64_t limit) const {
    for (size_t k = kinds_.size(); k-- > 0;) {
      size_t low = 0, high = layers[k];
      while (low < high) {
        layers[k] = (low + high) / 2;
        if (bytes_of(layers) <= limit)
          high = layers[k];
        else
          low = layers[k] + 1;
      }
      layers[k] = high;
    }
    return layers;
  }

  // Fewer layers as long as that needs no more than `least` bytes; returns the bytes. What is computed again in the
  // last layers is alive when everything before them still waits: there it may cost more than it saves.
  int64_t shrink(Layers& layers, int64_t least) const {
    least = std::min(least, bytes_of(layers));
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t k = kinds_.size(); k-- > 0;)
        while (layers[k] > 0) {
          layers[k] -= 1;
          const int64_t bytes = bytes_of(layers);
          if (bytes > least) {
            layers[k] += 1;
            break;
          }
          least = bytes, changed = true;
        }
    }
    return least;
  }

  const std::string& name_;
  const Graph& graph_;
  const ProgramPlan& plan_;
  Candidates candidates_;
  std::vector<Candidates::Kind> kinds_;
  int64_t bytes_;  // that the temporary part may take
  bool fused_;
};

}  // namespace

const std::vector<std::string>& named_remat_policies() {
  static const std::vector<std::string> names = {
      "minimal_with_context", "minimal", "save_dot_with_context_except_mlp", "save_dot_except_mlpwi", "save_qkv_proj",
      "save_out_proj",        "full"};
  return names;
}

RematPolicy remat_of(const Config& config, int64_t limit) {
  RematPolicy policy;
  policy.name = config.get_string("remat_policy");
  if (policy.name == "none") return policy;
  if (policy.name == "auto") {
    policy.kind = RematPolicy::Kind::automatic, policy.limit = limit;
    return policy;
  }
  policy.kind = RematPolicy::Kind::named;
  if (policy.name != "custom") {
    policy.kept = kept_by_name().find(policy.name)->second;
    return policy;
  }
  for (const CustomKey& k : custom_keys())
    if (config.get_string(k.key) != "remat") policy.kept.insert(k.tensors.begin(), k.tensors.end());
  return policy;
}

void apply_remat(const RematPolicy& policy, const std::string& name, const Graph& microbatch, ProgramPlan& plan,
                 bool fused) {
  plan.recomputation.kept_bytes = plan.recomputation.kept_before = kept_bytes(microbatch);
  const auto take = [&plan](Trial t) {
    plan.recomputation = t.done;
    plan.replace(std::move(t.plan));
  };
  if (policy.kind == RematPolicy::Kind::named)
    take(try_again(name, microbatch, Candidates(microbatch).without(policy.kept), plan, fused));
  if (policy.kind != RematPolicy::Kind::automatic || plan.arena_bytes() <= policy.limit) return;
  int64_t temporary = policy.limit - plan.state_bytes;
  if (temporary <= 0) return;                       // the states alone are too large
  for (const ExecutablePlan& e : plan.executables)  // no recomputation makes these smaller
    if (!e.name.starts_with("microbatch")) temporary = std::max(temporary, e.memory.bytes);
  if (plan.executable(name).memory.bytes <= temporary) return;
  take(Search(name, microbatch, plan, temporary, fused).run());
}

}  // namespace nibble
