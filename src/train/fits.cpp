#include "train/fits.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "plan/report.h"
#include "sample/decoder.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

int64_t machine_limit() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) - (int64_t{1} << 30);
}

// A configuration with some keys set, and the words that set them.
class Variant {
 public:
  explicit Variant(Config config) : config_(std::move(config)) {}
  Variant& set(std::string_view key, int64_t value) { return set(key, std::to_string(value)); }
  Variant& set(std::string_view key, const std::string& value) {
    config_ = config_.with(key, value, "alternative");
    words_ += fmt::format("{}{}={}", words_.empty() ? "" : " ", key, value);
    return *this;
  }
  // The architecture of a packaged model; everything else stays.
  Variant& set_model(const std::string& name) {
    static const std::vector<std::string> no_environment;
    ResolveOptions options{.command = "plan"};
    options.environment = &no_environment;
    const Config model = resolve({"model_name=" + name, "dataset_type=synthetic"}, options).config;
    for (const auto& [key, value] : model.architecture()) config_ = config_.with(key, value, "model " + name);
    words_ = "model_name=" + name;
    return *this;
  }
  const Config& config() const { return config_; }
  std::optional<Alternative> if_fits(const ProgramPlan& like, int64_t limit) const {
    const int64_t bytes = plan_run(config_, like.threads, like.target).arena_bytes();
    if (bytes > limit) return std::nullopt;
    return Alternative{words_, bytes};
  }

 private:
  Config config_;
  std::string words_;
};

int64_t microbatch_rows(const Config& c) { return global_batch(c) / c.get_int("gradient_accumulation_steps"); }

// `rows` a microbatch, as many microbatches as keep the global batch.
Variant with_rows(const Config& c, int64_t rows) {
  Variant v(c);
  v.set("per_device_batch_size", rows);
  if (const int64_t ga = global_batch(c) / rows; ga != c.get_int("gradient_accumulation_steps"))
    v.set("gradient_accumulation_steps", ga);
  if (c.get_double("eval_per_device_batch_size") > static_cast<double>(rows)) v.set("eval_per_device_batch_size", rows);
  return v;
}

// The named policy that recomputes least among those that fit, and `auto`, which may do with less. None where the run
// says auto: it has been tried.
std::vector<Alternative> more_recomputation(const Config& c, const ProgramPlan& plan, int64_t limit) {
  std::vector<Alternative> found;
  if (c.get_string("remat_policy") == "auto") return found;
  for (const std::string& name : named_remat_policies()) {
    if (!found.empty() || name == c.get_string("remat_policy")) continue;
    if (auto a = Variant(c).set("remat_policy", name).if_fits(plan, limit)) found.push_back(std::move(*a));
  }
  if (auto a = Variant(c).set("remat_policy", std::string("auto")).if_fits(plan, limit))
    found.insert(found.begin(), std::move(*a));
  return found;
}

std::optional<Alternative> smaller_microbatch(const Config& c, const ProgramPlan& plan, int64_t limit) {
  const int64_t rows = microbatch_rows(c);
  for (int64_t b = rows - 1; b >= 1; --b)
    if (rows % b == 0)
      if (auto found = with_rows(c, b).if_fits(plan, limit)) return found;
  return std::nullopt;
}

std::optional<Alternative> shorter_rows(const Config& c, const ProgramPlan& plan, int64_t limit, int64_t rows) {
  for (int64_t length = c.get_int("max_target_length") / 2; length >= 1; length /= 2) {
    Variant v = rows == microbatch_rows(c) ? Variant(c) : with_rows(c, rows);
    if (auto found = v.set("max_target_length", length).if_fits(plan, limit)) return found;
  }
  return std::nullopt;
}

// The largest packaged model that fits one row at a time. None where the run changes the architecture itself: the
// changes would apply to the other model as well.
std::optional<Alternative> smaller_model(const Config& c, const ProgramPlan& plan, int64_t limit) {
  for (const auto& [key, value] : c.architecture())
    if (c.is_explicit(key)) return std::nullopt;
  struct Candidate {
    int64_t parameters;
    Variant variant;
  };
  std::vector<Candidate> candidates;
  for (const std::string& name : model_names()) {
    if (name == "default") continue;
    Variant v = Variant(c).set_model(name);
    const int64_t parameters = parameter_count(llama_of(v.config()));
    if (parameters <= limit / 4) candidates.push_back({parameters, std::move(v)});
  }
  std::ranges::stable_sort(candidates, std::greater{}, &Candidate::parameters);
  for (Candidate& candidate : candidates) {
    Variant& v = candidate.variant;
    v.set("per_device_batch_size", 1).set("gradient_accumulation_steps", global_batch(c));
    v.set("max_target_length", c.get_int("max_target_length"));
    if (c.get_double("eval_per_device_batch_size") > 1) v.set("eval_per_device_batch_size", 1);
    if (auto found = v.if_fits(plan, limit)) return found;
  }
  return std::nullopt;
}

std::string with_unit(int64_t bytes) {
  return fmt::format("{} bytes = {}", grouped(bytes), size_text(static_cast<double>(bytes)));
}

}  // namespace

const std::vector<int64_t>& sample_buckets() {
  static const std::vector<int64_t> buckets{1, 32};
  return buckets;
}

ProgramPlan plan_run(const Config& config, int threads, CpuTarget target) {
  StepConfig step = step_of(config);
  step.remat = remat_of(config, memory_limit_of(config));
  std::vector<NamedGraph> decoding;
  if (config.get_int("sample_interval") > 0)
    decoding = decode_graphs(step.model, sample_buckets(), step.microbatch.length);
  return plan_training(step, threads, target, std::move(decoding));
}

int64_t memory_limit_of(const Config& config) {
  return config.is_null("memory_limit") ? machine_limit() : config.get_int("memory_limit");
}

int64_t checkpoint_copy_bytes(const Config& config, const ProgramPlan& plan) {
  if (!config.get_bool("enable_checkpointing") || !config.get_bool("async_checkpointing")) return 0;
  int64_t bytes = 0;
  for (const StateInfo& s : plan.states)
    if (s.role == StateRole::parameter || s.role == StateRole::moment_m || s.role == StateRole::moment_v)
      bytes += align_up(s.type.nbytes());
  return plan.arena_bytes() + bytes <= memory_limit_of(config) ? bytes : 0;
}

std::vector<Alternative> alternatives_that_fit(const Config& config, const ProgramPlan& plan) {
  const int64_t limit = memory_limit_of(config);
  std::vector<Alternative> found;
  const auto add = [&](std::optional<Alternative> a) {
    if (a) found.push_back(std::move(*a));
  };
  if (plan.state_bytes < limit) {
    found = more_recomputation(config, plan, limit);
    add(smaller_microbatch(config, plan, limit));
    add(shorter_rows(config, plan, limit, microbatch_rows(config)));
    if (found.empty()) add(shorter_rows(config, plan, limit, 1));
  }
  if (found.empty()) add(smaller_model(config, plan, limit));
  if (!config.is_null("memory_limit") && plan.arena_bytes() <= machine_limit())
    found.push_back({fmt::format("memory_limit={}", plan.arena_bytes()), plan.arena_bytes()});
  return found;
}

void check_fits(const Config& config, const ProgramPlan& plan) {
  const int64_t limit = memory_limit_of(config), bytes = plan.arena_bytes();
  if (bytes <= limit) return;
  std::string where = config.is_null("memory_limit") ? "the limit is this machine's memory less 1 GiB"
                                                     : "memory_limit from " + config.origin("memory_limit");
  if (config.get_string("remat_policy") == "auto" && plan.recomputation.nodes > 0)
    where += fmt::format("; remat_policy=auto, every choice tried: {} nodes computed again", plan.recomputation.nodes);
  for (const MemoryClass& c : memory_classes(plan))
    if (c.bytes > 0)
      where +=
          fmt::format("\n    {:<18}{:>20}{:>14}", c.name, grouped(c.bytes), size_text(static_cast<double>(c.bytes)));
  where += "\n    largest tensors:";
  for (const TensorRow& t : largest_tensors(plan, 3))
    where += fmt::format("\n      {} {}, {}{} ({})", t.name, to_string(t.type), size_text(static_cast<double>(t.bytes)),
                         t.count == 1 ? "" : fmt::format(" x {}", t.count), t.kind);
  std::string hint;
  for (const Alternative& a : alternatives_that_fit(config, plan))
    hint += fmt::format("{}{} ({})", hint.empty() ? "" : "; or ", a.words, with_unit(a.bytes));
  if (hint.empty())
    hint = fmt::format("a model with fewer parameters: weights, gradients and moments alone are {}",
                       with_unit(plan.state_bytes));
  throw Error("E107", "the run needs {} of memory, and {} may be used", with_unit(bytes), with_unit(limit))
      .where("{}", where)
      .expected(fmt::format("at most {}", grouped(limit)), grouped(bytes))
      .hint("{}", hint);
}

}  // namespace nibble
