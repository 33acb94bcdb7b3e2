// Training with a recipe: equal bits wherever they are promised, every recipe learns, what is not finite is found.
// Obligations of spec/precision.md 10 by their numbers.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <map>

#include "core/quantized.h"
#include "io/run_folder.h"
#include "ops/values.h"
#include "tiny.h"
#include "train/fits.h"
#include "train/step.h"
#include "train/trainer.h"

namespace nibble {
namespace {

constexpr int64_t length = 32;

struct Trained {
  std::vector<double> losses, norms;
  uint64_t weights = 0, m = 0, v = 0;
  bool operator==(const Trained&) const = default;
};

StepConfig with_recipe(std::string_view name, const RecipeOptions& o = {}, DType dtype = DType::f32) {
  StepConfig c;
  c.model = tiny_model(), c.microbatch = {2, length}, c.dtype = dtype, c.z_loss = 1e-4, c.seed = 11;
  c.decayed = decay_mask(llama_parameters(c.model), {"norm"});
  if (!name.empty()) c.recipe = *recipe_of(name, c.model.layers, o);
  return c;
}

struct Steps {
  int64_t count = 3;
  double lr = 1e-2;
  bool one_batch = false;
};

Trained train(const StepConfig& c, ProgramPlan plan, const Steps& steps = {}) {
  Stepper s(c, std::move(plan));
  initialize_parameters(s.program(), s.parameters(), 3);
  Trained t;
  for (int64_t step = 0; step < steps.count; ++step) {
    const auto batch = static_cast<uint32_t>(steps.one_batch ? 0 : step);
    const RandomRows data(c.accumulation * c.microbatch.rows, length, 260, batch, 2);
    const StepResult r = s.run(data.rows(), steps.lr, step + 1);
    EXPECT_TRUE(r.updated) << c.recipe.name << " step " << step;
    t.losses.push_back(r.loss.loss()), t.norms.push_back(r.raw_norm);
  }
  t.weights = hash_of_states(s, StateRole::parameter), t.m = hash_of_states(s, StateRole::moment_m),
  t.v = hash_of_states(s, StateRole::moment_v);
  return t;
}
Trained train(const StepConfig& c, int threads, CpuTarget target, const Steps& steps = {}) {
  return train(c, plan_training(c, threads, target), steps);
}

// ---- equal bits ----

// A caller's rounding mode and flushing of subnormals change no bit, and are as they were afterwards.
TEST(PrecisionP6, TheFloatModeOfTheCallerChangesNothing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const StepConfig c = with_recipe("te_nvfp4", {}, dtype);
    const Trained want = train(c, 2, cpu_targets().back());
    const uint32_t before = _mm_getcsr(), odd = 0x1F80 | 0x8040 | 0x2000;  // FTZ, DAZ, round down
    for (const CpuTarget target : {CpuTarget::ref, cpu_targets().back()}) {
      if (dtype == DType::bf16 && target == CpuTarget::ref) continue;  // vdpbf16ps has bits of its own
      _mm_setcsr(odd);
      const Trained got = train(c, target == CpuTarget::ref ? 1 : 2, target);
      const uint32_t after = _mm_getcsr();
      _mm_setcsr(before);
      EXPECT_EQ(got.weights, want.weights) << name_of(target);
      EXPECT_EQ(got.m, want.m);
      EXPECT_EQ(got.v, want.v);
      EXPECT_EQ(after & ~0x3Fu, odd & ~0x3Fu);  // but for the flags of exceptions
    }
  }
}

// A change of one bit of one code is a change of the run: the hash is committed.
TEST(PrecisionP37, FiftyStepsAreTheSameBitsOnEveryPath) {
  const StepConfig c = with_recipe("te_nvfp4");
  for (const CpuTarget target : cpu_targets())
    for (const int threads : {1, 2}) {
      if (target == CpuTarget::ref && threads > 1) continue;  // its products run on one
      EXPECT_EQ(hex16(train(c, threads, target, {.count = 50}).weights), "df9fa9414fde5663")
          << name_of(target) << " " << threads << " threads";
    }
}

// Sums of 8-bit products may round in an order of their own where the target multiplies BF16 (5.4).
TEST(PrecisionP37, ThreadsAndTargetsChangeNoBit) {
  const Steps two{.count = 2};
  for (const char* name : {"te_nvfp4", "te_nvfp4_46", "quartet2", "mxfp4_rht_sr", "mxfp4_tseng", "mxfp4_quartet",
                           "fp8_delayed", "mxfp8"}) {
    const StepConfig c = with_recipe(name);
    const bool eight = block_format(c.recipe.dgrad.a.format).bits == 8;
    const Trained want = train(c, 1, CpuTarget::ref, two);
    for (const CpuTarget target : cpu_targets()) {
      if (target == CpuTarget::ref) continue;
      const Trained got = train(c, 2, target, two);
      if (eight && target == CpuTarget::avx512_bf16)
        EXPECT_NEAR(got.losses[1], want.losses[1], 1e-3 * want.losses[1]) << name;
      else
        EXPECT_EQ(got, want) << name << " " << name_of(target);
      if (target == cpu_targets().back()) {
        EXPECT_EQ(train(c, 1, target, two), got) << name;
      }
    }
  }
}

// In bf16 each target has bits of its own only where it has instructions of its own.
TEST(PrecisionP37, InBf16ThreadsChangeNoBit) {
  for (const char* name : {"te_nvfp4", "quartet2", "mxfp4_quartet"}) {
    const StepConfig c = with_recipe(name, {}, DType::bf16);
    const Trained plain = train(c, 1, CpuTarget::ref);
    for (const CpuTarget target : cpu_targets()) {
      if (target == CpuTarget::ref) continue;
      const Trained one = train(c, 1, target);
      EXPECT_EQ(train(c, 2, target), one) << name << " " << name_of(target);
      if (target != CpuTarget::avx512_bf16) {
        EXPECT_EQ(one, plain) << name << " " << name_of(target);
      }
    }
  }
}

// The seed and nothing else draws: the same again, other bits with another seed where a recipe draws, the same where it
// does not.
TEST(PrecisionP37, TheSeedKeysTheBits) {
  const CpuTarget target = cpu_targets().back();
  for (const auto& [name, draws] :
       {std::pair("te_nvfp4", true), {"quartet2", true}, {"mxfp4_quartet", true}, {"mxfp4", false}, {"mxfp8", false}}) {
    StepConfig c = with_recipe(name);
    const Trained want = train(c, 2, target);
    EXPECT_EQ(train(c, 2, target), want) << name;
    c.seed = 12;
    EXPECT_EQ(train(c, 2, target) != want, draws) << name;
    EXPECT_EQ(train(c, 2, target).losses[0], want.losses[0]) << name << ": nothing is drawn in the forward pass";
  }
}

TEST(DesignRule6, FusedStepEqualsUnfusedWithARecipe) {
  const Steps two{.count = 2};
  for (const char* name : {"te_nvfp4", "quartet2", "mxfp4_quartet", "fp8_delayed"})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const CpuTarget target : {CpuTarget::ref, cpu_targets().back()}) {
        if (target == CpuTarget::ref && std::string(name) != "te_nvfp4") continue;
        StepConfig c = with_recipe(name, {}, dtype);
        const Trained want = train(c, 2, target, two);
        c.fused = false;
        EXPECT_EQ(train(c, 2, target, two), want) << name << " " << name_of(target) << " " << name_of(dtype);
      }
}

TEST(PrecisionP23, RecomputationChangesNoBit) {
  const CpuTarget target = cpu_targets().back();
  for (const char* name : {"te_nvfp4", "mxfp4_rht_sr", "mxfp4_quartet", "quartet2", "fp8_delayed"}) {
    const Config plain = tiny_config({"dataset_type=synthetic", "gradient_accumulation_steps=2",
                                      "quantization=" + std::string(name), "remat_policy=none"});
    const StepConfig step = step_of(plain);
    EXPECT_EQ(step.recipe.name, name);
    const ProgramPlan kept = plan_run(plain, 2, target);
    EXPECT_EQ(kept.recomputation.nodes, 0);
    const Trained want = train(step, kept);
    for (const char* policy : {"full", "minimal", "save_qkv_proj"}) {
      ProgramPlan plan = plan_run(plain.with("remat_policy", policy, "test"), 2, target);
      EXPECT_GT(plan.recomputation.nodes, 0) << name << " " << policy;
      EXPECT_EQ(train(step, std::move(plan)), want) << name << " " << policy;
    }
    const Config by_itself = plain.with("remat_policy", "auto", "test");
    const int64_t least = plan_run(plain.with("remat_policy", "full", "test"), 2, target).arena_bytes();
    for (const int64_t limit : {(kept.arena_bytes() + least) / 2, least}) {
      ProgramPlan plan = plan_run(by_itself.with("memory_limit", std::to_string(limit), "test"), 2, target);
      EXPECT_LE(plan.arena_bytes(), limit) << name;
      EXPECT_EQ(train(step, std::move(plan)), want) << name << " auto at " << limit;
    }
  }
}

// Losses of the same rows in 1, 2 or 4 microbatches. Of an exact scale the codes differ, so the rounding errors do: a
// mean over 2,048 tokens is what they average out in.
std::vector<double> accumulated(const char* name, bool pow2, int64_t accumulation, int64_t rows, int64_t tokens,
                                int64_t steps) {
  StepConfig c = with_recipe(name, {.pow2 = pow2});
  c.accumulation = accumulation, c.microbatch = {rows / accumulation, tokens};
  Stepper s(c, plan_training(c, 2, cpu_targets().back()));
  initialize_parameters(s.program(), s.parameters(), 3);
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step)
    losses.push_back(
        s.run(RandomRows(rows, tokens, 260, static_cast<uint32_t>(step)).rows(), 1e-3, step + 1).loss.loss());
  return losses;
}

// Forward codes do not depend on the amax of a microbatch if its scale is a power of two, or if there is none.
TEST(PrecisionP53, WithPow2TheFirstLossDoesNotDependOnAccumulation) {
  for (const auto& [name, pow2] : {std::pair("te_nvfp4", true),
                                   {"te_nvfp4_no_rht", true},
                                   {"nvfp4", true},
                                   {"mxfp4", false},
                                   {"mxfp4_rht_sr", false},
                                   {"mxfp8", false}}) {
    const std::vector<double> want = accumulated(name, pow2, 1, 8, 32, 1);
    for (const int64_t accumulation : {2, 4})
      EXPECT_EQ(accumulated(name, pow2, accumulation, 8, 32, 1), want) << name << " GA " << accumulation;
  }
  EXPECT_NE(accumulated("te_nvfp4", false, 2, 8, 32, 1), accumulated("te_nvfp4", false, 1, 8, 32, 1));
}

// The obligation's 1e-3 holds for the mean of the steps. A single step of a model of width 32, whose rounding errors
// are large, has been seen 2e-3 away, also with pow2: there the sums of the gradients differ, and Adam makes a step of
// full size of any gradient.
TEST(PrecisionP61, AccumulationStaysNearTheSingleRun) {
  for (const bool pow2 : {false, true}) {
    const std::vector<double> one = accumulated("te_nvfp4", pow2, 1, 16, 128, 8);
    for (const int64_t accumulation : {2, 4}) {
      const std::vector<double> many = accumulated("te_nvfp4", pow2, accumulation, 16, 128, 8);
      EXPECT_NEAR(many[0], one[0], 1e-3 * one[0]);
      double mean = 0;
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_NEAR(many[i], one[i], 4e-3 * one[i]) << accumulation << " step " << i << (pow2 ? " pow2" : "");
        mean += (many[i] / one[i] - 1) / static_cast<double>(one.size());
      }
      EXPECT_NEAR(mean, 0, 1e-3) << accumulation << (pow2 ? " pow2" : "");
    }
  }
}

TEST(PrecisionRecipes, ARecipeOfNothingIsNoRecipe) {
  for (const auto& [name, dtype] : {std::pair("bf16", DType::bf16), {"fp32", DType::f32}})
    for (const CpuTarget target : cpu_targets())
      EXPECT_EQ(train(with_recipe(name, {}, dtype), 2, target), train(with_recipe("", {}, dtype), 2, target))
          << name << " " << name_of(target);
  const Trained want = train(with_recipe(""), 2, cpu_targets().back());
  for (const RecipeOptions& o :
       {RecipeOptions{.first_high = 2}, RecipeOptions{.last_high = 2}, RecipeOptions{.first_high = 1, .last_high = 1}})
    EXPECT_EQ(train(with_recipe("te_nvfp4", o), 2, cpu_targets().back()), want);
}

// An evaluation between two steps leaves no trace.
TEST(PrecisionP59, AnEvaluationChangesNothing) {
  for (const char* name : {"te_nvfp4", "quartet2", "mxfp4_tseng", "fp8_delayed"})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      StepConfig c = with_recipe(name, {}, dtype);
      c.evaluation = {3, length};
      std::vector<uint64_t> weights;
      for (const bool evaluates : {false, true}) {
        Stepper s(c, plan_training(c, 2, cpu_targets().back()));
        initialize_parameters(s.program(), s.parameters(), 3);
        std::vector<double> seen;
        for (int64_t step = 0; step < 3; ++step) {
          if (evaluates) seen.push_back(s.evaluate(RandomRows(3, length, 260, 77).rows()).loss());
          EXPECT_TRUE(s.run(RandomRows(2, length, 260, static_cast<uint32_t>(step)).rows(), 1e-2, step + 1).updated);
        }
        weights.push_back(hash_of_states(s, StateRole::parameter));
        for (const double loss : seen) EXPECT_TRUE(loss > 4 && loss < 8) << name << " " << loss;
      }
      EXPECT_EQ(weights[0], weights[1]) << name << " " << name_of(dtype);
    }
}

// The loss of an evaluation is that of the microbatch on the same rows and weights where no scale is shared by rows.
// Else its activations have a scale a row (spec/precision.md 6), and the loss is a little another one.
TEST(PrecisionP49, EvaluationQuantisesAsTrainingDoes) {
  const auto losses = [](const char* name) {
    StepConfig c = with_recipe(name);
    c.evaluation = c.microbatch;
    Stepper s(c, plan_training(c, 2, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 3);
    const RandomRows data(2, length, 260, 5);
    const double evaluation = s.evaluate(data.rows()).loss();
    return std::pair(evaluation, s.gradients(data.rows()).loss());
  };
  for (const char* name : {"mxfp4", "mxfp4_tseng", "mxfp4_quartet", "mxfp8", "fp8_delayed"}) {
    const auto [evaluation, training] = losses(name);
    EXPECT_EQ(evaluation, training) << name;
  }
  for (const char* name : {"te_nvfp4", "te_nvfp4_46", "quartet2", "fp8_current"}) {
    const auto [evaluation, training] = losses(name);
    EXPECT_NE(evaluation, training) << name;
    EXPECT_NEAR(evaluation, training, 0.06) << name;  // of about 6: few targets, a model not trained
  }
}

// A row's loss is the same alone and beside another row, in training's own evaluation too.
TEST(PrecisionP52, ARowsEvaluationDoesNotDependOnTheOthers) {
  for (const char* name : {"te_nvfp4", "te_nvfp4_46", "quartet2", "mxfp4", "fp8_current", "fp8_block"}) {
    std::vector<double> sums;
    for (const int64_t rows : {1, 2}) {
      StepConfig c = with_recipe(name);
      c.evaluation = {rows, length};
      Stepper s(c, plan_training(c, 2, CpuTarget::avx2));
      initialize_parameters(s.program(), s.parameters(), 3);
      const RandomRows data(2, length, 260, 5);
      double sum = 0;
      for (int64_t first = 0; first < 2; first += rows) {
        Rows some = data.rows();
        some.inputs += first * length, some.targets += first * length, some.segments += first * length;
        some.positions += first * length, some.weights += first * length, some.rows = rows;
        sum += s.evaluate(some, first > 0).ce;
      }
      sums.push_back(sum);
    }
    EXPECT_EQ(sums[0], sums[1]) << name;
  }
}

// ---- every recipe learns ----

TEST(PrecisionRecipes, EveryRecipeLearns) {
  std::vector<std::string> names(recipe_names().begin(), recipe_names().end());
  names.insert(names.end(), {"te_mxfp8", "te_fp8_currentscaling", "te_fp8_delayedscaling"});
  for (const std::string& name : names)
    for (const char* dtype : {"float32", "bfloat16"}) {
      if ((name == "fp32" && dtype[0] == 'b') || (name == "bf16" && dtype[0] == 'f')) continue;
      StepConfig c = step_of(tiny_config(
          {"dataset_type=synthetic", "quantization=" + name, "dtype=" + std::string(dtype)}));  // by its name
      c.microbatch = {2, length};
      const Trained t = train(c, 2, cpu_targets().back(), {.count = 5, .one_batch = true});
      for (size_t i = 1; i < t.losses.size(); ++i) {
        EXPECT_LT(t.losses[i], t.losses[i - 1]) << name << " " << dtype << " step " << i;
        EXPECT_TRUE(std::isfinite(t.norms[i]) && t.norms[i] > 0) << name << " " << dtype;
      }
      EXPECT_LT(t.losses.back(), 0.9 * t.losses.front()) << name << " " << dtype;
    }
}

// Every technique left out, alone, still learns; and none is left out for nothing.
TEST(PrecisionRecipes, EveryTechniqueCanBeLeftOut) {
  const Steps steps{.count = 5, .one_batch = true};
  const Trained whole = train(with_recipe("nvfp4"), 2, cpu_targets().back(), steps);
  for (const char* part : {"two_level", "high_precision", "weight_2d", "rht", "sr"}) {
    const Trained t = train(with_recipe("nvfp4", {.disable = {part}}), 2, cpu_targets().back(), steps);
    EXPECT_TRUE(t.losses.back() < 0.9 * t.losses.front() && t != whole) << part;
  }
  for (const char* name : {"mxfp4_tseng", "mxfp4_rht_sr", "mxfp4_quartet"})  // 3/4 and 16/9 go with stochastic rounding
    for (const char* part : {"rht", "sr"}) {
      const Trained t = train(with_recipe(name, {.disable = {part}}), 2, cpu_targets().back(), steps);
      const Trained same = train(with_recipe(name), 2, cpu_targets().back(), steps);
      EXPECT_NEAR(t.norms[0], same.norms[0], 0.25 * same.norms[0]) << name << " " << part;
    }
}

std::map<std::string, std::vector<float>> gradients(const StepConfig& c, int64_t step = 0) {
  Stepper s(c, plan_training(c, 2, cpu_targets().back()));
  initialize_parameters(s.program(), s.parameters(), 3);
  s.gradients(RandomRows(c.microbatch.rows, length, 260, 5).rows(), step);
  std::map<std::string, std::vector<float>> list;
  for (const Parameter& p : s.parameters()) {
    const Tensor g = s.program().state(StateRole::gradient, p.name);
    list[p.name] = {g.as<float>(), g.as<float>() + g.numel()};
  }
  return list;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    ab += x * y, aa += x * x, bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

// The direction of each parameter's gradient, and its length: a forgotten factor is not seen in the direction. Each
// product adds its rounding errors, about 4 % of the square for 4 bits (8.1), and what is added up here is of random
// tokens: layer by layer, from the head down, the direction is lost a little.
TEST(PrecisionRecipes, GradientsPointWhereThoseOfF32Do) {
  StepConfig plain = with_recipe("");
  plain.microbatch = {8, length};
  const auto want = gradients(plain);
  const struct {
    const char* name;
    double least, last;  // of all parameters; of the last layer's down_proj, three products from the loss
  } rows[] = {{"te_nvfp4", 0.82, 0.89},     {"te_nvfp4_no_rht", 0.82, 0.89}, {"te_nvfp4_46", 0.82, 0.89},
              {"nvfp4", 0.85, 0.95},        {"mxfp4", 0.75, 0.86},           {"mxfp4_rht_sr", 0.75, 0.86},
              {"mxfp4_tseng", 0.75, 0.86},  {"quartet2", 0.82, 0.89},        {"mxfp8", 0.985, 0.99},
              {"fp8_current", 0.98, 0.985}, {"fp8_block", 0.98, 0.985}};
  for (const auto& row : rows) {
    StepConfig c = with_recipe(row.name);
    c.microbatch = {8, length};
    for (const auto& [name, g] : gradients(c)) {
      const bool last = name == "model.layers.1.mlp.down_proj.weight";
      EXPECT_GT(cosine(g, want.at(name)), last ? row.last : row.least) << row.name << " " << name;
      double squares = 0, wanted = 0;
      for (size_t i = 0; i < g.size(); ++i) squares += g[i] * g[i], wanted += want.at(name)[i] * want.at(name)[i];
      EXPECT_NEAR(std::sqrt(squares / wanted), 1, 0.25) << row.name << " " << name;
    }
  }
}

// Draws of step after step have the same mean: averages get nearer to it by the number of draws.
TEST(PrecisionP58, AveragesOverStepsConverge) {
  for (const char* name : {"te_nvfp4_no_rht", "quartet2", "mxfp4_quartet"}) {
    const StepConfig c = with_recipe(name);
    Stepper s(c, plan_training(c, 2, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 3);
    const RandomRows data(2, length, 260, 5);
    const std::string site = "model.layers.1.mlp.down_proj.weight";  // its dy comes from the head, which draws nothing
    const Tensor g = s.program().state(StateRole::gradient, site);
    const auto n = static_cast<size_t>(g.numel());
    constexpr int64_t draws = 256;
    std::vector<double> mean(n);
    std::vector<std::vector<float>> each;
    for (int64_t step = 0; step < draws; ++step) {
      s.gradients(data.rows(), step);
      each.emplace_back(g.as<float>(), g.as<float>() + n);
      for (size_t i = 0; i < n; ++i) mean[i] += each.back()[i] / static_cast<double>(draws);
    }
    // Squared error of averages of 1, 4, 16 draws around the mean of all.
    std::vector<double> errors;
    for (const int64_t k : {1, 4, 16}) {
      double error = 0;
      for (int64_t first = 0; first < draws; first += k)
        for (size_t i = 0; i < n; ++i) {
          double average = 0;
          for (int64_t j = 0; j < k; ++j) average += each[static_cast<size_t>(first + j)][i] / static_cast<double>(k);
          error += (average - mean[i]) * (average - mean[i]) * static_cast<double>(k);
        }
      errors.push_back(error / static_cast<double>(draws - k));  // the mean is of the same draws
    }
    EXPECT_NEAR(errors[0] / errors[1], 4, 0.4) << name;
    EXPECT_NEAR(errors[0] / errors[2], 16, 1.6) << name;
  }
}

// ---- what is not finite ----

class PrecisionP15Step : public testing::TestWithParam<const char*> {
 protected:
  PrecisionP15Step() : c_(with_recipe(GetParam())) {
    stepper_ = std::make_unique<Stepper>(c_, plan_training(c_, 2, cpu_targets().back()));
    initialize_parameters(stepper_->program(), stepper_->parameters(), 0);
    EXPECT_TRUE(stepper_->run(data_.rows(), 1e-2, 1).updated);
  }
  Tensor weight(const std::string& name) { return stepper_->program().state(StateRole::parameter, name); }
  std::array<uint64_t, 3> state() {
    return {hash_of_states(*stepper_, StateRole::parameter), hash_of_states(*stepper_, StateRole::moment_m),
            hash_of_states(*stepper_, StateRole::moment_v)};
  }
  StepConfig c_;
  RandomRows data_{2, length, 260, 5};
  std::unique_ptr<Stepper> stepper_;
};

TEST_P(PrecisionP15Step, ABadWeightClosesTheGateAndIsNamed) {
  const auto good = state();
  for (const auto& [name, index, value] : {std::tuple("model.layers.1.mlp.up_proj.weight", 77, NAN),
                                           {"model.layers.0.self_attn.q_proj.weight", 0, INFINITY},
                                           {"model.layers.0.mlp.down_proj.weight", 2047, -INFINITY},
                                           {"model.layers.1.input_layernorm.weight", 3, NAN}}) {
    const float before = std::exchange(weight(name).as<float>()[index], value);
    const auto poisoned = state();
    const StepResult r = stepper_->run(data_.rows(), 1e-2, 2);
    EXPECT_FALSE(r.updated) << name;
    EXPECT_FALSE(std::isfinite(r.loss.loss()) && std::isfinite(r.raw_norm)) << name;
    EXPECT_EQ(state(), poisoned);
    const auto found = stepper_->find_non_finite(data_.rows(), 1);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->tensor, "parameter " + std::string(name));
    EXPECT_EQ(found->index, index);
    weight(name).as<float>()[index] = before;
  }
  EXPECT_EQ(state(), good);
  EXPECT_TRUE(stepper_->run(data_.rows(), 1e-2, 2).updated);
}

// All weights are finite, the product is not: the site is named.
TEST_P(PrecisionP15Step, AnOverflowIsNamedByItsSite) {
  const Tensor gate = weight("model.layers.1.mlp.gate_proj.weight");
  if (c_.recipe.fprop.b.tensor_scale == TensorScale::delayed) return;  // a scale of the past saturates instead
  for (int64_t i = 0; i < gate.numel(); ++i) gate.as<float>()[i] = gate.as<float>()[i] < 0 ? -3e38f : 3e38f;
  EXPECT_FALSE(stepper_->run(data_.rows(), 1e-2, 2).updated);
  const auto found = stepper_->find_non_finite(data_.rows(), 1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->tensor, "layers.1/mlp/gate_proj qlinear, result 0");
  EXPECT_FALSE(std::isfinite(found->value));
}

// An x that is not finite poisons its copy, and that is the first that is found: here the rounding to bf16 overflows.
TEST_P(PrecisionP15Step, ABadActivationIsNamedByItsQuantiser) {
  const Tensor norm = weight("model.layers.1.post_attention_layernorm.weight");
  std::fill_n(norm.as<float>(), norm.numel(), 1.0f);
  std::string named;
  float low = 1e37f, high = 3e38f;  // a little less and only products overflow, a little more and the norm itself does
  for (int i = 0; i < 30 && named.find("quantize") == named.npos; ++i) {
    const float w = norm.as<float>()[7] = low + (high - low) / 2;
    const bool updated = stepper_->run(data_.rows(), 0, 2).updated;
    const auto found = updated ? std::nullopt : stepper_->find_non_finite(data_.rows(), 1);
    named = found ? found->tensor : "";
    (named.find("norm") != named.npos ? high : low) = w;
  }
  EXPECT_EQ(named, "layers.1/mlp/gate_proj quantize x, result 0");
}

INSTANTIATE_TEST_SUITE_P(Recipes, PrecisionP15Step,
                         testing::Values("te_nvfp4", "quartet2", "mxfp4_quartet", "fp8_current", "fp8_delayed"));

// A zero operand gives exactly zero, a poisoned weight NaN in every place of its product.
TEST(PrecisionP47, ZeroAndPoisonedWeights) {
  for (const char* name : {"te_nvfp4", "quartet2", "mxfp4", "mxfp4_quartet"}) {
    const StepConfig c = with_recipe(name);
    Stepper s(c, plan_training(c, 1, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 3);
    const RandomRows data(2, length, 260, 5);
    const std::string down = "model.layers.0.mlp.down_proj.weight";
    const Tensor w = s.program().state(StateRole::parameter, down);
    std::fill_n(w.as<float>(), w.numel(), 0.0f);
    EXPECT_TRUE(std::isfinite(s.gradients(data.rows()).loss()));
    for (const char* lost : {"gate_proj", "up_proj"}) {  // nothing comes back through zeros
      const Tensor g = s.program().state(StateRole::gradient, fmt::format("model.layers.0.mlp.{}.weight", lost));
      for (int64_t i = 0; i < g.numel(); ++i) ASSERT_EQ(g.as<float>()[i], 0.0f) << name << " " << lost;
    }
    w.as<float>()[100] = NAN;
    EXPECT_TRUE(std::isnan(s.gradients(data.rows()).loss())) << name;
    const QuantizedView codes(s.program().state(StateRole::codes, down));
    EXPECT_TRUE(std::isnan(codes.header().amax)) << name;
  }
}

// ---- delayed scaling ----

int64_t recorded(Stepper& s, const std::string& name) {
  const Tensor h = s.program().state(StateRole::fp8_history, name);
  return std::count_if(h.as<float>(), h.as<float>() + h.numel(), [](float x) { return x != 0; });
}

TEST(PrecisionP22, HistoriesMoveOnceAStep) {
  for (const int64_t accumulation : {1, 2, 4}) {
    StepConfig c = with_recipe("fp8_delayed");
    c.accumulation = accumulation, c.microbatch = {4 / accumulation, length};
    Stepper s(c, plan_training(c, 2, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 3);
    for (int64_t step = 0; step < 3; ++step) {
      EXPECT_TRUE(s.run(RandomRows(4, length, 260, static_cast<uint32_t>(step)).rows(), 1e-3, step + 1).updated);
      int64_t histories = 0;
      for (const StateInfo& state : s.program().plan().states) {
        if (state.role != StateRole::fp8_history) continue;
        ++histories;
        EXPECT_EQ(recorded(s, state.name), step + 1) << state.name << " GA " << accumulation;
        EXPECT_EQ(s.program().state(state.role, state.name).as<float>()[0], 0.0f);
        EXPECT_NE(s.program().state(StateRole::fp8_scale, state.name).as<float>()[0], 1.0f) << state.name;
      }
      EXPECT_EQ(histories, 2 * (4 + 7 + 7));  // x, w and dy
    }
  }
}

// The maximum over the microbatches: the first step's scale is the same however the batch is cut.
TEST(PrecisionP22, TheFirstStepsScalesDoNotDependOnAccumulation) {
  std::map<std::string, float> want;
  for (const int64_t accumulation : {1, 2, 4}) {
    StepConfig c = with_recipe("fp8_delayed");
    c.accumulation = accumulation, c.microbatch = {4 / accumulation, length};
    Stepper s(c, plan_training(c, 2, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 3);
    EXPECT_TRUE(s.run(RandomRows(4, length, 260, 1).rows(), 1e-3, 1).updated);
    std::map<std::string, float> scales;
    for (const StateInfo& state : s.program().plan().states)
      if (state.role == StateRole::fp8_scale)
        scales[state.name] = s.program().state(state.role, state.name).as<float>()[0];
    if (want.empty()) want = scales;
    EXPECT_EQ(scales, want) << accumulation;
  }
}

TEST(PrecisionP22, AClosedGateLeavesTheHistories) {
  const StepConfig c = with_recipe("fp8_delayed");
  Stepper s(c, plan_training(c, 2, cpu_targets().back()));
  initialize_parameters(s.program(), s.parameters(), 3);
  const RandomRows data(2, length, 260, 5);
  EXPECT_TRUE(s.run(data.rows(), 1e-3, 1).updated);
  const auto bytes = [&] {
    std::vector<float> list;
    for (const StateInfo& state : s.program().plan().states)
      if (state.role == StateRole::fp8_history || state.role == StateRole::fp8_scale) {
        const Tensor t = s.program().state(state.role, state.name);
        list.insert(list.end(), t.as<float>(), t.as<float>() + t.numel());
      }
    return list;
  };
  const std::vector<float> before = bytes();
  float& w = s.program().state(StateRole::parameter, "model.layers.0.mlp.up_proj.weight").as<float>()[5];
  const float good = std::exchange(w, NAN);
  EXPECT_FALSE(s.run(data.rows(), 1e-3, 2).updated);
  EXPECT_TRUE(s.find_non_finite(data.rows(), 2));
  EXPECT_EQ(bytes(), before);
  w = good;
  EXPECT_TRUE(s.run(data.rows(), 1e-3, 2).updated);
}

// ---- stop and resume ----

int run_silently(const Config& config) {
  testing::internal::CaptureStdout(), testing::internal::CaptureStderr();
  int code = -1;
  std::string error;
  try {
    code = run_training(config, {});
  } catch (const Error& e) {
    error = e.id + ": " + e.what_text;
  }
  testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr();
  EXPECT_EQ(error, "");
  return code;
}

std::map<std::string, std::string> files_of(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint))
    if (entry.is_regular_file() && entry.path().filename() != "run_info.json")
      files[std::filesystem::relative(entry.path(), checkpoint).string()] = content_of(entry.path());
  return files;
}

TEST(PrecisionP59, AStopAfterAnyStepChangesNothing) {
  const TemporaryFolder folder;
  const std::string book = write_book(folder);
  const struct {
    const char *name, *dtype;
    std::vector<int> stops;
  } rows[] = {{"te_nvfp4", "float32", {1, 3, 4}},
              {"quartet2", "bfloat16", {3}},
              {"mxfp4_tseng", "float32", {4}},
              {"mxfp4_quartet", "bfloat16", {1}},
              {"fp8_delayed", "float32", {1}}};
  for (const auto& row : rows) {
    const auto config = [&](const std::string& place, int steps) {
      return tiny_config(
          {fmt::format("steps={}", steps), "run_name=run", "learning_rate_schedule_steps=6", "eval_fraction=0.1",
           "eval_holdout=tail", "eval_interval=2", "eval_steps=1", "quantization=" + std::string(row.name),
           "dtype=" + std::string(row.dtype), "gradient_accumulation_steps=2", "cache_directory=" + (folder / "cache"),
           "base_output_directory=" + (folder / (place + row.name + row.dtype)), "train_files=[" + book + "]"});
    };
    const auto checkpoint = [&](const std::string& place) {
      return files_of(folder / (place + row.name + row.dtype + "/run/checkpoints/00000006"));
    };
    ASSERT_EQ(run_silently(config("whole", 6)), exit_done);
    const auto want = checkpoint("whole");
    EXPECT_GE(want.size(), 4u);
    for (const int stop : row.stops) {
      const std::string place = fmt::format("stop{}", stop);
      ASSERT_EQ(run_silently(config(place, stop)), exit_done);
      ASSERT_EQ(run_silently(config(place, 6)), exit_done);
      EXPECT_TRUE(checkpoint(place) == want) << row.name << " " << row.dtype << " stopped after " << stop;
    }
  }
}

// The recipe is part of what determines a run, and no architecture: a resume under another one goes on, and says so.
// Only delayed scales are missing from the checkpoint of another recipe: that resume is refused, and changes nothing.
TEST(TrainingT57, AResumeUnderAnotherRecipeIsSaid) {
  const TemporaryFolder folder;
  const std::string book = write_book(folder);
  const auto said = [&](int steps, const std::string& recipe) {
    const Config config = tiny_config({fmt::format("steps={}", steps), "run_name=run", "quantization=" + recipe,
                                       "base_output_directory=" + (folder / "out"), "train_files=[" + book + "]"});
    testing::internal::CaptureStdout(), testing::internal::CaptureStderr();
    std::string error;
    try {
      run_training(config, {});
    } catch (const Error& e) {
      error = e.id + ": " + e.what_text;
    }
    const std::string out = testing::internal::GetCapturedStdout();
    return out + testing::internal::GetCapturedStderr() + error;
  };
  EXPECT_TRUE(says(said(2, "te_nvfp4"), "precision: te_nvfp4 in linear layers, elsewhere float32 in every product;"));
  const std::string other = said(3, "mxfp4"), none = said(4, "");
  EXPECT_TRUE(says(other, "at step 2")) << other;
  EXPECT_TRUE(says(other, "quantization: \"te_nvfp4\" -> \"mxfp4\""));
  EXPECT_TRUE(says(none, "at step 3")) << none;
  EXPECT_TRUE(says(none, "quantization: \"mxfp4\" -> \"\""));
  EXPECT_TRUE(says(none, "precision: float32 in every product;"));
  const std::string before = content_of(folder / "out/run/config.yml");
  EXPECT_TRUE(says(said(5, "fp8_delayed"), "E404: "));
  EXPECT_TRUE(says(said(5, "fp8_delayed"), "has no history of delayed scales"));
  EXPECT_EQ(content_of(folder / "out/run/config.yml"), before);
  EXPECT_TRUE(says(said(5, "te_nvfp4"), "at step 4"));
}

}  // namespace
}  // namespace nibble
