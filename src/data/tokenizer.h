// Tokenizers: text to ids and back. Three ways to get one: our byte tokenizer, a byte-level BPE trained here, and a
// Hugging Face tokenizer.json with a byte-level BPE; all are the same kind of object, read from the same kind of file.
// Source: spec/training.md 4.2, spec/generation.md 1.8.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe_train.h"
#include "data/encoder.h"

namespace nibble {

struct TokenizerModel;

/// A tokenizer; cheap to copy (copies share the vocabulary), and every const call is safe from several threads.
///
/// Whether the strings of special tokens in a text become those tokens is `parse_special`: false for documents,
/// true for prompts and chat templates. Added tokens that are not special are found either way.
class Tokenizer {
 public:
  /// Ids 0-255 are the bytes, 256 <|bos|>, 257 <|eos|>, 258 <|pad|>.
  static Tokenizer byte_level();
  /// The tokenizer of a trained vocabulary.
  static Tokenizer from_trained(const TrainedBpe& trained);
  /// A tokenizer.json, or a folder that holds one, recognised by content; tokenizer_config.json and
  /// special_tokens_map.json beside it name BOS, EOS and PAD. Its truncation and padding settings belong to a call,
  /// not to the tokenizer, and have no effect here.
  /// Errors: E202 missing or unreadable, E302 hub id or URL, E308 a component that is not supported, with its place in
  /// the JSON, E309 no valid JSON, with the byte.
  static Tokenizer load(const std::filesystem::path& path);
  /// The same from the text of a tokenizer.json; `config` is the text of tokenizer_config.json, or empty.
  static Tokenizer from_json(std::string_view json, std::string_view config = {},
                             std::string_view where = "tokenizer.json");

  /// Appends the ids of a text. Bytes that are not well-formed UTF-8 are encoded one by one.
  void encode(std::string_view text, bool parse_special, std::vector<int32_t>& ids) const;
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const;
  /// With the tokens that the file's template puts before and after (`add_special_tokens=True` of Hugging Face).
  std::vector<int32_t> encode_with_template(std::string_view text, bool parse_special) const;

  /// The bytes of a sequence; they need not be well-formed UTF-8. Ids without a token give nothing. Special tokens
  /// give their text, or nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;
  /// The same as text: ill-formed parts are U+FFFD, as in Hugging Face's decode.
  std::string decode_text(std::span<const int32_t> ids, bool skip_special) const;

  /// The bytes an id stands for in every context; empty for special tokens and ids without a token.
  std::string_view bytes_of(int32_t id) const;
  /// The same, but special tokens give their text.
  std::string_view text_of(int32_t id) const;
  /// Id of a token by its text: an added token such as "<|eos|>", else the bytes of an ordinary one; -1 if there is
  /// none.
  int32_t id_of(std::string_view text) const;

  /// Largest id + 1.
  int64_t vocab_size() const;
  int32_t bos() const;  // -1: there is none
  int32_t eos() const;
  int32_t pad() const;
  bool is_special(int32_t id) const;
  std::span<const int32_t> template_prefix() const;
  std::span<const int32_t> template_suffix() const;

  /// XXH3-64 of everything that decides ids and bytes; neither paths nor formatting count.
  uint64_t hash() const;
  /// "byte" or "bpe-<vocab_size>": by content.
  std::string name() const;

  /// Writes the tokenizer's files into an existing folder: tokenizer.json and tokenizer_config.json of a tokenizer made
  /// here; the files it was loaded from unchanged (tokenizer.model, vocab.json and merges.txt beside it included).
  /// model_max_length goes into a new tokenizer_config.json only.  Each file appears whole, tokenizer.json as the last:
  /// where it stands, everything stands.  Error: E801 when a file cannot be written.
  void save(const std::filesystem::path& folder, int64_t model_max_length) const;
  /// What save writes, by name: for writers that keep their own checksums.
  std::vector<std::pair<std::string, std::string>> files(int64_t model_max_length) const;

  /// As what the data pipeline takes.
  TextEncoder encoder(bool parse_special) const;

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerModel> model) : model_(std::move(model)) {}
  std::shared_ptr<const TokenizerModel> model_;
};

}  // namespace nibble
