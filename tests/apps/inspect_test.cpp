// nibble inspect: what numerics_period wrote, the worst layer first, advice with its cost.
#include <fstream>

#include "program.h"

namespace nibble {
namespace {

std::string record(const std::string& site, const std::string& copy, const std::string& more) {
  return R"({"kind":"numerics","step":4,"site":")" + site + R"(","copy":")" + copy +
         R"(","format":"nvfp4","sqnr_db":20.4,"zero_share":0.07)" + more + "}\n";
}

TEST(Inspect, ARunIsRankedWithFormatsKernelsAndAdvice) {
  const Workplace place;
  const Ended trained = place(place.train({"steps=3", "run_name=run", "quantization=te_nvfp4", "numerics_period=2"}));
  ASSERT_EQ(trained.exit, 0) << trained.err;
  const Ended r = place({"inspect", "nibble_output/run", "--json"});
  ASSERT_EQ(r.exit, 0) << r.err;
  const Json j = Json::parse(r.out);
  EXPECT_EQ(j["schema"], "nibble-inspect-1");
  EXPECT_EQ(j["step"], 2);
  ASSERT_GT(j["sites"].size(), 6u);
  for (size_t i = 1; i < j["sites"].size(); ++i)
    EXPECT_GE(j["sites"][i - 1]["findings"].get<int>(), j["sites"][i]["findings"].get<int>());
  for (const Json& site : j["sites"]) {
    ASSERT_EQ(site["products"].size(), 3u) << site;
    EXPECT_EQ(site["products"][0]["gemm"], "fprop");
    EXPECT_EQ(site["products"][0]["format"], "nvfp4, nvfp4_2d");
    EXPECT_NE(site["products"][0]["kernel"], "");
  }
  const Ended text = place({"inspect", "nibble_output/run/metrics.jsonl"});
  EXPECT_EQ(text.exit, 0) << text.err;
  EXPECT_NE(text.out.find(j["sites"][0]["site"].get<std::string>()), std::string::npos);
}

// Records of another making: the layer with the most to watch leads, and the advice counts from the nearer end.
TEST(Inspect, TheWorstLayerLeadsAndItsKeyCostsMemory) {
  const Workplace place;
  ASSERT_EQ(place(place.train({"steps=1", "run_name=run", "quantization=te_nvfp4"})).exit, 0);
  const std::string file = place / "nibble_output/run/metrics.jsonl";
  std::ofstream(file) << record("layers.0/mlp/up_proj", "x", "")
                      << record("layers.0/mlp/down_proj", "x", R"(,"kurtosis":500)")
                      << record("layers.0/self_attn/q_proj", "w", R"(,"kurtosis":500,"crest":70,"mean_ratio":0.2)");
  const Json j = Json::parse(place({"inspect", "nibble_output/run", "--json"}).out);
  EXPECT_EQ(j["sites"][0]["site"], "layers.0/self_attn/q_proj");
  EXPECT_EQ(j["sites"][0]["findings"], 3);
  EXPECT_EQ(j["sites"][1]["site"], "layers.0/mlp/down_proj");
  EXPECT_EQ(j["sites"][2]["findings"], 0);
  EXPECT_EQ(j["advice"]["key"], "high_precision_first_layers=1");
  EXPECT_NE(j["advice"]["bytes_before"], j["advice"]["bytes_after"]);
  std::ofstream(file) << record("layers.0/mlp/up_proj", "x", "");
  const Ended good = place({"inspect", "nibble_output/run"});
  EXPECT_NE(good.out.find("nothing to do"), std::string::npos) << good.out;
}

TEST(Inspect, ARunWithoutRecordsIsRefused) {
  const Workplace place;
  ASSERT_EQ(place(place.train({"steps=1", "run_name=run"})).exit, 0);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"inspect", "nibble_output/run"}, {"inspect", "nowhere"}, {"inspect"}}) {
    const Ended r = place(words);
    EXPECT_EQ(r.exit, 66) << r.err;
    EXPECT_NE(r.err.find("E204"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("hint"), std::string::npos);
  }
  EXPECT_EQ(place({"inspect", "a", "b"}).exit, 64);
  EXPECT_EQ(place({"inspect", "--what"}).exit, 64);
}

}  // namespace
}  // namespace nibble
