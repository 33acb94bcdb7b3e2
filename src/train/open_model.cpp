#include "train/open_model.h"

#include <algorithm>
#include <cmath>

#include "io/checkpoint.h"
#include "io/checkpoint_load.h"
#include "train/model_setup.h"
#include "train/run_state.h"

namespace nibble {

namespace fs = std::filesystem;

std::vector<int32_t> OpenModel::eos() const {
  std::vector<int32_t> ids(shape.eos.begin(), shape.eos.end());
  if (ids.empty() && tokenizer && tokenizer->eos() >= 0) ids.push_back(tokenizer->eos());
  return ids;
}

OpenModel open_model(const fs::path& path) {
  OpenModel open{resolve_model(path), {}, {}, {}, {}};
  const fs::path& folder = open.source.path;
  open.shape = load_shape(open.source);
  open.model = llama_of(open.shape);
  if (fs::exists(folder / "tokenizer.json")) open.tokenizer = Tokenizer::load(folder);
  if (!open.is_checkpoint()) return open;
  const Checkpoint checkpoint(folder);
  for (const auto& [key, value] : checkpoint.info().config) {
    open.stored.emplace_back(key, value.dump());
    if (key == "normalize_embedding_logits" && value == true && open.model.tied) open.model.head_scale = 1 / std::sqrt(static_cast<double>(open.model.width));
  }
  return open;
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
  const bool add_bos = std::ranges::any_of(open.stored, [](const auto& kv) { return kv.first == "add_bos" && kv.second == "true"; });
  std::vector<int32_t> ids;
  if (add_bos && t.bos() >= 0) ids.push_back(t.bos());
  t.encode(text, true, ids);
  if (ids.empty()) ids.push_back(std::max({t.eos(), t.bos(), 0}));
  return ids;
}

}  // namespace nibble
