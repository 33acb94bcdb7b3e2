// Reading a tokenizer.json: every component is either understood in full or refused with its place in the file.
// Source: spec/training.md 4.2; the format is that of Hugging Face tokenizers.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hash.h"
#include "data/tokenizer_model.h"
#include "data/unicode.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

Json parse_json(std::string_view text, std::string_view where) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw Error("E309", "{} is truncated or no JSON, at byte {} of {}", where, error.byte, text.size())
        .where("{}", where)
        .hint("fetch or copy the file again and compare its size");
  }
}

class Reader {
 public:
  Reader(const Json& root, std::string_view where, TokenizerModel& model) : root_(root), where_(where), model_(model) {}

  void run() {
    if (!root_.is_object() || !root_.contains("model") || !root_["model"].is_object())
      refuse("a file without a model", "model", "this is no tokenizer.json; its first keys are version and model");
    if (root_.value("version", Json("1.0")) != "1.0") refuse(root_["version"].dump(), "version");
    read_model(root_["model"]);
    read_added_tokens();
    model_.nfc = read_normalizer(component("normalizer"), "normalizer");
    read_pre_tokenizer(component("pre_tokenizer"), "pre_tokenizer");
    if (!byte_level_)
      refuse("a pre_tokenizer without ByteLevel", "pre_tokenizer",
             "only byte-level BPE is in this version; metaspace BPE (SentencePiece) is not");
    read_decoder(component("decoder"), "decoder");
    read_post_processor(component("post_processor"), "post_processor");
  }

 private:
  [[noreturn]] void refuse(std::string_view what, std::string_view path, std::string_view hint = {}) const {
    throw Error("E308", "tokenizer.json component not supported: {}", what)
        .where("{}, {}", where_, path)
        .hint("{}", hint.empty()
                        ? "supported in this version: byte-level BPE with NFC, Split by a regular expression "
                          "(Isolated), ByteLevel, TemplateProcessing; or train one: nibble data train-tokenizer"
                        : hint);
  }
  [[noreturn]] void malformed(std::string_view path, std::string_view wanted, const Json& got) const {
    throw Error("E308", "tokenizer.json component not supported: {} of another type", path)
        .where("{}, {}", where_, path)
        .expected(std::string(wanted), got.dump().substr(0, 60))
        .hint("fetch or copy the file again");
  }

  const Json& component(const char* key) const {
    static const Json none;
    return root_.contains(key) ? root_[key] : none;
  }
  static std::string type_of(const Json& j) {
    if (!j.is_object()) return j.dump().substr(0, 40);
    return j.contains("type") && j["type"].is_string() ? j["type"].get<std::string>() : "a component without type";
  }
  bool flag(const Json& j, const char* key, bool absent, std::string_view path) const {
    if (!j.contains(key) || j[key].is_null()) return absent;
    if (!j[key].is_boolean()) malformed(fmt::format("{}.{}", path, key), "true or false", j[key]);
    return j[key].get<bool>();
  }
  const Json& array(const Json& j, const char* key, std::string_view path) const {
    if (!j.contains(key) || !j[key].is_array())
      malformed(fmt::format("{}.{}", path, key), "a list", j.value(key, Json()));
    return j[key];
  }
  std::string text(const Json& j, std::string_view path) const {
    if (!j.is_string()) malformed(path, "a string", j);
    return j.get<std::string>();
  }
  int32_t id(const Json& j, std::string_view path) const {
    constexpr int64_t largest = 1 << 24;
    if (!j.is_number_integer() || j.get<int64_t>() < 0 || j.get<int64_t>() >= largest)
      malformed(path, fmt::format("an id from 0 to {}", largest - 1), j);
    return j.get<int32_t>();
  }

  void place(int32_t token, const std::string& content, std::string bytes, std::string_view path) {
    const auto size = static_cast<size_t>(token) + 1;
    if (model_.bytes.size() < size) {
      model_.bytes.resize(size);
      model_.content.resize(size);
      model_.special.resize(size);
    }
    if (!model_.content[token].empty() && model_.content[token] != content)
      refuse(fmt::format("id {} of both {} and {}", token, model_.content[token], content), path,
             "the file contradicts itself: fetch or copy it again");
    model_.content[token] = content;
    model_.bytes[token] = std::move(bytes);
  }

  void read_model(const Json& m);
  void read_merges(const Json& m);
  void read_added_tokens();
  bool read_normalizer(const Json& j, const std::string& path) const;
  void read_pre_tokenizer(const Json& j, const std::string& path);
  void read_decoder(const Json& j, const std::string& path) const;
  void read_post_processor(const Json& j, const std::string& path);
  void read_template(const Json& j, const std::string& path);

  const Json& root_;
  std::string_view where_;
  TokenizerModel& model_;
  std::unordered_map<std::string, int32_t> vocab_;  // by content
  bool byte_level_ = false;                         // a ByteLevel pre-tokenizer was read
};

void Reader::read_model(const Json& m) {
  const bool untagged_bpe = !m.contains("type") && m.contains("merges");  // files before the type was written
  if (!untagged_bpe && type_of(m) != "BPE") refuse(type_of(m), "model.type", "only byte-level BPE is in this version");
  if (!m.contains("vocab") || !m["vocab"].is_object()) malformed("model.vocab", "an object", m.value("vocab", Json()));
  model_.byte_ids.fill(-1);
  for (const auto& [content, value] : m["vocab"].items()) {
    const int32_t token = id(value, "model.vocab");
    const std::optional<std::string> bytes = from_byte_alphabet(content);
    place(token, content, bytes.value_or(content), "model.vocab");
    vocab_[content] = token;
    if (!bytes) continue;
    model_.id_of_bytes[*bytes] = token;
    if (bytes->size() == 1) model_.byte_ids[static_cast<uint8_t>((*bytes)[0])] = token;
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (m.contains(key) && !m[key].is_null() && m[key] != "")
      refuse(fmt::format("{} {}", key, m[key].dump()), fmt::format("model.{}", key));
  if (m.contains("dropout") && !m["dropout"].is_null() && m["dropout"] != 0.0)
    refuse(fmt::format("dropout {}", m["dropout"].dump()), "model.dropout");
  if (flag(m, "byte_fallback", false, "model"))
    refuse("byte_fallback", "model.byte_fallback", "only byte-level BPE is in this version");
  const bool all_bytes = std::all_of(model_.byte_ids.begin(), model_.byte_ids.end(), [](int32_t i) { return i >= 0; });
  if (m.contains("unk_token") && !m["unk_token"].is_null() && !all_bytes)
    refuse(fmt::format("unk_token {} with a vocabulary that lacks bytes", m["unk_token"].dump()), "model.unk_token");
  model_.ignore_merges = flag(m, "ignore_merges", false, "model");
  read_merges(m);
}

void Reader::read_merges(const Json& m) {
  const Json& list = array(m, "merges", "model");
  model_.merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    std::string left, right;
    const Json& merge = list[i];
    if (merge.is_string()) {
      const std::string both = merge.get<std::string>();
      const size_t space = both.find(' ');
      if (space != std::string::npos && both.find(' ', space + 1) == std::string::npos) {
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    const auto path = [&] { return fmt::format("model.merges[{}]", i); };
    if (left.empty() || right.empty()) malformed(path(), "two tokens", merge);
    const auto l = vocab_.find(left), r = vocab_.find(right), both = vocab_.find(left + right);
    if (l == vocab_.end() || r == vocab_.end() || both == vocab_.end())
      refuse(fmt::format("merge of tokens that the vocabulary lacks: {}", merge.dump()), path());
    model_.merges.push_back({l->second, r->second, both->second});
  }
}

void Reader::read_added_tokens() {
  if (component("added_tokens").is_null()) return;
  const Json& list = array(root_, "added_tokens", "");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("added_tokens[{}]", i);
    const Json& j = list[i];
    if (!j.is_object()) malformed(path, "an object", j);
    AddedToken token;
    token.content = text(j.value("content", Json()), path + ".content");
    token.id = id(j.value("id", Json()), path + ".id");
    token.special = flag(j, "special", false, path);
    token.normalized = flag(j, "normalized", !token.special, path);
    token.lstrip = flag(j, "lstrip", false, path);
    token.rstrip = flag(j, "rstrip", false, path);
    token.single_word = flag(j, "single_word", false, path);
    if (token.content.empty()) refuse("an added token without text", path);
    const auto known = vocab_.find(token.content);
    if (known != vocab_.end() && known->second != token.id)
      refuse(fmt::format("added token {} with id {}, in the vocabulary with id {}", token.content, token.id,
                         known->second),
             path, "the file contradicts itself: fetch or copy it again");
    place(token.id, token.content, from_byte_alphabet(token.content).value_or(token.content), path);
    model_.special[token.id] = token.special;
    model_.id_of_added[token.content] = token.id;
    model_.added.push_back(std::move(token));
  }
}

bool Reader::read_normalizer(const Json& j, const std::string& path) const {
  if (j.is_null()) return false;
  if (type_of(j) == "NFC") return true;
  if (type_of(j) != "Sequence") refuse(fmt::format("normalizer {}", type_of(j)), path);
  const Json& list = array(j, "normalizers", path);
  bool nfc = false;
  for (size_t i = 0; i < list.size(); ++i) nfc |= read_normalizer(list[i], fmt::format("{}.normalizers[{}]", path, i));
  return nfc;
}

void Reader::read_pre_tokenizer(const Json& j, const std::string& path) {
  if (j.is_null()) return;
  const std::string type = type_of(j);
  if (type == "Sequence") {
    const Json& list = array(j, "pretokenizers", path);
    for (size_t i = 0; i < list.size(); ++i) read_pre_tokenizer(list[i], fmt::format("{}.pretokenizers[{}]", path, i));
    return;
  }
  if (byte_level_) refuse(fmt::format("pre_tokenizer {} after ByteLevel", type), path);
  if (type == "ByteLevel") {
    SplitStage stage;
    stage.prefix_space = flag(j, "add_prefix_space", true, path);
    if (flag(j, "use_regex", true, path)) stage.splitter.emplace(split_pattern("gpt2"));
    if (stage.prefix_space || stage.splitter) model_.stages.push_back(std::move(stage));
    byte_level_ = true;
  } else if (type == "Split") {
    const Json pattern = j.value("pattern", Json());
    if (!pattern.is_object() || !pattern.contains("Regex"))
      refuse("Split by another pattern than Regex", path + ".pattern");
    if (j.value("behavior", Json()) != "Isolated")
      refuse(fmt::format("Split with behavior {}", j.value("behavior", Json()).dump()), path + ".behavior");
    if (flag(j, "invert", false, path)) refuse("Split with invert", path + ".invert");
    SplitStage stage;
    const std::string place_of_regex = fmt::format("{}, {}.pattern.Regex", where_, path);
    stage.splitter.emplace(text(pattern["Regex"], path + ".pattern.Regex"), place_of_regex);
    model_.stages.push_back(std::move(stage));
  } else {
    refuse(fmt::format("pre_tokenizer {}", type), path);
  }
}

// Without a decoder the bytes of the tokens are joined all the same: nothing else gives the text back.
void Reader::read_decoder(const Json& j, const std::string& path) const {
  if (j.is_null() || type_of(j) == "ByteLevel") return;
  if (type_of(j) != "Sequence") refuse(fmt::format("decoder {}", type_of(j)), path);
  const Json& list = array(j, "decoders", path);
  if (list.size() != 1) refuse(fmt::format("a chain of {} decoders", list.size()), path);
  read_decoder(list[0], path + ".decoders[0]");
}

void Reader::read_post_processor(const Json& j, const std::string& path) {
  if (j.is_null()) return;
  const std::string type = type_of(j);
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "TemplateProcessing") return read_template(j, path);
  if (type != "Sequence") refuse(fmt::format("post_processor {}", type), path);
  const Json& list = array(j, "processors", path);
  for (size_t i = 0; i < list.size(); ++i) read_post_processor(list[i], fmt::format("{}.processors[{}]", path, i));
}

// The template of a single text; that of a pair is never used. A second template would wrap the first one.
void Reader::read_template(const Json& j, const std::string& path) {
  const Json& list = array(j, "single", path);
  std::vector<int32_t> before, after;
  int texts = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = fmt::format("{}.single[{}]", path, i);
    if (!list[i].is_object()) malformed(at, "an object", list[i]);
    if (list[i].contains("Sequence")) {
      if (list[i]["Sequence"].value("id", Json()) != "A") refuse("a template with another text than A", at);
      ++texts;
      continue;
    }
    const Json name = list[i].value("SpecialToken", Json::object()).value("id", Json());
    const Json& tokens = j.contains("special_tokens") ? j["special_tokens"] : list;
    if (!name.is_string() || !tokens.is_object() || !tokens.contains(name.get<std::string>()))
      refuse("a template with an unknown part", at);
    for (const Json& token : array(tokens[name.get<std::string>()], "ids", path + ".special_tokens"))
      (texts == 0 ? before : after).push_back(id(token, path + ".special_tokens"));
  }
  if (texts != 1) refuse(fmt::format("a template that holds the text {} times", texts), path + ".single");
  model_.prefix.insert(model_.prefix.begin(), before.begin(), before.end());
  model_.suffix.insert(model_.suffix.end(), after.begin(), after.end());
}

// A token named by a configuration: "text" or {"content": "text"}; nothing where the key is absent.
std::optional<int32_t> named_token(const TokenizerModel& model, const Json& config, const std::string& key) {
  if (!config.is_object() || !config.contains(key)) return std::nullopt;
  const Json& value = config[key];
  const Json content = value.is_object() ? value.value("content", Json()) : value;
  if (!content.is_string()) return -1;
  const auto it = model.id_of_added.find(content.get<std::string>());
  if (it != model.id_of_added.end()) return it->second;
  const auto ordinary = std::find(model.content.begin(), model.content.end(), content.get<std::string>());
  return ordinary == model.content.end() ? -1 : static_cast<int32_t>(ordinary - model.content.begin());
}

int32_t usual_token(const TokenizerModel& model, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    if (const auto it = model.id_of_added.find(name); it != model.id_of_added.end() && model.special[it->second])
      return it->second;
  return -1;
}

uint64_t content_hash(const TokenizerModel& m) {
  std::string all = "nibble tokenizer 1";
  const auto number = [&](int64_t n) { all.append(reinterpret_cast<const char*>(&n), sizeof n); };
  const auto text = [&](std::string_view s) {
    number(static_cast<int64_t>(s.size()));
    all += s;
  };
  number(static_cast<int64_t>(m.content.size()));
  for (size_t i = 0; i < m.content.size(); ++i) {
    text(m.content[i]);
    number(m.special[i]);
  }
  number(static_cast<int64_t>(m.merges.size()));
  for (const BpeMerge& merge : m.merges)
    for (const int32_t i : {merge.left, merge.right, merge.result}) number(i);
  for (const AddedToken& t : m.added)
    for (const int64_t n : {int64_t{t.id}, int64_t{t.special}, int64_t{t.normalized}, int64_t{t.lstrip},
                            int64_t{t.rstrip}, int64_t{t.single_word}})
      number(n);
  for (const bool b : {m.ignore_merges, m.nfc}) number(b);
  for (const SplitStage& stage : m.stages) {
    number(stage.prefix_space);
    text(stage.splitter ? stage.splitter->pattern() : "");
  }
  for (const std::vector<int32_t>* ids : {&m.prefix, &m.suffix}) {
    number(static_cast<int64_t>(ids->size()));
    for (const int32_t i : *ids) number(i);
  }
  for (const int32_t i : {m.bos, m.eos, m.pad}) number(i);
  return xxh3(all);
}

}  // namespace

std::unique_ptr<TokenizerModel> parse_tokenizer_json(std::string_view json, std::string_view where) {
  auto model = std::make_unique<TokenizerModel>();
  const Json root = parse_json(json, where);
  Reader(root, where, *model).run();
  return model;
}

void finish_tokenizer(TokenizerModel& m, std::string_view config, std::string_view special_tokens_map,
                      std::string_view where) {
  const auto beside = [&](std::string_view text, std::string_view name) {
    return text.empty() ? Json() : parse_json(text, fmt::format("{} beside {}", name, where));
  };
  const Json first = beside(config, "tokenizer_config.json");
  const Json second = beside(special_tokens_map, "special_tokens_map.json");
  const auto token = [&](const std::string& key, std::initializer_list<std::string_view> usual) {
    if (const auto named = named_token(m, first, key)) return *named;
    if (const auto named = named_token(m, second, key)) return *named;
    return usual_token(m, usual);
  };
  m.bos = token("bos_token", {"<|bos|>", "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>"});
  m.eos = token("eos_token", {"<|eos|>", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>"});
  m.pad = token("pad_token", {"<|pad|>", "<pad>", "[PAD]"});

  for (const AddedToken& added : m.added) {
    std::string storage;
    if (!added.normalized) {
      m.plain_finder.add(added, added.content);
    } else {
      m.normalized_finder.add(added, std::string(m.nfc ? normalize_nfc(added.content, storage) : added.content));
    }
  }
  m.bpe = std::make_unique<Bpe>(m.byte_ids, m.merges, m.ignore_merges ? m.id_of_bytes : BytesMap());
  m.hash = content_hash(m);
}

}  // namespace nibble
