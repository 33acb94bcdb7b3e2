// nibble doctor: what it says is what the program would do.
#include "../../apps/nibble/doctor.cpp"  // the command is no library

#include <gtest/gtest.h>

#include "apps/outcome.h"
#include "ops/all.h"

namespace nibble {
namespace {

TEST(Doctor, SaysWhatRuns) {
  const Outcome r = outcome_of(doctor_command, {"--json", "threads=1", "cpu_target=ref"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["version"], version);
  EXPECT_EQ(j["threads"], 1);
  EXPECT_EQ(j["target"], "ref");
  EXPECT_EQ(j["targets"].size(), cpu_targets().size());
  EXPECT_EQ(j["kernels"].size(), kernel_table().size());
  for (const auto& [op, by_target] : j["kernels"].items()) EXPECT_EQ(by_target["ref"], "ref") << op;
  if (cpu_runs(CpuTarget::avx512)) {
    EXPECT_EQ(j["kernels"]["linear"]["avx512"], "avx512");
  }
  if (cpu_runs(CpuTarget::avx2)) {
    EXPECT_EQ(j["kernels"]["linear"]["avx2"], "avx2");
  }
  EXPECT_GT(j["memory"]["physical"].get<int64_t>(), j["memory"]["limit"].get<int64_t>());
  for (const char* library : {"fmt", "nlohmann-json", "yaml-cpp", "pcre2", "xxhash", "utf8proc"})
    EXPECT_FALSE(j["libraries"][library].get<std::string>().empty()) << library;
}

TEST(Doctor, TextNamesProcessorAndKernels) {
  const Outcome r = outcome_of(doctor_command, {});
  EXPECT_EQ(r.exit, 0);
  for (const std::string& part :
       {cpu_name(), std::string("cross_entropy_grad"), fmt::format("used: {}", name_of(cpu_targets().back()))})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " in\n" << r.out;
}

TEST(Doctor, MoreThreadsThanProcessorsIsW602) {
  testing::internal::CaptureStderr();
  outcome_of(doctor_command, {"threads=4096"});
  std::fflush(stderr);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("warning[W602]: 4096 threads"), std::string::npos);
}

TEST(Doctor, Errors) {
  EXPECT_EQ(outcome_of(doctor_command, {"--loud"}).id, "E007");
  EXPECT_EQ(outcome_of(doctor_command, {"thread=1"}).id, "E001");
}

}  // namespace
}  // namespace nibble
