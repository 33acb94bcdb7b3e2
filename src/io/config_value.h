// Reading one value as the type of its key, and writing it back.  Source: spec/training.md 1.1, 1.3.
// Internal to the configuration; include io/config.h instead.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "io/config.h"
#include "io/keys.h"

namespace nibble {

/// A value before its key's type is known: what YAML says it is.
struct RawValue {
  enum class Kind { null, scalar, list, map } kind = Kind::null;
  std::string text;                // a scalar without quotes, else the source text for messages
  bool quoted = false;             // the scalar stood in quotes
  std::vector<std::string> items;  // of a list of scalars
};

/// What stands after `key=` on a command line: one YAML scalar or flow list; anything else is a plain string.
RawValue raw_of_text(std::string_view text);

/// The typed value. Throws E002 (E502, E010 for the values that have a reason of their own), without a place.
ConfigValue typed_value(const Key& key, const RawValue& raw);

/// Values of the `now` column that this version has. `because` gets the reason when it has not.
bool works_now(const Key& key, const ConfigValue& value);

/// As one would write it after "key=" in a file: a plain word where YAML reads it back as such, else quoted.
std::string value_yaml(const ConfigValue& value);
/// The same for `nibble config --args`: no blanks, no characters that an unquoted expansion would change.
std::string value_word(const ConfigValue& value);
/// The default of a key.
const ConfigValue& default_value(int index);

}  // namespace nibble
