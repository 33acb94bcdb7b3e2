// The sampling pipeline.  What and why: sampling.h.  Source: spec/generation.md 1.4.
#include "sample/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "numerics/functions.h"

namespace nibble {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// Below it logits / T could overflow; two different f32 logits are then so far apart that the largest has all mass.
constexpr double smallest_temperature = 1e-260;

void require(bool ok, std::string_view key, double value, std::string_view range) {
  if (ok) return;
  throw Error("E002", "{}={} is out of range", key, value)
      .where("sampling parameters")
      .expected(fmt::format("{} in {}", key, range), fmt::format("{}", value))
      .hint("leave {} out for its default", key);
}

}  // namespace

void check_sampling(const SamplingParams& p) {
  const double infinity = -minus_infinity;
  require(p.temperature >= 0 && p.temperature < infinity, "temperature", p.temperature, "[0, inf)");
  require(p.top_k >= 0, "top_k", static_cast<double>(p.top_k), "[0, inf)");
  require(p.top_p > 0 && p.top_p <= 1, "top_p", p.top_p, "(0, 1]");
  require(p.min_p >= 0 && p.min_p <= 1, "min_p", p.min_p, "[0, 1]");
  require(p.repetition_penalty > 0 && p.repetition_penalty < infinity, "repetition_penalty", p.repetition_penalty,
          "(0, inf)");
}

void check_logits(std::span<const float> logits, RowPlace place) {
  bool any_finite = false;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float x = logits[id];
    if (std::isnan(x) || x == std::numeric_limits<float>::infinity())
      throw Error("E705", "logit {} of id {} while generating", std::isnan(x) ? "NaN" : "+Inf", id)
          .where("sequence {}, position {}, step {}", place.sequence, place.position, place.step)
          .hint("the weights hold or produce non-finite numbers: generate from an older checkpoint");
    any_finite |= std::isfinite(x);
  }
  if (!any_finite)
    throw Error("E705", "no finite logit while generating: all {} are -Inf", logits.size())
        .where("sequence {}, position {}, step {}", place.sequence, place.position, place.step)
        .hint("the weights hold or produce non-finite numbers: generate from an older checkpoint");
}

double log_probability(std::span<const float> logits, int32_t id) {
  double m = minus_infinity, sum = 0;
  for (const float x : logits) m = std::max(m, static_cast<double>(x));
  for (const float x : logits) sum += exp_f64(static_cast<double>(x) - m);
  return static_cast<double>(logits[static_cast<size_t>(id)]) - m - log_f64(sum);
}

Sampler::Sampler(int64_t vocab, int64_t usable) : usable_(std::min(vocab, usable)) {
  const size_t v = static_cast<size_t>(vocab);
  scores_.resize(v);
  mass_.resize(v);
  marked_.resize(v);
  ids_.reserve(v);
  probabilities_.reserve(v);
}

Sampler::Law Sampler::law(std::span<const float> logits, const SamplingParams& params, std::span<const int32_t> seen,
                          std::span<const int32_t> forbidden, RowPlace place, const SamplingOrder& order) {
  NIBBLE_CHECK(logits.size() == scores_.size(), "a row of {} logits for a sampler of {}", logits.size(),
               scores_.size());
  check_logits(logits, place);
  std::copy(logits.begin(), logits.end(), scores_.begin());
  forbid(forbidden);
  if (ids_.empty())
    throw Error("E705", "no token left to draw: every id with a finite logit is forbidden")
        .where("sequence {}, position {}, step {}", place.sequence, place.position, place.step)
        .hint("fewer forbid_ids, or min_new_tokens=0");
  for (const SamplingStep step : order) {
    switch (step) {
      case SamplingStep::penalty:
        penalise(seen, params.repetition_penalty);
        break;
      case SamplingStep::temperature:
        if (params.temperature < smallest_temperature) {
          keep_top_k(1);
        } else {
          for (const int32_t id : ids_) scores_[static_cast<size_t>(id)] /= params.temperature;
        }
        break;
      case SamplingStep::top_k:
        if (params.top_k > 0) keep_top_k(params.top_k);
        break;
      case SamplingStep::top_p:
        if (params.top_p < 1) keep_top_p(params.top_p);
        break;
      case SamplingStep::min_p:
        if (params.min_p > 0) keep_min_p(params.min_p);
        break;
    }
  }
  softmax();
  return {ids_, probabilities_};
}

void Sampler::forbid(std::span<const int32_t> forbidden) {
  for (const int32_t id : forbidden)
    if (id >= 0 && id < usable_) scores_[static_cast<size_t>(id)] = minus_infinity;
  ids_.clear();
  for (int64_t id = 0; id < usable_; ++id)
    if (scores_[static_cast<size_t>(id)] > minus_infinity) ids_.push_back(static_cast<int32_t>(id));
}

void Sampler::penalise(std::span<const int32_t> seen, double penalty) {
  if (penalty == 1) return;
  for (const int32_t id : seen) {
    if (id < 0 || id >= usable_ || marked_[static_cast<size_t>(id)]) continue;
    marked_[static_cast<size_t>(id)] = 1;
    double& score = scores_[static_cast<size_t>(id)];
    score = score > 0 ? score / penalty : score * penalty;
  }
  for (const int32_t id : seen)
    if (id >= 0 && id < usable_) marked_[static_cast<size_t>(id)] = 0;
}

// Keeps exactly the first k in the order (score descending, id ascending).
void Sampler::keep_top_k(int64_t k) {
  if (k >= static_cast<int64_t>(ids_.size())) return;
  const auto before = [this](int32_t a, int32_t b) {
    const double x = scores_[static_cast<size_t>(a)], y = scores_[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::nth_element(ids_.begin(), ids_.begin() + k - 1, ids_.end(), before);
  ids_.resize(static_cast<size_t>(k));
  std::sort(ids_.begin(), ids_.end());
}

// In the same order keeps ids while the mass before them is below p. A heap gives that order lazily: the nucleus is
// small, the vocabulary is not.
void Sampler::keep_top_p(double p) {
  softmax();
  for (size_t i = 0; i < ids_.size(); ++i) mass_[static_cast<size_t>(ids_[i])] = probabilities_[i];
  const auto after = [this](int32_t a, int32_t b) {
    const double x = scores_[static_cast<size_t>(a)], y = scores_[static_cast<size_t>(b)];
    return x < y || (x == y && a > b);
  };
  std::make_heap(ids_.begin(), ids_.end(), after);
  double before = 0;
  auto end = ids_.end();
  while (end != ids_.begin() && before < p) {  // the first is always kept: before = 0 < p
    std::pop_heap(ids_.begin(), end, after);
    before += mass_[static_cast<size_t>(*--end)];
  }
  ids_.erase(ids_.begin(), end);
  std::sort(ids_.begin(), ids_.end());
}

void Sampler::keep_min_p(double share) {
  softmax();
  const double limit = share * *std::max_element(probabilities_.begin(), probabilities_.end());
  size_t kept = 0;
  for (size_t i = 0; i < ids_.size(); ++i)
    if (probabilities_[i] >= limit) ids_[kept++] = ids_[i];
  ids_.resize(kept);
}

// Softmax over the survivors; the sum runs over ascending ids.
void Sampler::softmax() {
  double m = minus_infinity, sum = 0;
  for (const int32_t id : ids_) m = std::max(m, scores_[static_cast<size_t>(id)]);
  probabilities_.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) {
    probabilities_[i] = exp_f64(scores_[static_cast<size_t>(ids_[i])] - m);
    sum += probabilities_[i];
  }
  for (double& p : probabilities_) p /= sum;
}

int32_t Sampler::draw(double u) const {
  double cumulative = 0;
  int32_t last = ids_.front();
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (probabilities_[i] == 0) continue;  // underflow of exp: no mass, no draw
    cumulative += probabilities_[i];
    last = ids_[i];
    if (u < cumulative) break;
  }
  return last;
}

}  // namespace nibble
