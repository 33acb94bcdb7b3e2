// config.json of Hugging Face for the Llama and Mistral architectures: both spellings read, transformers 4's written.
// Source: spec/training.md 6.3, 3 (rows llama, mistral); transformers configuration_llama.py, configuration_mistral.py,
// modeling_rope_utils.py.
//
//   transformers 4:  rope_theta, rope_scaling {rope_type or type, factor, ...} or null, torch_dtype
//   transformers 5:  rope_parameters {rope_theta, rope_type, factor, ...}, dtype
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "io/packed.h"

namespace nibble {

/// The dimensions and constants of a Llama, and its token ids.
struct LlamaShape {
  int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, head_size = 0, hidden = 0, vocab = 0, max_positions = 2048;
  int64_t window = 0;    // keys a query sees, its own included; 0: all up to its own. With one it is a Mistral
  double eps = 1e-6;     // of RMSNorm
  double theta = 10000;  // rope base
  bool tied = false;     // the head is the embedding
  struct Rope {
    std::string type = "default";  // default, linear (factor), llama3 (factor, low, high, original), yarn (the others)
    double factor = 1, low = 1, high = 4;
    int64_t original = 8192;
    double beta_fast = 32, beta_slow = 1;
    bool truncate = true;
    bool attention_scaling = true;  // sines and cosines times 0.1 ln(factor) + 1, transformers' default for yarn
    bool operator==(const Rope&) const = default;
  } rope;
  std::optional<int64_t> bos, pad;
  std::vector<int64_t> eos;  // none, one, or several
  double init_std = 0.02;
  std::string dtype = "float32";       // of the stored weights
  std::optional<PackedFormat> packed;  // quantization_config: linear layers in 4 bits
  bool operator==(const LlamaShape&) const = default;
};

/// Reads a config.json. `name` is for messages.
/// Errors: E401 no JSON; E403 a missing or impossible value; E010 another model_type, biases, another activation, rope
/// type or quantization_config: "not in this version".
LlamaShape parse_hf_config(std::string_view text, std::string_view name);
/// Errors: also E202.
LlamaShape read_hf_config(const std::filesystem::path& path);

/// Text of a config.json that from_pretrained of transformers 4 and 5 reads, of LlamaForCausalLM or, with a window, of
/// MistralForCausalLM; final newline.
std::string write_hf_config(const LlamaShape& shape);

/// Text of a generation_config.json: the token ids and the sampling keys given (temperature, top_k, ...); final
/// newline.
std::string write_generation_config(const LlamaShape& shape, const Json& sampling = Json::object());

}  // namespace nibble
