#include "passes/quantize.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "ops/ops.h"
#include "passes/grad.h"

namespace nibble {
namespace {

bool is_projection(std::string_view label) { return label.find("layers.") != label.npos && label.ends_with("_proj"); }

int64_t layer_of(std::string_view label) {
  const size_t at = label.find("layers.") + 7;
  int64_t layer = -1;
  std::from_chars(label.data() + at, label.data() + label.size(), layer);
  return layer;
}

// Whose bits depend on the site: a copy of a shared x is then one site's own.
bool draws(const QuantSpec& s) { return s.rounding != Rounding::nearest || s.hadamard == 128; }

// A weight under a delayed scale is quantised in the microbatch, which records its amax like any other.
bool made_in_graph(const QuantizedSite& s) {
  return s.fprop.b.tensor_scale == TensorScale::delayed || s.dgrad.b.tensor_scale == TensorScale::delayed;
}

// A product of saved operands that were rotated and cut off is the gradient of these: quest_back makes of it that of
// the numbers.
bool turns_back(const QuantizedSite& s, const GemmRecipe& g) { return g.b_from_saved && s.fprop.a.quest; }

/// Copies of a weight that are states.
QuantSpec row_state(const QuantizedSite& s) { return s.fprop.active() ? s.fprop.b : QuantSpec{}; }
QuantSpec column_state(const QuantizedSite& s) {
  return s.dgrad.active() && !s.dgrad.b_from_saved ? s.dgrad.b : QuantSpec{};
}

// Of a weight [n, k], blocks along k.
Type row_type(const QuantSpec& spec, int64_t n, int64_t k) {
  return {spec.format, {n, spec.hadamard > 0 ? filled(spec, k) : k}};
}

// tensor: x, w or dy, for people.
Attrs copy_attrs(const QuantSpec& row, const QuantSpec& column, int64_t tokens, int64_t site, std::string_view tensor) {
  Attrs attrs;
  if (row.active()) attrs.set("row", to_string(row));
  if (column.active()) attrs.set("column", to_string(column));
  attrs.set("tokens", tokens), attrs.set("site", site), attrs.set("tensor", std::string(tensor));
  return attrs;
}

const Type random_type{DType::i32, {quantize_words}};

class Quantize {
 public:
  Quantize(Graph& graph, const std::vector<QuantizedSite>& sites, AmaxScope scope)
      : old_(graph), sites_(sites), scope_(scope) {
    next_.values = graph.values, next_.outputs = graph.outputs;
    for (const QuantizedSite& s : sites) by_label_[s.label] = &s;
    backward_ = std::ranges::any_of(graph.nodes, [](const Node& n) { return n.op == &linear_wgrad_op; });
    NIBBLE_CHECK(!backward_ || scope == AmaxScope::tensor, "rows have scales of their own in forward graphs only");
  }

  void run() {
    for (const Node& n : old_.nodes) {
      if (n.op == &linear_op)
        forward(n);
      else if (n.op == &linear_dgrad_op)
        dgrad(n);
      else if (n.op == &linear_wgrad_op)
        wgrad(n);
      else
        append(n);
    }
    old_ = std::move(next_);
    remove_dead(old_);
  }

 private:
  void append(Node n) {
    for (size_t k = 0; k < n.out.size(); ++k) {
      ValueInfo& info = next_.values[static_cast<size_t>(n.out[k].id)];
      info.node = static_cast<int32_t>(next_.nodes.size()), info.index = static_cast<int32_t>(k);
    }
    next_.nodes.push_back(std::move(n));
  }

  Value source(const Op& op, Attrs attrs, const Type& type) {
    const auto [known, is_new] = sources_.try_emplace(to_string(attrs), Value{});
    if (is_new) {
      known->second = {static_cast<int32_t>(next_.values.size())};
      next_.values.push_back({type});
      append({&op, {}, {known->second}, std::move(attrs), ""});
    }
    return known->second;
  }
  Value random() { return source(input_op, {{"name", std::string("random")}}, random_type); }
  Value state(StateRole role, const std::string& name, const Type& type) {
    return source(read_op, {{"role", std::string(name_of(role))}, {"name", name}}, type);
  }

  Values emit(const Op& op, const Values& in, Attrs attrs, const std::string& label) {
    Types types;
    for (const Value v : in) types.push_back(next_.type(v));
    Node n{&op, in, {}, std::move(attrs), label};
    for (const Type& t : result_types({op, types, {}, n.attrs, label})) {
      n.out.push_back({static_cast<int32_t>(next_.values.size())});
      next_.values.push_back({t});
    }
    append(n);
    return n.out;
  }

  // A quantised copy of v: made once, with its other copy if that is asked for in the same breath.
  struct Wanted {
    QuantSpec spec;
    bool column;
  };
  using Key = std::tuple<int32_t, bool, std::string, int64_t>;
  static Key key(Value v, const Wanted& w, int64_t site) {
    return {v.id, w.column, to_string(w.spec), draws(w.spec) ? site : -1};
  }
  void make(Value v, const QuantizedSite& site, QuantSpec row, QuantSpec column, std::string_view tensor) {
    const Key of_row = key(v, {row, false}, site.ordinal), of_column = key(v, {column, true}, site.ordinal);
    if (copies_.contains(of_row)) row = {};
    if (copies_.contains(of_column)) column = {};
    if (!row.active() && !column.active()) return;
    const Type type = next_.type(v);  // a copy: sources grow the list of values
    const QuantSpec& one = row.active() ? row : column;
    const bool delayed = one.tensor_scale == TensorScale::delayed;
    Values in = {v, random()};
    const std::string name = fmt::format("{} {}", site.label, tensor);
    if (delayed) in.push_back(state(StateRole::fp8_scale, name, {DType::f32, {1}}));
    const Values made = emit(quantize_op, in, copy_attrs(row, column, type.dim(-2), site.ordinal, tensor), site.label);
    if (delayed && backward_)
      emit(record_amax_op, {state(StateRole::fp8_history, name, {DType::f32, {fp8_history_length}}), made[0]}, {},
           site.label);
    if (row.active()) copies_[of_row] = made[0];
    if (column.active()) copies_[of_column] = made.back();
  }
  Value copy(Value v, const QuantizedSite& site, const QuantSpec& spec, bool column) const {
    return copies_.at(key(v, {spec, column}, site.ordinal));
  }

  // What a QuEST scale cuts off of v.
  static Attrs rotation_of(const QuantSpec& spec) { return {{"hadamard", static_cast<int64_t>(spec.hadamard)}}; }
  Value mask(Value v, const QuantizedSite& site, const QuantSpec& spec) {
    const auto [known, is_new] = masks_.try_emplace({v.id, spec.hadamard}, Value{});
    if (is_new) known->second = emit(quest_mask_op, {v}, rotation_of(spec), site.label)[0];
    return known->second;
  }

  // The copy of a weight with blocks along K (fprop) or N (dgrad).
  Value weight(const QuantizedSite& site, bool transposed) {
    const QuantSpec spec = transposed ? site.dgrad.b : site.fprop.b;
    if (made_in_graph(site)) return copy(masters_.at(site.weight), site, spec, transposed);
    const int64_t n = site.shape.dim(0), k = site.shape.dim(1);
    if (transposed && site.dgrad.b_from_saved) {
      const auto [known, is_new] = requantized_.try_emplace(site.weight, Value{});
      if (is_new)
        known->second = emit(requantize_op, {weight(site, false), random()}, copy_attrs({}, spec, n, site.ordinal, "w"),
                             site.label)[0];
      return known->second;
    }
    return transposed ? state(StateRole::codes_transposed, site.codes, {spec.format, {k, filled(spec, n)}})
                      : state(StateRole::codes, site.codes, row_type(spec, n, k));
  }

  // a, b: how the operands were made, for people.
  static Attrs product_attrs(const Type& y, const GemmRecipe& g) {
    const auto text = [](QuantSpec s) {
      s.stream = s.sign_stream = 0;
      return to_string(s);
    };
    Attrs attrs{{"dtype", std::string(name_of(y.dtype))}, {"a", text(g.a)}, {"b", text(g.b)}};
    if (g.factor != 1) attrs.set("factor", static_cast<double>(g.factor));
    if (g.blackwell) attrs.set("accumulation", std::string("blackwell"));
    return attrs;
  }

  const QuantizedSite* site_of(const std::string& label) const {
    const auto found = by_label_.find(label);
    return found == by_label_.end() || !found->second->active() ? nullptr : found->second;
  }

  void forward(const Node& n) {
    const QuantizedSite* const site = site_of(n.label);
    if (site == nullptr) return append(n);
    if (scope_ == AmaxScope::row && depends_on_rows(site->fprop.a)) return forward_by_rows(n, *site);
    const bool keeps = backward_ && site->wgrad.active() && !site->wgrad.b_from_saved;
    make(n.in[0], *site, site->fprop.a, keeps ? site->wgrad.b : QuantSpec{}, "x");
    if (made_in_graph(*site)) make(n.in[1], *site, site->fprop.b, backward_ ? site->dgrad.b : QuantSpec{}, "w");
    masters_[site->weight] = n.in[1];
    if (backward_ && turns_back(*site, site->dgrad)) x_masks_[site->label] = mask(n.in[0], *site, site->fprop.a);
    if (!site->fprop.active()) return append(n);
    Node product{&qlinear_op,
                 {copy(n.in[0], *site, site->fprop.a, false), weight(*site, false)},
                 n.out,
                 product_attrs(next_.type(n.out[0]), site->fprop),
                 n.label};
    append(std::move(product));
  }

  // Of MX formats a row has its own scales anyway, and a NaN poisons its own block; a delayed scale is of the past.
  static bool depends_on_rows(const QuantSpec& s) {
    return s.active() && s.format != DType::mxfp4 && s.format != DType::mxfp8 && s.tensor_scale != TensorScale::delayed;
  }
  void forward_by_rows(const Node& n, const QuantizedSite& site) {
    const QuantSpec& spec = site.fprop.a;
    const auto [known, is_new] = row_copies_.try_emplace(key(n.in[0], {spec, false}, -1), Values{});
    if (is_new) {
      Attrs attrs = copy_attrs(spec, {}, 1, 0, "x");
      known->second = emit(quantize_rows_op, {n.in[0], random()}, std::move(attrs), n.label);
    }
    append({&qlinear_rows_op,
            {known->second[0], known->second[1], weight(site, false)},
            n.out,
            product_attrs(next_.type(n.out[0]), site.fprop),
            n.label});
  }

  void wgrad(const Node& n) {
    const QuantizedSite* const site = site_of(n.label);
    if (site == nullptr) return append(n);
    make(n.in[1], *site, site->dgrad.active() ? site->dgrad.a : QuantSpec{},
         site->wgrad.active() ? site->wgrad.a : QuantSpec{}, "dy");
    if (!site->wgrad.active()) return append(n);
    const Value dy = copy(n.in[1], *site, site->wgrad.a, true);
    const Value x =
        site->wgrad.b_from_saved
            ? emit(requantize_op, {copy(n.in[2], *site, site->fprop.a, false), random()},
                   copy_attrs({}, site->wgrad.b, next_.type(n.in[2]).dim(-2), site->ordinal, "x"), n.label)[0]
            : copy(n.in[2], *site, site->wgrad.b, true);
    if (turns_back(*site, site->wgrad)) {
      Value master = masters_.at(site->weight);
      if (next_.type(master).dtype != DType::f32)  // codes are made from the parameter
        master = state(StateRole::parameter, site->weight, {DType::f32, site->shape});
      Attrs attrs = product_attrs(next_.type(n.out[0]), site->wgrad);
      attrs.set("gemm", std::string(name_of(Gemm::wgrad)));
      const Value dw = emit(qlinear_op, {dy, x}, std::move(attrs), n.label)[0];
      append({&quest_back_add_op,
              {n.in[0], dw, mask(master, *site, site->fprop.b)},
              n.out,
              rotation_of(site->fprop.b),
              n.label});
      return;
    }
    append({&qlinear_wgrad_op, {n.in[0], dy, x}, n.out, product_attrs(next_.type(n.out[0]), site->wgrad), n.label});
  }

  // Products that share their input have one node: all of its layers are quantised alike.
  void dgrad(const Node& n) {
    Values in;
    const QuantizedSite* first = nullptr;
    size_t quantized = 0;
    for (size_t i = 0; i < n.in.size(); i += 2) {
      const QuantizedSite* const site = site_of_weight(n.in[i + 1]);
      if (site == nullptr || !site->dgrad.active()) continue;
      ++quantized;
      make(n.in[i], *site, site->dgrad.a, {}, "dy");
      in.push_back(copy(n.in[i], *site, site->dgrad.a, false)), in.push_back(weight(*site, true));
      if (first == nullptr) first = site;
      NIBBLE_CHECK(!turns_back(*site, site->dgrad) || x_masks_.at(site->label) == x_masks_.at(first->label),
                   "{} and {} share no input", site->label, first->label);
    }
    if (quantized == 0) return append(n);
    NIBBLE_CHECK(2 * quantized == n.in.size(), "{}: {} of {} products are quantised", n.label, quantized,
                 n.in.size() / 2);
    const Type dx = next_.type(n.out[0]);
    if (!turns_back(*first, first->dgrad))
      return append({&qlinear_dgrad_op, in, n.out, product_attrs(dx, first->dgrad), n.label});
    const Value turned = emit(qlinear_dgrad_op, in, product_attrs(dx.as(DType::f32), first->dgrad), n.label)[0];
    Attrs attrs = rotation_of(first->fprop.a);
    attrs.set("width", dx.dim(-1)), attrs.set("dtype", std::string(name_of(dx.dtype)));
    append({&quest_back_op, {turned, x_masks_.at(first->label)}, n.out, std::move(attrs), n.label});
  }

  const QuantizedSite* site_of_weight(Value w) const {
    const Node& read = old_.producer(w);
    if (read.op != &read_op) return nullptr;
    for (const QuantizedSite& s : sites_)
      if (s.weight == read.attrs.get_string("name")) return s.active() ? &s : nullptr;
    return nullptr;
  }

  Graph& old_;
  const std::vector<QuantizedSite>& sites_;
  Graph next_;
  AmaxScope scope_;
  bool backward_ = false;
  std::map<std::string, const QuantizedSite*> by_label_;
  std::map<std::string, Value> sources_, requantized_, masters_;
  std::map<std::string, Value> x_masks_;  // by label: of a layer's input
  std::map<std::pair<int32_t, int>, Value> masks_;
  std::map<Key, Value> copies_;
  std::map<Key, Values> row_copies_;
};

}  // namespace

std::vector<QuantizedSite> quantized_sites(const Graph& graph, const Recipe& recipe, std::string_view other_codes) {
  std::vector<QuantizedSite> sites;
  int64_t layers = 0;
  for (const Node& n : graph.nodes) {
    if (n.op != &linear_op || !is_projection(n.label)) continue;
    const Value w = graph.behind_views(n.in[1]);
    const std::string& weight = graph.producer(w).attrs.get_string("name");
    QuantizedSite s{n.label,
                    weight,
                    weight + std::string(other_codes),
                    static_cast<int64_t>(sites.size()),
                    layer_of(n.label),
                    graph.type(w).shape,
                    {},
                    {},
                    {},
                    ""};
    layers = std::max(layers, s.layer + 1);
    sites.push_back(std::move(s));
  }
  for (QuantizedSite& s : sites) {
    if (recipe.sites == Sites::mlp && s.label.find("/mlp/") == s.label.npos)
      s.why = "quantize_sites=mlp";
    else if (s.layer < recipe.first_high)
      s.why = fmt::format("layers before {} stay in high precision", recipe.first_high);
    else if (s.layer >= layers - recipe.last_high)
      s.why = fmt::format("layers from {} on stay in high precision", std::max<int64_t>(0, layers - recipe.last_high));
    else
      s.fprop = recipe.fprop, s.dgrad = recipe.dgrad, s.wgrad = recipe.wgrad;
  }
  return sites;
}

void quantize(Graph& graph, const std::vector<QuantizedSite>& sites, AmaxScope scope) {
  if (std::ranges::any_of(sites, &QuantizedSite::active)) Quantize(graph, sites, scope).run();
}

Graph scales_graph(const Graph& graph) {
  Graph scales;
  Builder b(scales);
  for (const Node& n : graph.nodes) {
    if (n.op != &record_amax_op) continue;
    const std::string& name = graph.producer(n.in[0]).attrs.get_string("name");
    auto scope = b.scope(name);
    const bool wide = graph.type(n.in[1]).dtype == DType::e5m2;
    b.emit(advance_scale_op,
           {b.read(StateRole::fp8_scale, name, {DType::f32, {1}}),
            b.read(StateRole::fp8_history, name, graph.type(n.in[0]))},
           {{"largest", wide ? 57344.0 : 448.0}});
  }
  return scales;
}

Graph weights_graph(const std::vector<const Graph*>& graphs, const std::vector<QuantizedSite>& sites) {
  std::map<std::string, Type> rounded;
  std::set<std::pair<std::string, std::string>> read;
  for (const Graph* g : graphs)
    for (const Node& n : g->nodes) {
      if (n.op != &read_op) continue;
      const std::string &role = n.attrs.get_string("role"), &name = n.attrs.get_string("name");
      read.insert({role, name});
      if (role == name_of(StateRole::weight)) rounded[name] = g->type(n.out[0]);
    }
  Graph graph;
  Builder b(graph);
  for (const auto& [name, type] : rounded) {
    auto scope = b.scope(name);
    recast(b, b.read(StateRole::weight, name, type), b.read(StateRole::parameter, name, type.as(DType::f32)));
  }
  for (const QuantizedSite& s : sites) {
    const auto is_read = [&](StateRole role) { return read.contains({std::string(name_of(role)), s.codes}); };
    const QuantSpec row = is_read(StateRole::codes) ? row_state(s) : QuantSpec{},
                    column = is_read(StateRole::codes_transposed) ? column_state(s) : QuantSpec{};
    if (!row.active() && !column.active()) continue;
    const int64_t n = s.shape.dim(0), k = s.shape.dim(1);
    auto scope = b.scope(s.weight);
    Values in;
    if (row.active()) in.push_back(b.read(StateRole::codes, s.codes, row_type(row, n, k)));
    if (column.active())
      in.push_back(b.read(StateRole::codes_transposed, s.codes, {column.format, {k, filled(column, n)}}));
    in.push_back(b.read(StateRole::parameter, s.weight, {DType::f32, s.shape}));
    in.push_back(b.input("random", random_type));
    b.emit(row.active() && column.active() ? quantize_weights_op : quantize_weight_op, in,
           copy_attrs(row, column, n, s.ordinal, "w"));
  }
  return graph;
}

}  // namespace nibble
