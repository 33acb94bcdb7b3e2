// config.json in the spellings of transformers 4 and 5.  Source: spec/training.md 6.3.
#include "io/hf_config.h"

#include "io_fixture.h"

namespace nibble {
namespace {

const std::filesystem::path golden = std::filesystem::path(NIBBLE_GOLDEN_DIR) / "hf";

TEST(TrainingHfConfig, GoldenFilesOfTransformers5) {
  const LlamaShape s = read_hf_config(golden / "llama/config.json");
  EXPECT_EQ(s.layers, 2);
  EXPECT_EQ(s.width, 64);
  EXPECT_EQ(s.heads, 4);
  EXPECT_EQ(s.kv_heads, 2);
  EXPECT_EQ(s.head_size, 16);
  EXPECT_EQ(s.hidden, 96);
  EXPECT_EQ(s.vocab, 256);
  EXPECT_EQ(s.max_positions, 128);
  EXPECT_EQ(s.eps, 1e-5);
  EXPECT_EQ(s.theta, 10000);
  EXPECT_FALSE(s.tied);
  EXPECT_EQ(s.rope, LlamaShape::Rope{});
  EXPECT_EQ(s.bos, 1);
  EXPECT_EQ(s.eos, (std::vector<int64_t>{2}));
  EXPECT_EQ(s.pad, 0);
  EXPECT_EQ(s.dtype, "float32");
  const LlamaShape tied = read_hf_config(golden / "llama_tied/config.json");
  EXPECT_TRUE(tied.tied);
  EXPECT_EQ(tied.theta, 50000);
  EXPECT_EQ(tied.eps, 1e-6);
}

TEST(TrainingHfConfig, BothSpellingsSayTheSame) {
  const LlamaShape s = read_hf_config(golden / "llama3/config.json");
  EXPECT_EQ(s.theta, 500000);
  EXPECT_EQ(s.rope, (LlamaShape::Rope{"llama3", 8, 1, 4, 64}));
  EXPECT_EQ(read_hf_config(golden / "llama3/config_legacy.json"), s);
}

TEST(TrainingHfConfig, WrittenFileReadsBackAndIsInTheOlderSpelling) {
  for (const char* name : {"llama", "llama_tied", "llama3"}) {
    LlamaShape s = read_hf_config(golden / name / "config.json");
    EXPECT_EQ(parse_hf_config(write_hf_config(s), "x"), s) << name;
    s.rope = {"linear", 2.5, 1, 4, 8192};
    s.eos = {2, 5};
    s.bos.reset();
    EXPECT_EQ(parse_hf_config(write_hf_config(s), "x"), s) << name;
  }
  // Everything that the golden file of the older spelling says, and no other value for it.
  const Json want = Json::parse(read_file(golden / "llama3/config_legacy.json"));
  const std::string text = write_hf_config(read_hf_config(golden / "llama3/config.json"));
  const Json got = Json::parse(text);
  for (const auto& item : want.items())
    if (item.key() != "transformers_version") {
      EXPECT_EQ(got.value(item.key(), Json()), item.value()) << item.key();
    }
  EXPECT_NE(text.find("\n  \"rms_norm_eps\": 1e-05,\n"), std::string::npos) << text;
}

TEST(TrainingHfConfig, GenerationConfig) {
  LlamaShape s;
  s.bos = 1, s.eos = {2, 3};
  EXPECT_EQ(write_generation_config(s, {{"temperature", 0.8}, {"top_k", 40}}),
            "{\n  \"bos_token_id\": 1,\n  \"eos_token_id\": [\n    2,\n    3\n  ],\n  \"pad_token_id\": null,\n"
            "  \"temperature\": 0.8,\n  \"top_k\": 40\n}\n");
}

struct Row {
  const char* id;
  const char* words;
  std::pair<const char*, Json> change;
};

TEST(TrainingHfConfig, WhatIsRefused) {
  // clang-format off
  const Row rows[] = {
      {"E010", "model_type=qwen2 of f is not in this version", {"model_type", "qwen2"}},
      {"E010", "attention_bias=true", {"attention_bias", true}},
      {"E010", "mlp_bias=true", {"mlp_bias", true}},
      {"E010", "hidden_act=gelu", {"hidden_act", "gelu"}},
      {"E010", "rope_parameters.rope_type=longrope", {"rope_parameters", {{"rope_type", "longrope"}, {"factor", 4}}}},
      {"E010", "quant_method fp8, which is not in this version", {"quantization_config", {{"quant_method", "fp8"}}}},
      {"E403", "no usable hidden_size", {"hidden_size", Json()}},
      {"E403", "no usable hidden_size", {"hidden_size", "64"}},
      {"E403", "no usable num_key_value_heads", {"num_key_value_heads", 3}},
      {"E403", "no usable rms_norm_eps", {"rms_norm_eps", 0}},
      {"E403", "no usable head_dim", {"head_dim", 15}},
      {"E403", "no usable eos_token_id", {"eos_token_id", Json::array({1, "x"})}},
      {"E403", "no usable rope_parameters.factor", {"rope_parameters", {{"rope_type", "linear"}}}}};
  // clang-format on
  for (const Row& row : rows) {
    Json json = Json::parse(read_file(golden / "llama/config.json"));
    json[row.change.first] = row.change.second;
    const std::string message = error_of(row.id, [&] { parse_hf_config(json.dump(), "f"); });
    EXPECT_NE(message.find(row.words), std::string::npos) << message;
  }
  error_of("E401", [] { parse_hf_config("{\"a\"", "f"); });
  error_of("E401", [] { parse_hf_config("[]", "f"); });
}

TEST(TrainingHfConfig, YarnRoundTrip) {
  Json json = Json::parse(read_file(golden / "llama/config.json"));
  json["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4},     {"original_max_position_embeddings", 64},
                             {"rope_theta", 20000}, {"beta_fast", 16}, {"truncate", false}};
  const LlamaShape s = parse_hf_config(json.dump(), "f");
  EXPECT_EQ(s.rope.type, "yarn");
  EXPECT_EQ(s.rope.original, 64);
  EXPECT_EQ(s.rope.beta_fast, 16);
  EXPECT_FALSE(s.rope.truncate);
  EXPECT_TRUE(s.rope.attention_scaling);
  EXPECT_EQ(parse_hf_config(write_hf_config(s), "g"), s);
  json["rope_parameters"]["attention_factor"] = 1.0;
  EXPECT_FALSE(parse_hf_config(json.dump(), "f").rope.attention_scaling);
  json["rope_parameters"]["attention_factor"] = 2.0;
  EXPECT_NE(error_of("E010", [&] { parse_hf_config(json.dump(), "f"); }).find("attention_factor=2"), std::string::npos);
}

TEST(TrainingHfConfig, MistralIsALlamaWithOrWithoutAWindow) {
  Json json = Json::parse(read_file(golden / "llama/config.json"));
  json["model_type"] = "mistral";
  json["sliding_window"] = nullptr;
  EXPECT_EQ(parse_hf_config(json.dump(), "f"), read_hf_config(golden / "llama/config.json"));
  json["sliding_window"] = 16;
  const LlamaShape local = parse_hf_config(json.dump(), "f");
  EXPECT_EQ(local.window, 16);
  const Json written = Json::parse(write_hf_config(local));
  EXPECT_EQ(written["model_type"], "mistral");
  EXPECT_EQ(written["architectures"][0], "MistralForCausalLM");
  EXPECT_EQ(written["sliding_window"], 16);
  EXPECT_EQ(parse_hf_config(written.dump(), "g"), local);
  json["sliding_window"] = 128;  // no position is farther away
  EXPECT_EQ(parse_hf_config(json.dump(), "f").window, 0);
  json.erase("sliding_window");  // transformers then takes 4096
  EXPECT_EQ(parse_hf_config(json.dump(), "f").window, 0);
  json["max_position_embeddings"] = 8192;
  EXPECT_EQ(parse_hf_config(json.dump(), "f").window, 4096);
}

TEST(TrainingHfConfig, DefaultsOfOldFiles) {
  Json json = Json::parse(read_file(golden / "llama3/config_legacy.json"));
  for (const char* key : {"head_dim", "num_key_value_heads", "pad_token_id", "tie_word_embeddings", "torch_dtype"})
    json.erase(key);
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  const LlamaShape s = parse_hf_config(json.dump(), "f");
  EXPECT_EQ(s.head_size, 16);
  EXPECT_EQ(s.kv_heads, 4);
  EXPECT_FALSE(s.pad.has_value());
  EXPECT_FALSE(s.tied);
  EXPECT_EQ(s.rope, (LlamaShape::Rope{"linear", 4, 1, 4, 8192}));
}

}  // namespace
}  // namespace nibble
