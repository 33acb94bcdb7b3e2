// The functions of spec/training.md 2.11 and the draws of 2.2 in whole registers: the scalar bits on every target.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/philox.h"
#include "kernels/cpu/cpu_info.h"
#include "numerics/functions.h"
#include "numerics/normal.h"

#define NIBBLE_DECLARE_MATH(target)                                                                         \
  namespace nibble::target {                                                                                \
  void exp_array(const float* x, float* y, int64_t n);                                                      \
  void log_array(const float* x, float* y, int64_t n);                                                      \
  void tanh_array(const float* x, float* y, int64_t n);                                                     \
  void sigmoid_array(const float* x, float* y, int64_t n);                                                  \
  void silu_array(const float* x, float* y, int64_t n);                                                     \
  void exp_array(const double* x, double* y, int64_t n);                                                    \
  void log_array(const double* x, double* y, int64_t n);                                                    \
  void sin_array(const double* x, double* y, int64_t n);                                                    \
  void cos_array(const double* x, double* y, int64_t n);                                                    \
  void init_normal(float* out, int64_t first, int64_t count, uint32_t seed, uint32_t name_hash, double std, \
                   bool truncated);                                                                         \
  }
NIBBLE_DECLARE_MATH(avx2)
NIBBLE_DECLARE_MATH(avx512)

namespace nibble {
namespace {

template <class T>
struct Row {
  const char* name;
  CpuTarget target;
  void (*array)(const T* x, T* y, int64_t n);
  T (*scalar)(T x);
};
// clang-format off
#define NIBBLE_ROWS_F32(target)                                                              \
  {"exp", CpuTarget::target, target::exp_array, [](float x) { return exp_f32(x); }},         \
  {"log", CpuTarget::target, target::log_array, [](float x) { return log_f32(x); }},         \
  {"tanh", CpuTarget::target, target::tanh_array, [](float x) { return tanh_f32(x); }},      \
  {"sigmoid", CpuTarget::target, target::sigmoid_array, [](float x) { return sigmoid_f32(x); }}, \
  {"silu", CpuTarget::target, target::silu_array, [](float x) { return silu_f32(x); }}
#define NIBBLE_ROWS_F64(target)                                                              \
  {"exp", CpuTarget::target, target::exp_array, [](double x) { return exp_f64(x); }},        \
  {"log", CpuTarget::target, target::log_array, [](double x) { return log_f64(x); }},        \
  {"sin", CpuTarget::target, target::sin_array, [](double x) { return sin_f64(x); }},        \
  {"cos", CpuTarget::target, target::cos_array, [](double x) { return cos_f64(x); }}
const Row<float> rows_f32[] = {NIBBLE_ROWS_F32(avx2), NIBBLE_ROWS_F32(avx512)};
const Row<double> rows_f64[] = {NIBBLE_ROWS_F64(avx2), NIBBLE_ROWS_F64(avx512)};
// clang-format on

template <class T>
void expect_scalar_bits(const Row<T>& row, const std::vector<T>& x) {
  if (!cpu_runs(row.target)) return;
  std::vector<T> y(x.size());
  row.array(x.data(), y.data(), static_cast<int64_t>(x.size()));
  int64_t different = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const T want = row.scalar(x[i]);
    // The quotients of sigmoid and silu keep the payload of a NaN that came in: any NaN will do.
    if (std::isnan(want) ? !std::isnan(y[i]) : std::memcmp(&want, &y[i], sizeof want) != 0) {
      if (++different == 1)
        ADD_FAILURE() << row.name << " on " << name_of(row.target) << " at " << fmt::format("{:a}", x[i]);
    }
  }
  EXPECT_EQ(different, 0);
}

TEST(TrainingT13, RegistersReturnScalarBitsF32) {
  std::vector<float> x;  // a sample of all bit patterns, and a length that leaves a part of a register
  for (uint64_t pattern = 0; pattern < uint64_t{1} << 32; pattern += 8191)
    x.push_back(from_bits<float>(static_cast<uint32_t>(pattern)));
  for (const float limit : {-0x1.5d589ep+6f, -0x1.5d58a0p+6f, 0x1.62e42ep+6f, 0x1.62e430p+6f, 0x1p-126f})
    x.push_back(limit);
  EXPECT_NE(x.size() % 8, 0u);
  for (const Row<float>& row : rows_f32) expect_scalar_bits(row, x);
}

TEST(TrainingT13, RegistersReturnScalarBitsF64) {
  std::vector<double> x;
  for (uint32_t i = 0; i < 50'001; ++i) {
    const PhiloxWords w = philox4x32({i, 0, 0, 0}, 13, 64);
    x.push_back(from_bits<double>((uint64_t{w[0]} << 32) | w[1]));  // any double
    x.push_back(std::ldexp(w[2] - 0x1p31, -21));                    // -1024 .. 1024
    x.push_back(std::ldexp(w[3] - 0x1p31, -1));                     // -2^30 .. 2^30
  }
  for (const Row<double>& row : rows_f64) expect_scalar_bits(row, x);
}

TEST(TrainingT11, RegistersDrawScalarBits) {
  struct Target {
    CpuTarget target;
    void (*draw)(float* out, int64_t first, int64_t count, uint32_t seed, uint32_t name_hash, double std,
                 bool truncated);
  };
  for (const Target& t : {Target{CpuTarget::avx2, avx2::init_normal}, Target{CpuTarget::avx512, avx512::init_normal}}) {
    if (!cpu_runs(t.target)) continue;
    for (const bool truncated : {false, true})
      for (const int64_t first : {int64_t{0}, int64_t{3}, (int64_t{1} << 34) - 600}) {  // the last: block low wraps
        std::vector<float> want(100'003), got(want.size());
        fill_normal(want.data(), first, 100'003, 99, "lm_head.weight", 0.02, truncated);
        t.draw(got.data(), first, 100'003, 99, init_name_hash("lm_head.weight"), 0.02, truncated);
        EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
            << name_of(t.target) << " from " << first;
      }
  }
}

}  // namespace
}  // namespace nibble
