// The key table, the names of MaxText and the packaged files: obligations T4, T7, T8 of spec/training.md 9.
#include "io/keys.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/philox.h"
#include "io/config.h"
#include "io/config_layers.h"
#include "io/suggest.h"

namespace nibble {
namespace {

const std::vector<std::string> no_environment;

std::vector<Error> errors_of(const std::vector<std::string>& words) {
  ResolveOptions options;
  options.environment = &no_environment;
  try {
    resolve(words, options);
  } catch (const Errors& e) {
    return e.errors;
  }
  return {};
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(TrainingT4, EveryMaxTextNameIsClassifiedOnce) {
  std::multiset<std::string> wanted, found;
  std::istringstream golden(file_text(NIBBLE_GOLDEN_DIR "/maxtext_keys.tsv"));
  for (std::string line; std::getline(golden, line);)
    if (!line.empty() && line[0] != '#') wanted.insert(line.substr(0, line.find('\t')));
  ASSERT_EQ(wanted.size(), 865u);
  for (const Assignment& row : read_yaml(packaged_config("maxtext_keys.yml"), "maxtext_keys.yml")) {
    found.insert(row.name);
    const auto kind = maxtext_name(row.name, {}).kind;
    EXPECT_EQ(kind == MaxTextName::Class::meaning, find_key(row.name) != nullptr) << row.name;
    EXPECT_EQ(kind == MaxTextName::Class::refused, !maxtext_name(row.name, {}).reason.empty()) << row.name;
  }
  EXPECT_EQ(found, wanted);
}

TEST(TrainingT7, AnyTypingMistakeFindsItsKey) {
  for (uint32_t k = 0; k < 200; ++k) {
    const std::string_view key = key_at(static_cast<int>(k * 97) % key_count()).name;
    if (key.size() < 4) continue;  // of n, out and the like a mistake leaves too little
    std::string typo(key);
    const size_t at = 1 + (k * 31) % (key.size() - 2);
    switch (k % 4) {
      case 0:
        typo[at] = 'q';
        break;
      case 1:
        typo.erase(at, 1);
        break;
      case 2:
        typo.insert(at, 1, 'q');
        break;
      default:
        std::swap(typo[at], typo[at + 1]);
    }
    if (find_key(typo)) continue;  // the mistake is no mistake
    const auto errors = errors_of({typo + "=1"});
    ASSERT_EQ(errors.size(), 1u) << typo;
    EXPECT_EQ(errors[0].id, "E001");
    EXPECT_NE(errors[0].hint_text.find(key), std::string::npos) << typo << ": " << errors[0].hint_text;
  }
}

TEST(TrainingT8, EveryKeyRejectsAWrongTypeByName) {
  for (int i = 0; i < key_count(); ++i) {
    const Key& key = key_at(i);
    if (key.name == "base_config") continue;  // a word of files: it names a layer
    const auto errors = errors_of({fmt::format("{}={{a: 1}}", key.name)});
    ASSERT_FALSE(errors.empty()) << key.name;
    EXPECT_EQ(errors[0].id, "E002") << key.name;
    EXPECT_NE(errors[0].what_text.find(key.name), std::string::npos);
    EXPECT_EQ(errors[0].where_text, "argument 1");
  }
}

TEST(KeyTable, DefaultsAreLegalAndWork) {
  const Config defaults;
  std::set<std::string_view> names;
  for (int i = 0; i < key_count(); ++i) {
    const Key& key = key_at(i);
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.meaning.empty()) << key.name;
    EXPECT_NO_THROW(defaults.with(key.name, key.initial, "")) << key.name;
    if (key.now == every || key.now == only_default || key.now == no_effect) continue;
    for (std::string_view a : alternatives(key.now))  // what works is legal
      if (key.type == KeyType::choice) {
        EXPECT_NO_THROW(defaults.with(key.name, a.empty() ? "\"\"" : a, "")) << key.name << a;
      }
  }
  for (const KeyAlias& alias : key_aliases()) {
    EXPECT_EQ(key_index(alias.name), -1);
    EXPECT_GE(key_index(alias.key), 0);
  }
}

TEST(KeyTable, BaseFileListsTheDefaults) {
  std::set<std::string> listed;
  const Config defaults;
  for (const Assignment& row : read_yaml(packaged_config("base.yml"), "base.yml")) {
    listed.insert(row.name);
    ASSERT_GE(key_index(row.name), 0) << row.name;
    EXPECT_EQ(typed_value(*find_key(row.name), row.value), defaults.value(row.name)) << row.name;
  }
  EXPECT_EQ(listed.size(), static_cast<size_t>(key_count()) - 1);  // base_config alone is a word of run files
}

TEST(KeyTable, EveryModelFileResolves) {
  ResolveOptions options;
  options.environment = &no_environment;
  EXPECT_EQ(model_names().size(), 19u);
  for (const std::string& name : model_names()) {
    const Resolved r = resolve({"model_name=" + name}, options);
    const Config& c = r.config;
    EXPECT_EQ(r.notices.size(), 0u) << name;
    if (name == "default") continue;
    for (const char* key : {"rope_type", "rope_max_timescale", "rope_factor", "logits_via_embedding",
                            "normalize_embedding_logits", "normalization_layer_epsilon", "sliding_window_size"})
      EXPECT_EQ(c.origin(key), "model " + name) << key;
    EXPECT_FALSE(c.get_bool("normalize_embedding_logits"));
  }
  EXPECT_EQ(resolve({"model_name=llama3.1-8b-Instruct"}, options).config.get_string("model_name"), "llama3.1-8b");
}

/// Parameters of a Llama from its dimensions (spec/training.md 3, HF names).
int64_t parameters(const Config& c) {
  const int64_t e = c.get_int("base_emb_dim"), f = c.get_int("base_mlp_dim"), l = c.get_int("base_num_decoder_layers"),
                v = c.get_int("vocab_size"), d = c.get_int("head_dim"), h = c.get_int("base_num_query_heads"),
                k = c.get_int("base_num_kv_heads");
  const int64_t layer = 2 * e + e * d * (2 * h + 2 * k) + 3 * e * f;
  return l * layer + e + v * e * (c.get_bool("logits_via_embedding") ? 1 : 2);
}

TEST(TrainingT29, ModelFilesHaveTheirParameterCounts) {
  const std::pair<const char*, int64_t> wanted[] = {
      {"nibble-1m", 918656},         {"nibble-10m", 8933440},         {"nibble-34m", 33563136},
      {"smollm2-135m", 134515008},   {"llama2-7b", 6738415616},       {"llama2-13b", 13015864320},
      {"llama2-70b", 68976648192},   {"llama3-8b", 8030261248},       {"llama3.1-8b", 8030261248},
      {"llama3-70b", 70553706496},   {"llama3.1-70b", 70553706496},   {"llama3.3-70b", 70553706496},
      {"llama3-405b", 405853388800}, {"llama3.1-405b", 405853388800}, {"llama3.2-1b", 1235814400},
      {"llama3.2-3b", 3212749824},   {"mistral-7b", 7241732096}};
  ResolveOptions options;
  options.environment = &no_environment;
  for (const auto& [name, count] : wanted)
    EXPECT_EQ(parameters(resolve({fmt::format("model_name={}", name)}, options).config), count) << name;
}

TEST(Suggest, DistanceCountsTranspositions) {
  EXPECT_EQ(edit_distance("steps", "stpes"), 1);
  EXPECT_EQ(edit_distance("steps", "stepz"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // the restricted form
  EXPECT_EQ(nearest("batch_size", {"steps", "per_device_batch_size"}),
            std::vector<std::string>{"per_device_batch_size"});
}

}  // namespace
}  // namespace nibble
