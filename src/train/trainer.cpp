#include "train/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>

#include "core/hash.h"
#include "data/source.h"
#include "io/checkpoint_writer.h"
#include "io/run_folder.h"
#include "plan/flops.h"
#include "sample/generate.h"
#include "train/console.h"
#include "train/evaluation.h"
#include "train/fits.h"
#include "train/metrics.h"
#include "train/model_setup.h"
#include "train/numerics.h"
#include "train/run_state.h"
#include "train/signals.h"
#include "train/summary.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

// A run without a name: model and start time, so that two starts never meet.
std::string default_run_name(const Config& config) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
  return config.get_string("model_name") + "_" + text;
}

struct Stopped {};  // thrown by polls before the first step

class Trainer {
 public:
  Trainer(const Config& config, const TrainOptions& options)
      : config_(config.get_string("run_name").empty() ? config.with("run_name", default_run_name(config), "start time")
                                                      : config),
        options_(options),
        console_(options.quiet, options.log_file),
        run_(fs::path(config_.get_string("base_output_directory")) / config_.get_string("run_name")),
        steps_(total_steps(config_)),
        rows_(global_batch(config_)) {}

  int run() {
    for (const std::string& n : options_.notices) console_.notice(n);
    try {
      if (!prepare()) return exit_done;
      return run_steps();
    } catch (const Stopped&) {
      console_.result("stopped before the first step: nothing to save");
      return stop_code();
    }
  }

 private:
  void poll() const {
    if (signals_.stop() != 0) throw Stopped{};
  }
  int stop_code() const { return signals_.stop() == SIGINT ? exit_interrupted : exit_stopped; }

  int run_steps();
  void choose_recipe();
  bool prepare();
  void open_run();
  void start_state();
  void loop();
  void one_step();
  void after_step();
  void log_step(const StepResult& r);
  void handle_non_finite(const StepResult& r);
  void require_finite_state(std::string_view when) const;
  std::string newest_checkpoint() const {
    return saved_step_ >= 0 ? fmt::format("newest checkpoint: step {}", saved_step_) : "no checkpoint was saved";
  }
  void evaluate_now();
  std::vector<int32_t> sample_prompt() const;
  void sample_now();
  void save(std::string_view why);
  int finish();
  void print_next_commands();
  bool evaluation_due() const;
  Rows rows() const {
    return {batch_->inputs.data(),    batch_->targets.data(), batch_->segments.data(),
            batch_->positions.data(), batch_->weights.data(), rows_};
  }

  Config config_;
  TrainOptions options_;
  SignalFlags signals_;
  Console console_;
  fs::path run_;
  int64_t steps_, rows_;
  Schedule schedule_;
  double step_flops_ = 0;
  std::optional<ThreadPool> data_pool_;
  TrainingData data_;
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<Stepper> stepper_;
  std::unique_ptr<Numerics> numerics_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<Batch> batch_, evaluation_batch_;
  Progress progress_;
  Start start_;
  int64_t first_step_ = 0, saved_step_ = -1, evaluated_step_ = -1;
  bool reached_target_ = false, warned_of_scales_ = false;
  double best_evaluation_ = INFINITY, mean_seconds_ = 0, data_wait_ = 0, evaluation_seconds_ = 0, save_seconds_ = 0;
  Clock::time_point started_ = Clock::now(), last_completion_;
};

// quantization=auto: what the run began with, else by the hardware.
void Trainer::choose_recipe() {
  std::string line;
  Config chosen = with_auto_recipe(config_, std::nullopt, &line);
  if (line.empty()) return;
  const Start start = choose_start(chosen, run_, false);
  if (start.checkpoint)
    for (const auto& [key, value] : start.checkpoint->info().config)
      if (key == "quantization" && value.is_string())
        chosen = with_auto_recipe(config_, value.get<std::string>(), &line);
  config_ = std::move(chosen);
  console_.line(line);
}

bool Trainer::prepare() {
  choose_recipe();
  if (config_.get_string("dataset_type") != "synthetic" && config_.get_list("train_files").empty())
    throw no_data_error();
  schedule_ = schedule_of(config_);
  const int threads = resolve_threads(config_.get_int("threads"));
  const CpuTarget target = resolve_target(config_.get_string("cpu_target"));
  const StepConfig step = step_of(config_);
  step_flops_ = maxtext_flops(step.model, step.microbatch.rows, step.microbatch.length, step.accumulation).total();
  ProgramPlan plan = plan_run(config_, threads, target);
  check_fits(config_, plan);
  choose_start(config_, run_, false);  // for its errors, before any work; again under the lock
  data_pool_.emplace(threads);
  data_ = prepare_data({config_, run_, run_ / "cache", *data_pool_, [this] { poll(); }});
  data_pool_.reset();
  const bool samples = config_.get_int("sample_interval") > 0;
  if (samples && !data_.tokenizer)
    throw Error("E102", "sample_interval needs a tokenizer, the data are token ids")
        .hint("tokenizer_path=, or sample_interval=0");
  if (samples) sample_prompt();
  data_.train->check_enough(steps_, rows_);
  if (config_.get_bool("enable_checkpointing")) preflight_run(run_, 0);
  if (options_.dry_run) {
    print_summary(console_, config_, step, plan, data_, schedule_, run_);
    std::error_code kept;  // folders that only the check of the outputs made
    fs::remove(run_ / "checkpoints", kept), fs::remove(run_, kept);
    console_.result("dry run: everything checked, nothing trained");
    return false;
  }
  open_run();
  print_summary(console_, config_, step, plan, data_, schedule_, run_);
  if (options_.verbose) print_kernels(console_, plan);
  stepper_ = std::make_unique<Stepper>(step, std::move(plan));
  if (const int64_t period = config_.get_int("numerics_period"); period > 0)
    numerics_ = std::make_unique<Numerics>(*stepper_, *metrics_, period);
  if (samples) decoder_ = std::make_unique<Decoder>(stepper_->program(), sample_buckets(), step.microbatch.length);
  start_state();
  if (progress_.step == steps_ && start_.kind == Start::resume) {
    console_.result(fmt::format("already complete: {} steps are done in {}", steps_, run_.string()));
    return false;
  }
  batch_ = std::make_unique<Batch>(rows_, step.microbatch.length);
  if (data_.evaluation) evaluation_batch_ = std::make_unique<Batch>(step.evaluation.rows, step.microbatch.length);
  return true;
}

void Trainer::open_run() {
  std::error_code problem;
  fs::create_directories(run_, problem);
  if (problem)
    throw Error("E803", "cannot create the run folder {}: {}", run_.string(), problem.message())
        .where("base_output_directory")
        .hint("another base_output_directory");
  lock_ = std::make_unique<RunLock>(run_);
  clean_run(run_);
  start_ = choose_start(config_, run_, true);
  metrics_ = std::make_unique<MetricsLog>(run_ / "metrics.jsonl", config_.get_string("metrics_file"),
                                          config_.get_string("run_name"));
}

void Trainer::start_state() {
  for (const std::string& n : start_.notices) console_.notice(n);
  const bool has_state = start_.kind == Start::resume || start_.kind == Start::full_state;
  const std::optional<std::string> changed =
      has_state ? check_resume(start_.checkpoint->info(), config_, data_) : std::nullopt;
  if (has_state) {
    if (changed) console_.notice(*changed);
    progress_ = restore(start_, *stepper_, folds_scores(config_));
    start_.checkpoint.reset();  // and its map of the files
    saved_step_ = start_.kind == Start::resume ? progress_.step : -1;
    console_.line(fmt::format("resumed from {} at step {}", start_.source.path.string(), progress_.step));
    metrics_->event(progress_.step, "resume",
                    start_.source.path.filename().string() + (changed ? "; " + *changed : ""));
  } else {
    const auto method = config_.get_string("init_method");
    const auto kind = method == "normal"         ? InitMethod::normal
                      : method == "depth_scaled" ? InitMethod::depth_scaled
                                                 : InitMethod::fan_in;
    if (start_.kind == Start::parameters) {
      progress_ = restore(start_, *stepper_, folds_scores(config_));
      console_.line(fmt::format("weights from {}", start_.source.path.string()));
      if (const auto differs = constants_that_differ(start_.source, stepper_->config().model))
        console_.notice(*differs);
    } else {
      initialize_parameters(
          stepper_->program(),
          llama_parameters(stepper_->config().model, kind, config_.get_double("init_std"), folds_scores(config_)),
          static_cast<uint32_t>(config_.get_int("init_weights_seed")));
    }
    metrics_->event(0, "start", fmt::format("config {}", hex16(config_.hash())));
  }
  // Not before: a start that is refused leaves the run as it was, and a corrected one may use its name.
  replace_file(run_ / "config.yml", config_.yaml());
  if (data_.tokenizer && !fs::exists(run_ / "tokenizer.json"))
    data_.tokenizer->save(run_, config_.get_int("max_target_length"));
  first_step_ = progress_.step;
  if (!config_.get_bool("enable_checkpointing")) return;
  const CheckpointContent content = checkpoint_content(config_, *stepper_, data_, progress_);
  CheckpointWriterOptions writer;
  if (!config_.is_null("max_num_checkpoints_to_keep")) writer.keep = config_.get_int("max_num_checkpoints_to_keep");
  writer.keep_period = config_.get_int("checkpoint_keep_period"),
  writer.async = checkpoint_copy_bytes(config_, stepper_->program().plan()) > 0;
  if (!writer.async && config_.get_bool("async_checkpointing"))
    console_.notice("notice: memory_limit has no room for a copy of the state: checkpoints are written between steps");
  preflight_run(run_, predicted_checkpoint_bytes(content.tensors, content.state));
  writer_ = std::make_unique<CheckpointWriter>(run_, CheckpointWriter::snapshot_bytes(content.tensors, content.state),
                                               writer);
  if (config_.get_bool("save_checkpoint_on_start") && saved_step_ < 0) save("start");
}

// Every error after the first step also says from where the run can go on (spec/training.md 7.1).
int Trainer::run_steps() {
  try {
    loop();
    return finish();
  } catch (Error& e) {
    if (writer_ && e.hint_text.find("checkpoint") == std::string::npos)
      e.hint_text += (e.hint_text.empty() ? "" : "; ") + newest_checkpoint();
    throw;
  }
}

void Trainer::loop() {
  last_completion_ = Clock::now();
  while (progress_.step < steps_ && signals_.stop() == 0 && !reached_target_) {
    one_step();
    after_step();
  }
}

void Trainer::one_step() {
  signals_.set_step(progress_.step);
  const Clock::time_point start = Clock::now();
  data_.train->fill(*batch_, config_.get_int("reuse_example_batch") != 0 ? 0 : progress_.position);
  data_wait_ = seconds_since(start);
  if (batch_->target_count == 0)
    throw Error("E306", "the batch of step {} has no target", progress_.step)
        .where("rows {} to {}", progress_.position, progress_.position + rows_ - 1)
        .hint("documents shorter than two tokens, or only padding: check the data, or a larger batch");
  if (const auto& finish = stepper_->config().finish) {
    stepper_->finish(progress_.step >= finish->step);
    if (progress_.step == finish->step) {
      console_.line(fmt::format("step {}: {}", progress_.step, finish_text(*finish)));
      metrics_->event(progress_.step, "precision", finish_text(*finish));
    }
  }
  if (numerics_) numerics_->before(progress_.step);
  const StepResult r = stepper_->run(rows(), schedule_.rate(progress_.step), progress_.updates + 1);
  if (numerics_)
    for (const std::string& warning : numerics_->after(progress_.step, r.loss.loss())) {
      metrics_->event(progress_.step, "warning", warning);
      console_.warning("warning: " + warning);
    }
  if (r.unscaled > 0 && !warned_of_scales_) {
    const std::string what =
        fmt::format("step {}: {} quantised copies are all zeros, their values are not: {}", progress_.step, r.unscaled,
                    stepper_->config().recipe.fprop.b.tensor_scale == TensorScale::delayed
                        ? "their delayed scales have seen no value yet"
                        : "they have no scale of the tensor (recipe_disable=[two_level])");
    metrics_->event(progress_.step, "warning", what);
    console_.warning("warning: " + what);
    warned_of_scales_ = true;
  }
  if (r.updated)
    ++progress_.updates;
  else
    handle_non_finite(r);
  if (r.updated && !std::isfinite(r.param_norm)) require_finite_state("the update of ");
  progress_.position += rows_, progress_.tokens += rows_ * batch_->length;
  ++progress_.step;
  log_step(r);
}

void Trainer::log_step(const StepResult& r) {
  StepRecord s;
  s.seconds = seconds_since(last_completion_);
  last_completion_ = Clock::now();
  const int64_t done = progress_.step - first_step_;
  mean_seconds_ = done <= 1   ? s.seconds
                  : done < 10 ? (mean_seconds_ * static_cast<double>(done - 1) + s.seconds) / static_cast<double>(done)
                              : 0.9 * mean_seconds_ + 0.1 * s.seconds;
  s.step = progress_.step - 1, s.updates = progress_.updates,
  s.skipped_total = static_cast<int64_t>(progress_.skipped.size());
  s.tokens = progress_.tokens, s.samples = progress_.position, s.epoch = (progress_.position - 1) / data_.train->rows();
  s.targets = batch_->target_count, s.batch_hash = batch_->hash, s.skipped = !r.updated;
  s.loss = r.loss.loss(), s.ce = r.loss.ce / static_cast<double>(r.loss.targets),
  s.z_loss = r.loss.z / static_cast<double>(r.loss.targets);
  s.grad_norm = r.norm, s.raw_grad_norm = r.raw_norm, s.param_norm = r.param_norm, s.lr = schedule_.rate(s.step);
  s.step_tokens = rows_ * batch_->length, s.flops = step_flops_,
  s.peak_flops = config_.get_double("peak_tflops") * 1e12;
  int64_t padding = 0;
  for (const int32_t segment : batch_->segments) padding += segment == 0;
  s.padding_share = static_cast<double>(padding) / static_cast<double>(s.step_tokens);
  s.data_wait_seconds = data_wait_, s.memory_peak_bytes = peak_memory_bytes();
  s.eta_seconds = mean_seconds_ * static_cast<double>(steps_ - progress_.step);
  console_.line(step_line(s, config_.get_bool("log_extra_fields")));
  metrics_->step(s);
  if (done == 3 && steps_ - progress_.step > 10)
    console_.line(fmt::format("estimate: {} for the other {} steps, at {:.3f} s a step", duration(s.eta_seconds),
                              steps_ - progress_.step, mean_seconds_));
  if (console_.shows_status())
    console_.status(fmt::format("step {}/{} {} loss {:.3f}  {:.0f} tokens/s  {} left", progress_.step, steps_,
                                progress_bar(static_cast<double>(progress_.step) / static_cast<double>(steps_), 20),
                                s.loss, static_cast<double>(s.step_tokens) / s.seconds, duration(s.eta_seconds)));
}

// The gate closed: nothing was updated. Find the first bad tensor, then abort or skip (spec/training.md 2.8).
void Trainer::handle_non_finite(const StepResult& r) {
  const int64_t step = progress_.step;
  const auto found = stepper_->find_non_finite(rows(), progress_.updates + 1);
  const std::string where = found ? fmt::format("{}, element {}, value {}", found->tensor, found->index, found->value)
                                  : "the sum of the squared gradients (every tensor is finite: it overflows)";
  const std::string what =
      fmt::format("step {}: loss {}, gradient norm {}; first in {}; batch {}, rows {} to {}", step, r.loss.loss(),
                  r.raw_norm, where, hex16(batch_->hash), progress_.position, progress_.position + rows_ - 1);
  metrics_->event(step, "nonfinite", what);
  const bool abort =
      config_.get_string("nonfinite_action") == "abort" &&
      (std::isnan(r.loss.loss()) ? config_.get_bool("abort_on_nan_loss") : config_.get_bool("abort_on_inf_loss"));
  if (abort) {
    if (writer_ && saved_step_ < step && step > first_step_ && !stepper_->non_finite_state()) save("last good state");
    if (writer_) writer_->finish();
    throw Error("E701", "non-finite values at {}", what)
        .where("{}", where)
        .expected("finite loss and gradient", fmt::format("loss {}, gradient norm {}", r.loss.loss(), r.raw_norm))
        .hint("a lower learning_rate, or nonfinite_action=skip; {}", newest_checkpoint());
  }
  console_.warning(fmt::format("warning[W701]: update skipped at {}", what));
  progress_.skipped.push_back(step);
  const auto recent = std::ranges::count_if(progress_.skipped, [step](int64_t s) { return s > step - 100; });
  if (recent > 10)
    throw Error("E702", "{} of the last 100 steps were skipped", recent)
        .where("steps {}", fmt::join(progress_.skipped, ", "))
        .hint("a lower learning_rate, or look at the rows named above; {}", newest_checkpoint());
}

// Finite gradients can still overflow a weight at an absurd rate. Then no good state is left in memory, and what there
// is must not reach a checkpoint.
void Trainer::require_finite_state(std::string_view when) const {
  const auto bad = stepper_->non_finite_state();
  if (!bad) return;
  const std::string what =
      fmt::format("{}step {}: {}, element {}, value {}", when, progress_.step, bad->tensor, bad->index, bad->value);
  metrics_->event(progress_.step, "nonfinite", what);
  throw Error("E701", "non-finite state after {}", what)
      .where("{}", bad->tensor)
      .expected("finite weights and moments", fmt::format("{}", bad->value))
      .hint("a lower learning_rate; {}", newest_checkpoint());
}

bool Trainer::evaluation_due() const {
  const int64_t interval = config_.get_int("eval_interval");
  return data_.evaluation && interval > 0 && progress_.step % interval == 0 &&
         progress_.step >= config_.get_int("eval_start_step");
}

void Trainer::after_step() {
  if (evaluation_due()) evaluate_now();
  const int64_t sample = config_.get_int("sample_interval"), period = config_.get_int("checkpoint_period");
  if (sample > 0 && progress_.step % sample == 0) sample_now();
  if (!writer_) return;
  writer_->poll();
  if (signals_.take_save_request())
    save("SIGUSR2");
  else if (progress_.step % period == 0 && progress_.step < steps_)
    save("period");
}

void Trainer::evaluate_now() {
  const Clock::time_point start = Clock::now();
  const EvaluationRecord r = evaluate(*stepper_, *data_.evaluation, *evaluation_batch_, config_.get_int("eval_steps"),
                                      progress_.step, [this](std::string_view line) { console_.line(line); });
  console_.line(evaluation_line(r));
  metrics_->evaluation(r);
  evaluated_step_ = progress_.step;
  best_evaluation_ = std::min(best_evaluation_, r.loss);
  evaluation_seconds_ += seconds_since(start);
  last_completion_ = Clock::now();
  const double target = config_.get_double("target_eval_loss");
  if (target > 0 && r.loss <= target) {
    reached_target_ = true;
    console_.line(
        fmt::format("evaluation loss {:.4f} has reached target_eval_loss {:.4f}: training ends", r.loss, target));
  }
}

// Checked at the start, not at the first sample.
std::vector<int32_t> Trainer::sample_prompt() const {
  const Tokenizer& t = *data_.tokenizer;
  std::vector<int32_t> prompt;
  if (config_.get_bool("add_bos") && t.bos() >= 0) prompt.push_back(t.bos());
  t.encode(config_.get_string("sample_prompt"), true, prompt);
  if (prompt.empty()) prompt.push_back(std::max(t.eos(), 0));
  const auto length = static_cast<int64_t>(prompt.size()), most = config_.get_int("max_target_length") - 1;
  if (length > most)
    throw Error("E311", "sample_prompt has {} tokens, a row of the run {}", length, most + 1)
        .where("{}", config_.origin("sample_prompt"))
        .expected(fmt::format("at most {} tokens", most), fmt::format("{}", length))
        .hint("a shorter sample_prompt, max_target_length={} or more, or sample_interval=0", length + 1);
  return prompt;
}

void Trainer::sample_now() {
  const Tokenizer& t = *data_.tokenizer;
  const std::vector<int32_t> prompt = sample_prompt();
  GenerateOptions o;
  o.sampling = {config_.get_double("temperature"), config_.get_int("top_k"), config_.get_double("top_p"),
                config_.get_double("min_p"), config_.get_double("repetition_penalty")};
  o.seed = static_cast<uint32_t>(config_.get_int("seed"));
  o.max_new_tokens = std::min<int64_t>(100, decoder_->capacity() - static_cast<int64_t>(prompt.size()));
  const Generated g = generate(*decoder_, t, t.eos() >= 0 ? std::vector<int32_t>{t.eos()} : std::vector<int32_t>{},
                               prompt, stepper_->config().model.vocab, o, {});
  const std::string text = config_.get_string("sample_prompt") + g.text;
  console_.line(fmt::format("sample after step {}: {}", progress_.step, printable(text)));
  fs::create_directories(run_ / "samples");
  replace_file(run_ / "samples" / fmt::format("{:08}.txt", progress_.step), text + "\n");
  last_completion_ = Clock::now();
}

void Trainer::save(std::string_view why) {
  const Clock::time_point start = Clock::now();
  require_finite_state("");
  const bool fold = folds_scores(config_);
  const float root = static_cast<float>(std::sqrt(static_cast<double>(stepper_->config().model.head_size)));
  if (fold) scale_queries(*stepper_, root);
  try {
    writer_->submit(checkpoint_content(config_, *stepper_, data_, progress_));
  } catch (const Error& e) {
    metrics_->event(progress_.step, "save_failed", e.what_text);
    throw;
  }
  if (fold) scale_queries(*stepper_, 1 / root);
  saved_step_ = progress_.step;
  metrics_->event(progress_.step, "save", std::string(why));
  save_seconds_ += seconds_since(start);
  last_completion_ = Clock::now();
}

int Trainer::finish() {
  const bool stopped = signals_.stop() != 0 && progress_.step < steps_;
  if (stopped) {
    const bool saves = writer_ && config_.get_bool("enable_autocheckpoint");
    metrics_->event(progress_.step, "signal", fmt::format("signal {}", signals_.stop()));
    if (saves && saved_step_ < progress_.step) save("signal");
    if (writer_) writer_->finish();
    console_.result(saves ? fmt::format("stopped at step {}, saved in {}\nresume:    nibble train {}", progress_.step,
                                        run_.string(), (run_ / "config.yml").string())
                          : fmt::format("stopped at step {} without saving", progress_.step));
    return stop_code();
  }
  if (data_.evaluation && evaluated_step_ != progress_.step) evaluate_now();
  if (writer_ && config_.get_bool("save_checkpoint_on_completion") && saved_step_ < progress_.step) save("completion");
  if (writer_) writer_->finish();
  const double wall = seconds_since(started_), steps = static_cast<double>(progress_.step - first_step_);
  const double tokens = steps * static_cast<double>(rows_ * batch_->length);
  console_.result(fmt::format("done: {} steps, {:.2f} M tokens in {} ({:.0f} tokens/s; evaluation {}, saving {})",
                              progress_.step - first_step_, tokens / 1e6, duration(wall), tokens / wall,
                              duration(evaluation_seconds_), duration(save_seconds_)));
  if (std::isfinite(best_evaluation_)) console_.result(fmt::format("best evaluation loss {:.4f}", best_evaluation_));
  console_.result(
      fmt::format("run folder {}: metrics.jsonl, config.yml{}", run_.string(), writer_ ? ", checkpoints/" : ""));
  if (numerics_)
    console_.line(fmt::format("quantizer statistics took {:.1f} s, {:.2f} % of the run", numerics_->seconds(),
                              100 * numerics_->seconds() / wall));
  metrics_->event(progress_.step, "stop", "complete");
  print_next_commands();
  return exit_done;
}

void Trainer::print_next_commands() {
  const std::string run = run_.string();
  if (writer_ && data_.tokenizer) console_.line(fmt::format("generate:  nibble generate {} prompt=\"...\"", run));
  if (writer_)
    console_.line(fmt::format("continue:  nibble train {} steps={}", (run_ / "config.yml").string(),
                              2 * std::max<int64_t>(steps_, 1)));
  console_.line(fmt::format("plot:      nibble report {}", run));
}

}  // namespace

int run_training(const Config& config, const TrainOptions& options) { return Trainer(config, options).run(); }

}  // namespace nibble
