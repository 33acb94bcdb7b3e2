#include "train/export_model.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <map>

#include "core/quantized.h"
#include "io/checkpoint.h"
#include "io/checkpoint_load.h"
#include "io/file.h"
#include "io/json.h"
#include "models/graphs.h"
#include "numerics/bf16.h"
#include "numerics/nvfp4_file.h"
#include "train/model_setup.h"

namespace nibble {

namespace fs = std::filesystem;

namespace {

// "model.layers.3.self_attn.q_proj.weight" -> "model.layers.3.self_attn.qkv": layers that loaders fuse into one.
std::string group_of(const std::string& weight) {
  for (const auto& [end, group] : {std::pair<std::string_view, std::string_view>(".q_proj.weight", ".qkv"),
                                   {".k_proj.weight", ".qkv"},
                                   {".v_proj.weight", ".qkv"},
                                   {".gate_proj.weight", ".gate_up"},
                                   {".up_proj.weight", ".gate_up"}})
    if (weight.ends_with(end)) return weight.substr(0, weight.size() - end.size()) + std::string(group);
  return weight;
}
std::string module_of(const std::string& weight) { return weight.substr(0, weight.size() - sizeof(".weight") + 1); }

std::vector<int64_t> dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }

/// Quantises the weights of one group as one matrix, so that they share the scale of the tensor. Each begins at a
/// multiple of 16 rows, so that no tile holds rows of two.
class Packer {
 public:
  Packer(const ParameterReader& reader, int threads, CpuTarget target)
      : reader_(reader), threads_(threads), target_(target) {}

  struct Part {
    const uint8_t* codes = nullptr;  // [rows, columns / 2]
    std::vector<uint8_t> scales;     // [rows, columns / 16]
    float multiplier = 1, divisor = 1;
  };

  /// `group`: sites that are quantised alike. Pointers of the group before it end.
  void pack(const std::vector<const QuantizedSite*>& group) {
    const QuantSpec& spec = group[0]->fprop.b;
    const int64_t columns = group[0]->shape.dim(1);
    int64_t rows = 0;
    for (const QuantizedSite* s : group) rows += (s->shape.dim(0) + 15) / 16 * 16;
    plan(*group[0], {rows, columns});
    const Tensor numbers = program_->state(StateRole::parameter, name),
                 packed = program_->state(StateRole::codes, name);
    std::fill_n(numbers.as<float>(), numbers.numel(), 0.0f);
    int64_t first = 0;
    for (const QuantizedSite* s : group) {
      reader_.read(s->weight, numbers.as<float>() + first * columns);
      first += (s->shape.dim(0) + 15) / 16 * 16;
    }
    Executable& weights = program_->executable("weights");
    std::fill_n(weights.input("random").as<int32_t>(), quantize_words, 0);  // nearest: nothing is drawn
    weights.run();
    const QuantizedView view(packed);
    const Nvfp4Rule rule = nvfp4_rule(spec);
    const Nvfp4FileScale scale = nvfp4_file_scale(nvfp4_scale(view.header().amax, rule), rule);
    check(group, view.header(), scale);
    parts_.clear();
    first = 0;
    for (const QuantizedSite* s : group) {
      Part part{view.codes(first), {}, scale.multiplier, scale.divisor};
      part.scales.reserve(static_cast<size_t>(s->shape.dim(0) * view.layout.blocks));
      for (int64_t r = first; r < first + s->shape.dim(0); ++r)
        part.scales.insert(part.scales.end(), view.scales(r), view.scales(r) + view.layout.blocks);
      parts_[s->weight] = std::move(part);
      first += (s->shape.dim(0) + 15) / 16 * 16;
    }
  }
  /// Null: not of the last group.
  const Part* part(const std::string& weight) const {
    const auto found = parts_.find(weight);
    return found == parts_.end() ? nullptr : &found->second;
  }

 private:
  static constexpr const char* name = "weights";

  // The program of training, of one weight: passes/quantize says how the copy for fprop is made.
  void plan(const QuantizedSite& site, const Shape& shape) {
    if (program_ && program_->state(StateRole::codes, name).type == Type{site.fprop.b.format, shape} &&
        spec_ == site.fprop.b)
      return;
    spec_ = site.fprop.b;
    QuantizedSite one = site;
    one.weight = one.codes = name, one.shape = shape;
    Graph reads;
    Builder(reads).read(StateRole::codes, name, {spec_.format, shape});
    program_.reset();
    program_ =
        std::make_unique<Program>(plan_program({{"weights", weights_graph({&reads}, {one})}}, threads_, target_));
  }

  static void check(const std::vector<const QuantizedSite*>& group, const QuantizedHeader& header,
                    const Nvfp4FileScale& scale) {
    const bool finite = std::isfinite(header.amax);
    if (finite && header.blank == 0 && scale.multiplier >= FLT_MIN) return;
    std::string names;
    for (const QuantizedSite* s : group) names += (names.empty() ? "" : ", ") + s->weight;
    if (!finite)
      throw Error("E403", "weights hold NaN or Inf and cannot be packed")
          .where("{}", names)
          .expected("finite numbers", "NaN or Inf")
          .hint("an older checkpoint");
    throw Error("E403", "weights are too small for NVFP4 under a float32 scale")
        .where("{}", names)
        .expected("a largest value of at least 3.2e-35", fmt::format("{}", header.amax))
        .hint("format=hf");
  }

  const ParameterReader& reader_;
  int threads_;
  CpuTarget target_;
  QuantSpec spec_;
  std::unique_ptr<Program> program_;
  std::map<std::string, Part> parts_;
};

/// The tensors of the export in the order of the file, and their bytes when they are written.
class Tensors {
 public:
  Tensors(const OpenModel& open, const ExportOptions& o)
      : options_(o),
        parameters_(llama_parameters(open.model)),
        reader_(open.source, wanted_tensors(open.model)),
        packer_(reader_, o.threads, o.target) {
    Recipe nothing;
    if (o.layout && open.shape.packed)
      throw Error("E010", "{} is packed already, and packing it again is not in this version",
                  open.source.path.string())
          .where("{}", open.source.path.string())
          .hint("the checkpoint it was exported from");
    sites_ = quantized_sites(llama_logits_graph(open.model, {1, 1}), o.layout ? o.recipe : nothing);
    report_.layers = std::ssize(sites_);
    for (const QuantizedSite& s : sites_) {
      if (!s.fprop.active()) continue;
      NIBBLE_CHECK(is_nvfp4(s.fprop.b), "{} is {}", s.label, to_string(s.fprop.b));
      if (s.shape.dim(1) % nvfp4_block != 0)
        throw Error("E104", "{} cannot be packed: its width is no multiple of {}", s.weight, nvfp4_block)
            .where("{} {}", s.weight, to_string(s.shape))
            .expected(fmt::format("a multiple of {}", nvfp4_block), fmt::format("{}", s.shape.dim(1)))
            .hint("format=hf, or quantize_sites=mlp if it is a layer of attention");
      by_weight_[s.weight] = &s, groups_[group_of(s.weight)].push_back(&s);
      ++report_.packed_layers, report_.packed_as = to_string(s.fprop.b);
    }
    for (const Parameter& p : parameters_) {
      report_.parameters += p.shape.numel();
      const auto site = by_weight_.find(p.name);
      if (site == by_weight_.end())
        list_.push_back({p.name, dims_of(p.shape), o.dtype == DType::bf16 ? "BF16" : "F32"});
      else
        add_packed(p);
    }
    for (const TensorRef& t : list_) report_.bytes += t.bytes();
  }

  const std::vector<TensorRef>& list() const { return list_; }
  const ExportReport& report() const { return report_; }

  /// Layers that loaders must not look for in 4 bits.
  std::vector<std::string> ignored() const {
    std::vector<std::string> names = {"lm_head"};
    for (const QuantizedSite& s : sites_)
      if (!s.fprop.active()) names.push_back(module_of(s.weight));
    return names;
  }

  const void* bytes(const TensorRef& t) {
    const auto piece = pieces_.find(t.name);
    if (piece == pieces_.end()) return numbers(t);
    const std::string& weight = piece->second.weight;
    if (packer_.part(weight) == nullptr) packer_.pack(groups_.at(group_of(weight)));
    const Packer::Part& part = *packer_.part(weight);
    switch (piece->second.kind) {
      case codes:
        return part.codes;
      case scales:
        return part.scales.data();
      default:
        return *options_.layout == PackedLayout::modelopt ? &part.multiplier : &part.divisor;
    }
  }

 private:
  enum Kind { codes, scales, of_tensor };
  struct Piece {
    std::string weight;
    Kind kind;
  };

  void add_packed(const Parameter& p) {
    const bool modelopt = *options_.layout == PackedLayout::modelopt;
    const int64_t n = p.shape.dim(0), k = p.shape.dim(1);
    const std::string base = module_of(p.name);
    const auto add = [&](const char* suffix, std::vector<int64_t> shape, const char* dtype, Kind kind) {
      list_.push_back({base + suffix, std::move(shape), dtype});
      pieces_[list_.back().name] = {p.name, kind};
      report_.packed_bytes += list_.back().bytes();
    };
    add(modelopt ? ".weight" : ".weight_packed", {n, k / 2}, "U8", codes);
    add(".weight_scale", {n, k / nvfp4_block}, "F8_E4M3", scales);
    if (modelopt)
      add(".weight_scale_2", {}, "F32", of_tensor);
    else
      add(".weight_global_scale", {1}, "F32", of_tensor);
    report_.packed_parameters += n * k;
  }

  const void* numbers(const TensorRef& t) {
    numbers_.resize(static_cast<size_t>(t.numel()));
    reader_.read(t.name, numbers_.data());
    if (t.dtype == "F32") return numbers_.data();
    rounded_.resize(numbers_.size());
    std::ranges::transform(numbers_, rounded_.begin(), round_bf16);
    return rounded_.data();
  }

  const ExportOptions& options_;
  std::vector<Parameter> parameters_;
  ParameterReader reader_;
  Packer packer_;
  std::vector<QuantizedSite> sites_;
  std::map<std::string, const QuantizedSite*> by_weight_;
  std::map<std::string, std::vector<const QuantizedSite*>> groups_;
  std::vector<TensorRef> list_;
  std::map<std::string, Piece> pieces_;
  ExportReport report_;
  std::vector<float> numbers_;
  std::vector<BFloat16> rounded_;
};

/// What the export takes over: of a checkpoint its manifest and files, of a Hugging Face directory the files beside it.
CheckpointContent content_of(const OpenModel& open) {
  CheckpointContent c;
  const fs::path& folder = open.source.path;
  if (open.is_checkpoint()) {
    Checkpoint from(folder);
    static_cast<CheckpointInfo&>(c) = from.info();
    c.generation_config_json = from.read_file("generation_config.json");
    for (const std::string& name : from.tokenizer_files()) c.tokenizer_files.emplace_back(name, from.read_file(name));
    std::string problem;
    if (fs::exists(folder / "run_info.json")) {
      c.run_info = parse_json(read_file(folder / "run_info.json"), problem);
      if (!problem.empty() || !c.run_info.is_object()) c.run_info = Json::object();
    }
    return c;
  }
  c.generation_config_json = fs::exists(folder / "generation_config.json")
                                 ? read_file(folder / "generation_config.json")
                                 : write_generation_config(open.shape);
  if (open.tokenizer) c.tokenizer_files = open.tokenizer->files(open.shape.max_positions);
  return c;
}

}  // namespace

Recipe packing_recipe(const Config& config, int64_t layers) {
  const Recipe recipe = recipe_of(config, layers);
  if (recipe.fprop.active() && !is_nvfp4(recipe.fprop.b))
    throw Error("E102", "weights of quantization={} are {}, which no layout of NVFP4 holds", recipe.name,
                to_string(recipe.fprop.b))
        .where("{}", config.origin("quantization"))
        .expected("a recipe whose forward pass has NVFP4 weights, or none", recipe.name)
        .hint("quantization=te_nvfp4 rounds them anew, as does quantization= to blocks of 1x16; or format=hf");
  if (recipe.fprop.active()) return recipe;
  if (config.is_explicit("recipe_disable") && !config.get_list("recipe_disable").empty())
    throw Error("E102", "recipe_disable={} belongs to a recipe whose forward pass is in NVFP4",
                config.json_of("recipe_disable"))
        .where("{}", config.origin("recipe_disable"))
        .hint("quantization=te_nvfp4, or leave it out");
  const std::string plain = "a forward pass in high precision";
  Recipe blocks =
      recipe_of(config.with("quantization", "te_nvfp4", plain).with("recipe_disable", "[weight_2d]", plain), layers);
  blocks.name.clear();
  return blocks;
}

ExportReport export_model(const OpenModel& open, const fs::path& out, const ExportOptions& options) {
  Tensors tensors(open, options);
  CheckpointContent content = content_of(open);
  LlamaShape shape = open.shape;
  shape.packed.reset();
  shape.dtype = options.dtype == DType::bf16 ? "bfloat16" : "float32";
  if (options.layout) {
    shape.packed = PackedFormat{*options.layout, true, tensors.ignored()};
    if (*options.layout == PackedLayout::modelopt) content.hf_quant_config_json = hf_quant_config_text(*shape.packed);
  }
  content.config_json = write_hf_config(shape);
  content.run_info["export"] = {{"from", open.source.path.string()},
                                {"recipe", options.layout ? options.recipe.name : ""},
                                {"packed_as", tensors.report().packed_as}};
  content.tensors = tensors.list();
  content.source = [&](const TensorRef& t) { return tensors.bytes(t); };
  write_model_folder(out, content, open.is_checkpoint(), options.overwrite);
  return tensors.report();
}

}  // namespace nibble
