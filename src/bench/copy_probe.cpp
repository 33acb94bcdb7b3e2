#include "bench/copy_probe.h"

#include <algorithm>
#include <cstdlib>

#include "bench/measure.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/probes.h"

namespace nibble {
namespace {

constexpr int64_t least = 64 << 10, most = 128 << 20;  // bytes
constexpr int64_t group = 128;                         // floats: what the loops advance by

}  // namespace

struct CopyProbe::Arrays {
  float* from = static_cast<float*>(std::aligned_alloc(64, most / 2));
  float* to = static_cast<float*>(std::aligned_alloc(64, most / 2));
  Arrays() { std::fill(from, from + most / 8, 1.0f), std::fill(to, to + most / 8, 0.0f); }
  ~Arrays() { std::free(from), std::free(to); }
};

CopyProbe::CopyProbe(ThreadPool& pool) : pool_(pool), arrays_(std::make_unique<Arrays>()) {}
CopyProbe::~CopyProbe() = default;

double CopyProbe::measure(double bytes) {
  if (!cpu_runs(CpuTarget::avx2)) return 0;
  const auto loop = cpu_runs(CpuTarget::avx512) ? avx512::copy_loop : avx2::copy_loop;
  const int64_t size = std::clamp(static_cast<int64_t>(bytes), least, most), n = pool_.size();
  const int64_t piece = std::max(group, size / 8 / n / group * group);  // floats of each array a thread
  const int64_t times = std::max<int64_t>(1, (int64_t{32} << 20) / size);
  const double start = now();
  pool_.run(n, [&](int64_t task, int) {
    float sink = 0;
    loop(arrays_->from + task * piece, arrays_->to + task * piece, piece, times, &sink);
  });
  return static_cast<double>(8 * piece * n * times) / (now() - start);
}

}  // namespace nibble
