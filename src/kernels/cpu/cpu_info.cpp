#include "kernels/cpu/cpu_info.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

namespace nibble {
namespace {

// AVX512_BF16 is CPUID leaf 7, subleaf 1, EAX bit 5; __builtin_cpu_supports of g++ 12 does not know it by that name.
bool has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}

}  // namespace

const char* name_of(CpuTarget target) {
  switch (target) {
    case CpuTarget::ref:
      return "ref";
    case CpuTarget::avx2:
      return "avx2";
    case CpuTarget::avx512:
      return "avx512";
    case CpuTarget::avx512_bf16:
      return "avx512_bf16";
  }
  return "?";
}

bool cpu_runs(CpuTarget target) {
  __builtin_cpu_init();
  switch (target) {
    case CpuTarget::ref:
      return true;
    case CpuTarget::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    case CpuTarget::avx512:
      return cpu_runs(CpuTarget::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case CpuTarget::avx512_bf16:
      return cpu_runs(CpuTarget::avx512) && has_avx512_bf16() && __builtin_cpu_supports("avx512vnni");
  }
  return false;
}

bool cpu_has_vnni() { return cpu_runs(CpuTarget::avx512) && __builtin_cpu_supports("avx512vnni"); }

// Linux says it in /sys: index0..3 with a level, a type, a size as "32K", and the CPUs that share it as "0-1,4".
CacheSizes cache_sizes() {
  const auto word = [](int index, const char* name) {
    std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/index") + std::to_string(index) + "/" + name);
    std::string text;
    file >> text;
    return text;
  };
  CacheSizes sizes;
  for (int i = 0; i < 8; ++i) {
    const std::string level = word(i, "level"), size = word(i, "size");
    if (level.empty() || size.empty() || word(i, "type") == "Instruction") continue;
    const int64_t bytes = std::strtoll(size.c_str(), nullptr, 10) * (size.back() == 'M' ? 1 << 20 : 1 << 10);
    if (level == "1") sizes.l1 = bytes;
    if (level == "2") sizes.l2 = bytes;
    if (level != "3") continue;
    int64_t sharing = 0;
    std::istringstream list(word(i, "shared_cpu_list"));
    for (std::string range; std::getline(list, range, ',');) {
      const size_t dash = range.find('-');
      const int64_t first = std::strtoll(range.c_str(), nullptr, 10);
      sharing += dash == std::string::npos ? 1 : std::strtoll(range.c_str() + dash + 1, nullptr, 10) - first + 1;
    }
    const auto cpus = static_cast<int64_t>(std::thread::hardware_concurrency());
    sizes.l3 = bytes * std::max<int64_t>(1, sharing > 0 ? cpus / sharing : 1);
  }
  return sizes;
}

std::vector<CpuTarget> cpu_targets() {
  std::vector<CpuTarget> found;
  for (const CpuTarget t : {CpuTarget::ref, CpuTarget::avx2, CpuTarget::avx512, CpuTarget::avx512_bf16})
    if (cpu_runs(t)) found.push_back(t);
  return found;
}

std::string cpu_name() {
  unsigned words[12];
  for (unsigned i = 0; i < 3; ++i)
    if (__get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]) == 0)
      return "unknown x86-64";
  char text[sizeof words + 1] = {};
  std::memcpy(text, words, sizeof words);
  std::string name(text);
  name.erase(name.find_last_not_of(' ') + 1);
  return name.substr(std::min(name.size(), name.find_first_not_of(' ')));
}

std::string cpu_features() {
  __builtin_cpu_init();
  std::string s;
  const auto add = [&s](bool has, const char* name) {
    if (has) s += (s.empty() ? "" : " ") + std::string(name);
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512dq"), "avx512dq");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  add(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  add(has_avx512_bf16(), "avx512bf16");
  return s;
}

}  // namespace nibble
