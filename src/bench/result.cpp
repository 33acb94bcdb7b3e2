#include "bench/result.h"

#include "core/version.h"

namespace nibble {

BenchResult begin_result(const char* what, const Config& config, const ProgramPlan& plan, const PeakSummary& peak) {
  const std::string model = config.get_string("model_name");
  BenchResult r;
  r.json = {{"bench", what},
            {"version", version},
            {"commit", commit},
            {"cpu", cpu_name()},
            {"cpu_target", name_of(plan.target)},
            {"threads", plan.threads},
            {"model_name", model},
            {"peak_format", peak.format},
            {"peak_flops", peak.flops}};
  r.text = fmt::format("bench {}   {}   {}, {}, {} thread{}   nibble {} {}\n{}\n\n", what, model, cpu_name(),
                       name_of(plan.target), plan.threads, plan.threads == 1 ? "" : "s", version, commit, peak.text);
  return r;
}

}  // namespace nibble
