// Exports of trained models: spec/precision.md 9 (P63, P65, P66), spec/training.md 6.3.
#include "train/export_model.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "core/quantized.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "models/graphs.h"
#include "numerics/blocks.h"
#include "numerics/nvfp4_file.h"
#include "tiny.h"
#include "train/open_model.h"
#include "train/trainer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

/// A run of the tiny model of a few steps, and what is exported from it.
struct Trained {
  explicit Trained(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"steps=4", "run_name=run", "base_output_directory=" + (folder / "out"),
                             "train_files=[" + write_book(folder) + "]"});
    config = tiny_config(more);
    ::testing::internal::CaptureStdout(), ::testing::internal::CaptureStderr();
    run_training(config, {});
    ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr();
    open = open_model(run());
  }
  fs::path run() const { return fs::path(folder / "out/run"); }
  fs::path out(const std::string& name) const { return fs::path(folder / name); }
  ExportOptions options(std::optional<PackedLayout> layout) const {
    ExportOptions o;
    o.layout = layout, o.recipe = packing_recipe(config, open.model.layers), o.target = CpuTarget::ref;
    return o;
  }
  ExportReport write(const std::string& name, std::optional<PackedLayout> layout = PackedLayout::modelopt) const {
    return export_model(open, out(name), options(layout));
  }
  TemporaryFolder folder;
  Config config = tiny_config({"dataset_type=synthetic"});
  OpenModel open;
};

std::vector<float> numbers(const SafetensorsModel& model, const std::string& name) {
  std::vector<float> x(static_cast<size_t>(model.at(name).numel()));
  read_f32(model.at(name), x.data());
  return x;
}
std::string bytes(const SafetensorsModel& model, const std::string& name) {
  const TensorView& t = model.at(name);
  return {reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes)};
}
std::vector<std::string> packed_layers(int64_t layers) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < layers; ++i)
    for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
      names.push_back(fmt::format("model.layers.{}.{}", i, part));
  return names;
}
std::vector<std::string> fused_with(const std::string& name) {
  const std::string stem = name.substr(0, name.rfind('.') + 1);
  if (name.ends_with("gate_proj") || name.ends_with("up_proj")) return {stem + "gate_proj", stem + "up_proj"};
  if (name.ends_with("o_proj") || name.ends_with("down_proj")) return {name};
  return {stem + "q_proj", stem + "k_proj", stem + "v_proj"};
}
float amax_of_masters(const SafetensorsModel& masters, const std::vector<std::string>& names) {
  float most = 0;
  for (const std::string& name : names)
    for (const float w : numbers(masters, name + ".weight")) most = std::max(most, std::fabs(widen(round_bf16(w))));
  return most;
}

template <class F>
std::string failure(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.id + ": " + e.what_text + " / " + e.where_text;
  }
  return "none";
}

double loss_of(const LlamaConfig& model, const std::function<void(Program&)>& load) {
  StepConfig c;
  c.model = model, c.evaluation = {4, 32};
  Stepper stepper(c, plan_evaluation(c, 1, CpuTarget::ref));
  load(stepper.program());
  return stepper.evaluate(RandomRows(4, 32, model.vocab, 5).rows()).loss();
}

TEST(PrecisionP63, BothLayoutsHoldTheSameCodesAndScales) {
  const Trained t({"quantization=te_nvfp4"});
  t.write("modelopt"), t.write("ct", PackedLayout::compressed_tensors);
  const SafetensorsModel m(t.out("modelopt")), c(t.out("ct"));
  for (const std::string& name : packed_layers(2)) {
    EXPECT_EQ(bytes(m, name + ".weight"), bytes(c, name + ".weight_packed"));
    EXPECT_EQ(bytes(m, name + ".weight_scale"), bytes(c, name + ".weight_scale"));
    EXPECT_EQ(m.at(name + ".weight_scale").dtype, "F8_E4M3");
    EXPECT_TRUE(m.at(name + ".weight_scale_2").shape.empty());
    EXPECT_EQ(c.at(name + ".weight_global_scale").shape, (std::vector<int64_t>{1}));
    const float g = numbers(m, name + ".weight_scale_2")[0], s = numbers(c, name + ".weight_global_scale")[0];
    EXPECT_LE(std::fabs(g * s - 1), 0x1p-23f) << name;
  }
  EXPECT_EQ(m.tensors().size(), 14u * 3 + 7) << "2 x 2 norms, the last norm, embedding, head";
  EXPECT_TRUE(fs::exists(t.out("modelopt") / "hf_quant_config.json"));
  EXPECT_FALSE(fs::exists(t.out("ct") / "hf_quant_config.json"));
}

TEST(PrecisionP66, FusedGroupsShareOneScaleAndTheRestIsListed) {
  const Trained t({"quantization=nvfp4"});  // the last 15 % of two layers: one
  const ExportReport report = t.write("small");
  const SafetensorsModel m(t.out("small")), masters(t.open.source.path);
  const std::vector<std::string> names = packed_layers(2);
  for (size_t i = 0; i < 7; ++i)
    EXPECT_EQ(numbers(m, names[i] + ".weight_scale_2")[0], amax_of_masters(masters, fused_with(names[i])) / 2688)
        << names[i];
  EXPECT_EQ(report.packed_layers, 7);
  EXPECT_EQ(report.layers, 14);
  std::vector<std::string> ignored = {"lm_head"};
  for (size_t i = 7; i < 14; ++i) {
    ignored.push_back(names[i]);
    std::vector<float> rounded = numbers(masters, names[i] + ".weight");
    for (float& w : rounded) w = widen(round_bf16(w));
    EXPECT_EQ(m.at(names[i] + ".weight").dtype, "BF16");
    EXPECT_EQ(numbers(m, names[i] + ".weight"), rounded) << names[i];
  }
  const Json config = Json::parse(read_file(t.out("small") / "config.json")),
             beside = Json::parse(read_file(t.out("small") / "hf_quant_config.json"));
  EXPECT_EQ(config["quantization_config"]["ignore"], Json(ignored));
  EXPECT_EQ(beside["quantization"]["exclude_modules"], Json(ignored));
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
}

// "Write W^ exactly as the last forward saw it (same bytes, same 4/6 choices)": what evaluation under the recipe reads.
class ExportOfRecipe : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(ExportOfRecipe, HoldsTheBytesThatTheForwardPassReads) {
  const Trained t(GetParam());
  t.write("small");
  const SafetensorsModel m(t.out("small")), masters(t.open.source.path);
  StepConfig c = step_of(t.config);
  c.evaluation = {2, 32};
  Stepper stepper(c, plan_evaluation(c, 1, CpuTarget::ref));
  load_weights(t.open, stepper.program());
  stepper.evaluate(RandomRows(2, 32, c.model.vocab, 1).rows());
  const bool pow2 = t.config.get_string("tensor_scale") == "pow2";
  int compared = 0;
  for (const std::string& name : packed_layers(2)) {
    // of a fused group only the tensor with the largest value keeps its own scale; with pow2 all keep their codes
    if (!pow2 && amax_of_masters(masters, {name}) != amax_of_masters(masters, fused_with(name))) continue;
    ++compared;
    const QuantizedView v(stepper.program().state(StateRole::codes, name + ".weight"));
    std::string codes, scales;
    for (int64_t r = 0; r < v.layout.rows; ++r) {
      codes.append(reinterpret_cast<const char*>(v.codes(r)), static_cast<size_t>(v.layout.columns / 2));
      scales.append(reinterpret_cast<const char*>(v.scales(r)), static_cast<size_t>(v.layout.blocks));
    }
    EXPECT_EQ(bytes(m, name + ".weight"), codes) << name;
    const float multiplier = numbers(m, name + ".weight_scale_2")[0];
    if (!pow2) {
      EXPECT_EQ(bytes(m, name + ".weight_scale"), scales) << name;
      EXPECT_LE(std::fabs(multiplier / v.header().decode - 1), 0x1p-23f);
      continue;
    }
    const std::string in_file = bytes(m, name + ".weight_scale");
    for (size_t i = 0; i < scales.size(); ++i)  // exact products, whatever power of two is where
      EXPECT_EQ(e4m3_decode(static_cast<uint8_t>(in_file[i])) * multiplier,
                e4m3_decode(static_cast<uint8_t>(scales[i])) * v.header().decode);
  }
  EXPECT_GE(compared, pow2 ? 14 : 8) << "o, down, one of q k v and one of gate up in each layer";
}

INSTANTIATE_TEST_SUITE_P(PrecisionP63, ExportOfRecipe,
                         ::testing::Values(std::vector<std::string>{"quantization=te_nvfp4"},
                                           std::vector<std::string>{"quantization=te_nvfp4", "tensor_scale=pow2"},
                                           std::vector<std::string>{"quantization=te_nvfp4_46"},
                                           std::vector<std::string>{"quantization=te_nvfp4_no_rht",
                                                                    "recipe_disable=[two_level]"},
                                           std::vector<std::string>{"quantization=quartet2"}));

// Section 9 on a run without a recipe, computed here block by block: 1x16, nearest, one scale a fused group.
std::map<std::string, std::vector<float>> decoded_weights(const Trained& t) {
  const SafetensorsModel masters(t.open.source.path);
  std::map<std::string, std::vector<float>> result;
  const std::vector<std::string> packed = packed_layers(2);
  for (const Parameter& p : llama_parameters(t.open.model)) {
    std::vector<float> w = numbers(masters, p.name);
    for (float& x : w) x = widen(round_bf16(x));
    const std::string layer = p.name.substr(0, p.name.size() - 7);
    if (std::ranges::find(packed, layer) != packed.end()) {
      const float amax = amax_of_masters(masters, fused_with(layer));
      const Nvfp4Scale s = nvfp4_scale(amax);
      for (size_t i = 0; i < w.size(); i += 16) {
        const nibble::testing::Block b = nibble::testing::quantize_block({w.data() + i, 16}, s);
        for (size_t k = 0; k < 16; ++k) w[i + k] = e2m1_decode(b.codes[k]) * (e4m3_decode(b.byte) * (amax / 2688));
      }
    }
    result[p.name] = std::move(w);
  }
  return result;
}

TEST(PrecisionP65, TheLossOfAnExportIsThatOfItsDecodedWeights) {
  const Trained t;
  t.write("modelopt"), t.write("ct", PackedLayout::compressed_tensors);
  const auto weights = decoded_weights(t);
  const double want = loss_of(t.open.model, [&](Program& program) {
    load_weights(t.open, program);  // the rope table
    for (const auto& [name, w] : weights) std::ranges::copy(w, program.state(StateRole::parameter, name).as<float>());
  });
  const auto loss = [&](const fs::path& path) {
    const OpenModel open = open_model(path);
    return loss_of(open.model, [&](Program& program) { load_weights(open, program); });
  };
  EXPECT_EQ(loss(t.out("modelopt")), want);
  EXPECT_NEAR(loss(t.out("ct")), want, 1e-5) << "1 / weight_global_scale is G within 1 ulp";
  EXPECT_NE(loss(t.run()), want);
  EXPECT_NEAR(loss(t.run()), want, 0.1);
}

// With pow2 decoded values are exact in BF16 and quantise to themselves.
TEST(PrecisionP63, UnderItsRecipeAPow2ExportHasTheLossOfTheRun) {
  const Trained t({"quantization=te_nvfp4", "tensor_scale=pow2"});
  ExportOptions o = t.options(PackedLayout::modelopt);
  o.dtype = DType::f32;
  export_model(t.open, t.out("small"), o);
  const auto loss = [&](const fs::path& path) {
    const OpenModel open = open_model(path);
    StepConfig c = step_of(t.config);
    c.evaluation = {4, 32};
    Stepper stepper(c, plan_evaluation(c, 1, CpuTarget::ref));
    load_weights(open, stepper.program());
    return stepper.evaluate(RandomRows(4, 32, c.model.vocab, 5).rows()).loss();
  };
  EXPECT_EQ(loss(t.out("small")), loss(t.run()));
}

TEST(PrecisionP65, AnExportStartsARun) {
  const Trained t({"quantization=te_nvfp4"});
  t.write("small");
  ::testing::internal::CaptureStdout(), ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_training(tiny_config({"steps=1", "run_name=again", "base_output_directory=" + (t.folder / "out"),
                                      "train_files=[" + (t.folder / "book.txt") + "]", "learning_rate=0",
                                      "load_parameters_path=" + t.out("small").string()}),
                         {}),
            exit_done);
  ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr();
  const OpenModel small = open_model(t.out("small")), again = open_model(fs::path(t.folder / "out/again"));
  EXPECT_EQ(loss_of(small.model, [&](Program& p) { load_weights(small, p); }),
            loss_of(again.model, [&](Program& p) { load_weights(again, p); }));
}

TEST(ExportModel, SizesAreThoseOfTheFiles) {
  const Trained t({"quantization=te_nvfp4"});
  const ExportReport r = t.write("small");
  const SafetensorsModel m(t.out("small"));
  int64_t all = 0;
  for (const TensorView& v : m.tensors()) all += v.bytes;
  EXPECT_EQ(r.bytes, all);
  EXPECT_EQ(r.parameters, parameter_count(t.open.model));
  EXPECT_EQ(r.packed_parameters, 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 64 * 32));
  EXPECT_EQ(r.packed_bytes, r.packed_parameters / 16 * 9 + 14 * 4) << "4.5 bits a value, 4 bytes a tensor";
  EXPECT_EQ(r.bytes, r.packed_bytes + 2 * (r.parameters - r.packed_parameters));
  EXPECT_EQ(r.packed_as, "nvfp4_2d");
}

TEST(ExportModel, ACheckpointStaysOneWithChecksums) {
  const Trained t({"quantization=te_nvfp4"});
  t.write("small");
  Checkpoint small(t.out("small"));
  EXPECT_TRUE(small.verify().empty());
  EXPECT_EQ(small.info().step, 4);
  EXPECT_EQ(small.info().config_hash, Checkpoint(t.open.source.path).info().config_hash);
  EXPECT_EQ(small.tokenizer_files(), Checkpoint(t.open.source.path).tokenizer_files());
  std::fstream file(t.out("small") / "model-00001-of-00001.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(9000);
  const int byte = file.get();
  file.seekp(9000).put(static_cast<char>(byte ^ 1));
  file.close();
  const OpenModel open = open_model(t.out("small"));
  const std::string message = failure([&] { loss_of(open.model, [&](Program& p) { load_weights(open, p); }); });
  EXPECT_TRUE(message.starts_with("E402")) << message;
}

TEST(ExportModel, PlainNumbersOfAPackedModelAreItsDecodedWeights) {
  const Trained t({"quantization=te_nvfp4"});
  t.write("small");
  const OpenModel small = open_model(t.out("small"));
  ExportOptions o;
  o.dtype = DType::f32;
  export_model(small, t.out("plain"), o);
  const OpenModel plain = open_model(t.out("plain"));
  EXPECT_FALSE(plain.shape.packed);
  EXPECT_EQ(SafetensorsModel(t.out("plain")).at("model.layers.0.mlp.up_proj.weight").dtype, "F32");
  EXPECT_EQ(loss_of(small.model, [&](Program& p) { load_weights(small, p); }),
            loss_of(plain.model, [&](Program& p) { load_weights(plain, p); }));
}

TEST(ExportModel, AHuggingFaceDirectoryStaysOne) {
  const TemporaryFolder folder;
  const OpenModel golden = open_model(fs::path(NIBBLE_GOLDEN_DIR) / "hf/llama");
  ExportOptions o;
  o.layout = PackedLayout::compressed_tensors, o.recipe = packing_recipe(tiny_config({"dataset_type=synthetic"}), 2);
  const fs::path out(folder / "small");
  const ExportReport r = export_model(golden, out, o);
  EXPECT_EQ(r.packed_as, "nvfp4") << "blocks of 1x16 where there is no recipe";
  EXPECT_FALSE(fs::exists(out / "nibble.json"));
  const OpenModel small = open_model(out);
  EXPECT_FALSE(small.is_checkpoint());
  EXPECT_EQ(small.shape.eos, golden.shape.eos);
  ASSERT_TRUE(small.shape.packed);
  EXPECT_EQ(small.shape.packed->layout, PackedLayout::compressed_tensors);
  const double before = loss_of(golden.model, [&](Program&p) { load_weights(golden, p); }),
               after = loss_of(small.model, [&](Program&p) { load_weights(small, p); });
  EXPECT_NE(before, after);
  EXPECT_NEAR(before, after, 0.2);
}

// The layout of ModelOpt as older versions wrote it: nothing in config.json, the file beside it says it.
TEST(PrecisionP65, HfQuantConfigStandsInForAMissingQuantizationConfig) {
  const TemporaryFolder folder;
  const OpenModel golden = open_model(fs::path(NIBBLE_GOLDEN_DIR) / "hf/llama");
  ExportOptions o;
  o.layout = PackedLayout::modelopt, o.recipe = packing_recipe(tiny_config({"dataset_type=synthetic"}), 2);
  const fs::path out(folder / "small");
  export_model(golden, out, o);
  const OpenModel small = open_model(out);
  Json config = Json::parse(read_file(out / "config.json"));
  config.erase("quantization_config");
  replace_file(out / "config.json", config.dump());
  const OpenModel older = open_model(out);
  EXPECT_EQ(older.shape.packed, small.shape.packed);
  EXPECT_EQ(loss_of(older.model, [&](Program& p) { load_weights(older, p); }),
            loss_of(small.model, [&](Program& p) { load_weights(small, p); }));
  fs::remove(out / "hf_quant_config.json");
  const OpenModel unsaid = open_model(out);
  const std::string message = failure([&] { loss_of(unsaid.model, [&](Program& p) { load_weights(unsaid, p); }); });
  EXPECT_TRUE(message.starts_with("E404")) << "codes are never taken for numbers: " << message;
  EXPECT_NE(message.find("weight_scale"), std::string::npos) << message;
}

TEST(ExportModel, AnExportForActivationsSaysWhatIsNotUsed) {
  const TemporaryFolder folder;
  ExportOptions o;
  o.layout = PackedLayout::modelopt, o.recipe = packing_recipe(tiny_config({"dataset_type=synthetic"}), 2);
  const fs::path out(folder / "small");
  export_model(open_model(fs::path(NIBBLE_GOLDEN_DIR) / "hf/llama"), out, o);
  EXPECT_TRUE(open_model(out).notices.empty());
  Json config = Json::parse(read_file(out / "config.json"));
  config["quantization_config"]["quant_algo"] = "NVFP4";
  replace_file(out / "config.json", config.dump());
  ASSERT_EQ(open_model(out).notices.size(), 1u);
  EXPECT_NE(open_model(out).notices[0].find("4-bit activations"), std::string::npos);
}

TEST(ExportModel, WhatCannotBePackedIsRefused) {
  const Trained mx({"quantization=mxfp4"});
  EXPECT_TRUE(failure([&] { mx.write("small"); }).starts_with("E102: weights of quantization=mxfp4 are mxfp4"));
  EXPECT_EQ(export_model(mx.open, mx.out("plain"), {}).packed_layers, 0);
  const Trained t({"quantization=te_nvfp4"});
  t.write("small");
  const OpenModel small = open_model(t.out("small"));
  EXPECT_TRUE(failure([&] {
                export_model(small, t.out("again"), t.options(PackedLayout::modelopt));
              }).starts_with("E010: " + t.out("small").string() + " is packed already"));
  const Trained odd({"base_mlp_dim=40"});
  const std::string message = failure([&] { odd.write("small"); });
  EXPECT_TRUE(message.starts_with("E104: model.layers.0.mlp.down_proj.weight cannot be packed")) << message;
  EXPECT_FALSE(fs::exists(odd.out("small")));
}

TEST(ExportModel, WeightsThatAreNoNumbersOrVanishAreRefused) {
  const TemporaryFolder folder;
  const fs::path golden = fs::path(NIBBLE_GOLDEN_DIR) / "hf/llama";
  const SafetensorsModel from(golden);
  for (const auto& [value, words] : {std::pair(NAN, "hold NaN or Inf"), {1e-37f, "too small for NVFP4"}}) {
    const fs::path source(folder / "source"), out(folder / "out");
    fs::remove_all(source), fs::create_directory(source);
    fs::copy_file(golden / "config.json", source / "config.json");
    std::vector<std::vector<float>> data;
    std::vector<TensorRef> refs;
    for (const TensorView& t : from.tensors()) {
      data.push_back(numbers(from, t.name));
      if (t.name == "model.layers.1.self_attn.o_proj.weight")
        std::fill_n(data.back().begin(), std::isnan(value) ? 1 : data.back().size(), value);
    }
    for (size_t i = 0; i < data.size(); ++i)
      refs.push_back({from.tensors()[i].name, from.tensors()[i].shape, "F32", data[i].data()});
    write_safetensors(source, "model", refs);
    write_file(source / "model.safetensors.index.json", safetensors_index("model", refs));
    ExportOptions o;
    o.layout = PackedLayout::modelopt, o.recipe = packing_recipe(tiny_config({"dataset_type=synthetic"}), 2);
    const std::string message = failure([&] { export_model(open_model(source), out, o); });
    EXPECT_TRUE(message.starts_with("E403")) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find("/ model.layers.1.self_attn.o_proj.weight"), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(out)) << "nothing half-written";
  }
}

TEST(ExportModel, AFolderIsReplacedOnlyIfAskedAndOnlyAModel) {
  const Trained t({"quantization=te_nvfp4"});
  t.write("small");
  EXPECT_TRUE(failure([&] { t.write("small"); }).starts_with("E802"));
  ExportOptions over = t.options(PackedLayout::compressed_tensors);
  over.overwrite = true;
  export_model(t.open, t.out("small"), over);
  EXPECT_EQ(open_model(t.out("small")).shape.packed->layout, PackedLayout::compressed_tensors);
  fs::create_directory(t.out("empty"));
  t.write("empty");
  const std::string run = failure([&] { export_model(t.open, t.run(), over); });
  EXPECT_TRUE(run.starts_with("E802")) << run;
  EXPECT_TRUE(failure([&] { export_model(t.open, t.open.source.path, over); }).find("holds more than a model: state") !=
              std::string::npos)
      << "a checkpoint has what an export has not";
  std::ofstream(t.out("small") / "notes.txt") << "mine";
  EXPECT_NE(failure([&] { export_model(t.open, t.out("small"), over); }).find("notes.txt"), std::string::npos);
  EXPECT_EQ(read_file(t.out("small") / "notes.txt"), "mine");
}

TEST(ExportModel, AFailingDiskLeavesNothingHalfWritten) {
  const Trained t({"quantization=te_nvfp4"});
  const std::set<std::string> none;
  const auto entries = [&] {
    std::set<std::string> names;
    for (const auto& e : fs::directory_iterator(t.out("parent"))) names.insert(e.path().filename());
    return names;
  };
  fs::create_directory(t.out("parent"));
  int64_t failed = 0;
  for (int64_t n = 1;; ++n) {
    FaultInjection::arm(n, ENOSPC, false);
    const std::string message = failure([&] { t.write("parent/small"); });
    FaultInjection::disarm();
    if (message == "none") break;
    ++failed;
    EXPECT_TRUE(message.starts_with("E801") || message.starts_with("E803")) << n << ": " << message;
    if (entries().contains("small")) {  // renamed, and only the parent is not known to be on the disk
      EXPECT_TRUE(Checkpoint(t.out("parent/small")).verify().empty()) << n;
      fs::remove_all(t.out("parent/small"));
    }
    EXPECT_EQ(entries(), none) << n;
    ASSERT_LT(n, 1000);
  }
  EXPECT_GT(failed, 20);
  EXPECT_TRUE(Checkpoint(t.out("parent/small")).verify().empty());
}

}  // namespace
}  // namespace nibble
