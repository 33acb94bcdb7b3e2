#include "sample/generate.h"

#include <algorithm>
#include <chrono>

#include "data/utf8.h"

namespace nibble {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool contains(const std::vector<int32_t>& list, int32_t id) { return std::ranges::find(list, id) != list.end(); }

// Bytes of tokens to shown text: stop strings first, on bytes, then whole characters.
class TextOut {
 public:
  TextOut(const GenerateOptions& options, const GenerateEvents& events, std::string& text)
      : stop_(options.stop), events_(events), text_(text) {}
  void feed(std::string_view bytes) { show(characters_.feed(stop_.feed(bytes))); }
  bool stopped() const { return stop_.finished(); }
  void finish() {
    if (!stop_.finished()) show(characters_.feed(stop_.finish()));
    show(characters_.finish());
  }

 private:
  void show(const std::string& delta) {
    if (delta.empty()) return;
    text_ += delta;
    if (events_.text) events_.text(delta);
  }
  StopStream stop_;
  Utf8Stream characters_;
  const GenerateEvents& events_;
  std::string& text_;
};

void check_options(const GenerateOptions& o, int64_t vocab) {
  check_sampling(o.sampling);
  for (const std::string& stop : o.stop)
    if (stop.empty())
      throw Error("E002", "stop holds an empty string")
          .expected("strings of at least one byte", "\"\"")
          .hint("stop=[\"\\n\\n\"], or no stop");
  for (const auto& [key, ids] : {std::pair("stop_ids", &o.stop_ids), std::pair("forbid_ids", &o.forbid_ids)})
    for (const int32_t id : *ids)
      if (id < 0 || id >= vocab)
        throw Error("E002", "{} holds {}, the model has {} ids", key, id, vocab)
            .expected(fmt::format("ids from 0 to {}", vocab - 1), fmt::format("{}", id))
            .hint("{}=[{}]", key, vocab - 1);
}

}  // namespace

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "?";
}

Generated generate(Decoder& decoder, const Tokenizer& tokenizer, const std::vector<int32_t>& eos,
                   std::span<const int32_t> prompt, int64_t vocab, const GenerateOptions& o,
                   const GenerateEvents& events) {
  check_options(o, vocab);
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  if (prompt_length > decoder.capacity() - 1)
    throw Error("E311", "the prompt has {} tokens, the context holds {}", prompt_length, decoder.capacity())
        .expected(fmt::format("at most {} tokens", decoder.capacity() - 1), fmt::format("{}", prompt_length))
        .hint("n_ctx={} or more, or a shorter prompt", prompt_length + 1 + o.max_new_tokens);
  Generated result;
  std::vector<int32_t> seen(prompt.begin(), prompt.end()), ending(o.stop_ids), early(o.forbid_ids);
  if (!o.ignore_eos) ending.insert(ending.end(), eos.begin(), eos.end());
  early.insert(early.end(), eos.begin(), eos.end());
  early.insert(early.end(), o.stop_ids.begin(), o.stop_ids.end());
  seen.reserve(static_cast<size_t>(decoder.capacity()));
  Sampler sampler(vocab, std::min(vocab, tokenizer.vocab_size()));
  TextOut out(o, events, result.text);
  decoder.truncate(0);
  auto start = std::chrono::steady_clock::now();
  std::span<const float> logits = o.max_new_tokens > 0 ? decoder.encode(prompt) : std::span<const float>{};
  result.prompt_seconds = seconds_since(start);
  start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < o.max_new_tokens; ++i) {
    if (events.cancelled && events.cancelled()) {
      result.reason = FinishReason::cancelled;
      break;
    }
    const int64_t position = decoder.length();
    sampler.law(logits, o.sampling, seen, i < o.min_new_tokens ? early : o.forbid_ids, {o.sample, position, i});
    const auto words = draw_words(o.seed, o.sample, static_cast<uint32_t>(position), 0, purpose_ar_draw);
    const int32_t id = sampler.draw(uniform_of(words));
    result.ids.push_back(id), seen.push_back(id);
    if (events.token) events.token(id, log_probability(logits, id));
    if (contains(ending, id)) {
      result.reason = FinishReason::stop;
      break;
    }
    out.feed(o.special ? tokenizer.text_of(id) : tokenizer.bytes_of(id));
    if (out.stopped()) {
      result.reason = FinishReason::stop;
      break;
    }
    // The token just drawn takes position length(); the last position of the context needs no logits any more.
    if (i + 1 == o.max_new_tokens || decoder.length() + 1 == decoder.capacity()) break;
    logits = decoder.encode({&id, 1});
  }
  out.finish();
  result.decode_seconds = seconds_since(start);
  return result;
}

}  // namespace nibble
