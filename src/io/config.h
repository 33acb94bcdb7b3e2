// The one configuration of a run: every key of the key table (io/keys.h) with its value and who wrote it.
// It is resolved once from layers (packaged base < model file < run file < command line), checked as a whole, printed,
// stored beside the run, and never changed afterwards.  Source: spec/training.md 1.1 to 1.5, 6.4.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace nibble {

/// A value as the key's type reads it: null, an integer, a number, a truth value, a string (also enum and path), or a
/// list, whose elements are kept as strings.
using ConfigValue = std::variant<std::monostate, int64_t, double, bool, std::string, std::vector<std::string>>;

/// JSON of one value: integers and shortest round-trip decimals, strings quoted, lists of strings.
std::string value_json(const ConfigValue& value);

class Config {
 public:
  /// Every key at its default, origin "default".
  Config();

  /// Typed getters. A name that is no key, or a key of another type, is an internal error (E901): the caller is wrong,
  /// not the user. get_double also reads int keys. get_string reads string, enum and path keys.
  int64_t get_int(std::string_view key) const;
  double get_double(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  const std::string& get_string(std::string_view key) const;
  const std::vector<std::string>& get_list(std::string_view key) const;
  /// A list of integers, such as stop_ids.
  std::vector<int64_t> get_int_list(std::string_view key) const;

  /// The key holds null ("all checkpoints", "the device's memory"): the getters above refuse to read it.
  bool is_null(std::string_view key) const;
  /// Something other than the default layer wrote the key (a file, the model, the command line), whatever the value.
  bool is_set(std::string_view key) const;
  /// The key was written by the run file or the command line, not by the base or the model file.
  bool is_explicit(std::string_view key) const;
  /// "default", "model nibble-1m", "runs/a.yml:3", "argument 2", "train on text files", "checkpoint",
  /// "numerics=maxtext".
  const std::string& origin(std::string_view key) const;
  const ConfigValue& value(std::string_view key) const;
  std::string json_of(std::string_view key) const { return value_json(value(key)); }

  /// YAML grouped as in spec/training.md 1.5, each line with "# origin"; reading it back gives the same configuration.
  std::string yaml(bool changed_only = false) const;
  /// One JSON object, keys in the order of the table, two-space indentation, final newline.
  std::string json(bool changed_only = false) const;
  /// key=value words, separated by blanks, for `nibble config $(nibble config --args)`: no word holds a blank or a
  /// character that an unquoted shell expansion would change.
  std::string args() const;
  /// XXH3-64 of the canonical form: the sorted lines `key=<JSON>` of all keys. Origins do not enter.
  uint64_t hash() const;
  /// The keys that determine the result, sorted by name, with their JSON values: nibble.json's "config" (6.4).
  std::vector<std::pair<std::string, std::string>> determining() const;
  /// The keys whose difference makes another model (E110), sorted, with their JSON values.
  std::vector<std::pair<std::string, std::string>> architecture() const;

  /// A copy with one value replaced. `text` is what a user would write after `key=`. Throws E001, E002.
  Config with(std::string_view key, std::string_view text, std::string origin) const;

 private:
  friend class ConfigBuilder;
  struct Entry {
    ConfigValue value;
    std::string origin;
    int layer = 0;  // 0 default, 1 base, 2 checkpoint or model, 3 run file, 4 command line
  };
  const Entry& entry(std::string_view key) const;
  std::vector<Entry> entries_;  // in the order of key_table()
};

/// What a command adds to the common grammar of spec/training.md 1.1.
struct ResolveOptions {
  std::string command = "train";  // decides whether text files alone mean the small model of 1.7
  /// Leading words that the command takes for itself (CKPT, RUN): kept in Resolved::operands, never read as a file.
  int operands = 0;
  std::vector<std::string>
      word_options;                // options that take a word, without dashes: {"n", "seeds"}: `--seeds 3`, `-n 8`
  std::vector<std::string> flags;  // options without a value, without dashes: {"changed", "dry-run", "v"}
  /// Existing files among the arguments are appended to this key.
  std::string files_key = "train_files";
  /// Values of a checkpoint (nibble.json "config"): key and JSON text. They stand in for the model file, which is not
  /// read again; keys that this program does not know are E010.
  std::vector<std::pair<std::string, std::string>> stored;
  std::string stored_origin = "checkpoint";
  /// false: values only. Neither refusals of this version (E010, E503) nor cross-field checks (E1xx) are raised.
  bool check = true;
  /// "NAME=value" strings; null: the environment of the process.
  const std::vector<std::string>* environment = nullptr;
};

struct Resolved {
  Config config;
  std::vector<std::string> notices;            // one line each, for stderr, already in order
  std::vector<std::string> operands;           // see ResolveOptions::operands
  std::map<std::string, std::string> options;  // given word_options and flags (value "" for a flag)
};

/// Resolves the words after the command name. Every mistake of the configuration is collected and thrown together
/// (Errors): E001 to E006, E008 to E011, E101 to E108 as far as the configuration alone can tell.
/// No device and no data file is opened; existence of files is asked for.
Resolved resolve(const std::vector<std::string>& arguments, const ResolveOptions& options = {});

/// Rows of one optimizer step: per_device_batch_size x devices x gradient_accumulation_steps.
int64_t global_batch(const Config& config);
/// Optimizer steps of the run: steps, or token_budget / tokens of a step rounded up; steps=-1 follows the schedule.
int64_t total_steps(const Config& config);
/// Length S of the learning-rate schedule: learning_rate_schedule_steps, or total_steps().
int64_t schedule_steps(const Config& config);

/// Text of a configuration file packed into the program, by its path under configs/ ("base.yml",
/// "models/nibble-1m.yml"); empty when there is none. packaged_configs() lists the paths in byte order.
std::string_view packaged_config(std::string_view path);
std::vector<std::string_view> packaged_configs();

/// Names of the models that this version can build: packaged models/*.yml, sorted.
std::vector<std::string> model_names();

}  // namespace nibble
