#include "bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/probes.h"

namespace nibble {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> x) {
  if (x.empty()) return 0;
  std::ranges::sort(x);
  return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
}

Peak::Peak(ThreadPool& pool, std::string_view format) : pool_(pool), format_(format) {
  const bool wide = cpu_runs(CpuTarget::avx512), narrow = cpu_runs(CpuTarget::avx2);
  if ((format == "bf16" || format == "8bit") && cpu_runs(CpuTarget::avx512_bf16)) {
    loop_ = avx512::bf16_loop, name_ = "BF16 peak {:.1f} GFLOP/s (vdpbf16ps";
  } else if ((format == "int8" || format == "4bit") && narrow) {
    loop_ = cpu_has_vnni() ? avx512::int8_loop : avx2::int8_loop;
    name_ = cpu_has_vnni() ? "int8 peak {:.1f} Gop/s (vpdpbusd" : "int8 peak {:.1f} Gop/s (maddubs";
  } else {
    own_ = format == "f32";
    if (wide)
      loop_ = avx512::fma_loop, name_ = "FMA peak {:.1f} GFLOP/s (avx512";
    else if (narrow)
      loop_ = avx2::fma_loop, name_ = "FMA peak {:.1f} GFLOP/s (avx2";
  }
  sinks_.resize(static_cast<size_t>(pool.size()) * 16);
  measure();  // clocks and workers wake up
  samples_.clear();
}

double Peak::measure() {
  if (loop_ == nullptr) return 0;
  constexpr int64_t rounds = 1 << 17;
  const int64_t tasks = 8 * pool_.size();
  std::vector<int64_t> operations(static_cast<size_t>(tasks));
  const double start = now();
  pool_.run(tasks, [&](int64_t task, int thread) {
    operations[static_cast<size_t>(task)] = loop_(rounds, &sinks_[static_cast<size_t>(thread) * 16]);
  });
  const double seconds = now() - start;
  double sum = 0;
  for (const int64_t n : operations) sum += static_cast<double>(n);
  samples_.push_back(sum / seconds);
  return samples_.back();
}

PeakSummary Peak::summary() const {
  if (loop_ == nullptr) return {format_, "FMA peak unknown: no AVX2", 0};
  return {
      format_,
      fmt::format(fmt::runtime(name_), flops() / 1e9) + fmt::format(", all threads, median of {})", samples_.size()),
      flops()};
}

void Timing::add(double seconds, double peak, double flops) {
  seconds_.push_back(seconds);
  if (peak > 0) shares_.push_back(flops / seconds / peak);
}

double Timing::fastest() const { return *std::ranges::min_element(seconds_); }

std::string Timing::share_text() const { return has_share() ? fmt::format("{:.1f} %", 100 * share()) : "-"; }

}  // namespace nibble
