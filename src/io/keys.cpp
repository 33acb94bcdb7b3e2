// Groups, aliases and look-up of the key table.  Source: spec/training.md 1.5.
#include "io/keys.h"

#include <algorithm>
#include <array>
#include <utility>

namespace nibble {
namespace {

constexpr KeyAlias aliases[] = {
    {"hf_train_files", "train_files"},      {"grain_train_files", "train_files"},
    {"hf_eval_files", "eval_files"},        {"grain_eval_files", "eval_files"},
    {"grain_packing_type", "packing_type"}, {"grain_train_mixture_config_path", "data_mixture_file"},
};

struct Table {
  std::array<KeyGroup, 15> groups;
  std::vector<std::pair<const Key*, int>> keys;           // with the group's number, in printing order
  std::vector<std::pair<std::string_view, int>> by_name;  // sorted
};

const Table& table() {
  static const Table t = [] {
    Table made{.groups = {{{"run", "name, machine, length and batch of the run", run_keys},
                           {"model", "architecture", model_keys},
                           {"precision", "types and recipes", precision_keys},
                           {"optimizer", "update of the weights", optimizer_keys},
                           {"schedule", "learning rate", schedule_keys},
                           {"data", "files, tokenizer, rows and their order", data_keys},
                           {"evaluation", "held-out loss and samples", evaluation_keys},
                           {"checkpointing", "saving and loading", checkpoint_keys},
                           {"parallelism", "devices and ranks", parallel_keys},
                           {"memory", "recomputation and kernels: never changes a result", memory_keys},
                           {"logging", "what is written", logging_keys},
                           {"profiling", "traces", profiling_keys},
                           {"diffusion", "block diffusion training", diffusion_keys},
                           {"generation", "making text", generation_keys},
                           {"command", "keys of one command only", command_keys}}},
               .keys = {},
               .by_name = {}};
    for (size_t g = 0; g < made.groups.size(); ++g)
      for (const Key& key : made.groups[g].keys) made.keys.emplace_back(&key, static_cast<int>(g));
    for (size_t i = 0; i < made.keys.size(); ++i)
      made.by_name.emplace_back(made.keys[i].first->name, static_cast<int>(i));
    std::sort(made.by_name.begin(), made.by_name.end());
    return made;
  }();
  return t;
}

}  // namespace

std::span<const KeyGroup> key_groups() { return table().groups; }
std::span<const KeyAlias> key_aliases() { return aliases; }

int key_index(std::string_view name) {
  const auto& sorted = table().by_name;
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), std::pair{name, -1});
  return at != sorted.end() && at->first == name ? at->second : -1;
}

int key_count() { return static_cast<int>(table().keys.size()); }
const Key& key_at(int index) { return *table().keys[static_cast<size_t>(index)].first; }
const KeyGroup& group_of(int index) {
  return table().groups[static_cast<size_t>(table().keys[static_cast<size_t>(index)].second)];
}

const Key* find_key(std::string_view name) {
  for (const KeyAlias& alias : aliases)
    if (alias.name == name) name = alias.key;
  const int i = key_index(name);
  return i < 0 ? nullptr : &key_at(i);
}

std::string_view type_name(KeyType type) {
  switch (type) {
    case KeyType::integer:
      return "int";
    case KeyType::number:
      return "float";
    case KeyType::boolean:
      return "bool";
    case KeyType::text:
      return "string";
    case KeyType::choice:
      return "enum";
    case KeyType::list:
      return "list";
    case KeyType::path:
      return "path";
    case KeyType::bytes:
      return "bytes";
  }
  return "";
}

std::vector<std::string_view> alternatives(std::string_view column) {
  std::vector<std::string_view> out;
  if (column.empty()) return out;
  for (size_t begin = 0;;) {
    const size_t end = column.find('|', begin);
    out.push_back(column.substr(begin, end == column.npos ? column.npos : end - begin));
    if (end == column.npos) return out;
    begin = end + 1;
  }
}

}  // namespace nibble
