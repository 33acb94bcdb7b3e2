#include "plan/report.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/ops.h"
#include "plan/work.h"

namespace nibble {
namespace {

bool computes(const Node& n) { return n.op != &input_op && n.op != &read_op && !n.op->view; }

const ExecutablePlan* largest_executable(const ProgramPlan& plan) {
  const ExecutablePlan* largest = nullptr;
  for (const ExecutablePlan& e : plan.executables)
    if (largest == nullptr || e.memory.bytes > largest->memory.bytes) largest = &e;
  return largest;
}

// Where forward turns into backward: the node that makes the first gradient. Without one (update, evaluation), the end.
int32_t turning_point(const Graph& graph) {
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].op == &cross_entropy_grad_op) return static_cast<int32_t>(i);
  return static_cast<int32_t>(graph.nodes.size());
}

// Alive across the turning point.
bool is_kept(const Placement& p, int32_t turn) { return !p.keeps && p.first < turn && p.last > turn; }

// The node at which the most bytes are alive: where memory is short.
int32_t peak_node(const MemoryPlan& memory) {
  std::vector<int64_t> change(memory.workspaces.size() + 2);
  for (const Placement& p : memory.buffers) {
    change[static_cast<size_t>(p.first)] += p.bytes;
    change[static_cast<size_t>(p.last) + 1] -= p.bytes;
  }
  int64_t alive = 0, most = 0;
  int32_t peak = 0;
  for (const Placement& w : memory.workspaces) {
    alive += change[static_cast<size_t>(w.first)];
    if (alive + w.bytes > most) most = alive + w.bytes, peak = w.first;
  }
  return peak;
}

std::string_view class_of(StateRole role) {
  switch (role) {
    case StateRole::parameter:
      return "weights";
    case StateRole::weight:
      return "rounded weights";
    case StateRole::codes:
    case StateRole::codes_transposed:
      return "quantized weights";
    case StateRole::fp8_scale:
    case StateRole::fp8_history:
      return "scale histories";
    case StateRole::gradient:
      return "gradients";
    case StateRole::moment_m:
    case StateRole::moment_v:
      return "optimizer";
    case StateRole::kv_cache:
      return "caches";
    case StateRole::constant:
      return "constants";
  }
  return "";
}

std::string_view kind_of(StateRole role) {
  switch (role) {
    case StateRole::parameter:
      return "weight";
    case StateRole::weight:
      return "rounded weight";
    case StateRole::codes:
      return "codes";
    case StateRole::codes_transposed:
      return "codes, transposed";
    case StateRole::fp8_scale:
      return "scale";
    case StateRole::fp8_history:
      return "history";
    case StateRole::gradient:
      return "gradient";
    case StateRole::moment_m:
      return "m";
    case StateRole::moment_v:
      return "v";
    case StateRole::kv_cache:
      return "cache";
    case StateRole::constant:
      return "constant";
  }
  return "";
}

// "layers.12/mlp" -> {"layers.", 12, "/mlp"}. A name without a layer is all head and number -1.
struct LayerName {
  std::string head, tail;
  int64_t layer = -1;
};
LayerName split_layer(const std::string& name) {
  constexpr std::string_view word = "layers.";
  const size_t at = name.find(word);
  if (at == std::string::npos) return {name, "", -1};
  size_t end = at + word.size();
  int64_t layer = 0;
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') layer = 10 * layer + (name[end++] - '0');
  if (end == at + word.size()) return {name, "", -1};
  return {name.substr(0, at + word.size()), name.substr(end), layer};
}

// Names of rows that agree but for their layer. Layers come in any order and each once.
class LayerSet {
 public:
  explicit LayerSet(LayerName name) : head_(std::move(name.head)), tail_(std::move(name.tail)), layers_{name.layer} {}
  void add(int64_t layer) { layers_.insert(layer); }
  // "layers.0-7/mlp", or "layers.0,2,5/mlp".
  std::string name() const {
    if (*layers_.begin() < 0) return head_;
    const int64_t first = *layers_.begin(), last = *layers_.rbegin();
    if (first == last) return fmt::format("{}{}{}", head_, first, tail_);
    if (last - first + 1 == static_cast<int64_t>(layers_.size()))
      return fmt::format("{}{}-{}{}", head_, first, last, tail_);
    return fmt::format("{}{}{}", head_, fmt::join(layers_, ","), tail_);
  }

 private:
  std::string head_, tail_;
  std::set<int64_t> layers_;
};

// Which linear a weight belongs to, by the read that brings it: dgrad nodes are labelled by what they make.
std::map<int32_t, std::string> sites_of_weights(const Graph& graph) {
  std::map<int32_t, std::string> sites;
  for (const Node& n : graph.nodes)
    if (n.op == &linear_op && !is_recomputed(n)) sites[n.in[1].id] = n.label;
  std::map<std::string, std::string> by_weight;  // a quantised weight is states of its name, or of one that begins so
  const auto weight_of = [&](Value v) -> std::string {
    const Node* made = &graph.producer(v);
    while (made->op == &quantize_op || made->op == &requantize_op) made = &graph.producer(made->in[0]);
    return made->op == &read_op ? made->attrs.get_string("name") : "";
  };
  for (const Node& n : graph.nodes)
    if ((n.op == &linear_op || n.op == &qlinear_op) && !is_recomputed(n)) by_weight[weight_of(n.in[1])] = n.label;
  for (const Node& n : graph.nodes)
    if (n.op == &qlinear_dgrad_op || n.op == &linear_dgrad_op)
      for (size_t i = 1; i < n.in.size(); i += 2) {
        const std::string weight = weight_of(n.in[i]);
        const auto found = by_weight.lower_bound(weight);
        if (!weight.empty() && found != by_weight.end() && found->first.starts_with(weight))
          sites[n.in[i].id] = found->second;
      }
  return sites;
}

// "layers.0/mlp/gate_proj" and "layers.0/mlp/up_proj" -> "layers.0/mlp/gate_proj+up_proj".
std::string joined_site(const std::map<int32_t, std::string>& sites, const Node& dgrad) {
  std::string site;
  for (size_t i = 1; i < dgrad.in.size(); i += 2) {
    const auto found = sites.find(dgrad.in[i].id);
    if (found == sites.end()) return dgrad.label;
    const std::string& name = found->second;
    site += site.empty() ? name : "+" + name.substr(name.rfind('/') + 1);
  }
  return site;
}

// True and the row of node n if it is a matrix product.
bool gemm_of(const ExecutablePlan& plan, size_t i, const std::map<int32_t, std::string>& sites, GemmRow* row) {
  const Graph& g = plan.graph;
  const Node& n = g.nodes[i];
  const auto type = [&](size_t k) -> const Type& { return g.type(n.in[k]); };
  size_t operand = 0;
  if (n.op == &linear_op) {
    *row = {.site = n.label, .gemm = "fprop", .m = type(0).rows(), .n = type(1).dim(0), .k = type(1).dim(1)};
  } else if (n.op == &linear_dgrad_op) {
    *row = {.site = joined_site(sites, n), .gemm = "dgrad", .m = type(0).rows(), .n = type(1).dim(1)};
    for (size_t k = 0; k < n.in.size(); k += 2) row->k += type(k).dim(-1);
  } else if (n.op == &linear_wgrad_op) {
    *row = {.site = n.label, .gemm = "wgrad", .m = type(0).dim(0), .n = type(0).dim(1), .k = type(1).rows()};
    operand = 1;
  } else if (n.op == &qlinear_op) {
    *row = {.site = n.label,
            .gemm = n.attrs.has("gemm") ? n.attrs.get_string("gemm") : "fprop",
            .m = type(0).rows(),
            .n = type(1).dim(0),
            .k = type(1).dim(1)};
  } else if (n.op == &qlinear_dgrad_op) {
    *row = {.site = joined_site(sites, n), .gemm = "dgrad", .m = type(0).rows(), .n = type(1).dim(0)};
    for (size_t k = 0; k < n.in.size(); k += 2) row->k += type(k).dim(-1);
  } else if (n.op == &qlinear_wgrad_op) {
    *row = {.site = n.label, .gemm = "wgrad", .m = type(0).dim(0), .n = type(0).dim(1), .k = type(1).dim(1)};
  } else if (n.op == &cross_entropy_op || n.op == &cross_entropy_grad_op) {
    operand = n.op == &cross_entropy_op ? 0 : 1;
    *row = {.site = n.label,
            .gemm = "head",
            .m = type(operand).rows(),
            .n = type(operand + 1).dim(0),
            .k = type(operand + 1).dim(1)};
  } else {
    return false;
  }
  row->node = static_cast<int32_t>(i);
  row->format = n.attrs.has("a") ? n.attrs.get_string("a") + ", " + n.attrs.get_string("b")
                                 : std::string(name_of(type(operand).dtype));
  row->kernel = plan.kernels[i].name;
  row->flops = static_cast<double>(cost_of(g, n).flops);
  return true;
}

}  // namespace

std::vector<MemoryClass> memory_classes(const ProgramPlan& plan) {
  std::vector<MemoryClass> classes = {{"weights"},          {"rounded weights"},  {"quantized weights"},
                                      {"scale histories"},  {"gradients"},        {"optimizer"},
                                      {"caches"},           {"constants"},        {"batch"},
                                      {"activations kept"}, {"activations live"}, {"workspace"}};
  const auto of = [&](std::string_view name) -> int64_t& {
    return std::ranges::find(classes, name, &MemoryClass::name)->bytes;
  };
  for (const StateInfo& s : plan.states) of(class_of(s.role)) += align_up(s.type.nbytes());
  const ExecutablePlan* e = largest_executable(plan);
  if (e == nullptr) return classes;
  const int32_t turn = turning_point(e->graph), peak = peak_node(e->memory);
  for (const Placement& p : e->memory.buffers) {
    if (p.keeps) of("batch") += p.bytes;
    if (is_kept(p, turn) && p.first <= peak && peak <= p.last) of("activations kept") += p.bytes;
  }
  of("workspace") = e->memory.workspaces[static_cast<size_t>(peak)].bytes;
  of("activations live") = plan.temporary_bytes - of("batch") - of("activations kept") - of("workspace");
  return classes;
}

std::vector<TensorRow> largest_tensors(const ProgramPlan& plan, size_t most) {
  struct Group {
    TensorRow row;
    LayerSet layers;
  };
  std::vector<Group> groups;
  std::map<std::string, size_t> index;  // by name without layer, type and kind
  const auto add = [&](const std::string& name, std::string kind, const Type& type, int64_t count) {
    LayerName parts = split_layer(name);
    const int64_t layer = parts.layer;
    const auto [at, fresh] =
        index.try_emplace(fmt::format("{}*{} {} {}", parts.head, parts.tail, to_string(type), kind), groups.size());
    if (fresh) {
      groups.push_back(
          {{.kind = std::move(kind), .type = type, .bytes = type.nbytes(), .count = 0}, LayerSet(std::move(parts))});
    }
    groups[at->second].layers.add(layer);
    groups[at->second].row.count += count;
  };
  // A parameter, its gradient and its moments have one name and one type.
  std::map<std::pair<std::string, DType>, std::pair<const StateInfo*, std::vector<std::string_view>>> states;
  std::vector<std::pair<std::string, DType>> order;
  for (const StateInfo& s : plan.states) {
    const std::pair key(s.name, s.type.dtype);
    auto [at, fresh] = states.try_emplace(key, &s, std::vector<std::string_view>{});
    if (fresh) order.push_back(key);
    at->second.second.push_back(kind_of(s.role));
  }
  for (const auto& key : order) {
    auto& [state, kinds] = states.at(key);
    std::ranges::sort(kinds, {}, [](std::string_view k) {
      return std::string_view("weight codes gradient m v cache constant").find(k);
    });
    add(key.first, fmt::format("{}", fmt::join(kinds, ", ")), state->type, static_cast<int64_t>(kinds.size()));
  }
  if (const ExecutablePlan* e = largest_executable(plan)) {
    for (const Placement& p : e->memory.buffers) {
      const Node& n = e->graph.producer(p.value);
      const std::string what = n.op == &input_op ? n.attrs.get_string("name") : std::string(n.op->name);
      add(n.label.empty() ? what : n.label + " " + what, n.op == &input_op ? "batch" : "activation",
          e->graph.type(p.value), 1);
    }
  }
  std::ranges::stable_sort(groups, std::greater{}, [](const Group& g) { return g.row.bytes; });
  std::vector<TensorRow> rows;
  for (size_t i = 0; i < std::min(most, groups.size()); ++i) {
    rows.push_back(groups[i].row);
    rows.back().name = groups[i].layers.name();
  }
  return rows;
}

namespace {

// Rows that agree but for their layer become one.
class RematTable {
 public:
  void add(const std::string& name, RematRow row) {
    LayerName parts = split_layer(name);
    const int64_t layer = parts.layer;
    const std::string key = fmt::format("{}*{} {} {}", parts.head, parts.tail, to_string(row.type), row.bytes);
    const auto [at, fresh] = index_.try_emplace(key, rows_.size());
    if (fresh) {
      rows_.push_back(std::move(row));
      names_.emplace_back(std::move(parts));
      return;
    }
    rows_[at->second].count += 1;
    names_[at->second].add(layer);
  }
  std::vector<RematRow> rows() {
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i].name = names_[i].name();
    return std::move(rows_);
  }

 private:
  std::vector<RematRow> rows_;
  std::vector<LayerSet> names_;
  std::map<std::string, size_t> index_;
};

// "layers.3/mlp swiglu"
std::string node_name(const Node& n) {
  const std::string label = is_recomputed(n) ? n.label.substr(recompute_label.size()) : n.label;
  return fmt::format("{}{}{}", label, label.empty() ? "" : " ", n.op->name);
}

}  // namespace

std::vector<RematRow> kept_rows(const ExecutablePlan& microbatch) {
  RematTable table;
  const Graph& g = microbatch.graph;
  const auto turn = static_cast<size_t>(turning_point(g));
  std::vector<bool> read(g.values.size());  // by a node after the turn
  for (size_t i = turn + 1; i < g.nodes.size(); ++i)
    for (const Value v : g.nodes[i].in) read[static_cast<size_t>(g.behind_views(v).id)] = true;
  for (size_t i = 0; i < turn; ++i)
    for (const Value v : g.nodes[i].out)
      if (read[static_cast<size_t>(v.id)] && microbatch.memory.buffer_of[static_cast<size_t>(v.id)] >= 0 &&
          g.nodes[i].op != &input_op)
        table.add(node_name(g.nodes[i]), {.type = g.type(v), .bytes = g.type(v).nbytes()});
  std::vector<RematRow> rows = table.rows();
  std::ranges::stable_sort(rows, std::greater{}, [](const RematRow& r) { return r.bytes * r.count; });
  return rows;
}

std::vector<RematRow> recomputed_rows(const ExecutablePlan& microbatch) {
  RematTable table;
  const Graph& g = microbatch.graph;
  std::vector<bool> read(g.values.size());
  for (const Node& n : g.nodes)
    for (const Value v : n.in) read[static_cast<size_t>(v.id)] = true;
  for (const Node& n : g.nodes) {
    if (!is_recomputed(n) || n.op->view) continue;
    RematRow row{.type = g.type(n.out[0]), .flops = static_cast<double>(cost_of(g, n).flops)};
    for (const Value v : n.out) row.bytes += read[static_cast<size_t>(v.id)] ? g.type(v).nbytes() : 0;
    table.add(node_name(n), row);
  }
  return table.rows();
}

std::vector<GemmRow> gemm_rows(const ExecutablePlan& plan, bool layers) {
  const std::map<int32_t, std::string> sites = sites_of_weights(plan.graph);
  std::vector<GemmRow> rows;
  std::vector<LayerSet> names;
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < plan.graph.nodes.size(); ++i) {
    GemmRow row;
    if (!gemm_of(plan, i, sites, &row)) continue;
    LayerName parts = split_layer(row.site);
    const int64_t layer = parts.layer;
    std::string key = fmt::format("{}*{} {} {} {} {} {} {}", parts.head, parts.tail, row.gemm, row.m, row.n, row.k,
                                  row.format, row.kernel);
    if (layers) key += fmt::format(" {}", i);
    const auto [at, fresh] = index.try_emplace(key, rows.size());
    if (fresh) {
      rows.push_back(row);
      names.emplace_back(std::move(parts));
      continue;
    }
    rows[at->second].count += 1;
    names[at->second].add(layer);
  }
  for (size_t i = 0; i < rows.size(); ++i) rows[i].site = names[i].name();
  return rows;
}

std::vector<OpRow> op_rows(const ExecutablePlan& plan) {
  std::vector<OpRow> rows;
  for (size_t i = 0; i < plan.graph.nodes.size(); ++i) {
    const Node& n = plan.graph.nodes[i];
    if (!computes(n)) continue;
    auto at = std::ranges::find_if(
        rows, [&](const OpRow& r) { return r.op == n.op->name && r.kernel == plan.kernels[i].name; });
    if (at == rows.end()) at = rows.insert(rows.end(), {std::string(n.op->name), std::string(plan.kernels[i].name)});
    const Cost cost = cost_of(plan.graph, n);
    at->nodes += 1, at->flops += static_cast<double>(cost.flops), at->bytes += static_cast<double>(cost.bytes);
  }
  return rows;
}

PlanReport make_report(const ProgramPlan& plan, PlanSubject subject, bool layers) {
  PlanReport r;
  r.subject = std::move(subject);
  r.parameters = parameter_count(r.subject.model);
  r.target = name_of(plan.target), r.threads = plan.threads;
  r.arena_bytes = plan.arena_bytes();
  if (const ExecutablePlan* e = largest_executable(plan)) r.largest_executable = e->name;
  r.memory = memory_classes(plan);
  r.tensors = largest_tensors(plan, 10);
  r.gemms = gemm_rows(plan.executable("microbatch"), layers);
  if (!r.subject.finish.empty())
    r.finish_gemms = gemm_rows(plan.executable("microbatch" + std::string(finish_suffix)), layers);
  r.recomputation = plan.recomputation;
  if (plan.recomputation.nodes > 0) {
    r.kept = kept_rows(plan.executable("microbatch"));
    r.recomputed = recomputed_rows(plan.executable("microbatch"));
  }
  r.model_flops = maxtext_flops(r.subject.model, r.subject.batch, r.subject.length, r.subject.accumulation);
  std::set<std::string> refusals;
  for (const ExecutablePlan& e : plan.executables) {
    r.nodes.emplace_back(e.name, static_cast<int64_t>(e.graph.nodes.size()));
    for (size_t i = 0; i < e.kernels.size(); ++i)
      if (!e.kernels[i].refusals.empty())
        refusals.insert(fmt::format("{}: {}", e.graph.nodes[i].op->name, e.kernels[i].refusals));
    const int64_t runs = runs_a_step(e.name, r.subject.accumulation);
    if (runs == 0) continue;
    const auto times = static_cast<double>(runs);
    for (OpRow row : op_rows(e)) {
      row.flops *= times, row.bytes *= times, row.nodes *= runs;
      r.executed_flops += row.flops, r.traffic_bytes += row.bytes;
      const auto at =
          std::ranges::find_if(r.ops, [&](const OpRow& o) { return o.op == row.op && o.kernel == row.kernel; });
      if (at == r.ops.end())
        r.ops.push_back(row);
      else
        at->nodes += row.nodes, at->flops += row.flops, at->bytes += row.bytes;
    }
  }
  std::ranges::stable_sort(r.ops, std::greater{}, &OpRow::flops);
  r.refusals.assign(refusals.begin(), refusals.end());
  return r;
}

}  // namespace nibble
