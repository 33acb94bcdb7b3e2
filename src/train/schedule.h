// Learning-rate schedules (spec/training.md 2.9), in f64 from step 0; a value is rounded to f32 once, where it is used.
#pragma once
#include <cstdint>
#include <optional>

namespace nibble {

struct Schedule {
  enum class Kind { cosine, wsd, constant, linear } kind = Kind::cosine;
  double peak = 0, final_fraction = 0.1;
  int64_t length = 1;           // S
  int64_t warmup = 0;           // steps; step 0 of a warm-up has rate 0
  double decay_fraction = 0.1;  // wsd: share of S that decays
  bool cosine_decay = false;    // wsd: linear otherwise

  /// Rate of a step; 0 from step S on.
  double rate(int64_t step) const;
  /// First step of the wsd decay.
  int64_t decay_start() const;
  /// First step of the decay: of wsd as above, of cosine and linear the first one after the warm-up; constant has none.
  std::optional<int64_t> first_decay_step() const;
};

/// int(S * fraction): the f64 product, truncated.
int64_t warmup_from_fraction(int64_t length, double fraction);

}  // namespace nibble
