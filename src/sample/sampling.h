// From one row of logits to one token: filters in a fixed order, then a draw by inverse CDF with a random number that
// is named by a counter. One implementation serves every generation mode.  Source: spec/generation.md 1.3 to 1.5.
//
//   check -> forbid -> repetition penalty -> (T = 0: argmax) -> / T -> top-k -> top-p -> min-p -> renormalise -> draw
//
// Logits are f32 and are widened exactly; all that follows is f64 with nibble's own exp and log, sums over ascending
// ids. "Equal numbers mean different laws" in programs with another order, so the order is a table below and a test
// permutes it. No Gumbel-max: in low precision it lowers the temperature (arXiv 2409.02908).
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/philox.h"

namespace nibble {

/// What shapes the law of the next token.  Source: spec/generation.md 1.3 (defaults there).
struct SamplingParams {
  double temperature = 1;         // >= 0; 0 = greedy
  int64_t top_k = 0;              // >= 0; 0 = off
  double top_p = 1;               // (0, 1]; 1 = off
  double min_p = 0;               // [0, 1]; 0 = off
  double repetition_penalty = 1;  // > 0; 1 = off
};

/// Throws E002 naming key, value and legal range. NaN is out of range; nothing is clamped.
void check_sampling(const SamplingParams& params);

/// Which row of logits this is, for messages.
struct RowPlace {
  int64_t sequence = 0, position = 0, step = 0;
};

enum class SamplingStep { penalty, temperature, top_k, top_p, min_p };
using SamplingOrder = std::array<SamplingStep, 5>;
inline constexpr SamplingOrder sampling_order = {SamplingStep::penalty, SamplingStep::temperature, SamplingStep::top_k,
                                                 SamplingStep::top_p, SamplingStep::min_p};

/// Owns the f64 buffers of one row (about 29 bytes a logit), so no token allocates. Not for two threads at a time.
class Sampler {
 public:
  /// vocab: length V of a row of logits. usable: ids at or above it (rows of padding) are never drawn.
  Sampler(int64_t vocab, int64_t usable);

  /// The surviving ids, ascending, and their probabilities (sum 1 up to rounding).
  struct Law {
    std::span<const int32_t> ids;
    std::span<const double> probabilities;
  };
  /// Law of the next token; the spans live until the next call.
  ///
  ///   logits     [V] f32
  ///   seen       ids of prompt and generated text, repeats allowed: each is penalised once
  ///   forbidden  ids never drawn: configured ones, EOS and stop ids while too few tokens exist
  ///   order      sampling_order; a test passes others
  /// Errors: E705 (NaN, +Inf, no finite logit, or nothing left after forbidding) naming sequence, position and step.
  Law law(std::span<const float> logits, const SamplingParams& params, std::span<const int32_t> seen,
          std::span<const int32_t> forbidden, RowPlace place, const SamplingOrder& order = sampling_order);

  /// First id of the last law whose cumulative mass exceeds u; the last survivor if rounding leaves none. u in [0, 1).
  int32_t draw(double u) const;

 private:
  void forbid(std::span<const int32_t> forbidden);
  void penalise(std::span<const int32_t> seen, double penalty);
  void keep_top_k(int64_t k);
  void keep_top_p(double p);
  void keep_min_p(double share);
  void softmax();

  int64_t usable_;
  std::vector<double> scores_;         // [V] by id
  std::vector<int32_t> ids_;           // survivors, ascending between steps
  std::vector<double> probabilities_;  // of ids_
  std::vector<double> mass_;           // [V] by id, for orders other than ascending
  std::vector<uint8_t> marked_;        // [V] ids already penalised
};

/// Log-softmax of the unmodified row at id, in nats: what is reported as a token's log-probability (1.4, step 10).
double log_probability(std::span<const float> logits, int32_t id);

/// Throws E705 for NaN, +Inf, or no finite logit; -Inf is accepted.
void check_logits(std::span<const float> logits, RowPlace place);

/// What a random number is for; stream = 0x200 + purpose.  Source: spec/generation.md 1.5.
enum SamplePurpose : uint32_t {
  purpose_ar_draw = 1,
  purpose_canvas_init = 2,
  purpose_canvas_draw = 3,
  purpose_renoise = 4,
  purpose_accept = 5,
  purpose_residual = 6,
  purpose_position = 7,
  purpose_corruption = 16,
  purpose_time = 17,
  purpose_self_conditioning = 18,
  purpose_block = 19,
  purpose_bootstrap = 32,
};

/// The four words of one draw: counter (position, row, step, 0x200 + purpose), key (seed, site). In generation the
/// site is the sample index and row is 0; so a token depends on nothing but (seed, sample, position, step, purpose).
constexpr PhiloxWords draw_words(uint32_t seed, uint32_t site, uint32_t position, uint32_t step, uint32_t purpose,
                                 uint32_t row = 0) {
  return philox4x32({position, row, step, stream_generation + purpose}, seed, site);
}

/// Uniform in [0, 1), a multiple of 2^-53, from words 0 and 1.
constexpr double uniform_of(const PhiloxWords& w) {
  return static_cast<double>((uint64_t{w[0]} << 32 | w[1]) >> 11) * 0x1p-53;
}

/// Uniform id in [0, vocab), vocab < 2^31, from words 2 and 3.
constexpr int32_t uniform_token_of(const PhiloxWords& w, int64_t vocab) {
  // (w2 2^32 + w3) * vocab >> 64 in two 64-bit halves, each product below 2^63.
  const uint64_t v = static_cast<uint64_t>(vocab), low = uint64_t{w[3]} * v, high = uint64_t{w[2]} * v;
  return static_cast<int32_t>((high + (low >> 32)) >> 32);
}

}  // namespace nibble
