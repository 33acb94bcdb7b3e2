// NVFP4 weights in Hugging Face directories.  Source: spec/precision.md 9.
#include "io/packed.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/error.h"
#include "core/quantized.h"
#include "core/version.h"
#include "numerics/nvfp4_file.h"

namespace nibble {
namespace {

constexpr int64_t block = nvfp4_block;
/// Of activations and of the KV cache.
constexpr std::string_view unused_scales[] = {".input_scale", ".input_global_scale", ".k_proj.k_scale",
                                              ".v_proj.v_scale"};

[[noreturn]] void refuse(std::string_view file, std::string_view key, std::string wanted, std::string got) {
  throw Error("E010", "{} says {} {}, which is not in this version", file, key, got)
      .where("{}", file)
      .expected(std::move(wanted), std::move(got))
      .hint("a model without quantization_config, or one in NVFP4 (quant_method modelopt or compressed-tensors)");
}

std::string text_of(const Json& j, const char* key) {
  if (!j.contains(key) || j[key].is_null()) return "none";
  return j[key].is_string() ? j[key].get<std::string>() : j[key].dump();
}

std::vector<std::string> names_of(const Json& j, std::string_view file, const char* key) {
  std::vector<std::string> names;
  if (!j.contains(key) || j[key].is_null()) return names;
  if (!j[key].is_array()) refuse(file, key, "a list of names", j[key].dump());
  for (const Json& name : j[key]) {
    if (!name.is_string()) refuse(file, key, "a list of names", j[key].dump());
    names.push_back(name.get<std::string>());
  }
  return names;
}

/// What config_groups say of the weights: 4-bit floating-point elements in groups of 16.
void check_groups(const Json& j, std::string_view file, bool* weight_only) {
  if (!j.contains("config_groups") || !j["config_groups"].is_object()) return;
  for (const auto& [name, group] : j["config_groups"].items()) {
    const std::string where = fmt::format("config_groups.{}", name);
    if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object())
      refuse(file, where, "an object with weights", group.dump());
    const Json& w = group["weights"];
    for (const auto& [key, wanted] :
         {std::pair<const char*, Json>("num_bits", 4), {"type", "float"}, {"group_size", block}})
      if (w.contains(key) && w[key] != wanted)
        refuse(file, fmt::format("{}.weights.{}", where, key), wanted.dump(), w[key].dump());
    if (group.contains("input_activations") && !group["input_activations"].is_null()) *weight_only = false;
  }
}

Json weights_json(bool compressed_tensors) {
  Json w = {{"dynamic", false}, {"group_size", block}, {"num_bits", 4}, {"type", "float"}};
  if (compressed_tensors)
    w.update({{"scale_dtype", "torch.float8_e4m3fn"}, {"strategy", "tensor_group"}, {"symmetric", true}});
  return w;
}

Json producer() { return {{"name", "nibble"}, {"version", version}}; }
constexpr const char *weights_only_algo = "W4A16_NVFP4", *weights_and_activations_algo = "NVFP4";
const char* algo_of(const PackedFormat& f) { return f.weight_only ? weights_only_algo : weights_and_activations_algo; }

std::string type_text(std::string_view dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}
Error unfit(const TensorView& t, std::string wanted) {
  return Error("E403", "tensor {} does not fit its packed weight", t.name)
      .where("{}", t.name)
      .expected(std::move(wanted), type_text(t.dtype, t.shape))
      .hint("copy the files again from where they came from");
}

}  // namespace

PackedFormat parse_packed_format(const Json& json, std::string_view file) {
  if (!json.is_object()) refuse(file, "quantization_config", "an object", json.dump());
  PackedFormat format;
  // hf_quant_config.json, and config.json of some versions, keep the rest under "quantization"
  const Json& j = json.contains("quantization") && json["quantization"].is_object() ? json["quantization"] : json;
  const std::string method = json.contains("quant_method") ? text_of(json, "quant_method")
                             : &j != &json                 ? "modelopt"
                                                           : "none";
  if (method == "modelopt") {
    const std::string algo = text_of(j, "quant_algo");
    if (algo != weights_only_algo && algo != weights_and_activations_algo)
      refuse(file, "quant_algo", fmt::format("{} or {}", weights_and_activations_algo, weights_only_algo), algo);
    format.weight_only = algo == weights_only_algo;
    if (j.contains("group_size") && j["group_size"] != block)
      refuse(file, "group_size", fmt::format("{}", block), j["group_size"].dump());
    format.ignore = names_of(j, file, j.contains("exclude_modules") ? "exclude_modules" : "ignore");
  } else if (method == "compressed-tensors") {
    format.layout = PackedLayout::compressed_tensors;
    if (text_of(j, "format") != "nvfp4-pack-quantized")
      refuse(file, "format", "nvfp4-pack-quantized", text_of(j, "format"));
    if (j.contains("quantization_status") && text_of(j, "quantization_status") != "compressed")
      refuse(file, "quantization_status", "compressed", text_of(j, "quantization_status"));
    format.ignore = names_of(j, file, "ignore");
  } else {
    refuse(file, "quant_method", "modelopt or compressed-tensors", method);
  }
  bool weight_only = true;
  check_groups(j, file, &weight_only);
  if (format.layout == PackedLayout::compressed_tensors) format.weight_only = weight_only;
  return format;
}

Json packed_format_json(const PackedFormat& f) {
  const bool ct = f.layout == PackedLayout::compressed_tensors;
  Json group = {{"weights", weights_json(ct)}, {"targets", Json::array({"Linear"})}};
  if (ct) group["format"] = "nvfp4-pack-quantized";
  Json j = {{"config_groups", {{"group_0", group}}}, {"ignore", f.ignore}};
  if (ct)
    j.update({{"format", "nvfp4-pack-quantized"},
              {"kv_cache_scheme", nullptr},
              {"quant_method", "compressed-tensors"},
              {"quantization_status", "compressed"}});
  else
    j.update({{"producer", producer()}, {"quant_algo", algo_of(f)}, {"quant_method", "modelopt"}});
  return j;
}

std::string hf_quant_config_text(const PackedFormat& f) {
  const Json j = {{"producer", producer()},
                  {"quantization",
                   {{"quant_algo", algo_of(f)},
                    {"kv_cache_quant_algo", nullptr},
                    {"group_size", block},
                    {"exclude_modules", f.ignore}}}};
  return json_text(j) + "\n";
}

void PackedWeight::decode(int64_t first, int64_t count, float* out) const {
  for (int64_t r = first; r < first + count; ++r, out += columns)
    nvfp4_file_decode(codes + r * (columns / 2), scales + r * (columns / block), columns, multiplier, out);
}

void PackedWeight::store(const Tensor& to) const {
  NIBBLE_CHECK((to.type == Type{DType::nvfp4, {rows, columns}}), "{} [{}, {}] into {}", name, rows, columns,
               to_string(to.type));
  const QuantizedView view(to);
  view.header() = {.amax = 2688 * multiplier, .decode = multiplier, .saved = 1, .by_amax = 0, .blank = 0};
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(codes + r * (columns / 2), columns / 2, view.codes(r));
    std::copy_n(scales + r * (columns / block), columns / block, view.scales(r));
  }
}

PackedTensors sort_packed(const std::vector<TensorView>& tensors, const PackedFormat& format) {
  const bool ct = format.layout == PackedLayout::compressed_tensors;
  const std::string_view codes_suffix = ct ? ".weight_packed" : ".weight",
                         global_suffix = ct ? ".weight_global_scale" : ".weight_scale_2";
  std::map<std::string_view, const TensorView*> by_name;
  for (const TensorView& t : tensors) by_name[t.name] = &t;
  PackedTensors sorted;
  std::map<std::string_view, bool> taken;
  std::vector<std::string> missing;
  for (const TensorView& t : tensors) {
    if (!t.name.ends_with(codes_suffix) || (!ct && t.dtype != "U8")) continue;
    const std::string base = t.name.substr(0, t.name.size() - codes_suffix.size());
    const auto part = [&](std::string_view suffix) -> const TensorView* {
      const auto found = by_name.find(base + std::string(suffix));
      if (found == by_name.end()) missing.push_back(base + std::string(suffix));
      return found == by_name.end() ? nullptr : found->second;
    };
    const TensorView *scales = part(".weight_scale"), *global = part(global_suffix);
    if (scales == nullptr || global == nullptr) continue;
    if (t.dtype != "U8" || t.shape.size() != 2 || t.shape[1] % (block / 2) != 0)
      throw unfit(t, fmt::format("U8 [N, K / 2], K a multiple of {}", block));
    PackedWeight w{base + ".weight", t.shape[0], 2 * t.shape[1]};
    const std::vector<int64_t> wanted = {w.rows, w.columns / block};
    if (scales->dtype != "F8_E4M3" || scales->shape != wanted) throw unfit(*scales, type_text("F8_E4M3", wanted));
    if (global->dtype != "F32" || global->bytes != 4) throw unfit(*global, "F32 [] or F32 [1]");
    w.codes = reinterpret_cast<const uint8_t*>(t.data), w.scales = reinterpret_cast<const uint8_t*>(scales->data);
    float g = 0;
    std::memcpy(&g, global->data, sizeof g);
    if (!std::isfinite(g) || g < 0 || (ct && g == 0))
      throw Error("E403", "tensor {} holds {}, which is no scale", global->name, g)
          .where("{}", global->name)
          .expected(ct ? "a number above 0, by which the values are divided" : "a number of at least 0",
                    fmt::format("{}", g))
          .hint("copy the files again from where they came from");
    w.multiplier = ct ? 1 / g : g;
    const uint8_t* const end = w.scales + scales->bytes;
    if (const uint8_t* const nan = std::find_if(w.scales, end, [](uint8_t b) { return (b & 0x7F) == e4m3_nan; });
        nan != end)
      throw Error("E403", "tensor {} holds NaN", scales->name)
          .where("{}, element {}", scales->name, nan - w.scales)
          .expected("finite scales", fmt::format("byte {:#04x}", *nan))
          .hint("copy the files again from where they came from");
    for (const TensorView* p : {&t, scales, global}) taken[p->name] = true;
    sorted.weights.push_back(std::move(w));
  }
  if (!missing.empty())
    throw Error("E404", "{} scale tensors of packed weights are missing", missing.size())
        .where("{}{}", fmt::join(missing.begin(), missing.begin() + std::min<ptrdiff_t>(10, std::ssize(missing)), ", "),
               missing.size() > 10 ? ", ..." : "")
        .hint("copy the files again from where they came from");
  for (const TensorView& t : tensors) {
    if (taken.contains(t.name)) continue;
    if (!std::ranges::any_of(unused_scales, [&](std::string_view suffix) { return t.name.ends_with(suffix); }))
      sorted.plain.push_back(t);
  }
  return sorted;
}

}  // namespace nibble
