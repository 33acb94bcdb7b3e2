// Byte-level BPE: encoding against the plain definition, training against recounting, and the split patterns.
// Obligation T38 of spec/training.md.
#include "data/bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "core/error.h"
#include "core/threads.h"
#include "data/bpe_train.h"
#include "data/split.h"

namespace nibble {
namespace {

using Ids = std::vector<int32_t>;

struct Random {
  uint32_t x;
  uint32_t below(uint32_t n) {
    x = x * 1664525u + 1013904223u;
    return (x >> 8) % n;
  }
};

std::array<int32_t, 256> identity_bytes() {
  std::array<int32_t, 256> ids;
  for (int b = 0; b < 256; ++b) ids[b] = b;
  return ids;
}

// The definition: again and again the leftmost pair of the lowest rank.
Ids encode_by_definition(std::string_view piece, const std::vector<BpeMerge>& merges) {
  Ids ids;
  for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
  while (true) {
    size_t best_rank = merges.size(), best_at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      for (size_t rank = 0; rank < best_rank; ++rank)
        if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) {
          best_rank = rank;
          best_at = i;
        }
    if (best_rank == merges.size()) return ids;
    ids[best_at] = merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best_at) + 1);
  }
}

std::vector<std::string_view> split(std::string_view rule, std::string_view text) {
  std::vector<std::string_view> pieces;
  Splitter(split_pattern(rule)).split(text, [&](std::string_view piece) { pieces.push_back(piece); });
  return pieces;
}

// The definition of training: recount everything before each merge.
TrainedBpe train_by_definition(std::string_view text, const BpeTrainOptions& options) {
  TrainedBpe out;
  std::vector<Ids> words;
  for (const std::string_view piece : split(options.split, text)) {
    words.emplace_back();
    for (const char c : piece) words.back().push_back(static_cast<uint8_t>(c));
  }
  for (int b = 0; b < 256; ++b) out.tokens.emplace_back(1, static_cast<char>(b));
  while (static_cast<int64_t>(out.tokens.size()) + 3 < options.vocab_size) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const Ids& w : words)
      for (size_t i = 0; i + 1 < w.size(); ++i) ++counts[{w[i], w[i + 1]}];
    std::pair<int32_t, int32_t> best;
    int64_t count = 0;
    for (const auto& [pair, n] : counts)  // in order: the first of the largest wins
      if (n > count) best = pair, count = n;
    if (count < options.min_frequency) break;
    const auto result = static_cast<int32_t>(out.tokens.size());
    out.tokens.push_back(out.tokens[best.first] + out.tokens[best.second]);
    out.merges.push_back({best.first, best.second, result});
    for (Ids& w : words) {
      Ids merged;
      for (size_t i = 0; i < w.size(); ++i) {
        const bool here = i + 1 < w.size() && w[i] == best.first && w[i + 1] == best.second;
        merged.push_back(here ? result : w[i]);
        i += here;
      }
      w = merged;
    }
  }
  out.vocab_size = static_cast<int64_t>(out.tokens.size()) + 3;
  return out;
}

std::string random_text(uint32_t seed, int words) {
  Random random{seed};
  std::string text;
  for (int w = 0; w < words; ++w) {
    const uint32_t length = 1 + random.below(9);
    for (uint32_t i = 0; i < length; ++i) text.push_back("abcdeaaab"[random.below(9)]);
    text += random.below(8) == 0 ? "\n" : random.below(9) == 0 ? ", " : " ";
  }
  return text;
}

TEST(TrainingT38, BpeEncodesAsDefinedShortAndLong) {
  const std::string text = random_text(1, 3000);
  const std::vector<std::string_view> documents = {text};
  const TrainedBpe trained = train_bpe(documents, {.vocab_size = 420});
  const Bpe bpe(identity_bytes(), trained.merges, {});
  Random random{7};
  for (int i = 0; i < 400; ++i) {
    std::string piece;  // 1 to 120 bytes: remembered, scanned and heap forms
    for (uint32_t n = 1 + random.below(i % 2 ? 120 : 24); n > 0; --n) piece.push_back("abcdea"[random.below(6)]);
    const Ids want = encode_by_definition(piece, trained.merges);
    for (int again = 0; again < 2; ++again) {
      Ids got = {-7};  // encode appends
      bpe.encode(piece, got);
      got.erase(got.begin());
      ASSERT_EQ(got, want) << piece;
    }
  }
}

TEST(TrainingT38, BpeOfALongPieceIsFast) {
  const std::vector<std::string_view> documents = {"aaaa aaaaaaaa aaaa aaaaaaaa aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa"};
  const TrainedBpe trained = train_bpe(documents, {.vocab_size = 300});
  const Bpe bpe(identity_bytes(), trained.merges, {});
  const std::string piece(1 << 20, 'a');  // quadratic time would take minutes
  Ids ids;
  bpe.encode(piece, ids);
  size_t bytes = 0;
  for (const int32_t id : ids) bytes += trained.tokens[id].size();
  EXPECT_EQ(bytes, piece.size());
  EXPECT_EQ(ids.size(), piece.size() / trained.tokens[ids[0]].size());
}

TEST(TrainingT38, WholePiecesComeBeforeMergesAndMissingBytesVanish) {
  std::array<int32_t, 256> bytes = identity_bytes();
  bytes['z'] = -1;
  const std::vector<BpeMerge> merges = {{'a', 'b', 300}};
  BytesMap whole;
  whole["abc"] = 301;
  const Bpe bpe(bytes, merges, whole);
  Ids ids;
  for (const char* piece : {"abc", "abcd", "azb", "z"}) bpe.encode(piece, ids);
  EXPECT_EQ(ids, (Ids{301, 300, 'c', 'd', 300}));  // "azb" without z is "ab", as in Hugging Face tokenizers
}

TEST(TrainingT38, TrainingEqualsRecounting) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const std::string text = random_text(seed, 400);
    const std::vector<std::string_view> documents = {text};
    for (const int vocab : {259, 290, 400, 5000}) {  // none, some, many, until min_frequency stops it
      const BpeTrainOptions options{.vocab_size = vocab, .split = seed % 2 ? "gpt2" : "llama3", .min_frequency = 2};
      const TrainedBpe got = train_bpe(documents, options), want = train_by_definition(text, options);
      ASSERT_EQ(got.tokens, want.tokens) << seed << ", V " << vocab;
      ASSERT_EQ(got.merges, want.merges);
      ASSERT_EQ(got.vocab_size, want.vocab_size);
      EXPECT_EQ(got.pad(), got.vocab_size - 1);
      EXPECT_EQ(got.requested_size, vocab);
    }
  }
}

TEST(TrainingT38, TrainingByHand) {
  const std::vector<std::string_view> documents = {"ab ab ab", "cd cd aaa"};
  // Pairs: " a" 3 (ab, ab, aaa), "ab" 3, " c" 1, "cd" 2, "aa" 2. "ab" and " a" tie: the smaller left id, the space.
  const TrainedBpe bpe = train_bpe(documents, {.vocab_size = 300});
  const std::vector<std::string> made(bpe.tokens.begin() + 256, bpe.tokens.end());
  EXPECT_EQ(made, (std::vector<std::string>{" a", "cd", " ab"}));
  EXPECT_EQ(bpe.merges[0], (BpeMerge{' ', 'a', 256}));
  EXPECT_EQ(bpe.vocab_size, 262);  // stopped early: " cd", "aa" and "ab" are left once each
  EXPECT_EQ(bpe.bos(), 259);
}

TEST(TrainingT38, TrainingDoesNotDependOnThreadsOrDocumentCuts) {
  std::string text;
  for (uint32_t seed = 10; text.size() < (3u << 19); ++seed) text += random_text(seed, 20000);
  const std::vector<std::string_view> documents = {text, "a second document", "\xff\xfe ill-formed \xe6"};
  ThreadPool one(1), four(4);
  const TrainedBpe serial = train_bpe(documents, {.vocab_size = 600});
  for (ThreadPool* pool : {&one, &four}) {
    const TrainedBpe parallel = train_bpe(documents, {.vocab_size = 600, .pool = pool});
    EXPECT_EQ(parallel.tokens, serial.tokens);
    EXPECT_EQ(parallel.merges, serial.merges);
  }
  const BpeTrainOptions few{.vocab_size = 262};  // three merges: few enough to recount over the uncut text
  const std::vector<std::string_view> first = {text};
  EXPECT_EQ(train_bpe(first, few).merges, train_by_definition(text, few).merges);
}

TEST(TrainingT38, TrainerRefusals) {
  const std::vector<std::string_view> documents = {"text"}, empty = {"", ""};
  const auto id_of = [](std::span<const std::string_view> d, const BpeTrainOptions& o) {
    try {
      train_bpe(d, o);
    } catch (const Error& e) {
      return e.id;
    }
    return std::string("none");
  };
  EXPECT_EQ(id_of(documents, {.vocab_size = 258}), "E002");
  EXPECT_EQ(id_of(documents, {.vocab_size = 300, .split = "gpt3"}), "E002");
  EXPECT_EQ(id_of(empty, {.vocab_size = 300}), "E203");
  EXPECT_EQ(id_of(documents, {.vocab_size = 259}), "none");
}

TEST(TrainingT38, SplitRulesByHand) {
  using Pieces = std::vector<std::string_view>;
  EXPECT_EQ(split("gpt2", "I'll go,  12345x\n\nok"),
            (Pieces{"I", "'ll", " go", ",", " ", " 12345", "x", "\n", "\n", "ok"}));
  EXPECT_EQ(split("llama3", "I'LL go,  12345x\n\nok"),
            (Pieces{"I", "'LL", " go", ",", " ", " ", "123", "45", "x", "\n\n", "ok"}));
  EXPECT_EQ(split("qwen2", "a12 \r\n(b"), (Pieces{"a", "1", "2", " \r\n", "(b"}));
  // U+180E is no white space (PCRE2's \s would say so), U+0085 and U+00A0 are.
  EXPECT_EQ(split("gpt2", "a\u180e\u180eb"), (Pieces{"a", "\u180e\u180e", "b"}));
  EXPECT_EQ(split("gpt2", ".\u180e"), (Pieces{".\u180e"}));
  EXPECT_EQ(split("gpt2", ".\u0085\u00a0"), (Pieces{".", "\u0085\u00a0"}));
  EXPECT_EQ(split("gpt2", ""), Pieces{});
}

TEST(TrainingT38, SplitterKeepsEveryByteAndSurvivesEmptyMatches) {
  std::string joined, last;
  int pieces = 0;
  Splitter("b*").split("a\u00e9bbc", [&](std::string_view piece) {
    joined += piece;
    last = piece;
    ++pieces;
  });
  EXPECT_EQ(joined, "a\u00e9bbc");
  EXPECT_EQ(pieces, 4);
  EXPECT_EQ(last, "c");
  const std::string spaces(3 << 20, ' ');  // backtracks over megabytes: the stack of the JIT is not enough for all
  size_t bytes = 0;
  Splitter(split_pattern("llama3")).split(spaces + "x", [&](std::string_view piece) { bytes += piece.size(); });
  EXPECT_EQ(bytes, spaces.size() + 1);
}

TEST(TrainingT38, PatternsThatMeanSomethingElseAreRefused) {
  EXPECT_EQ(translate_pattern(R"([^\s\p{L}]\S\p{Han}\P{^N}\u00e9\/)", "here"),
            R"([^\p{White_Space}\p{L}]\P{White_Space}\p{sc:Han}\p{N}\x{00e9}\/)");
  for (const char* pattern :
       {R"(\w+)", R"(\h)", R"([a[b]])", R"([a&&b])", R"((?x: a))", R"(a{2}+)", R"(a{,3})", R"((*FAIL))", R"(\xff)",
        R"([]a])", R"(\pL)", R"(\p{L)", R"(\p{Klingon})", R"((a)", "a\\"}) {
    try {
      Splitter(pattern, "the test");
      ADD_FAILURE() << pattern;
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E308") << pattern;
      EXPECT_NE(e.where_text.find("the test"), std::string::npos) << e.message();
    }
  }
}

}  // namespace
}  // namespace nibble
