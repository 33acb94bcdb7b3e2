// Obligation G5 of spec/generation.md for the decode graph: however a text is cut into calls, caches and logits have
// the same bits, and they are those of the graph over whole rows.
#include "models/graphs.h"

#include <gtest/gtest.h>

#include <cstring>

#include "models/tiny_llama.h"

namespace nibble {
namespace {

constexpr int64_t length = 150;  // more than two tiles of keys

struct Decoded {
  std::map<std::string, std::vector<float>> caches;
  std::map<int64_t, std::vector<float>> logits;  // by position of the last row of a call
};

std::vector<float> copy(const Tensor& t) { return {t.as<float>(), t.as<float>() + t.numel()}; }

// Rows of the bucket beyond the chunk hold leftovers: they must not matter.
Decoded decode(const LlamaConfig& c, const TinyInputs& in, int64_t bucket, int64_t chunk, CpuTarget target) {
  Program program(plan_program({{"decode", llama_decode_graph(c, bucket, length)}}, 2, target));
  fill(program, "decode", [&] {
    TinyInputs rows = in;
    rows.tokens.assign(static_cast<size_t>(bucket), 5), rows.positions.assign(static_cast<size_t>(bucket), 3);
    return rows;
  }());
  Executable& x = program.executable("decode");
  Decoded d;
  for (int64_t start = 0; start < length; start += chunk) {
    const int64_t count = std::min(chunk, length - start);
    std::copy_n(in.tokens.data() + start, count, x.input("tokens").as<int32_t>());
    for (int64_t i = 0; i < count; ++i) x.input("positions").as<int32_t>()[i] = static_cast<int32_t>(start + i);
    x.input("span").as<int32_t>()[0] = static_cast<int32_t>(start),
    x.input("span").as<int32_t>()[1] = static_cast<int32_t>(count);
    x.input("last").as<int32_t>()[0] = static_cast<int32_t>(count - 1);
    x.run();
    d.logits[start + count - 1] = copy(x.output("logits"));
  }
  for (const StateInfo& s : program.plan().states)
    if (s.role == StateRole::kv_cache) d.caches[s.name] = copy(program.state(s.role, s.name));
  return d;
}

TEST(GenerationG5, AnyCutIntoCallsGivesTheSameBits) {
  for (const auto& [tied, window] : {std::pair<bool, int64_t>{false, 0}, {true, 0}, {false, 70}, {true, 5}}) {
    LlamaConfig c = tiny_llama(tied);
    c.window = window;
    TinyInputs in = tiny_inputs(c, {1, length});
    for (int64_t t = 0; t < length; ++t)
      in.positions[static_cast<size_t>(t)] = static_cast<int32_t>(t), in.segments[static_cast<size_t>(t)] = 1;
    const Graph rows = llama_logits_graph(c, {1, length});
    Interpreter whole(rows, Scalar::f32);
    fill(whole, rows, Scalar::f32, in);
    whole.run();
    const Tensor want = whole.output("logits");
    for (const CpuTarget target : cpu_targets()) {
      const Decoded prefill = decode(c, in, length, length, target);
      EXPECT_EQ(prefill.caches.size(), 4u);
      for (const auto& [bucket, chunk] :
           {std::pair<int64_t, int64_t>{length, length}, {1, 1}, {7, 7}, {64, 64}, {64, 40}}) {
        const Decoded d = decode(c, in, bucket, chunk, target);
        EXPECT_EQ(d.caches, prefill.caches) << chunk << " of " << bucket << " on " << name_of(target);
        EXPECT_EQ(static_cast<int64_t>(d.logits.size()), (length + chunk - 1) / chunk);
        for (const auto& [position, logits] : d.logits)
          EXPECT_EQ(std::memcmp(logits.data(), want.as<float>() + position * c.vocab, logits.size() * 4), 0)
              << "position " << position << " in chunks of " << chunk << " on " << name_of(target);
      }
    }
  }
}

// Two layers of a window of five keys reach eight positions back.
TEST(TrainingT15, TokensBeforeTheWindowsChangeNoBit) {
  LlamaConfig c = tiny_llama();
  c.window = 5;
  constexpr int64_t changed = 20, reach = 2 * (5 - 1);
  const auto logits = [&](int32_t token, CpuTarget target) {
    TinyInputs in = tiny_inputs(c, {1, length});
    std::fill(in.segments.begin(), in.segments.end(), 1);
    in.tokens[changed] = token;
    Program program(plan_program({{"logits", llama_logits_graph(c, {1, length})}}, 2, target));
    fill(program, "logits", in);
    program.executable("logits").run();
    return copy(program.executable("logits").output("logits"));
  };
  for (const CpuTarget target : cpu_targets()) {
    const std::vector<float> a = logits(1, target), b = logits(2, target);
    for (int64_t t = 0; t < length; ++t) {
      const bool same = std::equal(a.begin() + t * c.vocab, a.begin() + (t + 1) * c.vocab, b.begin() + t * c.vocab);
      EXPECT_EQ(same, t < changed || t > changed + reach) << t << " on " << name_of(target);
    }
  }
}

TEST(GenerationG5, HeadScaleIsInEveryGraph) {
  LlamaConfig c = tiny_llama(true);
  c.head_scale = 0.25;
  TinyInputs in = tiny_inputs(c, {1, 4});
  const auto logits = [&](double head_scale) {
    c.head_scale = head_scale;
    const Graph g = llama_logits_graph(c, {1, 4});
    Interpreter run(g, Scalar::f64);
    fill(run, g, Scalar::f64, in);
    run.run();
    return std::vector<double>(run.output("logits").as<double>(), run.output("logits").as<double>() + 4 * c.vocab);
  };
  const std::vector<double> scaled = logits(0.25), plain = logits(1);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4);
}

TEST(TrainingT15, AnotherDocumentChangesNoBit) {
  const LlamaConfig c = tiny_llama();
  const BatchShape shape{1, 80};
  const Graph g = llama_logits_graph(c, shape);
  TinyInputs in = tiny_inputs(c, shape);
  for (size_t t = 0; t < 80; ++t)
    in.segments[t] = t < 33 ? 1 : t < 75 ? 2 : 0, in.positions[t] = static_cast<int32_t>(t < 33 ? t : t - 33);
  const auto logits = [&](const TinyInputs& inputs) {
    Interpreter run(g, Scalar::f32);
    fill(run, g, Scalar::f32, inputs);
    run.run();
    return copy(run.output("logits"));
  };
  const std::vector<float> before = logits(in);
  TinyInputs changed = in;
  for (size_t t = 0; t < 33; ++t) changed.tokens[t] = static_cast<int32_t>((in.tokens[t] + 1) % c.vocab);
  const std::vector<float> after = logits(changed);
  const auto row = [&](const std::vector<float>& list, size_t t) {
    return std::vector<float>(list.begin() + static_cast<std::ptrdiff_t>(t) * c.vocab,
                              list.begin() + static_cast<std::ptrdiff_t>(t + 1) * c.vocab);
  };
  for (size_t t = 0; t < 80; ++t) EXPECT_EQ(row(before, t) == row(after, t), t >= 33) << t;
}

}  // namespace
}  // namespace nibble
