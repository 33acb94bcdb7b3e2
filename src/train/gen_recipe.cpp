#include "train/gen_recipe.h"

#include <algorithm>
#include <cstring>

#include "core/quantized.h"
#include "io/checkpoint_load.h"
#include "numerics/decoded.h"
#include "runtime/registry.h"
#include "train/metrics.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

constexpr QuantSpec blocks_of_16{.format = DType::nvfp4};

// w as codes: what the recipe's quantiser makes of it before a training step. Runs on the pool of the program.
void quantize_into(const Tensor& codes, const Tensor& w, const QuantSpec& spec, CpuTarget target, ThreadPool& pool) {
  int32_t words[quantize_words] = {};
  const Tensor random{{DType::i32, {quantize_words}}, words};
  Attrs attrs{{"row", to_string(spec)}, {"tokens", w.dim(0)}, {"site", int64_t{0}}};
  const Tensor in[] = {codes, w, random}, out[] = {codes};
  const Type in_types[] = {codes.type, w.type, random.type}, out_types[] = {codes.type};
  const KernelShape shape{in_types, out_types, attrs, pool.size()};
  const KernelChoice kernel = choose_kernel(quantize_weight_op, shape, target);
  const int64_t bytes = kernel.workspace != nullptr ? kernel.workspace(shape) : 0;
  std::vector<std::byte> space(static_cast<size_t>(bytes) + 64);
  std::byte* const aligned = space.data() + (64 - reinterpret_cast<uintptr_t>(space.data()) % 64) % 64;
  kernel.run({in, out, attrs, aligned, pool});
}

}  // namespace

GenRecipe gen_recipe_of(const Config& config, int64_t layers) {
  const std::string& name = config.get_string("gen_recipe");
  const bool table = name == "weight_only_all", weights = table || name == "weight_only";
  GenRecipe g;
  if (!weights && name != "same") {
    const std::string given = fmt::format("gen_recipe={} (same, weight_only, weight_only_all, or a recipe)", name);
    g.recipe = recipe_of(config.with("quantization", name, given), layers);
  } else {
    g.recipe = recipe_of(config, layers);
  }
  const DType format = g.recipe.fprop.a.format;
  const bool blocks_alone = format == DType::mxfp4 || format == DType::mxfp8;  // no scale but the blocks'
  g.text = g.recipe.fprop.active() ? g.recipe.name + (blocks_alone ? "" : ", amax of a row") : "float32";
  if (!g.recipe.fprop.active() && !g.recipe.name.empty() && g.recipe.name != "fp32")
    g.text += fmt::format(" ({} quantises nothing in the forward pass)", g.recipe.name);
  if (weights) {
    g.weight_only = true;
    if (!is_nvfp4(g.recipe.fprop.b)) {
      g.recipe = {};
      g.recipe.fprop = {.a = blocks_of_16, .b = blocks_of_16};
    }
    if (table) g.table = blocks_of_16;
    g.text = fmt::format("weights {}{}, activations float32", to_string(g.recipe.fprop.b),
                         table ? ", embedding and head nvfp4" : "");
  }
  if (g.recipe.fprop.b.tensor_scale == TensorScale::delayed)
    throw Error("E102", "recipe {}: delayed scales belong to a training run, and generation has none", g.recipe.name)
        .where("gen_recipe={}", name)
        .hint("gen_recipe=fp8_current, or gen_recipe=fp32 for the float32 weights");
  return g;
}

GenRecipe packed_recipe(const ParameterReader& reader, const LlamaConfig& model) {
  GenRecipe g{.text = "weights as packed, activations float32", .recipe = {}, .weight_only = true, .table = {}, .packed = {}};
  for (const Parameter& p : llama_parameters(model))
    if (reader.packed(p.name) != nullptr) g.packed.emplace(p.name, blocks_of_16);
  return g;
}

WeightSpecs apply_gen_recipe(const GenRecipe& g, std::vector<NamedGraph>& graphs) {
  if (!g.packed.empty()) {
    for (NamedGraph& named : graphs) weights_to_codes(named.graph, g.packed);
    return g.packed;
  }
  WeightSpecs specs;
  if (!g.recipe.fprop.active() && !g.table.active()) return specs;
  for (NamedGraph& named : graphs) {
    const std::vector<QuantizedSite> sites = quantized_sites(named.graph, g.recipe);
    specs = weight_specs(named.graph, sites, g.table);
    if (g.weight_only)
      weights_to_codes(named.graph, specs);
    else
      quantize(named.graph, sites, AmaxScope::row);
  }
  return specs;
}

void put_weight(Program& program, const Parameter& p, const float* w, const WeightSpecs& specs) {
  if (program.has_state(StateRole::parameter, p.name)) {
    float* const to = program.state(StateRole::parameter, p.name).as<float>();
    if (to != w) std::copy_n(w, p.shape.numel(), to);
  }
  if (program.has_state(StateRole::codes, p.name))
    quantize_into(program.state(StateRole::codes, p.name), {{DType::f32, p.shape}, const_cast<float*>(w)},
                  specs.find(p.name)->second, program.plan().target, program.pool());
}

void load_weights(const OpenModel& open, Program& program, const WeightSpecs& specs, const ParameterReader* packed) {
  std::vector<ParameterTarget> targets;
  for (const Parameter& p : llama_parameters(open.model)) {
    if (packed != nullptr && packed->packed(p.name) != nullptr) {
      packed->packed(p.name)->store(program.state(StateRole::codes, p.name));
      continue;
    }
    const std::span<const int64_t> dims = p.shape.dims();
    float* const at = program.has_state(StateRole::parameter, p.name)
                          ? program.state(StateRole::parameter, p.name).as<float>()
                          : nullptr;
    targets.push_back({p.name, {dims.begin(), dims.end()}, at, [&program, &specs, p](float* w) {
                         put_weight(program, p, w, specs);
                       }});
  }
  if (packed != nullptr)
    load_parameters(*packed, targets);
  else
    load_parameters(open.source, targets);
  const Tensor table = program.state(StateRole::constant, "rope_table");
  fill_rope_table(open.model.rope, open.model.head_size, 0, table.dim(0), table.as<float>());
}

void round_trip_weights(Program& program, const WeightSpecs& specs) {
  for (const auto& [name, spec] : specs) {
    const Tensor w = program.state(StateRole::parameter, name);
    const Type type = w.type.as(spec.format);
    std::vector<QuantizedHeader> memory(static_cast<size_t>(type.nbytes()) / sizeof(QuantizedHeader) + 1);
    const Tensor codes{type, memory.data()};
    quantize_into(codes, w, spec, program.plan().target, program.pool());
    const QuantizedView v(codes);
    program.pool().run(v.layout.rows, [&](int64_t r, int) {
      for (int64_t i = 0; i < v.layout.columns; ++i) w.as<float>()[r * v.layout.columns + i] = decoded_value(v, r, i);
    });
  }
}

std::string weight_bytes_text(const ProgramPlan& plan) {
  int64_t codes = 0, numbers = 0;
  for (const StateInfo& s : plan.states) {
    if (s.role == StateRole::codes) codes += s.type.nbytes();
    if (s.role == StateRole::parameter) numbers += s.type.nbytes();
  }
  if (codes == 0) return fmt::format("weights {}", bytes_text(numbers));
  return fmt::format("weights {} of codes and {} of float32", bytes_text(codes), bytes_text(numbers));
}

}  // namespace nibble
