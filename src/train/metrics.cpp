#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "core/error.h"
#include "core/hash.h"

namespace nibble {
namespace {

double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

std::string rfc3339_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

Json number(double x) {  // JSON has no nan and inf
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return x;
}

// Opens for appending after cutting an incomplete last line. A pipe or a device has none.
int open_log(const std::filesystem::path& file) {
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0)
    throw Error("E803", "cannot write {}: {}", file.string(), std::strerror(errno))
        .where("{}", file.string())
        .hint("base_output_directory=, or metrics_file=");
  if (!std::filesystem::is_regular_file(file)) return fd;
  const off_t size = lseek(fd, 0, SEEK_END);
  off_t end = size;
  char c = '\n';
  while (end > 0 && pread(fd, &c, 1, end - 1) == 1 && c != '\n') --end;
  if (end < size && ftruncate(fd, end) != 0)
    throw Error("E803", "cannot truncate {}: {}", file.string(), std::strerror(errno))
        .where("{}", file.string())
        .hint("another run_name");
  return fd;
}

}  // namespace

std::string duration(double seconds) {
  const int64_t s = std::llround(seconds);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

std::string bytes_text(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.1f}GiB", b / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f}MiB", b / (1 << 20));
  return fmt::format("{:.1f}KiB", b / 1024);
}

std::string step_line(const StepRecord& r, bool extra) {
  std::string s = fmt::format(
      "completed step: {}, seconds: {:.3f}, TFLOP/s/device: {:.3f}, Tokens/s/device: {:.3f}, total_weights: {}, loss: "
      "{:.3f}, lm_loss: {:.3f}, "
      "perplexity: {:.3f}",
      r.step, r.seconds, per_second(r.flops, r.seconds) / 1e12,
      per_second(static_cast<double>(r.step_tokens), r.seconds), r.targets, r.loss, r.loss, std::exp(r.loss));
  if (!extra) return s;
  const std::string mfu =
      r.peak_flops > 0 ? fmt::format("{:.1f}%", 100 * per_second(r.flops, r.seconds) / r.peak_flops) : "n/a";
  return s + fmt::format(", grad_norm: {:.3f}, lr: {:.3e}, mfu: {}, mem: {}, eta: {}", r.grad_norm, r.lr, mfu,
                         bytes_text(r.memory_peak_bytes), duration(r.eta_seconds));
}

std::string running_evaluation_line(int64_t batch, double seconds, double loss, int64_t targets) {
  return fmt::format(
      "Completed eval step: {}, seconds: {:.3f}, running loss={:.3f}, running perplexity={:.3f}, running "
      "total_weights={:.1f}",
      batch, seconds, loss, std::exp(loss), static_cast<double>(targets));
}

std::string evaluation_line(const EvaluationRecord& r) {
  std::string s = fmt::format(
      "Completed eval after train step {}, loss={:.3f}, perplexity={:.3f}, total_weights={:.1f}, avg_z_loss={:.3f}",
      r.after_step, r.loss, std::exp(r.loss), static_cast<double>(r.targets), r.z_loss);
  if (r.bits_per_byte > 0) s += fmt::format(", bits_per_byte={:.4f}", r.bits_per_byte);
  return s;
}

MetricsLog::MetricsLog(const std::filesystem::path& file, const std::filesystem::path& copy, std::string run_name)
    : run_name_(std::move(run_name)) {
  files_.push_back(open_log(file));
  if (!copy.empty()) files_.push_back(open_log(copy));
}

MetricsLog::~MetricsLog() {
  for (const int fd : files_) close(fd);
}

Json MetricsLog::record(std::string_view kind, int64_t step) const {
  Json j = Json::object();
  j["kind"] = kind, j["step"] = step, j["run_name"] = run_name_, j["time"] = rfc3339_now();
  return j;
}

void MetricsLog::write(const Json& json) {
  const std::string line = json.dump() + "\n";
  for (const int fd : files_) {
    if (::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size())) continue;
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    if (now - last_warning_ < 60) continue;
    last_warning_ = now;
    std::fputs(
        fmt::format("warning[E804]: metrics cannot be written: {}; training continues\n", std::strerror(errno)).c_str(),
        stderr);
  }
}

void MetricsLog::step(const StepRecord& r) {
  Json j = record("train", r.step);
  j["learning/loss"] = number(r.loss), j["learning/lm_loss"] = number(r.loss), j["learning/ce_loss"] = number(r.ce);
  j["learning/perplexity"] = number(std::exp(r.loss)), j["learning/z_loss"] = number(r.z_loss),
  j["learning/total_weights"] = r.targets;
  j["learning/grad_norm"] = number(r.grad_norm), j["learning/raw_grad_norm"] = number(r.raw_grad_norm);
  j["learning/param_norm"] = number(r.param_norm), j["learning/current_learning_rate"] = r.lr;
  j["perf/step_time_seconds"] = r.seconds, j["perf/per_device_tflops"] = r.flops / 1e12;
  j["perf/per_device_tflops_per_sec"] = per_second(r.flops, r.seconds) / 1e12,
  j["perf/per_device_tokens"] = r.step_tokens;
  j["perf/per_device_tokens_per_sec"] = per_second(static_cast<double>(r.step_tokens), r.seconds);
  if (r.peak_flops > 0) j["perf/mfu"] = per_second(r.flops, r.seconds) / r.peak_flops, j["perf/sol"] = j["perf/mfu"];
  j["perf/data_wait_seconds"] = r.data_wait_seconds, j["perf/memory_peak_bytes"] = r.memory_peak_bytes;
  j["data/samples"] = r.samples, j["data/tokens"] = r.tokens, j["data/epoch"] = r.epoch,
  j["data/batch_hash"] = hex16(r.batch_hash);
  j["data/padding_share"] = r.padding_share;
  j["optim/step_skipped"] = r.skipped ? 1 : 0, j["optim/skipped_total"] = r.skipped_total,
  j["optim/updates"] = r.updates;
  write(j);
}

void MetricsLog::evaluation(const EvaluationRecord& r) {
  Json j = record("eval", r.after_step);
  j["eval/avg_loss"] = number(r.loss), j["eval/avg_perplexity"] = number(std::exp(r.loss)),
  j["eval/total_weights"] = r.targets;
  j["eval/avg_z_loss"] = number(r.z_loss);
  if (r.bits_per_byte > 0) j["eval/bits_per_byte"] = r.bits_per_byte;
  j["eval/step_time_seconds"] = r.seconds;
  write(j);
}

void MetricsLog::numerics(int64_t step, const Json& values) {
  Json j = record("numerics", step);
  j.update(values);
  write(j);
}

void MetricsLog::event(int64_t step, std::string_view name, std::string_view detail) {
  Json j = record("event", step);
  j["name"] = name, j["detail"] = detail;
  write(j);
}

}  // namespace nibble
