// The table of all configuration keys: type, default, meaning, and which values this version carries out.
// Everything that knows keys by name reads this table: resolution, `nibble config`, help, completion, nibble.json.
// Source: spec/training.md 1.5. MaxText's own names without meaning here: configs/maxtext_keys.yml (1.6).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

enum class KeyType { integer, number, boolean, text, choice, list, path, bytes };

enum KeyFlag : unsigned {
  key_determines = 1,    // the result depends on it: nibble.json "config" (6.4)
  key_architecture = 2,  // another value is another model: compared on resume (E110)
  key_nullable = 4,      // null is a legal value
};

/// Values of Key::now that are no list of values.
inline constexpr std::string_view every = "*";         // all legal values work
inline constexpr std::string_view only_default = "=";  // any other value is E010, "not in this version"
inline constexpr std::string_view no_effect = "~";  // legal values never change a result; a notice says: unused so far

struct Key {
  std::string_view name;
  KeyType type;
  std::string_view initial;  // default, as one would write it after "name="
  std::string_view maxtext;  // MaxText's default where it differs, else ""
  /// Alternatives separated by '|', each a literal or comparisons joined by ',' (">=0", ">0,<=1"); "" = any value of
  /// the type. A literal that is a word may stand for a number ("auto"). For lists it holds for each element.
  std::string_view legal;
  /// every, only_default, no_effect, or the alternatives among `legal` that this version has. Giving a key its function
  /// is an edit of this one column.
  std::string_view now;
  unsigned flags;
  std::string_view meaning;
};

struct KeyGroup {
  std::string_view name;   // "run", "model", ...
  std::string_view about;  // one line
  std::span<const Key> keys;
};

/// Another name of a key: MaxText spells some per data pipeline.
struct KeyAlias {
  std::string_view name, key;
};

/// The groups in the order in which they are printed.
std::span<const KeyGroup> key_groups();
std::span<const KeyAlias> key_aliases();

/// A key's place in the table; -1 when the name is no key. Aliases are not followed.
int key_index(std::string_view name);
int key_count();
const Key& key_at(int index);
const KeyGroup& group_of(int index);
/// The key of this name or alias; null when there is none.
const Key* find_key(std::string_view name_or_alias);

/// "int", "float", "bool", ... as error messages and `config keys` print it.
std::string_view type_name(KeyType type);
/// The alternatives of a `legal` or `now` column.
std::vector<std::string_view> alternatives(std::string_view column);

// One array a group, defined in keys_*.cpp.
extern const std::span<const Key> run_keys, model_keys, precision_keys, optimizer_keys, schedule_keys, data_keys,
    evaluation_keys, checkpoint_keys, parallel_keys, memory_keys, logging_keys, profiling_keys, diffusion_keys,
    generation_keys, command_keys;

}  // namespace nibble
