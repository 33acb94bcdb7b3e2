// Reading the layers of a configuration: files with their includes, the words of a command line, MaxText's own names.
// Internal to the configuration; include io/config.h instead.  Source: spec/training.md 1.1 to 1.3, 1.6.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/config_value.h"

namespace nibble {

/// One `name: value` as it was written.
struct Assignment {
  std::string name;
  RawValue value;
  std::string origin;  // "runs/a.yml:3", "argument 2"
};

/// The assignments of one configuration with everything that its base_config names, included first.
struct FileLayers {
  std::vector<Assignment> base;  // from files named base.yml
  std::vector<Assignment> run;
};

/// Reads `path` as given by `where` (an argument or a file:line). Throws E003, E005, E006; an Error each.
FileLayers read_layers(const std::string& path, const std::string& where);

/// The assignments of one YAML text, in order. Throws E003, E006.
std::vector<Assignment> read_yaml(std::string_view text, const std::string& name);

/// What MaxText's name means here (configs/maxtext_keys.yml).
struct MaxTextName {
  enum class Class { unknown, meaning, no_meaning, refused } kind = Class::unknown;
  bool at_default = false;  // the value is MaxText's own default
  std::string reason;       // refused: why
};
MaxTextName maxtext_name(const std::string& name, const RawValue& value);

/// Is the value MaxText's own default of this key of nibble?
bool is_maxtext_default(const Key& key, const RawValue& value);

/// MaxText's default as text, for messages; empty when the key is nibble's own.
std::string maxtext_default_text(const Key& key);

/// E001 with suggestions among all keys and aliases.
Error unknown_key(const std::string& name, const std::string& where);

}  // namespace nibble
