// Encoding and decoding. The order of steps is that of Hugging Face tokenizers: added tokens, normaliser, added tokens
// that are searched in normalised text, splits, BPE.  Source: spec/training.md 4.2.
#include "data/tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "data/tokenizer_model.h"
#include "data/unicode.h"
#include "data/utf8.h"

namespace nibble {

void AddedTokenFinder::add(const AddedToken& token, std::string pattern) {
  if (pattern.empty()) return;
  all_special_ &= token.special;
  const auto index = static_cast<int32_t>(patterns_.size());
  std::vector<int32_t>& list = by_first_byte_[static_cast<uint8_t>(pattern[0])];
  const auto shorter = [&](int32_t i) { return patterns_[i].text.size() < pattern.size(); };
  list.insert(std::find_if(list.begin(), list.end(), shorter), index);
  patterns_.push_back({std::move(pattern), &token});
}

AddedTokenFinder::Match AddedTokenFinder::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at)
    for (const int32_t i : by_first_byte_[static_cast<uint8_t>(text[at])]) {
      const std::string& pattern = patterns_[i].text;
      if (text.compare(at, pattern.size(), pattern) == 0) return {at, at + pattern.size(), patterns_[i].token};
    }
  return {text.size(), text.size(), nullptr};
}

namespace {

size_t last_character(std::string_view s) {  // where it starts; s is well-formed and not empty
  size_t at = s.size() - 1;
  while ((static_cast<uint8_t>(s[at]) & 0xc0) == 0x80) --at;
  return at;
}
bool ends_with_word(std::string_view s) {
  return !s.empty() && is_word_character(utf8_step(s.substr(last_character(s))).code_point);
}
bool starts_with_word(std::string_view s) { return !s.empty() && is_word_character(utf8_step(s).code_point); }
size_t trailing_space(std::string_view s) {  // where the white space at the end starts
  while (!s.empty()) {
    const size_t at = last_character(s);
    if (!is_white_space(utf8_step(s.substr(at)).code_point)) break;
    s = s.substr(0, at);
  }
  return s.size();
}
size_t leading_space(std::string_view s) {
  size_t at = 0;
  while (at < s.size()) {
    const Utf8Step step = utf8_step(s.substr(at));
    if (!is_white_space(step.code_point)) break;
    at += step.bytes;
  }
  return at;
}

// Encodes one text; all text it sees is well-formed.
class Encoder {
 public:
  Encoder(const TokenizerModel& model, bool parse_special, std::vector<int32_t>& ids)
      : model_(model), parse_special_(parse_special), ids_(ids) {}

  void run(std::string_view text) {
    split_at_tokens(model_.plain_finder, text, [&](std::string_view part) {
      std::string storage;
      if (model_.nfc) part = normalize_nfc(part, storage);
      split_at_tokens(model_.normalized_finder, part, [&](std::string_view piece) { stage(piece, 0); });
    });
  }

 private:
  // Emits the tokens found and calls f for the text between them. A match that is not to be used still takes its text
  // out of the search, as there.
  template <class F>
  void split_at_tokens(const AddedTokenFinder& finder, std::string_view text, const F& f) {
    if (finder.empty() || (!parse_special_ && finder.all_special())) return text.empty() ? void() : f(text);
    size_t done = 0, from = 0;
    while (true) {
      const AddedTokenFinder::Match match = finder.find(text, from);
      if (!match.token) break;
      from = match.end;
      const AddedToken& token = *match.token;
      if (token.special && !parse_special_) continue;
      if (token.single_word &&
          (ends_with_word(text.substr(0, match.begin)) || starts_with_word(text.substr(match.end))))
        continue;
      size_t begin = match.begin, end = match.end;
      if (token.lstrip) begin = std::max(trailing_space(text.substr(0, begin)), done);
      if (token.rstrip) end += leading_space(text.substr(end));
      if (done < begin) f(text.substr(done, begin - done));
      ids_.push_back(token.id);
      done = end;
    }
    if (done < text.size()) f(text.substr(done));
  }

  void stage(std::string_view text, size_t index) {
    if (index == model_.stages.size()) return model_.bpe->encode(text, ids_);
    const SplitStage& stage_here = model_.stages[index];
    std::string with_space;
    if (stage_here.prefix_space && !text.empty() && text[0] != ' ') {
      with_space.reserve(text.size() + 1);
      with_space += ' ';
      with_space += text;
      text = with_space;
    }
    if (!stage_here.splitter) return stage(text, index + 1);
    if (index + 1 == model_.stages.size())
      return stage_here.splitter->split(text, [&](std::string_view piece) { model_.bpe->encode(piece, ids_); });
    stage_here.splitter->split(text, [&](std::string_view piece) { stage(piece, index + 1); });
  }

  const TokenizerModel& model_;
  const bool parse_special_;
  std::vector<int32_t>& ids_;
};

}  // namespace

Tokenizer Tokenizer::byte_level() {
  std::vector<std::string> tokens;
  tokens.reserve(256);
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  return from_json(own_tokenizer_json(tokens, {}, ""));
}

Tokenizer Tokenizer::from_trained(const TrainedBpe& trained) {
  return from_json(own_tokenizer_json(trained.tokens, trained.merges, trained.split));
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view config, std::string_view where) {
  std::shared_ptr<TokenizerModel> model = parse_tokenizer_json(json, where);
  model->files["tokenizer.json"] = json;
  if (!config.empty()) model->files["tokenizer_config.json"] = config;
  finish_tokenizer(*model, config, {}, where);
  return Tokenizer(std::move(model));
}

void Tokenizer::encode(std::string_view text, bool parse_special, std::vector<int32_t>& ids) const {
  Encoder encoder(*model_, parse_special, ids);
  while (!text.empty()) {
    const size_t valid = utf8_valid_prefix(text);
    if (valid > 0) encoder.run(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    const int bad = utf8_step(text).bytes;
    for (int i = 0; i < bad; ++i)
      if (const int32_t id = model_->byte_ids[static_cast<uint8_t>(text[i])]; id >= 0) ids.push_back(id);
    text.remove_prefix(bad);
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<int32_t> ids;
  encode(text, parse_special, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_with_template(std::string_view text, bool parse_special) const {
  std::vector<int32_t> ids = model_->prefix;
  encode(text, parse_special, ids);
  ids.insert(ids.end(), model_->suffix.begin(), model_->suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (const int32_t id : ids) out += skip_special ? bytes_of(id) : text_of(id);
  return out;
}

std::string Tokenizer::decode_text(std::span<const int32_t> ids, bool skip_special) const {
  return utf8_lossy(decode(ids, skip_special));
}

std::string_view Tokenizer::bytes_of(int32_t id) const { return is_special(id) ? std::string_view() : text_of(id); }

std::string_view Tokenizer::text_of(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return model_->bytes[id];
}

int32_t Tokenizer::id_of(std::string_view text) const {
  if (const auto it = model_->id_of_added.find(text); it != model_->id_of_added.end()) return it->second;
  if (const auto it = model_->id_of_bytes.find(text); it != model_->id_of_bytes.end()) return it->second;
  return -1;
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(model_->bytes.size()); }
int32_t Tokenizer::bos() const { return model_->bos; }
int32_t Tokenizer::eos() const { return model_->eos; }
int32_t Tokenizer::pad() const { return model_->pad; }
bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocab_size() && model_->special[id]; }
std::span<const int32_t> Tokenizer::template_prefix() const { return model_->prefix; }
std::span<const int32_t> Tokenizer::template_suffix() const { return model_->suffix; }
uint64_t Tokenizer::hash() const { return model_->hash; }

std::string Tokenizer::name() const {
  if (model_->merges.empty() && vocab_size() == 259) return "byte";
  return fmt::format("bpe-{}", vocab_size());
}

TextEncoder Tokenizer::encoder(bool parse_special) const {
  TextEncoder out;
  out.encode = [copy = *this, parse_special](std::string_view text, std::vector<int32_t>& ids) {
    copy.encode(text, parse_special, ids);
  };
  out.bos = bos();
  out.eos = eos();
  out.pad = pad();
  out.vocab = vocab_size();
  out.hash = hash();
  out.name = name();
  out.parse_special = parse_special;
  return out;
}

}  // namespace nibble
