// nibble doctor: what this program is, what this machine has, and which kernels will run on it.
#include <sched.h>
#include <unistd.h>
#include <utf8proc.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "command.h"
#include "core/error.h"
#include "core/version.h"
#include "io/config.h"
#include "kernels/cpu/cpu_info.h"
#include "ops/ops.h"
#include "plan/report.h"
#include "runtime/registry.h"
#include "train/fits.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

struct Cpus {
  int64_t online = 0, allowed = 0;  // of the machine; of this process
};
Cpus count_cpus() {
  Cpus c{.online = sysconf(_SC_NPROCESSORS_ONLN)};
  c.allowed = c.online;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) c.allowed = CPU_COUNT(&set);
  return c;
}

// "MemAvailable:   123 kB" of /proc/meminfo, in bytes; 0 if the line is missing.
int64_t memory_info(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return std::strtoll(line.c_str() + name.size() + 1, nullptr, 10) * 1024;
  return 0;
}

// "always [madvise] never" -> "madvise"; "unknown" where the kernel does not say.
std::string chosen_of(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const size_t open = all.find('['), close = all.find(']');
  return open == std::string::npos || close == std::string::npos ? "unknown" : all.substr(open + 1, close - open - 1);
}

// The first kernel that `target` allows: what runs unless it refuses a shape.
std::string_view kernel_for(const KernelRow& row, CpuTarget target) {
  for (const Kernel& k : row.cpu)
    if (k.needs <= target) return k.name;
  return "ref";
}

Json describe(const Config& config) {
  const Cpus cpus = count_cpus();
  const CpuTarget used = resolve_target(config.get_string("cpu_target"));
  Json j = {{"version", version}, {"commit", commit}, {"compiler", compiler}};
  j["cpu"] = {{"name", cpu_name()}, {"features", cpu_features()}, {"online", cpus.online}, {"allowed", cpus.allowed}};
  j["threads"] = resolve_threads(config.get_int("threads"));
  j["targets"] = Json::array();
  for (const CpuTarget t : cpu_targets()) j["targets"].push_back(name_of(t));
  j["target"] = name_of(used);
  j["memory"] = {{"physical", int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE)},
                 {"available", memory_info("MemAvailable")},
                 {"limit", memory_limit_of(config)},
                 {"transparent_huge_pages", chosen_of("/sys/kernel/mm/transparent_hugepage/enabled")}};
  for (const KernelRow& row : kernel_table())
    for (const CpuTarget t : cpu_targets()) j["kernels"][std::string(row.op->name)][name_of(t)] = kernel_for(row, t);
  for (const auto& [name, number] : libraries) j["libraries"][name] = number;
  j["libraries"]["utf8proc"] = utf8proc_version();
  return j;
}

std::string size_of(const Json& bytes) { return size_text(bytes.get<double>()); }

void print(const Json& j) {
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  fmt::print("nibble     {}, commit {}, {}\n", text(j["version"]), text(j["commit"]), text(j["compiler"]));
  const Json &cpu = j["cpu"], &memory = j["memory"];
  fmt::print("cpu        {}\n           {}\n", text(cpu["name"]), text(cpu["features"]));
  fmt::print("           {} processors, {} for this process; {} threads\n", cpu["online"].get<int64_t>(),
             cpu["allowed"].get<int64_t>(), j["threads"].get<int>());
  fmt::print("memory     {}, {} available, a run may use {}; transparent huge pages {}\n", size_of(memory["physical"]),
             size_of(memory["available"]), size_of(memory["limit"]), text(memory["transparent_huge_pages"]));
  std::string list;
  for (const Json& t : j["targets"]) list += (list.empty() ? "" : ", ") + text(t);
  fmt::print("targets    {}; used: {}\n", list, text(j["target"]));
  list.clear();
  for (const auto& [name, number] : j["libraries"].items())
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", name, text(number));
  fmt::print("libraries  {}\n", list);
  fmt::print("kernels    {:<24}", "cpu_target=");
  for (const Json& t : j["targets"]) fmt::print("{:<13}", text(t));
  for (const auto& [op, by_target] : j["kernels"].items()) {
    fmt::print("\n           {:<24}", op);
    for (const Json& t : j["targets"]) fmt::print("{:<13}", text(by_target[text(t)]));
  }
  fmt::print("\n");
}

int run(const std::vector<std::string>& arguments) {
  ResolveOptions options{.command = "doctor"};
  options.flags = {"json"};
  const Resolved r = resolve(arguments, options);
  for (const std::string& notice : r.notices) fmt::print(stderr, "{}\n", notice);
  const Json j = describe(r.config);
  if (const int64_t allowed = j["cpu"]["allowed"]; j["threads"].get<int64_t>() > allowed)
    fmt::print(stderr, "warning[W602]: {} threads, and this process may run on {} processors\n  hint: threads={}\n",
               j["threads"].get<int64_t>(), allowed, allowed);
  if (r.options.contains("json"))
    fmt::print("{}\n", j.dump(2));
  else
    print(j);
  return exit_done;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    Prints version and commit, the processor and its instruction sets, memory,
    libraries, and for every operation the kernel that each cpu_target runs.
    Put it into a bug report.

KEYS
    threads, cpu_target, memory_limit   as in nibble train

OPTIONS
    --json   one JSON object

EXIT STATUS
    0 done   64 usage   69 cpu_target is not on this CPU

EXAMPLES
    nibble doctor
    nibble doctor cpu_target=avx2 --json
)";

}  // namespace

constinit const Command doctor_command{"doctor", "nibble doctor [threads=N] [cpu_target=NAME] [--json]",
                                       "what this program and this machine are", help, run};

}  // namespace nibble
