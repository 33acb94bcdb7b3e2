// The machine file and the limits that apply to a piece of work.
#include "plan/machine.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace nibble {
namespace {

Machine machine_of_two() {
  Machine m;
  m.cpu = "Some CPU (R) 77", m.features = "avx2 fma", m.caches = {32 << 10, 512 << 10, 16 << 20};
  m.date = "2026-01-31 12:00 UTC", m.version = "0.1.0 abc";
  m.limits = {{.threads = 1,
               .f32 = 100e9,
               .int8 = 200e9,
               .l1 = 160e9,
               .l2 = 80e9,
               .l3 = 50e9,
               .read = 15e9,
               .copy = 12e9,
               .stream_copy = 18e9,
               .stream_fill = 9e9},
              {.threads = 2, .f32 = 200e9, .bf16 = 400e9, .read = 23e9, .stream_copy = 31e9}};
  m.prices = {{.op = "linear",
               .kernel = "avx2",
               .format = "f32",
               .threads = 2,
               .fixed = 1.0 / 3e6,
               .flop = 1e-11,
               .byte = 1e-11,
               .far_byte = 2e-12,
               .function = 1e-9,
               .error = 0.02,
               .samples = 12}};
  m.checks = {{.what = "a step", .format = "f32", .threads = 2, .predicted = 0.1, .measured = 0.11}};
  return m;
}

TEST(PlanMachine, ComesBackFromItsText) {
  const Machine m = machine_of_two(), back = parse_machine(machine_text(m), "x.json");
  EXPECT_EQ(back.limits, m.limits);
  EXPECT_EQ(back.prices, m.prices);
  EXPECT_EQ(back.checks, m.checks);
  EXPECT_EQ(machine_text(back), machine_text(m));
}

TEST(PlanL32, ABrokenFileIsNamed) {
  const std::string whole = machine_text(machine_of_two());
  const std::string wrong[] = {"", "{}", whole.substr(0, whole.size() / 2), "{\"schema\": \"nibble-machine-2\"}",
                               "[1]"};
  for (const std::string& text : wrong) {
    try {
      parse_machine(text, "some/file.json");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E114");
      EXPECT_NE(e.message().find("some/file.json"), std::string::npos) << e.message();
    }
  }
}

TEST(PlanMachine, NewMeasurementsReplaceOldOnes) {
  Machine m = machine_of_two(), newer = machine_of_two();
  newer.limits = {{.threads = 2, .f32 = 210e9}, {.threads = 4, .f32 = 400e9}};
  newer.prices[0].flop = 5e-12;
  newer.prices.push_back({.op = "linear", .kernel = "avx2", .format = "f32", .threads = 4});
  newer.checks.clear(), newer.date = "later";
  m.merge(newer);
  ASSERT_EQ(m.limits.size(), 3u);
  EXPECT_EQ(m.limits_of(1)->f32, 100e9);
  EXPECT_EQ(m.limits_of(2)->f32, 210e9);
  EXPECT_EQ(m.limits_of(4)->f32, 400e9);
  EXPECT_EQ(m.limits_of(3), nullptr);
  EXPECT_EQ(m.prices.size(), 2u);
  EXPECT_EQ(m.price_of("linear", "avx2", "f32", 2)->flop, 5e-12);
  EXPECT_EQ(m.price_of("linear", "avx2", "bf16", 2), nullptr);
  EXPECT_EQ(m.checks.size(), 1u);
  EXPECT_EQ(m.date, "later");
  newer.cpu = "Another CPU";
  m.merge(newer);
  EXPECT_EQ(m.limits.size(), 2u) << "of another machine nothing is kept";
}

TEST(PlanMachine, FileNamesDifferByMachine) {
  Machine m = machine_of_two();
  const std::string name = machine_file_name(m);
  EXPECT_TRUE(name.starts_with("machine-some-cpu-r-77-") && name.ends_with(".json")) << name;
  m.caches.l3 *= 2;
  EXPECT_NE(machine_file_name(m), name);
  m.caches.l3 /= 2, m.date = "later", m.limits.clear();
  EXPECT_EQ(machine_file_name(m), name);
}

TEST(PlanMachine, TheLimitIsTheRoof) {
  const Machine m = machine_of_two();
  const Limits& one = m.limits[0];
  const double mega = 1 << 20;
  const Work product{.flops = 1e9, .read = mega, .written = mega};
  EXPECT_DOUBLE_EQ(limit_seconds(product, one, m.caches), 1e9 / 100e9);
  const Work copy{.flops = 1, .read = 64 * mega, .written = 64 * mega};
  EXPECT_DOUBLE_EQ(limit_seconds(copy, one, m.caches), 128 * mega / 18e9) << "streaming copies are the fastest";
  const Work reading{.flops = 1, .read = 128 * mega, .written = 8};
  EXPECT_DOUBLE_EQ(limit_seconds(reading, one, m.caches), (128 * mega + 8) / 15e9);
  EXPECT_DOUBLE_EQ(bandwidth({.read = 8 * mega}, one, m.caches), 50e9);
  EXPECT_DOUBLE_EQ(bandwidth({.read = 400 << 10}, one, m.caches), 80e9);
  EXPECT_DOUBLE_EQ(bandwidth({.read = 32 << 10}, one, m.caches), 160e9);
  EXPECT_DOUBLE_EQ(limit_seconds(product, Limits{}, m.caches), 0) << "unknown";
}

TEST(PlanMachine, TheFormatChoosesThePeak) {
  const Machine m = machine_of_two();
  EXPECT_EQ(m.limits[0].peak("bf16"), 100e9) << "expanded to f32 where there is no instruction";
  EXPECT_EQ(m.limits[1].peak("bf16"), 400e9);
  EXPECT_EQ(m.limits[0].peak("int8"), 200e9);
  EXPECT_EQ(m.limits[1].peak("f32"), 200e9);
}

}  // namespace
}  // namespace nibble
