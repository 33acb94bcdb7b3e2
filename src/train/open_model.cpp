#include "train/open_model.h"

#include <algorithm>
#include <cmath>

#include "io/checkpoint.h"
#include "io/checkpoint_load.h"
#include "io/file.h"
#include "io/json.h"
#include "train/model_setup.h"
#include "train/run_state.h"

namespace nibble {

namespace fs = std::filesystem;

namespace {

// generation_config.json, where there is one: what it says of sampling, and which ids end a text.
void read_generation_config(const fs::path& file, OpenModel& open) {
  if (!fs::exists(file)) return;
  std::string problem;
  const Json j = parse_json(read_file(file), problem);
  if (problem.empty() && !j.is_object()) problem = "no object";
  if (!problem.empty())
    throw Error("E401", "{} is no generation_config.json: {}", file.string(), problem)
        .hint("copy the file again from where it came from, or remove it");
  for (const char* key : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"})
    if (j.contains(key) && !j.at(key).is_null()) open.generation.emplace_back(key, j.at(key).dump());
  if (j.contains("do_sample") && j.at("do_sample") == false) open.generation = {{"temperature", "0"}};
  if (!j.contains("eos_token_id") || j.at("eos_token_id").is_null()) return;
  const Json eos = j.at("eos_token_id").is_array() ? j.at("eos_token_id") : Json::array({j.at("eos_token_id")});
  open.shape.eos.clear();
  for (const Json& id : eos) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0)
      throw Error("E403", "{} has no usable eos_token_id", file.string())
          .expected("ids of at least 0", eos.dump())
          .hint("use the generation_config.json that belongs to these tensors");
    open.shape.eos.push_back(id.get<int64_t>());
  }
}

}  // namespace

std::vector<int32_t> OpenModel::eos() const {
  std::vector<int32_t> ids(shape.eos.begin(), shape.eos.end());
  if (ids.empty() && tokenizer && tokenizer->eos() >= 0) ids.push_back(tokenizer->eos());
  return ids;
}

OpenModel open_model(const fs::path& path) {
  OpenModel open{resolve_model(path), {}, {}, {}, {}, {}, {}};
  const fs::path& folder = open.source.path;
  open.shape = load_shape(open.source);
  open.model = llama_of(open.shape);
  if (open.shape.packed && !open.shape.packed->weight_only)
    open.notices.push_back(fmt::format(
        "{} is made for products with 4-bit activations; nibble uses its weights, and activations as they are",
        folder.string()));
  read_generation_config(folder / "generation_config.json", open);
  if (fs::exists(folder / "tokenizer.json")) open.tokenizer = Tokenizer::load(folder);
  if (!open.is_checkpoint()) return open;
  const Checkpoint checkpoint(folder);
  for (const auto& [key, value] : checkpoint.info().config) {
    open.stored.emplace_back(key, value.dump());
    if (key == "normalize_embedding_logits" && value == true && open.model.tied)
      open.model.head_scale = 1 / std::sqrt(static_cast<double>(open.model.width));
  }
  return open;
}

std::vector<WantedTensor> wanted_tensors(const LlamaConfig& model) {
  std::vector<WantedTensor> list;
  for (const Parameter& p : llama_parameters(model)) {
    const std::span<const int64_t> dims = p.shape.dims();
    list.push_back({p.name, {dims.begin(), dims.end()}});
  }
  return list;
}

void load_weights(const OpenModel& open, Program& program) {
  load_weights(open.source, program, open.model);
  const Tensor table = program.state(StateRole::constant, "rope_table");
  fill_rope_table(open.model.rope, open.model.head_size, 0, table.dim(0), table.as<float>());
}

std::vector<int32_t> prompt_ids(const OpenModel& open, std::string_view text) {
  const Tokenizer& t = *open.tokenizer;
  if (!open.is_checkpoint()) {
    std::vector<int32_t> ids = t.encode_with_template(text, true);
    if (!ids.empty()) return ids;
    return {open.shape.bos ? static_cast<int32_t>(*open.shape.bos) : 0};
  }
  const bool add_bos =
      std::ranges::any_of(open.stored, [](const auto& kv) { return kv.first == "add_bos" && kv.second == "true"; });
  std::vector<int32_t> ids;
  if (add_bos && t.bos() >= 0) ids.push_back(t.bos());
  t.encode(text, true, ids);
  if (ids.empty()) ids.push_back(std::max({t.eos(), t.bos(), 0}));
  return ids;
}

}  // namespace nibble
