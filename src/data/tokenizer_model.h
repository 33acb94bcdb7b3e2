// What a tokenizer consists of, after reading; internal to the tokenizer's own files.  Source: spec/training.md 4.2.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "data/split.h"

namespace nibble {

/// A token that is found in the text before anything else happens to it.
struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool normalized = false;   // searched in the normalised text, with normalised content
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool single_word = false;  // only between non-word characters
};

/// Searches a text for added tokens: leftmost, then longest.
class AddedTokenFinder {
 public:
  struct Match {
    size_t begin, end;
    const AddedToken* token;
  };
  /// `pattern` is what is searched for; the token must outlive the finder.
  void add(const AddedToken& token, std::string pattern);
  /// First match at or after `from`; token null if there is none.
  Match find(std::string_view text, size_t from) const;
  bool empty() const { return patterns_.empty(); }
  bool all_special() const { return all_special_; }

 private:
  struct Pattern {
    std::string text;
    const AddedToken* token;
  };
  std::vector<Pattern> patterns_;
  std::vector<std::vector<int32_t>> by_first_byte_ = std::vector<std::vector<int32_t>>(256);  // longest first
  bool all_special_ = true;
};

/// One step of the pre-tokenizer: a space before text that does not begin with one, then a split.
struct SplitStage {
  bool prefix_space = false;
  std::optional<Splitter> splitter;
};

struct TokenizerModel {
  std::vector<std::string> bytes;    // by id: what it stands for; empty where there is no token
  std::vector<std::string> content;  // by id: as written in the file
  std::vector<uint8_t> special;      // by id
  std::vector<AddedToken> added;     // in the order of the file
  BytesMap id_of_added, id_of_bytes;
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;
  bool nfc = false;
  std::vector<SplitStage> stages;
  std::vector<int32_t> prefix, suffix;  // the template around a text
  int32_t bos = -1, eos = -1, pad = -1;

  std::array<int32_t, 256> byte_ids{};
  std::unique_ptr<const Bpe> bpe;
  AddedTokenFinder plain_finder, normalized_finder;
  uint64_t hash = 0;
  std::map<std::string, std::string> files;  // by name; a tokenizer made here has tokenizer.json only
};

/// Reads the text of a tokenizer.json.  Errors: E308, E309.
std::unique_ptr<TokenizerModel> parse_tokenizer_json(std::string_view json, std::string_view where);

/// Sets bos, eos and pad: from the texts of tokenizer_config.json and special_tokens_map.json where they name them,
/// else from the usual names of special tokens. Then everything derived: Bpe, finders, hash.  Errors: E309.
void finish_tokenizer(TokenizerModel& model, std::string_view config, std::string_view special_tokens_map,
                      std::string_view where);

/// The tokenizer.json of a vocabulary made here. tokens: bytes by id, below the three special tokens.
std::string own_tokenizer_json(const std::vector<std::string>& tokens, const std::vector<BpeMerge>& merges,
                               std::string_view split);  // split: a rule's name, or empty for none

/// Its tokenizer_config.json.
std::string own_tokenizer_config(int64_t model_max_length);

}  // namespace nibble
