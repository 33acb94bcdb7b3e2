// config.json of Hugging Face for Llama.  Source: spec/training.md 6.3; transformers configuration_llama.py.
#include "io/hf_config.h"

#include <cmath>

#include "core/error.h"
#include "io/file.h"

namespace nibble {
namespace {

/// Typed access to one JSON object with errors that name the file and the key.
class Reader {
 public:
  Reader(const Json& json, std::string_view file, std::string prefix = "")
      : json_(json), file_(file), prefix_(std::move(prefix)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const Json& at(const char* key) const {
    if (!has(key)) fail(key, "a value", "none");
    return json_[key];
  }
  int64_t integer(const char* key, int64_t least = 1) const {
    const Json& v = at(key);
    if (!v.is_number_integer() || v.get<int64_t>() < least)
      fail(key, fmt::format("an integer of at least {}", least), v.dump());
    return v.get<int64_t>();
  }
  int64_t integer_or(const char* key, int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  double positive(const char* key) const {
    const Json& v = at(key);
    if (!v.is_number() || !(v.get<double>() > 0) || !std::isfinite(v.get<double>()))
      fail(key, "a number above 0", v.dump());
    return v.get<double>();
  }
  double positive_or(const char* key, double otherwise) const { return has(key) ? positive(key) : otherwise; }
  bool flag(const char* key) const {  // absent: false
    if (!has(key)) return false;
    if (!json_[key].is_boolean()) fail(key, "true or false", json_[key].dump());
    return json_[key].get<bool>();
  }
  std::string string_or(const char* key, const char* otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_[key].is_string()) fail(key, "a string", json_[key].dump());
    return json_[key].get<std::string>();
  }
  Reader object(const char* key) const {
    if (!at(key).is_object()) fail(key, "an object", at(key).dump());
    return Reader(at(key), file_, prefix_ + key + ".");
  }
  [[noreturn]] void fail(const char* key, std::string wanted, std::string got) const {
    throw Error("E403", "{} has no usable {}{}", file_, prefix_, key)
        .expected(std::move(wanted), std::move(got))
        .hint("use the config.json that belongs to these tensors");
  }
  [[noreturn]] void refuse(const char* key, std::string_view value, std::string wanted) const {
    throw Error("E010", "{}{}={} of {} is not in this version", prefix_, key, value, file_)
        .expected(std::move(wanted), std::string(value))
        .hint("use a model of the Llama architecture");
  }

 private:
  const Json& json_;
  std::string_view file_;
  std::string prefix_;
};

/// `scaling` is rope_scaling or rope_parameters. Old files say `type` for `rope_type`.
LlamaShape::Rope read_rope(const Reader& scaling) {
  LlamaShape::Rope rope;
  rope.type = scaling.string_or("rope_type", scaling.string_or("type", "default").c_str());
  if (rope.type == "default") return rope;
  if (rope.type != "linear" && rope.type != "llama3" && rope.type != "yarn")
    scaling.refuse("rope_type", rope.type, "default, linear, llama3 or yarn");
  rope.factor = scaling.positive("factor");
  if (rope.type == "llama3") {
    rope.low = scaling.positive("low_freq_factor");
    rope.high = scaling.positive("high_freq_factor");
    rope.original = scaling.integer("original_max_position_embeddings");
  } else if (rope.type == "yarn") {
    rope.original = scaling.integer("original_max_position_embeddings");
    rope.beta_fast = scaling.positive_or("beta_fast", 32), rope.beta_slow = scaling.positive_or("beta_slow", 1);
    rope.truncate = !scaling.has("truncate") || scaling.flag("truncate");
    if (scaling.has("attention_factor")) {
      const double given = scaling.positive("attention_factor"), usual = 0.1 * std::log(rope.factor) + 1;
      rope.attention_scaling = given != 1;
      if (given != 1 && std::abs(given - usual) > 1e-6)
        scaling.refuse("attention_factor", fmt::format("{}", given),
                       fmt::format("1 or 0.1 ln(factor) + 1 = {}", usual));
    }
  }
  return rope;
}

void read_token_ids(const Reader& r, LlamaShape& s) {
  if (r.has("bos_token_id")) s.bos = r.integer("bos_token_id", 0);
  if (r.has("pad_token_id")) s.pad = r.integer("pad_token_id", -1);  // -1: none, in some published files
  if (s.pad && *s.pad < 0) s.pad.reset();
  if (!r.has("eos_token_id")) return;
  const Json& eos = r.at("eos_token_id");
  if (!eos.is_array()) {
    s.eos = {r.integer("eos_token_id", 0)};
    return;
  }
  for (const Json& id : eos) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0) r.fail("eos_token_id", "ids of at least 0", eos.dump());
    s.eos.push_back(id.get<int64_t>());
  }
}

void refuse_foreign(const Reader& r) {
  const std::string type = r.string_or("model_type", "none");
  if (type != "llama" && type != "mistral") r.refuse("model_type", type, "llama or mistral");
  if (r.flag("attention_bias")) r.refuse("attention_bias", "true", "false");
  if (r.flag("mlp_bias")) r.refuse("mlp_bias", "true", "false");
  const std::string act = r.string_or("hidden_act", "silu");
  if (act != "silu" && act != "swish") r.refuse("hidden_act", act, "silu");
}

}  // namespace

LlamaShape parse_hf_config(std::string_view text, std::string_view name) {
  std::string problem;
  const Json json = parse_json(text, problem);
  if (problem.empty() && !json.is_object()) problem = "no object";
  if (!problem.empty())
    throw Error("E401", "{} is no config.json: {}", name, problem).hint("copy the file again from where it came from");
  const Reader r(json, name);
  refuse_foreign(r);
  const bool mistral = r.string_or("model_type", "") == "mistral";
  LlamaShape s;
  s.layers = r.integer("num_hidden_layers");
  s.width = r.integer("hidden_size");
  s.heads = r.integer("num_attention_heads");
  s.kv_heads = r.integer_or("num_key_value_heads", mistral ? 8 : s.heads);
  s.hidden = r.integer("intermediate_size");
  s.vocab = r.integer("vocab_size");
  s.max_positions = r.integer_or("max_position_embeddings", mistral ? 131072 : 2048);
  s.eps = r.positive_or("rms_norm_eps", 1e-6);
  s.init_std = r.positive_or("initializer_range", 0.02);
  s.tied = r.flag("tie_word_embeddings");
  if (s.heads % s.kv_heads != 0)
    r.fail("num_key_value_heads", fmt::format("a divisor of {}", s.heads), fmt::format("{}", s.kv_heads));
  if (!r.has("head_dim") && s.width % s.heads != 0)
    r.fail("num_attention_heads", fmt::format("a divisor of {}", s.width), fmt::format("{}", s.heads));
  s.head_size = r.integer_or("head_dim", s.width / s.heads);
  if (s.head_size % 2 != 0) r.fail("head_dim", "an even number", fmt::format("{}", s.head_size));
  // An absent key means 4096 for transformers; a window that no position leaves is full attention.
  if (mistral && (r.has("sliding_window") || !json.contains("sliding_window"))) {
    const int64_t window = r.integer_or("sliding_window", 4096);
    if (window < s.max_positions) s.window = window;
  }
  s.theta = r.positive_or("rope_theta", 10000);
  if (r.has("rope_parameters")) {
    const Reader rope = r.object("rope_parameters");
    s.theta = rope.positive_or("rope_theta", s.theta);
    s.rope = read_rope(rope);
  } else if (r.has("rope_scaling")) {
    s.rope = read_rope(r.object("rope_scaling"));
  }
  s.dtype = r.string_or("dtype", r.string_or("torch_dtype", "float32").c_str());
  if (r.has("quantization_config")) s.packed = parse_packed_format(r.at("quantization_config"), name);
  read_token_ids(r, s);
  return s;
}

LlamaShape read_hf_config(const std::filesystem::path& path) { return parse_hf_config(read_file(path), path.string()); }

namespace {

void set_token_ids(const LlamaShape& s, Json& j) {
  j["bos_token_id"] = s.bos ? Json(*s.bos) : Json();
  j["eos_token_id"] = s.eos.empty() ? Json() : s.eos.size() == 1 ? Json(s.eos[0]) : Json(s.eos);
  j["pad_token_id"] = s.pad ? Json(*s.pad) : Json();
}

std::string sorted_text(const Json& j) {  // names in byte order, as transformers writes them
  const nlohmann::json sorted = nlohmann::json::parse(j.dump());
  return json_text(Json(sorted)) + "\n";
}

}  // namespace

std::string write_hf_config(const LlamaShape& s) {
  Json j = {{"architectures", Json::array({"LlamaForCausalLM"})},
            {"attention_bias", false},
            {"attention_dropout", 0.0},
            {"head_dim", s.head_size},
            {"hidden_act", "silu"},
            {"hidden_size", s.width},
            {"initializer_range", s.init_std},
            {"intermediate_size", s.hidden},
            {"max_position_embeddings", s.max_positions},
            {"mlp_bias", false},
            {"model_type", "llama"},
            {"num_attention_heads", s.heads},
            {"num_hidden_layers", s.layers},
            {"num_key_value_heads", s.kv_heads},
            {"pretraining_tp", 1},
            {"rms_norm_eps", s.eps},
            {"rope_theta", s.theta},
            {"rope_scaling", Json()},
            {"tie_word_embeddings", s.tied},
            {"torch_dtype", s.dtype},
            {"use_cache", true},
            {"vocab_size", s.vocab}};
  if (s.window > 0) {
    j["architectures"] = Json::array({"MistralForCausalLM"}), j["model_type"] = "mistral";
    j["sliding_window"] = s.window;
    for (const char* key : {"attention_bias", "mlp_bias", "pretraining_tp"}) j.erase(key);  // no keys of a Mistral
  }
  set_token_ids(s, j);
  if (s.packed) j["quantization_config"] = packed_format_json(*s.packed);
  if (s.rope.type != "default") {
    Json scaling = {{"factor", s.rope.factor}, {"rope_type", s.rope.type}};
    if (s.rope.type == "llama3") {
      scaling["high_freq_factor"] = s.rope.high;
      scaling["low_freq_factor"] = s.rope.low;
      scaling["original_max_position_embeddings"] = s.rope.original;
    }
    if (s.rope.type == "yarn") {
      scaling["beta_fast"] = s.rope.beta_fast, scaling["beta_slow"] = s.rope.beta_slow;
      scaling["original_max_position_embeddings"] = s.rope.original, scaling["truncate"] = s.rope.truncate;
      if (!s.rope.attention_scaling) scaling["attention_factor"] = 1.0;
    }
    j["rope_scaling"] = std::move(scaling);
  }
  return sorted_text(j);
}

std::string write_generation_config(const LlamaShape& s, const Json& sampling) {
  Json j = sampling;
  set_token_ids(s, j);
  return sorted_text(j);
}

}  // namespace nibble
