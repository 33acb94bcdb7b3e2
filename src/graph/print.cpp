#include "graph/print.h"

#include <charconv>

namespace nibble {
namespace {

std::string value_list(const Values& values) {
  std::string s;
  for (const Value v : values) s += fmt::format("{}%{}", s.empty() ? "" : ", ", v.id);
  return s;
}

// A cursor over one line; every reader throws with the line number when the text is not as print wrote it.
struct Line {
  std::string_view rest;
  int number;
  size_t most_values;  // no more than the text has characters
  [[noreturn]] void fail(std::string_view expected) const {
    throw Error("E901", "graph text: expected {}", expected)
        .where("line {}, before \"{}\"", number, rest.substr(0, 40));
  }
  void skip(std::string_view word) {
    if (!rest.starts_with(word)) fail(fmt::format("\"{}\"", word));
    rest.remove_prefix(word.size());
  }
  void end() const {
    if (!rest.empty()) fail("the end of the line");
  }
  bool take(std::string_view word) {
    if (!rest.starts_with(word)) return false;
    rest.remove_prefix(word.size());
    return true;
  }
  Value value() {
    skip("%");
    Value v;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), v.id);
    if (error != std::errc() || v.id < 0 || static_cast<size_t>(v.id) >= most_values) fail("a value number");
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return v;
  }
  Values values() {
    Values list{value()};
    while (take(", ")) list.push_back(value());
    return list;
  }
};

void parse_node(Line& line, Graph& g, const Op* (*find_op)(std::string_view)) {
  Node n;
  n.out = line.values();
  line.skip(" = ");
  const std::string_view name = line.rest.substr(0, line.rest.find_first_of("( "));
  n.op = find_op(name);
  if (n.op == nullptr) line.fail("the name of an op");
  line.skip(name);
  if (line.take("(")) {
    if (!line.rest.starts_with(')')) n.in = line.values();
    line.skip(")");
  }
  if (line.take(" {")) {
    line.rest = {line.rest.data() - 1, line.rest.size() + 1};
    if (!parse_attrs(&line.rest, &n.attrs)) line.fail("attributes");
  }
  line.skip(" : ");
  for (size_t i = 0; i < n.out.size(); ++i) {
    if (i > 0) line.skip(", ");
    ValueInfo info;
    if (!parse_type(&line.rest, &info.type)) line.fail("a type");
    info.node = static_cast<int32_t>(g.nodes.size());
    info.index = static_cast<int32_t>(i);
    const auto id = static_cast<size_t>(n.out[i].id);
    if (g.values.size() <= id) g.values.resize(id + 1);
    if (g.values[id].node >= 0) line.fail("a value that was not defined before");
    g.values[id] = info;
  }
  if (line.take("   # "))
    n.label = std::string(line.rest);
  else
    line.end();
  g.nodes.push_back(std::move(n));
}

}  // namespace

std::string print(const Graph& graph, const Node& n) {
  std::string s = value_list(n.out) + " = " + std::string(n.op->name);
  if (!n.in.empty()) s += "(" + value_list(n.in) + ")";
  if (!n.attrs.empty()) s += " " + to_string(n.attrs);
  s += " : ";
  for (size_t i = 0; i < n.out.size(); ++i) s += (i > 0 ? ", " : "") + to_string(graph.type(n.out[i]));
  if (!n.label.empty()) s += "   # " + n.label;
  return s;
}

std::string print(const Graph& graph) {
  std::string s;
  for (const Node& n : graph.nodes) s += print(graph, n) + "\n";
  for (const Output& o : graph.outputs) s += fmt::format("return {}=%{}\n", o.name, o.value.id);
  return s;
}

Graph parse(std::string_view text, const Op* (*find_op)(std::string_view)) {
  Graph g;
  int number = 0;
  const size_t most_values = text.size();
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    Line line{text.substr(0, end), ++number, most_values};
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.take("return ")) {
      const std::string name(line.rest.substr(0, line.rest.find('=')));
      line.skip(name);
      line.skip("=");
      g.outputs.push_back({name, line.value()});
      line.end();
    } else {
      parse_node(line, g, find_op);
    }
  }
  return g;
}

}  // namespace nibble
