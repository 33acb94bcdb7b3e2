// The state of one resolution: layers are applied one after another, mistakes are collected.
// Internal to the configuration; include io/config.h instead.  Source: spec/training.md 1.2, 1.3.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/config_layers.h"

namespace nibble {

class ConfigBuilder {
 public:
  enum Layer { by_default = 0, base = 1, model = 2, run = 3, command_line = 4 };

  explicit ConfigBuilder(const ResolveOptions& resolve_options) : options(resolve_options) {}

  // config_words.cpp: the words of the command line and the environment.
  void read_words(const std::vector<std::string>& arguments);
  void read_environment();

  // config_resolve.cpp
  void apply_layers();
  void derive();  // presets, rope defaults, mapped names
  Resolved finish();

  // config_checks.cpp: what this version lacks, and which values do not fit together.
  void check_refusals();
  void check_combinations();

  const ResolveOptions& options;
  Resolved result;
  std::vector<Error> errors;

 private:
  using Entry = Config::Entry;
  void read_option(const std::vector<std::string>& arguments, size_t& i);
  void read_operand(const std::string& word, size_t place);
  void add_word(std::string name, RawValue value, size_t place);
  void apply(const Assignment& row, Layer layer);
  void apply_maxtext(const Assignment& row);
  void apply_model(const std::string& name, const std::string& where);
  void apply_stored();
  std::string model_name(std::string& where) const;
  bool means_text_files() const;
  void set(std::string_view key, ConfigValue value, std::string origin, Layer layer);
  void check_guard();
  void check_remat();
  void check_recipe();
  void check_batch();
  void check_exclusive();
  void check_model();
  void check_preset();
  void check_mesh();
  Entry& at(std::string_view key) { return result.config.entries_[static_cast<size_t>(key_index(key))]; }
  /// "runs/a.yml:3 and argument 2": where the values of keys come from.
  std::string places(std::initializer_list<std::string_view> keys) const;
  Error conflict(std::string_view id, std::string what, std::initializer_list<std::string_view> keys) const;

  FileLayers files_;
  std::vector<Assignment> words_;
  std::vector<std::string> data_files_;  // positional
  bool has_config_ = false;
  std::map<std::string, Entry> model_values_;  // what the model file set: the guard E008
  std::map<std::string, Entry> overrides_;     // what later layers wanted there
  std::vector<std::string> without_meaning_;   // MaxText names to warn about
};

}  // namespace nibble
