// The words of a command line and the environment.  Source: spec/training.md 1.1.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "io/config_builder.h"
#include "io/suggest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (int i = 0; i < key_count(); ++i) names.emplace_back(key_at(i).name);
  return names;
}

}  // namespace

void ConfigBuilder::add_word(std::string name, RawValue value, size_t place) {
  words_.push_back({with_underscores(std::move(name)), std::move(value), fmt::format("argument {}", place)});
}

void ConfigBuilder::read_option(const std::vector<std::string>& arguments, size_t& i) {
  const std::string& word = arguments[i];
  const size_t place = i + 1, equals = word.find('=');
  const std::string name =
      word.substr(word.find_first_not_of('-'), equals == word.npos ? equals : equals - word.find_first_not_of('-'));
  const std::string value = equals == word.npos ? "" : word.substr(equals + 1);
  if (contains(options.flags, name) && equals == word.npos) {
    result.options[name] = "";
  } else if (contains(options.word_options, name)) {
    if (equals != word.npos)
      result.options[name] = value;
    else if (i + 1 < arguments.size())
      result.options[name] = arguments[++i];
    else
      errors.push_back(
          Error("E007", "option {} needs a value", word).where("argument {}", place).hint("{} VALUE", word));
  } else if (equals != word.npos) {
    add_word(name, raw_of_text(value), place);
  } else if (const Key* key = find_key(with_underscores(name))) {
    if (key->type == KeyType::boolean)
      add_word(name, raw_of_text("true"), place);
    else
      errors.push_back(Error("E002", "{} needs a value", word)
                           .where("argument {}", place)
                           .expected(fmt::format("{}={}", key->name, type_name(key->type)), word)
                           .hint("{}={}", key->name, key->initial));
  } else {
    std::vector<std::string> names = key_names();
    names.insert(names.begin(), options.flags.begin(), options.flags.end());
    names.insert(names.begin(), options.word_options.begin(), options.word_options.end());
    std::vector<std::string> near = nearest(with_underscores(name), names);
    for (std::string& s : near) s = "--" + s;
    Error error("E007", "unknown option {}", word);
    error.where_text = fmt::format("argument {}", place);
    error.hint_text =
        near.empty() ? fmt::format("nibble {} --help", options.command) : fmt::format("did you mean {}?", either(near));
    errors.push_back(error);
  }
}

void ConfigBuilder::read_operand(const std::string& word, size_t place) {
  const std::string where = fmt::format("argument {}", place);
  std::error_code error;
  if (word.ends_with(".yml") || word.ends_with(".yaml")) {
    has_config_ = true;
    try {
      FileLayers layers = read_layers(word, where);
      std::move(layers.base.begin(), layers.base.end(), std::back_inserter(files_.base));
      std::move(layers.run.begin(), layers.run.end(), std::back_inserter(files_.run));
    } catch (const Error& e) {
      errors.push_back(e);
    }
  } else if (fs::exists(word, error) || word.find_first_of("*?[") != word.npos) {  // a glob is expanded with the data
    data_files_.push_back(word);
  } else {
    const auto near = nearest(with_underscores(word), key_names(), 1);
    Error e("E004", "{} is neither a file nor key=value", word);
    e.where_text = where;
    e.expected_text = "key=value, a configuration (.yml) or an existing file";
    e.got_text = word;
    e.hint_text = near.empty() ? (options.command == "generate" ? fmt::format("prompt=\"{}\"", word)
                                                                : "check the path, or write key=value")
                               : fmt::format("did you mean {}=...?", near[0]);
    errors.push_back(e);
  }
}

void ConfigBuilder::read_words(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const size_t equals = word.find('=');
    const bool is_key = equals != word.npos && equals > 0 &&
                        std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                                    [](unsigned char c) { return isalnum(c) || c == '_' || c == '-' || c == '.'; });
    if (word.size() > 1 && word[0] == '-' && word.find_first_not_of('-') != word.npos)
      read_option(arguments, i);
    else if (is_key)
      add_word(word.substr(0, equals), raw_of_text(std::string_view(word).substr(equals + 1)), i + 1);
    else if (static_cast<int>(result.operands.size()) < options.operands)
      result.operands.push_back(word);
    else
      read_operand(word, i + 1);
  }
  // Scripts append overrides, so the last of several counts; that it does is said once.
  std::vector<std::string> overruled;
  for (size_t i = 0; i < words_.size(); ++i)
    for (size_t later = i + 1; later < words_.size(); ++later)
      if (words_[i].name == words_[later].name) {
        overruled.push_back(fmt::format("{}={} ({}) by {} ({})", words_[i].name, words_[i].value.text, words_[i].origin,
                                        words_[later].value.text, words_[later].origin));
        break;
      }
  if (!overruled.empty())
    result.notices.push_back(fmt::format("notice: given twice, the last one counts: {}", fmt::join(overruled, "; ")));
  std::vector<Assignment> last;
  for (size_t i = 0; i < words_.size(); ++i)
    if (std::none_of(words_.begin() + static_cast<std::ptrdiff_t>(i) + 1, words_.end(),
                     [&](const Assignment& w) { return w.name == words_[i].name; }))
      last.push_back(words_[i]);
  words_ = std::move(last);
}

void ConfigBuilder::read_environment() {
  std::vector<std::string> all;
  if (options.environment)
    all = *options.environment;
  else
    for (char** e = environ; *e; ++e) all.emplace_back(*e);
  std::sort(all.begin(), all.end());
  static const std::set<std::string> honoured = {"JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT"};
  std::vector<std::string> unused;
  for (const std::string& entry : all) {
    const std::string name = entry.substr(0, entry.find('='));
    if (name.starts_with("M_")) {
      std::string key = name.substr(2);
      std::transform(key.begin(), key.end(), key.begin(),
                     [](unsigned char c) { return static_cast<char>(tolower(c)); });
      if (find_key(key) || maxtext_name(key, {}).kind != MaxTextName::Class::unknown)
        errors.push_back(Error("E011", "the environment variable {} would override {} in MaxText", name, key)
                             .where("environment")
                             .expected("no environment variable that changes a result", entry)
                             .hint("unset {} and write {}={}", name, key,
                                   entry.size() > name.size() ? entry.substr(name.size() + 1) : ""));
    }
    const bool foreign = name.starts_with("NVTE_") || name == "XLA_FLAGS" || name == "XLA_PYTHON_CLIENT_MEM_FRACTION" ||
                         name.starts_with("JAX_");
    if (foreign && !honoured.contains(name)) unused.push_back(name);
  }
  if (!unused.empty())
    result.notices.push_back(
        fmt::format("notice: environment variables without effect in nibble: {}", fmt::join(unused, ", ")));
}

}  // namespace nibble
