// encode(), its cache and truncate(): obligation G5 of spec/generation.md 7, and 1.2.
#include "sample/decoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/philox.h"
#include "sample/tiny_model.h"

namespace nibble {
namespace {

constexpr int64_t positions = 192;  // three tiles of 64 keys

std::vector<int32_t> random_ids(int64_t count, uint32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(philox4x32({static_cast<uint32_t>(i), 0, 0, 0x1f5}, seed, 0)[0] % 272));
  return ids;
}

// Keys and values of the first `length` positions, layer by layer.
std::vector<float> cache_of(const SmallModel& m, int64_t length) {
  std::vector<float> all;
  for (int64_t layer = 0; layer < m.config.layers; ++layer)
    for (const char* kind : {"k", "v"}) {
      const float* p = m.program->state(StateRole::kv_cache, fmt::format("{}.{}", kind, layer)).as<float>();
      all.insert(all.end(), p, p + length * m.config.kv_heads * m.config.head_size);
    }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Encoded {
  std::vector<float> logits, cache;
};
Encoded encode_all(SmallModel& m, std::span<const int32_t> ids, int64_t chunk) {
  m.decoder->truncate(0);
  Encoded e;
  e.logits = copied(m.decoder->encode(ids, chunk));
  e.cache = cache_of(m, m.decoder->length());
  return e;
}

Encoded token_by_token(SmallModel& m, std::span<const int32_t> ids) {
  m.decoder->truncate(0);
  Encoded e;
  for (const int32_t id : ids) e.logits = copied(m.decoder->encode({&id, 1}));
  e.cache = cache_of(m, m.decoder->length());
  return e;
}

// Logits of every row of one forward pass without a cache, as training makes them.
std::vector<float> batch_logits(const LlamaConfig& c, const std::vector<int32_t>& ids) {
  const auto length = static_cast<int64_t>(ids.size());
  std::vector<NamedGraph> graphs;
  graphs.push_back({"logits", llama_logits_graph(c, {1, length})});
  Program program(plan_program(std::move(graphs), 1, CpuTarget::ref));
  fill_weights(program, c, 11);
  Executable& x = program.executable("logits");
  std::copy(ids.begin(), ids.end(), x.input("tokens").as<int32_t>());
  std::iota(x.input("positions").as<int32_t>(), x.input("positions").as<int32_t>() + length, 0);
  std::fill_n(x.input("segments").as<int32_t>(), length, 1);
  x.run();
  const Tensor logits = x.output("logits");
  return {logits.as<float>(), logits.as<float>() + logits.numel()};
}

TEST(GenerationG5, AnyCutOfAPromptGivesTheSameCacheAndLogits) {
  const LlamaConfig c = small_llama();
  const std::vector<int32_t> ids = random_ids(150, 1);  // more than two tiles, and not a multiple of a chunk
  const std::vector<float> batch = batch_logits(c, ids);
  const std::vector<float> wanted(batch.end() - c.vocab, batch.end());
  SmallModel reference(c, positions, {150});  // the whole prompt in one call of one executable
  const Encoded whole = encode_all(reference, ids, 0);
  EXPECT_TRUE(same_bits(whole.logits, wanted)) << "differs from the logits of training's forward pass";
  for (const CpuTarget target : cpu_targets())
    for (const int threads : {1, 2}) {
      SmallModel m(c, positions, row_buckets(64), threads, target);
      for (const int64_t chunk : {0, 1, 7, 64}) {
        const Encoded e = encode_all(m, ids, chunk);
        EXPECT_TRUE(same_bits(e.logits, whole.logits))
            << name_of(target) << ", " << threads << " threads, chunks of " << chunk;
        EXPECT_TRUE(same_bits(e.cache, whole.cache))
            << name_of(target) << ", " << threads << " threads, chunks of " << chunk;
      }
      const Encoded e = token_by_token(m, ids);
      EXPECT_TRUE(same_bits(e.logits, whole.logits))
          << name_of(target) << ", " << threads << " threads, token by token";
      EXPECT_TRUE(same_bits(e.cache, whole.cache)) << name_of(target) << ", " << threads << " threads, token by token";
    }
}

TEST(GenerationG5, EveryPrefixHasTheLogitsOfTrainingsForwardPass) {
  const LlamaConfig c = small_llama();
  const std::vector<int32_t> ids = random_ids(130, 2);
  const std::vector<float> batch = batch_logits(c, ids);
  SmallModel m(c, positions, {1}, 1, cpu_targets().back());
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::vector<float> logits = copied(m.decoder->encode({&ids[i], 1}));
    const auto row = batch.begin() + static_cast<std::ptrdiff_t>(i) * c.vocab;
    ASSERT_TRUE(same_bits(logits, std::vector<float>(row, row + c.vocab))) << "position " << i;
  }
}

TEST(GenerationG5, TruncateAndContinueEqualsAFreshEncode) {
  const LlamaConfig c = small_llama();
  const std::vector<int32_t> first = random_ids(140, 3), second = random_ids(50, 4);
  SmallModel m(c, positions, row_buckets(32), 1, cpu_targets().back()),
      fresh(c, positions, row_buckets(32), 1, cpu_targets().back());
  for (const int64_t keep : {0, 1, 63, 64, 65, 100, 128, 139, 140}) {
    m.decoder->truncate(0);
    m.decoder->encode(first);
    m.decoder->truncate(keep);
    EXPECT_EQ(m.decoder->length(), keep);
    const std::vector<float> logits = copied(m.decoder->encode(second));
    std::vector<int32_t> ids(first.begin(), first.begin() + keep);
    ids.insert(ids.end(), second.begin(), second.end());
    const Encoded wanted = encode_all(fresh, ids, 0);
    EXPECT_TRUE(same_bits(logits, wanted.logits)) << "after keeping " << keep;
    EXPECT_TRUE(same_bits(cache_of(m, m.decoder->length()), wanted.cache)) << "after keeping " << keep;
  }
}

TEST(GenerationG5, WhatLiesBeyondTheLengthDoesNotMatter) {
  SmallModel m(small_llama(), positions, row_buckets(16), 1, cpu_targets().back());
  const std::vector<int32_t> ids = random_ids(20, 5);
  const Encoded clean = encode_all(m, ids, 0);
  for (int64_t layer = 0; layer < m.config.layers; ++layer)
    for (const char* kind : {"k", "v"}) {
      const Tensor t = m.program->state(StateRole::kv_cache, fmt::format("{}.{}", kind, layer));
      std::fill_n(t.as<float>(), t.numel(), std::numeric_limits<float>::quiet_NaN());
    }
  EXPECT_TRUE(same_bits(encode_all(m, ids, 0).logits, clean.logits));
}

TEST(GenerationCache, BucketsAreThePowersOfTwoAndTheLargest) {
  EXPECT_EQ(row_buckets(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(row_buckets(2), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(row_buckets(64), (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(row_buckets(100), (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 100}));
}

TEST(GenerationCache, BytesAreThoseOfTheStates) {
  const SmallModel m(small_llama(), positions, {1, 4});
  int64_t bytes = 0;
  for (const StateInfo& s : m.program->plan().states)
    if (s.role == StateRole::kv_cache) bytes += s.type.nbytes();
  EXPECT_EQ(cache_bytes(m.config, positions), bytes);
  EXPECT_EQ(bytes, 2 * 2 * 192 * 2 * 8 * 4);  // keys and values, layers, positions, heads, width, bytes
}

TEST(GenerationCache, MoreThanTheCacheHoldsIsABrokenInvariant) {
  SmallModel m(small_llama(), 8, {1, 8});
  const std::vector<int32_t> ids = random_ids(9, 6);
  EXPECT_THROW(m.decoder->encode(ids), Error);
  EXPECT_EQ(m.decoder->length(), 0);
  m.decoder->encode(std::span(ids).first(8));
  EXPECT_EQ(m.decoder->length(), 8);
  EXPECT_THROW(m.decoder->encode(std::span(ids).first(1)), Error);
  EXPECT_THROW(m.decoder->truncate(9), Error);
}

}  // namespace
}  // namespace nibble
