// NVFP4 weights in Hugging Face directories: spec/precision.md 9, P65, P66.
#include "io/packed.h"

#include <cmath>
#include <functional>

#include "io/checkpoint_load.h"
#include "io/hf_config.h"
#include "io_fixture.h"
#include "numerics/quantized_product.h"

namespace nibble {
namespace {

/// The tensors of one packed layer of 2 x 32 and of a plain one, as files of either layout hold them.
struct Layer {
  std::vector<uint8_t> codes = std::vector<uint8_t>(32), scales = {0x38, 0x40, 0x30, 0x38};
  std::vector<float> global = {0.5f}, plain = {1, 2, 3};
  PackedLayout layout = PackedLayout::modelopt;
  std::vector<TensorRef> refs() const {
    const bool ct = layout == PackedLayout::compressed_tensors;
    std::vector<TensorRef> list = {{ct ? "a.weight_packed" : "a.weight", {2, 16}, "U8", codes.data()},
                                   {"a.weight_scale", {2, 2}, "F8_E4M3", scales.data()},
                                   {"a.weight_scale_2", {}, "F32", global.data()},
                                   {"b.weight", {3}, "F32", plain.data()}};
    if (ct) list[2].name = "a.weight_global_scale", list[2].shape = {1};
    return list;
  }
  PackedTensors sorted(const std::function<void(std::vector<TensorRef>&)>& change = {}) const {
    std::vector<TensorRef> list = refs();
    if (change) change(list);
    std::vector<TensorView> views;
    for (const TensorRef& t : list)
      views.push_back({t.name, t.dtype, t.shape, static_cast<const std::byte*>(t.data), 0, t.bytes()});
    return sort_packed(views, {layout, true, {}});
  }
};
TensorRef& named(std::vector<TensorRef>& list, const std::string& name) {
  for (TensorRef& t : list)
    if (t.name == name) return t;
  ADD_FAILURE() << name;
  return list[0];
}
Layer layer(PackedLayout layout) {
  Layer l;
  l.layout = layout;
  return l;
}

TEST(PrecisionP65, ModelOptMultipliesAndCompressedTensorsDivides) {
  Layer l;
  for (size_t i = 0; i < 32; ++i) l.codes[i] = static_cast<uint8_t>(2 * i % 16 | (2 * i + 1) % 16 << 4);
  for (const auto& [layout, global] :
       {std::pair(PackedLayout::modelopt, 0.25f), {PackedLayout::compressed_tensors, 4.0f}}) {
    l.layout = layout, l.global = {global};
    const PackedTensors t = l.sorted();
    ASSERT_EQ(t.weights.size(), 1u);
    EXPECT_EQ(t.weights[0].name, "a.weight");
    EXPECT_EQ(t.weights[0].rows, 2);
    EXPECT_EQ(t.weights[0].columns, 32);
    EXPECT_EQ(t.weights[0].multiplier, 0.25f);
    ASSERT_EQ(t.plain.size(), 1u);
    EXPECT_EQ(t.plain[0].name, "b.weight");
    std::vector<float> x(64), last(32);
    t.weights[0].decode(0, 2, x.data());
    t.weights[0].decode(1, 1, last.data());
    EXPECT_EQ(std::vector<float>(x.begin() + 32, x.end()), last);
    EXPECT_EQ(x[7], 6 * 0.25f) << "scale 0x38 is 1";
    EXPECT_EQ(x[9], -0.5f * 0.25f);
    EXPECT_EQ(x[16 + 7], 6 * 2 * 0.25f) << "scale 0x40 is 2";
    EXPECT_EQ(x[32 + 7], 6 * 0.5f * 0.25f) << "scale 0x30 is 1/2";
  }
}

// ModelOpt writes scale 1 (0x38) where a block is all zeros, and no scale below 2^-9 (0x01).
TEST(PrecisionP65, BlocksThatModelOptWritesAreRead) {
  Layer l;
  l.scales = {0x38, 0x01, 0x38, 0x7E};
  for (size_t i = 8; i < 16; ++i) l.codes[i] = 0x11;
  for (size_t i = 16; i < 24; ++i) l.codes[i] = 0x80;  // -0 and 0
  for (size_t i = 24; i < 32; ++i) l.codes[i] = 0x77;
  std::vector<float> x(64);
  l.sorted().weights.at(0).decode(0, 2, x.data());
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(x[i], 0) << i;
  for (size_t i = 16; i < 32; ++i) EXPECT_EQ(x[i], 0.5f * 0x1p-9f * 0.5f) << i;
  for (size_t i = 32; i < 48; ++i) EXPECT_EQ(x[i], 0) << i;
  for (size_t i = 48; i < 64; ++i) EXPECT_EQ(x[i], 6 * 448 * 0.5f) << i;
}

TEST(PrecisionP65, CodesInMemoryStandForTheSameNumbers) {
  Layer l;
  for (size_t i = 0; i < 32; ++i) l.codes[i] = static_cast<uint8_t>(31 * i);
  l.global = {0x1.8p-9f};
  const PackedTensors sorted = l.sorted();
  const PackedWeight& w = sorted.weights.at(0);
  const Type type{DType::nvfp4, {2, 32}};
  std::vector<QuantizedHeader> memory(static_cast<size_t>(type.nbytes()) / sizeof(QuantizedHeader) + 1);
  const Tensor t{type, memory.data()};
  w.store(t);
  const QuantizedView v(t);
  EXPECT_EQ(v.header().by_amax, 0u);
  std::vector<float> x(64);
  w.decode(0, 2, x.data());
  for (int64_t r = 0; r < 2; ++r)
    for (int64_t i = 0; i < 32; ++i)
      EXPECT_EQ(element_value(type.dtype, v.codes(r), i) *
                    (block_scale_value(type.dtype, v.scales(r)[i / 16]) * v.header().decode),
                x[static_cast<size_t>(32 * r + i)]);
}

TEST(PrecisionP65, ScalesOfActivationsAndOfTheCacheAreLeftOut) {
  const float one = 1;
  const PackedTensors t = layer(PackedLayout::modelopt).sorted([&](std::vector<TensorRef>& list) {
    for (const char* name :
         {"a.input_scale", "a.input_global_scale", "l.k_proj.k_scale", "l.v_proj.v_scale", "other_scale"})
      list.push_back({name, {}, "F32", &one});
  });
  ASSERT_EQ(t.plain.size(), 2u);
  EXPECT_EQ(t.plain[1].name, "other_scale") << "what is not known stays, and is surplus later";
}

TEST(PrecisionP65, WhatDoesNotFitIsNamed) {
  struct Case {
    const char *id, *words;
    PackedLayout layout;
    std::function<void(std::vector<TensorRef>&)> change;
  };
  using enum PackedLayout;
  const float nan = NAN, negative = -1, zero = 0, infinite = INFINITY;
  const uint8_t bad_scales[4] = {0x38, 0x38, 0xFF, 0x38};
  const std::vector<Case> cases = {
      {"E404", "a.weight_scale", modelopt, [](auto& l) { l.erase(l.begin() + 1); }},
      {"E404", "a.weight_scale_2", modelopt, [](auto& l) { l.erase(l.begin() + 2); }},
      {"E404", "a.weight_global_scale", compressed_tensors, [](auto& l) { l.erase(l.begin() + 2); }},
      {"E404", "a.weight_global_scale", compressed_tensors,
       [](auto& l) { named(l, "a.weight_global_scale").name = "a.weight_scale_2"; }},
      {"E403", "expected: F8_E4M3 [2, 2]   got: F8_E4M3 [4]", modelopt,
       [](auto& l) { named(l, "a.weight_scale").shape = {4}; }},
      {"E403", "expected: F8_E4M3 [2, 2]   got: U8 [2, 2]", modelopt,
       [](auto& l) { named(l, "a.weight_scale").dtype = "U8"; }},
      {"E403", "expected: U8 [N, K / 2], K a multiple of 16   got: U8 [4, 4]", modelopt,
       [](auto& l) {
         l[0].shape = {4, 4};
       }},
      {"E403", "expected: U8 [N, K / 2], K a multiple of 16   got: F8_E4M3 [2, 16]", compressed_tensors,
       [](auto& l) { l[0].dtype = "F8_E4M3"; }},
      {"E403", "expected: F32 [] or F32 [1]   got: F32 [2]", modelopt,
       [](auto& l) { named(l, "a.weight_scale_2").shape = {2}; }},
      {"E403", "a.weight_scale_2 holds nan", modelopt, [&](auto& l) { named(l, "a.weight_scale_2").data = &nan; }},
      {"E403", "a.weight_scale_2 holds -1", modelopt, [&](auto& l) { named(l, "a.weight_scale_2").data = &negative; }},
      {"E403", "a.weight_global_scale holds 0", compressed_tensors,
       [&](auto& l) { named(l, "a.weight_global_scale").data = &zero; }},
      {"E403", "a.weight_global_scale holds inf", compressed_tensors,
       [&](auto& l) { named(l, "a.weight_global_scale").data = &infinite; }},
      {"E403", "where: a.weight_scale, element 2", modelopt,
       [&](auto& l) { named(l, "a.weight_scale").data = bad_scales; }},
  };
  for (const Case& c : cases) {
    const std::string message = error_of(c.id, [&] { layer(c.layout).sorted(c.change); });
    EXPECT_NE(message.find(c.words), std::string::npos) << message << "\nwanted " << c.words;
  }
  EXPECT_EQ(layer(modelopt).sorted([&](auto& l) { named(l, "a.weight_scale_2").data = &zero; }).weights[0].multiplier,
            0)
      << "a tensor of zeros of ModelOpt";
}

// What a loader of whole models asks: the packed weight as it lies in the file, or its numbers.
TEST(PrecisionP65, AReaderGivesPackedWeightsAndTheirNumbers) {
  const TempFolder folder;
  Layer l;
  for (size_t i = 0; i < 32; ++i) l.codes[i] = static_cast<uint8_t>(17 * i);
  const std::vector<TensorRef> refs = l.refs();
  write_safetensors(folder.path(), "model", refs);
  put_file(folder / "model.safetensors.index.json", safetensors_index("model", refs));
  Json config = Json::parse(read_file(std::filesystem::path(NIBBLE_GOLDEN_DIR) / "hf/llama/config.json"));
  config["quantization_config"] = packed_format_json({PackedLayout::modelopt, true, {"lm_head"}});
  put_file(folder / "config.json", config.dump());
  const ModelSource source{ModelSource::hugging_face, folder.path()};
  const ParameterReader reader(source, {{"a.weight", {2, 32}}, {"b.weight", {3}}});
  ASSERT_NE(reader.packed("a.weight"), nullptr);
  EXPECT_EQ(reader.packed("b.weight"), nullptr);
  const PackedWeight& w = *reader.packed("a.weight");
  EXPECT_TRUE(std::equal(l.codes.begin(), l.codes.end(), w.codes));
  EXPECT_TRUE(std::equal(l.scales.begin(), l.scales.end(), w.scales));
  std::vector<float> x(64), decoded(64), plain(3);
  reader.read("a.weight", x.data()), reader.read("b.weight", plain.data());
  w.decode(0, 2, decoded.data());
  EXPECT_EQ(x, decoded);
  EXPECT_EQ(plain, l.plain);
  const std::string shape = error_of("E403", [&] {
    ParameterReader r(source, {{"a.weight", {2, 64}}, {"b.weight", {3}}});
  });
  EXPECT_NE(shape.find("expected: [2, 64]   got: [2, 32]"), std::string::npos) << shape;
  EXPECT_NE(error_of("E404",
                     [&] {
                       ParameterReader r(source, {{"b.weight", {3}}});
                     })
                .find("no layer for the packed weight a.weight"),
            std::string::npos);
  error_of("E404", [&] { ParameterReader r(source, {{"a.weight", {2, 32}}, {"b.weight", {3}}, {"c.weight", {3}}}); });
}

TEST(PrecisionP66, TheConfigurationSaysWhichLayersAreNotPacked) {
  for (const PackedLayout layout : {PackedLayout::modelopt, PackedLayout::compressed_tensors})
    for (const bool weight_only : {true, false}) {
      if (layout == PackedLayout::compressed_tensors && !weight_only) continue;  // not written
      const PackedFormat f{layout, weight_only, {"lm_head", "model.layers.3.mlp.up_proj"}};
      EXPECT_EQ(parse_packed_format(packed_format_json(f), "f"), f);
      EXPECT_EQ(packed_format_json(f)["ignore"], (Json{"lm_head", "model.layers.3.mlp.up_proj"}));
      if (layout == PackedLayout::compressed_tensors) continue;
      const Json beside = Json::parse(hf_quant_config_text(f));
      EXPECT_EQ(beside["quantization"]["exclude_modules"], (Json{"lm_head", "model.layers.3.mlp.up_proj"}));
      EXPECT_EQ(parse_packed_format(beside, "f"), f);
    }
}

TEST(PrecisionP65, ConfigurationsOfOtherProgramsAreRead) {
  // as ModelOpt and compressed-tensors write them for 4-bit activations
  const PackedFormat m = parse_packed_format(Json::parse(R"({"quant_method": "modelopt", "quant_algo": "NVFP4",
      "config_groups": {"group_0": {"input_activations": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16},
      "weights": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}},
      "ignore": ["lm_head", "model.layers.0.*"], "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"}})"),
                                             "f");
  EXPECT_EQ(m.layout, PackedLayout::modelopt);
  EXPECT_FALSE(m.weight_only);
  EXPECT_EQ(m.ignore, (std::vector<std::string>{"lm_head", "model.layers.0.*"}));
  const PackedFormat c =
      parse_packed_format(Json::parse(R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
      "quantization_status": "compressed", "config_groups": {"group_0": {"targets": ["Linear"], "format": "nvfp4-pack-quantized",
      "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true, "dynamic": false},
      "input_activations": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}}},
      "ignore": ["re:.*lm_head"], "kv_cache_scheme": null})"),
                          "f");
  EXPECT_EQ(c.layout, PackedLayout::compressed_tensors);
  EXPECT_FALSE(c.weight_only);
}

TEST(PrecisionP65, AnotherMethodAlgorithmOrGroupSizeIsRefusedByName) {
  struct Case {
    const char *words, *config;
  };
  const Case cases[] = {
      {"f says quant_method awq", R"({"quant_method": "awq"})"},
      {"f says quant_method none", R"({"bits": 4})"},
      {"f says quant_algo FP8", R"({"quant_method": "modelopt", "quant_algo": "FP8"})"},
      {"f says quant_algo MIXED_PRECISION", R"({"quantization": {"quant_algo": "MIXED_PRECISION"}})"},
      {"f says group_size 32", R"({"quantization": {"quant_algo": "NVFP4", "group_size": 32}})"},
      {"f says format pack-quantized", R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})"},
      {"f says quantization_status frozen",
       R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "quantization_status": "frozen"})"},
      {"f says config_groups.g.weights.num_bits 8",
       R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"g": {"weights": {"num_bits": 8}}}})"},
      {"f says config_groups.g.weights.type \"int\"",
       R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"g": {"weights": {"type": "int"}}}})"},
      {"f says ignore \"lm_head\"", R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": "lm_head"})"},
      {"f says quantization_config 4", "4"}};
  for (const Case& c : cases) {
    const std::string message = error_of("E010", [&] { parse_packed_format(Json::parse(c.config), "f"); });
    EXPECT_NE(message.find(c.words), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace nibble
