#include "train/recipe_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "io/suggest.h"

namespace nibble {
namespace {

// A format by its name and block.
struct Format {
  std::string_view name, block;
  DType dtype;
};
constexpr Format formats[] = {{"nvfp4", "1x16", DType::nvfp4},
                              {"nvfp4", "16x16", DType::nvfp4_2d},
                              {"mxfp4", "1x32", DType::mxfp4},
                              {"mxfp4", "32x32", DType::mxfp4_2d},
                              {"mxfp8", "1x32", DType::mxfp8},
                              {"fp8_block", "1x128", DType::fp8_block},
                              {"fp8_block", "128x128", DType::fp8_block_2d},
                              {"fp8_e4m3", "tensor", DType::e4m3},
                              {"fp8_e5m2", "tensor", DType::e5m2},
                              {"none", "", DType::f32}};

const Format& format_of(DType dtype) { return *std::ranges::find(formats, dtype, &Format::dtype); }

// What the parts of a product are called, and the random streams that each draws from (spec/precision.md 4.3).
struct Part {
  std::string_view name;
  uint32_t stream;
};
struct Product {
  Gemm gemm;
  std::string_view name;
  Part a, b;
  uint32_t signs;  // of a rotation of 128; 0: none are drawn
};
constexpr Product products[] = {{Gemm::fprop, "fprop", {"x", 4}, {"w", 5}, 0},
                                {Gemm::dgrad, "dgrad", {"dy", 0}, {"w", 2}, 16},
                                {Gemm::wgrad, "wgrad", {"dy", 1}, {"x", 3}, 17}};

using Names = std::vector<std::string>;

class Parser {
 public:
  Parser(std::string path, int64_t layers) : path_(std::move(path)), layers_(layers) {}

  RecipeFile run() {
    const YAML::Node root = open();
    if (!root.IsMap()) fail("E006", root, "", "holds no `key: value` lines", "a mapping", "nibble config keys");
    if (errors_.empty()) read(root);
    if (!errors_.empty()) throw Errors(std::move(errors_));
    if (const std::string rule = broken_rule(file_.recipe); !rule.empty())
      throw Error("E102", "{} is no legal recipe: {}", path_, rule).where("{}", path_).hint("docs/quantization.md");
    if (!file_.recipe.active())
      throw Error("E102", "{} quantises nothing", path_)
          .where("{}", path_)
          .expected("a base, or operands of at least one of fprop, dgrad, wgrad", "none")
          .hint("base: te_nvfp4");
    return std::move(file_);
  }

 private:
  YAML::Node open() const {
    std::ifstream in(path_, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    if (!in || std::filesystem::is_directory(path_))
      throw Error("E005", "recipe_file={} cannot be read", path_)
          .where("recipe_file")
          .expected("a YAML file",
                    std::filesystem::exists(path_) ? "a folder, or a file without permission" : "nothing")
          .hint("docs/quantization.md has an example");
    try {
      return YAML::Load(text.str());
    } catch (const YAML::Exception& e) {
      throw Error("E006", "{} is no YAML: {}", path_, e.msg)
          .where("{}:{}:{}", path_, e.mark.line + 1, e.mark.column + 1)
          .hint("blanks, not tabs, in front of a key; `key: value` or {{key: value, key: value}}");
    }
  }

  void fail(std::string_view id, const YAML::Node& at, const std::string& key, std::string what,
            const std::string& expected, const std::string& hint) {
    std::ostringstream got;
    if (at.IsScalar())
      got << at.Scalar();
    else
      got << (at.IsMap() ? "a mapping" : at.IsSequence() ? "a list" : "nothing");
    Error e(id, "{}: {}", path_, std::move(what));
    e.where_text = fmt::format("{}:{}{}{}", path_, at.Mark().line + 1, key.empty() ? "" : ", key ", key);
    if (!expected.empty()) e.expected_text = expected, e.got_text = got.str();
    e.hint_text = hint;
    errors_.push_back(std::move(e));
  }

  // f(name, value) for each key of a map that `known` lists; others and doubles are errors.
  template <class F>
  void each(const YAML::Node& map, const std::string& inside, const Names& known, const F& f) {
    Names seen;
    for (const auto& item : map) {
      const std::string name = item.first.IsScalar() ? item.first.Scalar() : "";
      const std::string key = inside.empty() ? name : inside + "/" + name;
      if (std::ranges::count(known, name) == 0) {
        const Names near = nearest(name, known);
        fail("E001", item.first, key, fmt::format("unknown key {}", name), either(known),
             near.empty() ? "" : fmt::format("did you mean {}?", either(near)));
      } else if (std::ranges::count(seen, name) > 0) {
        fail("E003", item.first, key, fmt::format("{} stands twice", key), "", "remove one of the two");
      } else {
        seen.push_back(name);
        f(name, key, item.second);
      }
    }
  }

  // The place of a word among those allowed; the size of `words` for one that is none, with an error.
  size_t choice(const YAML::Node& value, const std::string& key, const Names& words) {
    const std::string word = value.IsScalar() ? value.Scalar() : "";
    const auto found = std::ranges::find(words, word);
    if (found == words.end()) {
      const Names near = value.IsScalar() ? nearest(word, words) : Names{};
      fail("E002", value, key, fmt::format("{} has no such value", key), either(words),
           near.empty() ? "" : fmt::format("did you mean {}?", either(near)));
    }
    return static_cast<size_t>(found - words.begin());
  }

  std::optional<int64_t> number(const YAML::Node& value, const std::string& key) {
    int64_t n = -1;
    const std::string word = value.IsScalar() ? value.Scalar() : "";
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n);
    if (error == std::errc() && end == word.data() + word.size() && n >= 0) return n;
    fail("E002", value, key, fmt::format("{} is no count", key), "a whole number of at least 0", "");
    return std::nullopt;
  }

  void read(const YAML::Node& root) {
    read_base(root);
    const Names keys = {"base",
                        "fprop",
                        "dgrad",
                        "wgrad",
                        "sites",
                        "high_precision_first_layers",
                        "high_precision_last_layers",
                        "finish_high_precision",
                        "finish_high_precision_start"};
    Recipe& r = file_.recipe;
    each(root, "", keys, [&](const std::string& name, const std::string& key, const YAML::Node& value) {
      if (name == "base") return;
      if (name == "sites") {
        r.sites = choice(value, key, {"all", "mlp"}) == 1 ? Sites::mlp : Sites::all;
      } else if (name == "high_precision_first_layers" || name == "high_precision_last_layers") {
        if (const auto n = number(value, key)) (name.ends_with("first_layers") ? r.first_high : r.last_high) = *n;
      } else if (name == "finish_high_precision") {
        const Names modes = {"off", "fwd_bf16", "bwd_bf16", "all_mxfp8"};
        if (const size_t i = choice(value, key, modes); i > 0 && i < modes.size()) file_.finish = modes[i];
      } else if (name == "finish_high_precision_start") {
        if (!(value.IsScalar() && value.Scalar() == "decay")) file_.finish_start = number(value, key);
      } else {
        read_product(*std::ranges::find(products, name, &Product::name), value);
      }
    });
    r.name = std::filesystem::path(path_).stem().string();
  }

  void read_base(const YAML::Node& root) {
    const YAML::Node base = root["base"];
    if (!base.IsDefined()) return;
    const std::string name = base.IsScalar() ? base.Scalar() : "";
    const std::optional<Recipe> found = recipe_of(name, layers_);
    if (found) {
      file_.recipe = *found;
      return;
    }
    const Names known(recipe_names().begin(), recipe_names().end()), near = nearest(name, known);
    fail("E502", base, "base", fmt::format("unknown recipe {}", name), either(known),
         near.empty() ? "" : fmt::format("did you mean {}?", either(near)));
  }

  void read_product(const Product& p, const YAML::Node& node) {
    GemmRecipe& g = file_.recipe.of(p.gemm);
    const std::string inside(p.name), a(p.a.name), b(p.b.name);
    if (node.IsScalar() && node.Scalar() == "none") {
      g = {};
      return;
    }
    if (!node.IsMap())
      return fail("E002", node, inside, fmt::format("{} is no product", inside),
                  fmt::format("none, or a mapping with {} and {}", a, b), "");
    Names keys = {a, b};
    if (p.gemm != Gemm::fprop) keys.emplace_back("from_saved");
    each(node, inside, keys, [&](const std::string& name, const std::string& key, const YAML::Node& value) {
      if (name == "from_saved")
        g.b_from_saved = choice(value, key, {"false", "true"}) == 1;
      else
        read_operand(p, name == a ? p.a : p.b, name == a ? g.a : g.b, key, value);
    });
    const int shrunk = takes_three_quarters(g.a) + takes_three_quarters(g.b);
    g.factor = shrunk == 2 ? 16.0f / 9 : shrunk == 1 ? 4.0f / 3 : 1.0f;
  }

  static int takes_three_quarters(const QuantSpec& s) {
    return static_cast<int>(s.floor_scale && s.rounding == Rounding::stochastic);
  }

  void read_operand(const Product& p, const Part& part, QuantSpec& s, const std::string& inside,
                    const YAML::Node& node) {
    if (node.IsScalar() && node.Scalar() == "none") {
      s = {};
      return;
    }
    if (!node.IsMap())
      return fail("E002", node, inside, fmt::format("{} is no operand", inside),
                  "none, or a mapping with format, block, rounding, rotation, scale, four_six", "");
    if (const YAML::Node format = node["format"]; format.IsDefined()) {
      const Names names = {"nvfp4", "mxfp4", "mxfp8", "fp8_block", "fp8_e4m3", "fp8_e5m2", "none"};
      const size_t i = choice(format, inside + "/format", names);
      if (i == names.size()) return;
      s = {.format = std::ranges::find(formats, names[i], &Format::name)->dtype};  // the first block of the name
    }
    each(node, inside, {"format", "block", "rounding", "rotation", "scale", "four_six"},
         [&](const std::string& name, const std::string& key, const YAML::Node& value) {
           if (name == "block") read_block(s, key, value);
           if (name == "rounding")
             if (const size_t i = choice(value, key, {"nearest", "stochastic", "eden"}); i < 3)
               s.rounding = static_cast<Rounding>(i);
           if (name == "rotation") {
             constexpr std::array sizes = {0, 16, 32, 64, 128};
             if (const size_t i = choice(value, key, {"0", "16", "32", "64", "128"}); i < sizes.size())
               s.hadamard = sizes[i];
           }
           if (name == "scale") read_scale(s, key, value);
           if (name == "four_six")
             if (const size_t i = choice(value, key, {"off", "mse", "mae"}); i < 3)
               s.four_six = static_cast<FourSix>(i);
         });
    s.stream = s.active() && s.rounding != Rounding::nearest ? part.stream : 0;
    s.sign_stream = s.hadamard == 128 ? p.signs : 0;
  }

  void read_block(QuantSpec& s, const std::string& key, const YAML::Node& value) {
    const std::string_view format = format_of(s.format).name;
    Names blocks;
    for (const Format& f : formats)
      if (f.name == format && !f.block.empty()) blocks.emplace_back(f.block);
    if (blocks.empty())
      return fail("E002", value, key, fmt::format("{}: the operand has no format", key), "a format beside the block",
                  "format: nvfp4");
    const size_t i = choice(value, key, blocks);
    for (const Format& f : formats)
      if (i < blocks.size() && f.name == format && f.block == blocks[i]) s.format = f.dtype;
  }

  // exact, pow2, unit: of a tensor; delayed: of its past; round_up, floor, quest: of MX blocks.
  void read_scale(QuantSpec& s, const std::string& key, const YAML::Node& value) {
    const std::string_view format = format_of(s.format).name;
    Names rules;
    if (format == "nvfp4") rules = {"exact", "pow2", "unit"};
    if (format.starts_with("fp8_e")) rules = {"exact", "pow2", "delayed"};
    if (format == "mxfp4") rules = {"round_up", "floor", "quest"};
    if (format == "mxfp8") rules = {"round_up"};
    if (format == "fp8_block") rules = {"pow2"};
    if (rules.empty())
      return fail("E002", value, key, fmt::format("{}: the operand has no format", key), "a format beside the scale",
                  "format: nvfp4");
    const size_t i = choice(value, key, rules);
    if (i == rules.size()) return;
    const std::string& rule = rules[i];
    s.floor_scale = rule == "floor", s.quest = rule == "quest";
    s.tensor_scale = format == "fp8_block" ? TensorScale::exact
                     : rule == "pow2"      ? TensorScale::pow2
                     : rule == "unit"      ? TensorScale::unit
                     : rule == "delayed"   ? TensorScale::delayed
                                           : TensorScale::exact;
  }

  std::string path_;
  int64_t layers_;
  RecipeFile file_;
  std::vector<Error> errors_;
};

}  // namespace

RecipeFile read_recipe_file(const std::string& path, int64_t layers) { return Parser(path, layers).run(); }

}  // namespace nibble
