// The sampling pipeline and its random numbers: obligations G1 to G4 of spec/generation.md 7.
#include "sample/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

const Json& golden() {
  static const Json all = Json::parse(std::ifstream(NIBBLE_GOLDEN_DIR "/generation.json"));
  return all;
}

struct Case {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> seen, forbidden;
  std::vector<int32_t> ids;  // golden survivors, ascending
  std::vector<double> probabilities;
  std::vector<std::pair<double, int32_t>> draws;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Json& j : golden().at("sampling_pipeline")) {
    Case c{.logits = j.at("logits").get<std::vector<float>>()};
    const Json& p = j.at("params");
    c.params.temperature = p.value("temperature", 1.0);
    c.params.top_k = p.value("top_k", 0);
    c.params.top_p = p.value("top_p", 1.0);
    c.params.min_p = p.value("min_p", 0.0);
    c.params.repetition_penalty = p.value("repetition_penalty", 1.0);
    c.seen = p.value("seen", std::vector<int32_t>{});
    c.forbidden = p.value("forbid", std::vector<int32_t>{});
    for (const auto& [id, probability] : j.at("probs").items()) {  // one digit each: text order is id order
      c.ids.push_back(std::stoi(id));
      c.probabilities.push_back(probability.get<double>());
    }
    for (const Json& d : j.at("draws")) c.draws.emplace_back(d[0].get<double>(), d[1].get<int32_t>());
    out.push_back(std::move(c));
  }
  return out;
}

// Empty if the case gives its golden law and draws in this order of steps, else what differs.
std::string difference(const Case& c, const SamplingOrder& order) {
  Sampler sampler(static_cast<int64_t>(c.logits.size()), static_cast<int64_t>(c.logits.size()));
  const Sampler::Law law = sampler.law(c.logits, c.params, c.seen, c.forbidden, {}, order);
  if (!std::equal(law.ids.begin(), law.ids.end(), c.ids.begin(), c.ids.end())) return "survivors";
  for (size_t i = 0; i < c.ids.size(); ++i)
    if (!(std::abs(law.probabilities[i] - c.probabilities[i]) <= 1e-12)) return "probability";
  for (const auto& [u, id] : c.draws)
    if (sampler.draw(u) != id) return "draw";
  return "";
}

TEST(GenerationG1, GoldenPipeline) {
  const std::vector<Case> all = cases();
  ASSERT_EQ(all.size(), 12u);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(difference(all[i], sampling_order), "") << "case " << i;
}

TEST(GenerationG1, PermutingTwoFiltersIsNoticed) {
  using enum SamplingStep;
  const SamplingOrder wrong[] = {{penalty, top_p, top_k, temperature, min_p},
                                 {penalty, min_p, top_k, top_p, temperature},
                                 {top_p, temperature, top_k, penalty, min_p}};
  for (size_t w = 0; w < std::size(wrong); ++w) {
    int failing = 0;
    for (const Case& c : cases()) failing += !difference(c, wrong[w]).empty();
    EXPECT_GE(failing, 1) << "order " << w;
  }
}

// Orders that golden cannot tell apart, on rows made for it; the wanted survivors are worked out by hand.
TEST(GenerationG1, TopKBeforeTopPBeforeMinP) {
  using enum SamplingStep;
  const auto survivors = [](const std::vector<double>& law, const SamplingParams& p, const SamplingOrder& order) {
    std::vector<float> logits;
    for (const double q : law) logits.push_back(static_cast<float>(std::log(q)));
    Sampler sampler(static_cast<int64_t>(law.size()), static_cast<int64_t>(law.size()));
    const Sampler::Law result = sampler.law(logits, p, {}, {}, {}, order);
    return std::vector<int32_t>(result.ids.begin(), result.ids.end());
  };
  using Ids = std::vector<int32_t>;
  // Of {.4 .2 .2 .2} top-k 2 leaves {2/3 1/3}; the mass before id 1 is then .667 > .5, in the whole row .4 < .5.
  const std::vector<double> row = {.4, .2, .2, .2};
  const SamplingParams k_and_p{.top_k = 2, .top_p = .5};
  EXPECT_EQ(survivors(row, k_and_p, sampling_order), (Ids{0}));
  EXPECT_EQ(survivors(row, k_and_p, {penalty, temperature, top_p, top_k, min_p}), (Ids{0, 1}));
  // min-p .3 drops ids 2 to 6 of {.3 .3 .08 x 5}; before top-p .45 that halves the mass in front of id 1 to .5.
  const std::vector<double> flat = {.3, .3, .08, .08, .08, .08, .08};
  const SamplingParams p_and_min{.top_p = .45, .min_p = .3};
  EXPECT_EQ(survivors(flat, p_and_min, sampling_order), (Ids{0, 1}));
  EXPECT_EQ(survivors(flat, p_and_min, {penalty, temperature, top_k, min_p, top_p}), (Ids{0}));
}

TEST(GenerationG1, TiesGoToTheLowerId) {
  Sampler sampler(5, 5);
  const float logits[] = {1, 3, 3, 3, 0};
  EXPECT_EQ(sampler.law(logits, {.temperature = 0}, {}, {}, {}).ids[0], 1);
  const Sampler::Law two = sampler.law(logits, {.top_k = 2}, {}, {}, {});
  EXPECT_EQ(std::vector<int32_t>(two.ids.begin(), two.ids.end()), (std::vector<int32_t>{1, 2}));
  const Sampler::Law nucleus = sampler.law(logits, {.top_p = .4}, {}, {}, {});  // each of the three has mass .30
  EXPECT_EQ(std::vector<int32_t>(nucleus.ids.begin(), nucleus.ids.end()), (std::vector<int32_t>{1, 2}));
}

TEST(GenerationG1, PaddingAndMinusInfinityAreNeverDrawn) {
  const float inf = std::numeric_limits<float>::infinity();
  Sampler sampler(5, 4);  // id 4 lies above the tokenizer
  const float logits[] = {0, -inf, 0, 0, 9};
  const int32_t forbidden[] = {2, 7, -1};  // ids outside the row are no error
  const Sampler::Law law = sampler.law(logits, {}, {}, forbidden, {});
  EXPECT_EQ(std::vector<int32_t>(law.ids.begin(), law.ids.end()), (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(law.probabilities[0], .5);
  EXPECT_EQ(sampler.draw(0x1.fffffffffffffp-1), 3);
}

TEST(GenerationG1, TinyTemperatureIsGreedyAndFinite) {
  Sampler sampler(3, 3);
  const float logits[] = {-3e38f, 3e38f, 1};
  for (const double temperature : {1e-300, 1e-260, 1e-200}) {
    const Sampler::Law law = sampler.law(logits, {.temperature = temperature}, {}, {}, {});
    EXPECT_EQ(sampler.draw(.999), 1) << temperature;
    for (const double p : law.probabilities) EXPECT_TRUE(p == 0 || p == 1) << temperature;
  }
}

// Wilson-Hilferty quantile 1 - 1e-6 of chi-square with k degrees of freedom (the formula of section 7).
double chi_square_limit(double k) {
  const double a = 2 / (9 * k);
  return k * std::pow(1 - a + 4.753 * std::sqrt(a), 3);
}

TEST(GenerationG2, MillionDrawsFollowTheGoldenLaw) {
  constexpr int64_t draws = 1'000'000;
  EXPECT_NEAR(chi_square_limit(7), 41.9, .05);
  uint32_t row = 0;
  for (const Case& c : cases()) {
    ++row;
    if (c.params.temperature == 0) continue;
    Sampler sampler(static_cast<int64_t>(c.logits.size()), static_cast<int64_t>(c.logits.size()));
    sampler.law(c.logits, c.params, c.seen, c.forbidden, {});
    std::vector<int64_t> count(c.logits.size());
    for (uint32_t position = 0; position < draws; ++position)
      ++count[static_cast<size_t>(sampler.draw(uniform_of(draw_words(row, 0, position, 0, purpose_ar_draw))))];
    double chi = 0;
    int64_t inside = 0;
    for (size_t i = 0; i < c.ids.size(); ++i) {
      const double expected = draws * c.probabilities[i];
      const int64_t n = count[static_cast<size_t>(c.ids[i])];
      chi += (static_cast<double>(n) - expected) * (static_cast<double>(n) - expected) / expected;
      inside += n;
    }
    EXPECT_EQ(inside, draws) << "row " << row << " drew an id that did not survive";
    EXPECT_LT(chi, chi_square_limit(static_cast<double>(c.ids.size()) - 1)) << "row " << row;
  }
}

TEST(GenerationG3, GoldenRandomNumbers) {
  const Json& all = golden().at("rng");
  ASSERT_EQ(all.size(), 6u);
  for (const Json& j : all) {
    const PhiloxWords w =
        draw_words(j.at("seed"), j.at("site"), j.at("position"), j.at("step"), j.at("purpose"), j.at("row"));
    EXPECT_EQ(Json(w), j.at("words"));
    EXPECT_EQ(uniform_of(w), j.at("u").get<double>());
    EXPECT_EQ(uniform_token_of(w, j.at("vocab")), j.at("token").get<int32_t>());
  }
}

TEST(GenerationG4, NonFiniteRowsNameTheirPlace) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  struct Row {
    const char* why;
    std::array<float, 3> logits;
  };
  const Row rows[] = {{"NaN", {0, nan, 0}}, {"+Inf", {0, 1, inf}}, {"all 3 are -Inf", {-inf, -inf, -inf}}};
  Sampler sampler(3, 3);
  for (const Row& row : rows) {
    try {
      sampler.law(row.logits, {.temperature = 0}, {}, {}, {.sequence = 4, .position = 57, .step = 2});
      ADD_FAILURE() << row.why << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E705");
      EXPECT_EQ(e.exit_code(), exit_numeric);
      EXPECT_NE(e.what_text.find(row.why), std::string::npos) << e.what_text;
      EXPECT_EQ(e.where_text, "sequence 4, position 57, step 2");
    }
  }
}

TEST(GenerationG4, NothingLeftToDraw) {
  Sampler sampler(2, 2);
  const float logits[] = {0, 1};
  const int32_t both[] = {0, 1};
  EXPECT_THROW(sampler.law(logits, {}, {}, both, {}), Error);
}

TEST(GenerationParameters, OutOfRangeIsE002) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<const char*, SamplingParams> wrong[] = {{"temperature", {.temperature = -1}},
                                                          {"temperature", {.temperature = nan}},
                                                          {"top_k", {.top_k = -1}},
                                                          {"top_p", {.top_p = 0}},
                                                          {"top_p", {.top_p = 1.5}},
                                                          {"min_p", {.min_p = -.1}},
                                                          {"min_p", {.min_p = nan}},
                                                          {"repetition_penalty", {.repetition_penalty = 0}}};
  for (const auto& [key, params] : wrong) {
    try {
      check_sampling(params);
      ADD_FAILURE() << key << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E002");
      EXPECT_NE(e.message().find(key), std::string::npos) << e.message();
    }
  }
  check_sampling({.temperature = 0, .top_k = 5, .top_p = .9, .min_p = .1, .repetition_penalty = 1.1});
}

TEST(GenerationLogProbability, IsLogSoftmaxOfTheUnmodifiedRow) {
  const float logits[] = {2, 1, -3};
  const double sum = std::exp(2.0) + std::exp(1.0) + std::exp(-3.0);
  EXPECT_NEAR(log_probability(logits, 1), 1 - std::log(sum), 1e-14);
  const float masked[] = {0, -std::numeric_limits<float>::infinity()};
  EXPECT_EQ(log_probability(masked, 0), 0);
}

}  // namespace
}  // namespace nibble
