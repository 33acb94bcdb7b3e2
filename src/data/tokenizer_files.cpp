// Files of tokenizers: finding and recognising them, writing our own, copying others unchanged.
// Source: spec/training.md 4.2, errors E202, E302, E308, E309 and E803 of 7.2.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/tokenizer.h"
#include "data/tokenizer_model.h"
#include "data/unicode.h"
#include "io/file.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// What travels with a foreign tokenizer.json, if it is there.
constexpr std::array<const char*, 9> companion_files = {"tokenizer_config.json",
                                                        "special_tokens_map.json",
                                                        "added_tokens.json",
                                                        "tokenizer.model",
                                                        "vocab.json",
                                                        "merges.txt",
                                                        "chat_template.jinja",
                                                        "chat_template.json",
                                                        "sentencepiece.bpe.model"};
constexpr std::array<const char*, 3> special_names = {"<|bos|>", "<|eos|>", "<|pad|>"};

// Nothing is there: a URL, something that looks like owner/name on a hub, or a path with a mistake in it.
[[noreturn]] void missing(const fs::path& path) {
  const std::string s = path.string();
  const size_t slash = s.find('/');
  const bool one_slash = slash != std::string::npos && slash > 0 && slash + 1 < s.size() && s.rfind('/') == slash;
  const std::string extension = path.extension().string();
  const bool file_like = extension == ".json" || extension == ".model" || extension == ".txt" || s[0] == '.';
  const bool hub = one_slash && !file_like && !fs::exists(s.substr(0, slash));
  if (s.find("://") != std::string::npos || s.starts_with("hf:") || hub)
    throw Error("E302", "{} is no path here but a URL or a hub id; nothing is downloaded", s)
        .where("tokenizer_path={}", s)
        .hint(
            "fetch tokenizer.json and tokenizer_config.json yourself (huggingface-cli download {} --local-dir tok), "
            "then tokenizer_path=tok",
            hub ? s : "OWNER/NAME");
  throw Error("E202", "tokenizer {} does not exist", s)
      .where("tokenizer_path={}, working folder {}", s, fs::current_path().string())
      .hint("give a tokenizer.json or a folder that holds one");
}

[[noreturn]] void not_in_this_version(std::string_view what, const fs::path& path) {
  throw Error("E308", "{} is {}: not in this version", path.string(), what)
      .where("tokenizer_path={}", path.string())
      .hint("convert it to a tokenizer.json with a byte-level BPE, or train one: nibble data train-tokenizer FILES");
}

// A tokenizer.json begins with a brace; the other kinds are named, so that the user knows they were recognised.
void check_kind(const std::string& bytes, const fs::path& path) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (bytes.starts_with("\xef\xbb\xbf") || (first != std::string::npos && bytes[first] == '{')) return;
  if (first == std::string::npos)
    throw Error("E309", "{} is empty", path.string())
        .where("tokenizer_path={}", path.string())
        .expected("a tokenizer.json", fmt::format("{} bytes", bytes.size()))
        .hint("fetch or copy the file again");
  if (bytes[0] == '\x0a') not_in_this_version("a SentencePiece model", path);
  const std::string line = bytes.substr(0, bytes.find('\n'));
  const size_t space = line.find(' ');
  if (space != std::string::npos && space + 1 < line.size() &&
      line.find_first_not_of("0123456789\r", space + 1) == std::string::npos)
    not_in_this_version("a tiktoken rank file", path);
  if (bytes.starts_with("version https://git-lfs"))
    throw Error("E309", "{} is a Git LFS pointer, not the file itself", path.string())
        .where("tokenizer_path={}", path.string())
        .hint("git lfs pull");
  not_in_this_version("no tokenizer.json", path);
}

}  // namespace

Tokenizer Tokenizer::load(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) missing(path);
  fs::path file = path;
  if (fs::is_directory(path, error)) {
    file = path / "tokenizer.json";
    if (!fs::exists(file, error)) {
      if (fs::exists(path / "tokenizer.model", error))
        not_in_this_version("a SentencePiece model", path / "tokenizer.model");
      throw Error("E202", "folder {} holds no tokenizer.json", path.string())
          .where("tokenizer_path={}", path.string())
          .hint("give the tokenizer.json itself or a folder that holds one");
    }
  }
  const std::string json = read_file(file);
  check_kind(json, file);
  std::shared_ptr<TokenizerModel> model = parse_tokenizer_json(json, file.string());
  model->files["tokenizer.json"] = json;
  for (const char* name : companion_files)
    if (const fs::path beside = file.parent_path() / name; fs::is_regular_file(beside, error))
      model->files[name] = read_file(beside);
  const auto text = [&](const char* name) {
    const auto it = model->files.find(name);
    return it == model->files.end() ? std::string_view() : std::string_view(it->second);
  };
  finish_tokenizer(*model, text("tokenizer_config.json"), text("special_tokens_map.json"), file.string());
  return Tokenizer(std::move(model));
}

std::vector<std::pair<std::string, std::string>> Tokenizer::files(int64_t model_max_length) const {
  std::vector<std::pair<std::string, std::string>> out(model_->files.begin(), model_->files.end());
  const bool made_here = std::all_of(special_names.begin(), special_names.end(), [&](const char* name) {
    return model_->id_of_added.contains(std::string_view(name));
  });
  if (made_here && model_->files.size() == 1)
    out.emplace_back("tokenizer_config.json", own_tokenizer_config(model_max_length));
  return out;
}

void Tokenizer::save(const fs::path& folder, int64_t model_max_length) const {
  std::vector<std::pair<std::string, std::string>> all = files(model_max_length);
  std::stable_partition(all.begin(), all.end(), [](const auto& file) { return file.first != "tokenizer.json"; });
  for (const auto& [name, bytes] : all) replace_file(folder / name, bytes);
}

std::string own_tokenizer_json(const std::vector<std::string>& tokens, const std::vector<BpeMerge>& merges,
                               std::string_view split) {
  const auto quoted = [](const std::string& s) { return nlohmann::json(s).dump(); };
  const auto token = [&](int32_t id) { return quoted(to_byte_alphabet(tokens[id])); };
  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
  for (size_t i = 0; i < special_names.size(); ++i)
    out += fmt::format(
        "{}\n    {{\"id\": {}, \"content\": \"{}\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
        "\"normalized\": false, \"special\": true}}",
        i ? "," : "", tokens.size() + i, special_names[i]);
  out += "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": ";
  const auto byte_level = [](bool use_regex) {
    return fmt::format(
        "{{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": {}}}",
        use_regex);
  };
  if (split.empty() || split == "gpt2") {
    out += byte_level(split == "gpt2");
  } else {
    out += fmt::format(
        "{{\"type\": \"Sequence\", \"pretokenizers\": [\n    {{\"type\": \"Split\", \"pattern\": {{\"Regex\": {}}}, "
        "\"behavior\": \"Isolated\", \"invert\": false}},\n    {}]}}",
        quoted(std::string(split_pattern(split))), byte_level(false));
  }
  out += fmt::format(",\n  \"post_processor\": null,\n  \"decoder\": {},\n", byte_level(false));
  out +=
      "  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
      "\"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null, \"fuse_unk\": false, "
      "\"byte_fallback\": false, \"ignore_merges\": false,\n    \"vocab\": {";
  for (size_t i = 0; i < tokens.size(); ++i)
    out += fmt::format("{}\n      {}: {}", i ? "," : "", token(static_cast<int32_t>(i)), i);
  out += "\n    },\n    \"merges\": [";
  for (size_t i = 0; i < merges.size(); ++i)
    out += fmt::format("{}\n      [{}, {}]", i ? "," : "", token(merges[i].left), token(merges[i].right));
  return out += merges.empty() ? "]\n  }\n}\n" : "\n    ]\n  }\n}\n";
}

std::string own_tokenizer_config(int64_t model_max_length) {
  return fmt::format(
      "{{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"bos_token\": \"{}\",\n  \"eos_token\": \"{}\",\n"
      "  \"pad_token\": \"{}\",\n  \"model_max_length\": {}\n}}\n",
      special_names[0], special_names[1], special_names[2], model_max_length);
}

}  // namespace nibble
