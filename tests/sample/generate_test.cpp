// The generation loop: stop conditions and their order, streaming, random numbers. Obligations G4, G8 and G9 of
// spec/generation.md 7, and 1.3, 1.5, 1.6, 1.8.
#include "sample/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/error.h"
#include "sample/tiny_model.h"

namespace nibble {
namespace {

constexpr int32_t eos = 257;

GenerateOptions greedy() {
  GenerateOptions o;
  o.sampling.temperature = 0;
  return o;
}

// After id a comes a + 1: the text goes through the alphabet, after z comes EOS, after that A.
class Alphabet {
 public:
  explicit Alphabet(int64_t context = 64, std::map<int32_t, int32_t> next = {{'z', eos}, {eos, 'A'}})
      : model_({.layers = 1,
                .width = 64,
                .heads = 2,
                .kv_heads = 1,
                .head_size = 8,
                .hidden = 16,
                .vocab = 272,
                .max_positions = 512},
               context, row_buckets(8), 1, cpu_targets().back()) {
    make_successor(model_, next);
  }

  Generated run(std::string_view prompt, const GenerateOptions& o, const GenerateEvents& events = {}) {
    const std::vector<int32_t> ids(prompt.begin(), prompt.end());
    return generate(*model_.decoder, Tokenizer::byte_level(), {eos}, ids, 272, o, events);
  }
  SmallModel& model() { return model_; }

 private:
  SmallModel model_;
};

std::vector<int32_t> ids_of(std::string_view text, std::vector<int32_t> rest = {}) {
  std::vector<int32_t> ids(text.begin(), text.end());
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

TEST(GenerationG9, EosStopsAndIsNoText) {
  Alphabet a;
  const Generated g = a.run("w", greedy());
  EXPECT_EQ(g.text, "xyz");
  EXPECT_EQ(g.ids, ids_of("xyz", {eos}));
  EXPECT_EQ(g.reason, FinishReason::stop);
  EXPECT_EQ(name_of(g.reason), "stop");
}

TEST(GenerationG9, EosIsNoTextEvenWhereSpecialTokensAreShown) {
  Alphabet a;
  GenerateOptions o = greedy();
  o.special = true;
  EXPECT_EQ(a.run("w", o).text, "xyz");
}

TEST(GenerationG9, IgnoredEosGoesOnAndIsShownOnlyWithSpecial) {
  Alphabet a;
  GenerateOptions o = greedy();
  o.ignore_eos = true, o.max_new_tokens = 6;
  const Generated g = a.run("x", o);
  EXPECT_EQ(g.text, "yzABC");
  EXPECT_EQ(g.ids, ids_of("yz", {eos, 'A', 'B', 'C'}));
  EXPECT_EQ(g.reason, FinishReason::length);
  o.special = true;
  EXPECT_EQ(a.run("x", o).text, "yz<|eos|>ABC");
}

TEST(GenerationG9, StopIdsEndTheTextBeforeThem) {
  Alphabet a;
  GenerateOptions o = greedy();
  o.stop_ids = {'m', 'f'};
  const Generated g = a.run("a", o);
  EXPECT_EQ(g.text, "bcde");
  EXPECT_EQ(g.ids, ids_of("bcdef"));
  EXPECT_EQ(g.reason, FinishReason::stop);
}

TEST(GenerationG9, AStopStringAcrossThreeTokensCutsTheTextBeforeIt) {
  Alphabet a;
  GenerateOptions o = greedy();
  o.stop = {"nothing", "fgh"};
  std::string streamed;
  GenerateEvents events;
  events.text = [&](std::string_view delta) { streamed += delta; };
  const Generated g = a.run("a", o, events);
  EXPECT_EQ(g.text, "bcde");
  EXPECT_EQ(streamed, "bcde") << "a part of the stop string was shown";
  EXPECT_EQ(g.ids, ids_of("bcdefgh"));
  EXPECT_EQ(g.reason, FinishReason::stop);
}

TEST(GenerationG9, AStopStringIsSoughtInNewTextOnly) {
  Alphabet a;
  GenerateOptions o = greedy();
  o.stop = {"bcd"};
  EXPECT_EQ(a.run("xbcd", o).text, "efghijklmnopqrstuvwxyz");
  EXPECT_EQ(a.run("ab", o).text, "cdefghijklmnopqrstuvwxyz") << "half of it is the prompt's";
}

TEST(GenerationG9, HeldBackTextIsReleasedAtTheEnd) {
  Alphabet a;
  GenerateOptions o = greedy();
  o.stop = {"fgh!"}, o.max_new_tokens = 7;
  const Generated g = a.run("a", o);
  EXPECT_EQ(g.text, "bcdefgh");
  EXPECT_EQ(g.reason, FinishReason::length);
}

TEST(GenerationG9, MaxNewTokensIsLength) {
  Alphabet a;
  GenerateOptions o = greedy();
  for (const int64_t most : {1, 2, 9}) {
    o.max_new_tokens = most;
    const Generated g = a.run("a", o);
    EXPECT_EQ(g.text, std::string("bcdefghijk").substr(0, static_cast<size_t>(most)));
    EXPECT_EQ(static_cast<int64_t>(g.ids.size()), most);
    EXPECT_EQ(g.reason, FinishReason::length);
    EXPECT_EQ(name_of(g.reason), "length");
  }
}

TEST(GenerationG9, PromptAndTextFillTheContextExactly) {
  Alphabet a(8);
  GenerateOptions o = greedy();
  EXPECT_EQ(a.run("a", o).text, "bcdefgh");  // 1 + 7 = 8
  EXPECT_EQ(a.run("abcde", o).text, "fgh");  // 5 + 3
  EXPECT_EQ(a.run("abcdefg", o).text, "h");  // the longest prompt leaves room for one token
  EXPECT_EQ(a.run("abcdefg", o).reason, FinishReason::length);
}

TEST(GenerationG9, CancelKeepsWhatWasMade) {
  Alphabet a;
  int asked = 0;
  GenerateEvents events;
  events.cancelled = [&] { return ++asked > 4; };
  const Generated g = a.run("a", greedy(), events);
  EXPECT_EQ(g.text, "bcde");
  EXPECT_EQ(g.ids, ids_of("bcde"));
  EXPECT_EQ(g.reason, FinishReason::cancelled);
  EXPECT_EQ(name_of(g.reason), "cancelled");
  events.cancelled = [] { return true; };
  EXPECT_EQ(a.run("a", greedy(), events).ids.size(), 0u);
}

TEST(GenerationG9, TheFirstConditionThatHoldsGivesTheReason) {
  Alphabet a;
  GenerateOptions o = greedy();
  o.max_new_tokens = 3;
  EXPECT_EQ(a.run("x", o).reason, FinishReason::stop) << "EOS comes before max_new_tokens";
  o.stop = {"cd"};
  EXPECT_EQ(a.run("a", o).reason, FinishReason::stop) << "a stop string comes before max_new_tokens";
  EXPECT_EQ(a.run("a", o).text, "b");
  o.max_new_tokens = 2;
  EXPECT_EQ(a.run("a", o).reason, FinishReason::length) << "the stop string is not complete";
  EXPECT_EQ(a.run("a", o).text, "bc");
  Alphabet narrow(4);
  GenerateOptions end = greedy();
  EXPECT_EQ(narrow.run("xy", end).reason, FinishReason::stop) << "EOS comes before the end of the context";
  end.stop = {"d"};
  EXPECT_EQ(narrow.run("ab", end).reason, FinishReason::stop) << "a stop string comes before the end of the context";
  GenerateOptions both = greedy();
  both.stop = {"yz<|eos|>"}, both.special = true;
  EXPECT_EQ(a.run("x", both).text, "yz") << "an EOS is no text, so it completes no stop string";
}

TEST(GenerationG9, CancelIsAskedAfterTheOtherConditions) {
  Alphabet a;
  bool drawn = false;
  GenerateEvents events;
  events.token = [&](int32_t id, double) { drawn = id == eos; };
  events.cancelled = [&] { return drawn; };
  EXPECT_EQ(a.run("w", greedy(), events).reason, FinishReason::stop);
}

TEST(GenerationMinimum, NothingEndsTheTextWhileTooFewTokensExist) {
  Alphabet a;
  GenerateOptions o = greedy();
  o.min_new_tokens = 3;
  EXPECT_EQ(a.run("w", o).ids, ids_of("xyz", {eos})) << "three exist, so the fourth may be EOS";
  o.min_new_tokens = 4;
  const Generated longer = a.run("w", o);
  ASSERT_GT(longer.ids.size(), 4u);
  EXPECT_NE(longer.ids[3], eos);
  o.sampling.temperature = 1, o.min_new_tokens = 12, o.max_new_tokens = 20, o.stop_ids = {'d', 'M'};
  for (o.seed = 0; o.seed < 40; ++o.seed) {
    const Generated g = a.run("v", o);
    ASSERT_GE(g.ids.size(), 12u);
    for (size_t i = 0; i < 12; ++i)
      EXPECT_TRUE(g.ids[i] != eos && g.ids[i] != 'd' && g.ids[i] != 'M') << "token " << i << " of seed " << o.seed;
  }
}

TEST(GenerationMinimum, ForbiddenIdsAndPaddingRowsAreNeverDrawn) {
  SmallModel m(small_llama(), 128, row_buckets(8), 1, cpu_targets().back());
  GenerateOptions o;
  o.sampling.temperature = 3, o.ignore_eos = true, o.max_new_tokens = 100;
  for (int32_t id = 0; id < 259; id += 2) o.forbid_ids.push_back(id);
  std::set<int32_t> drawn;
  for (o.seed = 0; o.seed < 10; ++o.seed)
    for (const int32_t id :
         generate(*m.decoder, Tokenizer::byte_level(), {eos}, std::vector<int32_t>{1}, 272, o, {}).ids)
      drawn.insert(id);
  EXPECT_GT(drawn.size(), 100u);
  for (const int32_t id : drawn) EXPECT_TRUE(id < 259 && id % 2 == 1) << id;
}

TEST(GenerationErrors, E311PromptLongerThanTheContextLessOneAndItsHintWorks) {
  Alphabet a(8);
  a.run("abc", greedy());
  const int64_t before = a.model().decoder->length();
  try {
    a.run("abcdefgh", greedy());
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.id, "E311");
    EXPECT_EQ(e.exit_code(), 65);
    EXPECT_NE(e.message().find("8 tokens"), std::string::npos) << e.message();
    EXPECT_NE(e.hint_text.find("n_ctx=265"), std::string::npos) << e.message();
  }
  EXPECT_EQ(a.model().decoder->length(), before) << "no work before the error";
  Alphabet wide(265);
  EXPECT_EQ(wide.run("stuvwxy", greedy()).text, "z");
}

TEST(GenerationG4, E705NamesSequencePositionAndStepAndEmitsNoToken) {
  Alphabet a;
  a.model().weight(llama_embedding)['d' * 64 + 7] = NAN;  // what follows "d" has no logits
  GenerateOptions o = greedy();
  o.sample = 5;
  std::string streamed;
  std::vector<int32_t> tokens;
  GenerateEvents events;
  events.text = [&](std::string_view delta) { streamed += delta; };
  events.token = [&](int32_t id, double) { tokens.push_back(id); };
  try {
    a.run("ab", o, events);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.id, "E705");
    EXPECT_EQ(e.exit_code(), 81);
    for (const char* part : {"sequence 5", "position 4", "step 2"})
      EXPECT_NE(e.message().find(part), std::string::npos) << e.message();
  }
  EXPECT_EQ(tokens, ids_of("cd"));
  EXPECT_EQ(streamed, "cd");
}

TEST(GenerationErrors, OptionsOutOfRangeAreE002AndName) {
  Alphabet a;
  const auto refused = [&](const GenerateOptions& o) -> std::string {
    try {
      a.run("a", o);
      return "accepted";
    } catch (const Error& e) {
      return e.id + " " + e.what_text;
    }
  };
  GenerateOptions o;
  o.sampling.top_p = 0;
  EXPECT_EQ(refused(o).substr(0, 10), "E002 top_p");
  o = {}, o.stop = {"a", ""};
  EXPECT_EQ(refused(o), "E002 stop holds an empty string");
  o = {}, o.stop_ids = {3, 272};
  EXPECT_EQ(refused(o), "E002 stop_ids holds 272, the model has 272 ids");
  o = {}, o.forbid_ids = {-1};
  EXPECT_EQ(refused(o), "E002 forbid_ids holds -1, the model has 272 ids");
  o = {}, o.stop_ids = {271}, o.forbid_ids = {271}, o.max_new_tokens = 1;
  EXPECT_EQ(refused(o), "accepted");
}

TEST(GenerationG8, DeltasConcatenateToTheTextOfAllIds) {
  SmallModel m(small_llama(), 128, row_buckets(8), 1, cpu_targets().back());
  const Tokenizer tokenizer = Tokenizer::byte_level();
  size_t held = 0;  // tokens that showed nothing: parts of a character, or special
  for (const bool special : {false, true})
    for (uint32_t seed = 0; seed < 60; ++seed) {
      GenerateOptions o;
      o.seed = seed, o.special = special, o.ignore_eos = true, o.max_new_tokens = 60;
      std::string streamed;
      size_t deltas = 0;
      std::vector<int32_t> tokens;
      GenerateEvents events;
      events.text = [&](std::string_view delta) { streamed += delta, ++deltas; };
      events.token = [&](int32_t id, double) { tokens.push_back(id); };
      const Generated g = generate(*m.decoder, tokenizer, {eos}, std::vector<int32_t>{65}, 272, o, events);
      EXPECT_EQ(streamed, g.text);
      EXPECT_EQ(tokens, g.ids);
      EXPECT_EQ(g.text, tokenizer.decode_text(g.ids, !special)) << "seed " << seed;
      held += g.ids.size() - std::min(g.ids.size(), deltas);
    }
  EXPECT_GT(held, 100u) << "the random bytes hold no character of several bytes: this tests nothing";
}

TEST(GenerationG8, ACharacterIsShownWhenItsLastByteIsThere) {
  Alphabet a(64, {{'a', 0xe2}, {0xe2, 0x82}, {0x82, 0xac}, {0xac, 'b'}, {'b', 0xc3}, {0xc3, eos}});
  std::vector<std::string> deltas;
  GenerateEvents events;
  events.text = [&](std::string_view delta) { deltas.emplace_back(delta); };
  const Generated g = a.run("a", greedy(), events);
  EXPECT_EQ(g.text,
            "\u20ac"
            "b\ufffd");
  EXPECT_EQ(deltas, (std::vector<std::string>{"\u20ac", "b", "\ufffd"}));
}

TEST(GenerationSeeds, SeedAndSampleIndexDecideAndNothingElse) {
  const std::vector<int32_t> prompt{72, 101, 108, 108, 111};
  GenerateOptions o;
  o.seed = 7, o.max_new_tokens = 40, o.ignore_eos = true;
  SmallModel reference(small_llama(), 64, row_buckets(8));
  const Generated wanted = generate(*reference.decoder, Tokenizer::byte_level(), {eos}, prompt, 272, o, {});
  ASSERT_EQ(wanted.ids.size(), 40u);
  for (const CpuTarget target : cpu_targets())
    for (const int threads : {1, 2})
      for (const auto& buckets : {row_buckets(64), std::vector<int64_t>{1}}) {
        SmallModel m(small_llama(), 128, buckets, threads, target);
        EXPECT_EQ(generate(*m.decoder, Tokenizer::byte_level(), {eos}, prompt, 272, o, {}).ids, wanted.ids)
            << name_of(target) << ", " << threads << " threads, " << buckets.size() << " buckets";
        EXPECT_EQ(generate(*m.decoder, Tokenizer::byte_level(), {eos}, prompt, 272, o, {}).ids, wanted.ids)
            << "again, on a used cache";
      }
  GenerateOptions other = o;
  other.seed = 8;
  EXPECT_NE(generate(*reference.decoder, Tokenizer::byte_level(), {eos}, prompt, 272, other, {}).ids, wanted.ids);
  other = o, other.sample = 1;
  EXPECT_NE(generate(*reference.decoder, Tokenizer::byte_level(), {eos}, prompt, 272, other, {}).ids, wanted.ids);
}

TEST(GenerationSeeds, StopAndResumeGiveTheSameTokens) {
  SmallModel m(small_llama(), 128, row_buckets(8), 1, cpu_targets().back());
  GenerateOptions o;
  o.seed = 3, o.max_new_tokens = 30, o.ignore_eos = true, o.sampling.repetition_penalty = 1.2;
  std::vector<int32_t> prompt{10, 20, 30};
  const std::vector<int32_t> all = generate(*m.decoder, Tokenizer::byte_level(), {eos}, prompt, 272, o, {}).ids;
  prompt.insert(prompt.end(), all.begin(), all.begin() + 13);
  o.max_new_tokens = 17;
  EXPECT_EQ(generate(*m.decoder, Tokenizer::byte_level(), {eos}, prompt, 272, o, {}).ids,
            std::vector<int32_t>(all.begin() + 13, all.end()));
}

TEST(GenerationSeeds, ReportedLogProbabilitiesAreThoseOfTheUnmodifiedLogits) {
  SmallModel m(small_llama(), 64, row_buckets(8), 1, cpu_targets().back());
  GenerateOptions o;
  o.sampling = {.temperature = 0.5, .top_k = 3, .repetition_penalty = 2}, o.max_new_tokens = 5, o.ignore_eos = true;
  std::vector<double> reported;
  GenerateEvents events;
  events.token = [&](int32_t, double log_probability) { reported.push_back(log_probability); };
  const std::vector<int32_t> prompt{1, 2, 3};
  const Generated g = generate(*m.decoder, Tokenizer::byte_level(), {eos}, prompt, 272, o, events);
  m.decoder->truncate(0);
  std::vector<float> logits = copied(m.decoder->encode(prompt));
  for (size_t i = 0; i < g.ids.size(); ++i) {
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x));
    EXPECT_NEAR(reported[i], static_cast<double>(logits[static_cast<size_t>(g.ids[i])]) - std::log(sum), 1e-12);
    logits = copied(m.decoder->encode({&g.ids[i], 1}));
  }
}

}  // namespace
}  // namespace nibble
