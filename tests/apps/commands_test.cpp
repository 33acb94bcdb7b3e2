// Each command on a small trained run: results, help, and that nothing writes escape bytes where no terminal is.
// Obligations T60 and T61 of spec/training.md, G-numbers are generation's.
#include <fmt/format.h>

#include <cmath>
#include <regex>

#include "program.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

/// Trained once for all tests of this file, which only read it.
const Workplace& trained() {
  static const Workplace place;
  static const Ended r = place(place.train({"steps=60", "run_name=run", "eval_fraction=0.1", "eval_holdout=tail",
                                            "checkpoint_period=30", "sample_interval=20"}));
  EXPECT_EQ(r.exit, 0) << r.err;
  return place;
}
const std::string run_folder = "nibble_output/run";

// ---- eval ----

TEST(TrainingT40, EvalEqualsTheEvaluationOfTheRun) {
  const Workplace& place = trained();
  std::map<std::pair<std::string, int64_t>, std::string> metrics = metrics_of(place / run_folder);
  const Json want = Json::parse(metrics.at({"eval", 60}));
  for (const int batch : {1, 2, 3, 4, 5, 64}) {
    const Ended r = place({"eval", run_folder, "json=true", "eval_per_device_batch_size=" + std::to_string(batch)});
    ASSERT_EQ(r.exit, 0) << r.err;
    const Json got = Json::parse(r.out);
    EXPECT_EQ(got["loss"], want["eval/avg_loss"]) << batch;
    EXPECT_EQ(got["total_weights"], want["eval/total_weights"]);
    EXPECT_EQ(got["bits_per_byte"], want["eval/bits_per_byte"]);
  }
  const Ended line = place({"eval", run_folder});
  EXPECT_NE(line.out.find(fmt::format("loss={:.3f}", want["eval/avg_loss"].get<double>())), std::string::npos)
      << line.out;
  EXPECT_NE(line.out.find(fmt::format("bits_per_byte={:.4f}", want["eval/bits_per_byte"].get<double>())),
            std::string::npos)
      << line.out;
  EXPECT_EQ(place({"eval", run_folder, "threads=2"}).out, line.out);
}

// Other files: a document's tokens but its first are targets, so with the byte tokenizer, BOS and EOS there are as many
// bytes as targets less one, and the bits per byte follow from the loss.
TEST(TrainingT40, BitsPerByteOfAnotherFile) {
  const Workplace& place = trained();
  const Workplace other;
  std::ofstream(other / "other.txt") << "a text of its own, 40 bytes in one line\n";
  const Ended r = place({"eval", run_folder, other / "other.txt", "json=true"});
  ASSERT_EQ(r.exit, 0) << r.err;
  const Json j = Json::parse(r.out);
  EXPECT_EQ(j["total_weights"], 41);  // 40 bytes and EOS
  EXPECT_NEAR(j["bits_per_byte"].get<double>(), j["loss"].get<double>() * 41 / 40 / std::log(2.0), 1e-12);
}

// ---- generate ----

TEST(GenerationG8, SameTextForAnyNumberOfThreads) {
  const Workplace& place = trained();
  for (const char* temperature : {"temperature=0", "temperature=1"}) {
    const Ended one = place({"generate", run_folder, "prompt=line ", temperature, "max_new_tokens=20", "threads=1"});
    ASSERT_EQ(one.exit, 0) << one.err;
    EXPECT_FALSE(one.out.empty());
    for (const char* threads : {"threads=1", "threads=2"})
      EXPECT_EQ(place({"generate", run_folder, "prompt=line ", temperature, "max_new_tokens=20", threads}).out,
                one.out);
  }
}

TEST(GenerationG8, SamplesAndSeedsDiffer) {
  const Workplace& place = trained();
  const auto texts = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"generate", run_folder, "prompt=line ", "max_new_tokens=20", "json=true"}, list;
    words.insert(words.end(), more.begin(), more.end());
    const Ended r = place(words);
    EXPECT_EQ(r.exit, 0) << r.err;
    size_t begin = 0;
    for (size_t end; (end = r.out.find('\n', begin)) != std::string::npos; begin = end + 1)
      list.push_back(Json::parse(r.out.substr(begin, end - begin))["text"]);
    return list;
  };
  const auto three = texts({"-n", "3"});
  ASSERT_EQ(three.size(), 3u);
  EXPECT_EQ(texts({"n=3"}), three);
  EXPECT_NE(three[0], three[1]);
  EXPECT_NE(three[1], three[2]);
  EXPECT_EQ(texts({})[0], three[0]);
  EXPECT_NE(texts({"seed=1"})[0], three[0]);
  const auto greedy = texts({"n=2", "temperature=0"});
  EXPECT_EQ(greedy[0], greedy[1]);
}

TEST(GenerationG9, OptionsOfOneText) {
  const Workplace& place = trained();
  std::ofstream(fs::temp_directory_path() / "nibble-prompt.txt") << "line ";
  const Ended plain = place({"generate", run_folder, "prompt=line ", "temperature=0", "max_new_tokens=12"});
  EXPECT_EQ(place({"generate", run_folder, "prompt_file=" + (fs::temp_directory_path() / "nibble-prompt.txt").string(),
                   "temperature=0", "max_new_tokens=12"})
                .out,
            plain.out);
  fs::remove(fs::temp_directory_path() / "nibble-prompt.txt");
  const Ended checkpoint =
      place({"generate", run_folder + "/checkpoints/00000060", "prompt=line ", "temperature=0", "max_new_tokens=12"});
  EXPECT_EQ(checkpoint.out, plain.out);  // a run is its newest checkpoint
  const Json j =
      Json::parse(place({"generate", run_folder, "prompt=line ", "temperature=0", "max_new_tokens=12", "--json"}).out);
  EXPECT_EQ(j["prompt_tokens"], 6);  // BOS and five bytes
  EXPECT_EQ(j["text"].get<std::string>() + "\n", plain.out);
}

// ---- verify hf ----

TEST(TrainingT30, VerifyHf) {
  const std::string golden = std::string(NIBBLE_GOLDEN_DIR) + "/hf/";
  const Workplace place;
  for (const char* name : {"llama", "llama3", "llama_tied"}) {
    const Ended r = place({"verify", "hf", golden + name});
    EXPECT_EQ(r.exit, 0) << name << "\n" << r.out << r.err;
    EXPECT_NE(r.out.find("tensors within their limits"), std::string::npos);
  }
  fs::copy(golden + "llama", place / "changed");
  std::fstream f(place / "changed/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(-4, std::ios::end);
  f.write("\0\0\x80\x3f", 4);  // the last weight becomes 1
  f.close();
  const Ended r = place({"verify", "hf", "changed"});
  EXPECT_EQ(r.exit, 1) << r.out << r.err;
  EXPECT_NE(r.out.find("TOO LARGE"), std::string::npos) << r.out;
  const Ended j = place({"verify", "hf", "changed", "--json"});
  EXPECT_EQ(j.exit, 1);
  EXPECT_FALSE(Json::parse(j.out)["fits"]);
}

// ---- ckpt export ----

TEST(PrecisionP65, AnExportIsEvaluatedAndContinuesATextInEveryFormat) {
  const Workplace& place = trained();
  const TemporaryFolder folder;
  const auto loss = [&](const std::string& model) {
    const Ended r = place({"eval", model, "json=true"});
    EXPECT_EQ(r.exit, 0) << r.err;
    return Json::parse(r.out)["loss"].get<double>();
  };
  const auto text = [&](const std::string& model) {
    const Ended r = place({"generate", model, "prompt=line 7", "temperature=0", "max_new_tokens=24"});
    EXPECT_EQ(r.exit, 0) << r.err;
    return r.out;
  };
  const auto write = [&](const std::string& from, const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"ckpt", "export", from, folder / out};
    words.insert(words.end(), more.begin(), more.end());
    const Ended r = place(words);
    EXPECT_EQ(r.exit, 0) << r.err;
    return r.out;
  };
  const std::string table = write(run_folder, "nvfp4", {"--format=nvfp4"});
  EXPECT_NE(table.find("nvfp4, 14 of 14 linear layers packed as nvfp4, the rest in bfloat16"), std::string::npos)
      << table;
  EXPECT_NE(table.find("float32               140,928"), std::string::npos) << table;
  EXPECT_NE(table.find("bfloat16               70,464"), std::string::npos) << table;
  EXPECT_NE(table.find("this export            44,024"), std::string::npos) << table;
  const Json json = Json::parse(write(run_folder, "ct", {"format=compressed_tensors", "--json"}));
  EXPECT_EQ(json["bytes"], 44024) << "18,432 values at 4.5 bits, 14 scales of 4 bytes, 16,800 values at 16 bits";
  EXPECT_EQ(json["packed_layers"], 14);
  write(folder / "nvfp4", "plain", {"format=hf", "dtype=float32"});
  const double packed = loss(folder / "nvfp4");
  EXPECT_EQ(loss(folder / "plain"), packed) << "the decoded weights";
  EXPECT_NEAR(loss(folder / "ct"), packed, 1e-5);
  EXPECT_NE(loss(run_folder), packed);
  EXPECT_NEAR(loss(run_folder), packed, 0.3);
  EXPECT_GT(text(folder / "nvfp4").size(), 10u);
  EXPECT_EQ(text(folder / "nvfp4"), text(folder / "plain"));
  EXPECT_EQ(place({"ckpt", "verify", folder / "nvfp4"}).exit, 0);
  const Ended mlp =
      place({"ckpt", "export", run_folder, folder / "mlp", "format=nvfp4", "quantize_sites=mlp", "tensor_scale=pow2"});
  EXPECT_NE(mlp.out.find("6 of 14 linear layers packed as nvfp4 pow2, the rest"), std::string::npos) << mlp.out;
  EXPECT_EQ(mlp.err, "") << "both keys are read without a recipe";
}

TEST(PrecisionP65, WhatCannotBeExportedIsRefused) {
  const Workplace& place = trained();
  const auto refused = [&](int exit, const std::vector<std::string>& more, const std::string& words) {
    std::vector<std::string> all = {"ckpt", "export"};
    all.insert(all.end(), more.begin(), more.end());
    const Ended r = place(all);
    EXPECT_EQ(r.exit, exit) << r.err;
    EXPECT_NE(r.err.find(words), std::string::npos) << r.err;
  };
  refused(64, {run_folder}, "error[E007]");
  refused(64, {run_folder, "x", "format=gguf"}, "not in this version");
  refused(64, {run_folder, "x", "format=nvfp5"}, "error[E002]");
  refused(66, {"nothing", "x", "format=nvfp4"}, "error[E204]");
  refused(78, {run_folder, "x", "format=nvfp4", "quantization=te_mxfp8"}, "weights of quantization=mxfp8 are mxfp8");
  refused(78, {run_folder, "x", "format=nvfp4", "recipe_disable=[sr]"}, "belongs to a recipe");
  refused(78, {run_folder, "x", "tensor_scale=pow2"}, "format=hf packs no weights");
  refused(73, {run_folder, run_folder, "format=nvfp4", "overwrite=true"}, "holds no model to overwrite");
  refused(64, {run_folder, "x", "book.txt"}, "error[E004]");
  EXPECT_FALSE(fs::exists(place / "x"));
}

// ---- ckpt, report, config ----

TEST(TrainingT61, Checkpoints) {
  const Workplace& place = trained();
  Ended r = place({"ckpt", "ls", run_folder, "--json"});
  ASSERT_EQ(r.exit, 0) << r.err;
  const Json list = Json::parse(r.out)["checkpoints"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["step"], 30);
  EXPECT_EQ(list[1]["step"], 60);
  EXPECT_TRUE(list[1]["valid"]);
  EXPECT_EQ(place({"ckpt", "verify", run_folder}).exit, 0);
  EXPECT_EQ(place({"ckpt", "diff", run_folder, run_folder}).exit, 0);
  r = place({"ckpt", "diff", run_folder + "/checkpoints/00000030", run_folder});
  EXPECT_EQ(r.exit, 1);
  EXPECT_NE(r.out.find("lm_head.weight: largest difference"), std::string::npos) << r.out;
}

TEST(TrainingT61, Report) {
  const Workplace& place = trained();
  const Workplace out;
  const Ended r = place({"report", run_folder, "--json", "out=" + (out / "curve.svg")});
  ASSERT_EQ(r.exit, 0) << r.err;
  EXPECT_EQ(Json::parse(r.out)["steps"], 60);
  EXPECT_TRUE(out.content("curve.svg").starts_with("<svg")) << out.content("curve.svg").substr(0, 100);
}

TEST(TrainingT61, ConfigOfARun) {
  const Workplace& place = trained();
  const Ended r = place({"config", run_folder + "/config.yml", "--json"});
  ASSERT_EQ(r.exit, 0) << r.err;
  const Json j = Json::parse(r.out);
  EXPECT_EQ(j["steps"], 60);
  EXPECT_EQ(j["base_emb_dim"], 32);
  EXPECT_EQ(j["run_name"], "run");
  EXPECT_NE(place({"config", "explain", "learning_rate"}).out.find("3e-05"), std::string::npos);
}

TEST(TrainingT61, SamplesOfARun) {
  for (const char* step : {"20", "40", "60"})
    EXPECT_FALSE(trained().content(run_folder + "/samples/000000" + step + ".txt").empty());
}

// ---- help ----

TEST(TrainingT61, EveryCommandHasHelp) {
  const Workplace place;
  const Ended overview = place({"help"});
  ASSERT_EQ(overview.exit, 0);
  EXPECT_EQ(place({"--help"}).out, overview.out);
  EXPECT_EQ(place({}).exit, 64);
  std::vector<std::string> commands;
  const std::regex row("\n  ([a-z]+) +\\S");
  for (std::sregex_iterator m(overview.out.begin(), overview.out.end(), row), end; m != end; ++m)
    if ((*m)[1] != "help") commands.push_back((*m)[1]);
  EXPECT_GE(commands.size(), 9u);
  for (const std::string& c : commands) {
    const Ended r = place({"help", c});
    EXPECT_EQ(r.exit, 0) << c;
    EXPECT_EQ(r.err, "") << c;
    for (const char* part : {"NAME\n", "SYNOPSIS\n", "DESCRIPTION\n", "EXIT STATUS\n", "EXAMPLES\n"})
      EXPECT_NE(r.out.find(part), std::string::npos) << c << " lacks " << part;
    EXPECT_NE(r.out.find("nibble " + c), std::string::npos);
    EXPECT_EQ(place({c, "--help"}).out, r.out) << c;
    EXPECT_EQ(place({c, "-h"}).out, r.out) << c;
  }
  for (const auto& [command, keys] : std::map<std::string, std::vector<std::string>>{
           {"train",
            {"model_name", "steps", "train_files", "eval_files", "checkpoint_period", "run_name", "--quiet",
             "--dry-run", "--log-file"}},
           {"eval", {"eval_per_device_batch_size", "eval_steps", "max_target_length", "threads", "json"}},
           {"generate",
            {"prompt", "prompt_file", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed",
             "max_new_tokens", "stop", "n_ctx", "json"}},
           {"plan", {"memory_limit", "--layers", "--json"}},
           {"report", {"out=FILE", "--json"}}})
    for (const std::string& key : keys)
      EXPECT_NE(place({"help", command}).out.find(key), std::string::npos) << command << " " << key;
  EXPECT_TRUE(place({"--version"}).out.starts_with("nibble "));
}

// ---- T60 ----

void expect_no_escape(const Ended& r, const std::string& what) {
  for (const std::string* text : {&r.out, &r.err})
    for (const char c : *text)
      ASSERT_TRUE(c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 0x20)
          << what << ": control byte " << static_cast<int>(c);
}

// The model is hardly trained: its samples hold every byte there is.
std::vector<std::vector<std::string>> printing_commands(const Workplace& place, const std::string& name) {
  return {place.train({"steps=8", "run_name=" + name, "sample_interval=1", "eval_fraction=0.1", "eval_holdout=tail",
                       "eval_interval=2"}),
          {"generate", "nibble_output/" + name, "prompt=line", "max_new_tokens=20"},
          {"eval", "nibble_output/" + name},
          {"report", "nibble_output/" + name},
          {"ckpt", "ls", "nibble_output/" + name},
          {"plan", "model_name=nibble-1m", "dataset_type=synthetic"},
          {"config"},
          {"help", "train"},
          {"help"},
          {"trian"}};
}

TEST(TrainingT60, WithoutATerminalNoControlBytes) {
  const Workplace place;
  for (const auto& words : printing_commands(place, "plain")) {
    if (words[0] == "generate") continue;  // its output is the model's text, byte for byte
    expect_no_escape(Running(words, {.folder = place.path(), .environment = {{"TERM", "xterm-256color"}}}).finish(),
                     words[0]);
  }
}

TEST(TrainingT60, NoColorAndDumbTerminals) {
  const Workplace place;
  const std::vector<std::map<std::string, std::string>> environments = {
      {{"TERM", "xterm-256color"}, {"NO_COLOR", "1"}}, {{"TERM", "dumb"}}, {}};
  for (size_t i = 0; i < environments.size(); ++i)
    for (const auto& words : printing_commands(place, "e" + std::to_string(i))) {
      const Ended r =
          Running(words, {.folder = place.path(), .environment = environments[i], .terminal = true}).finish();
      EXPECT_EQ(r.out.find('\x1b'), std::string::npos) << words[0] << " environment " << i;
      EXPECT_EQ(r.out.find("\rstep "), std::string::npos) << words[0] << ": a status line on a dumb terminal";
    }
}

TEST(TrainingT60, StepLinesStayWholeOnATerminal) {
  const Workplace place;
  const Ended r = Running(place.train({"steps=300", "run_name=run", "sample_interval=50", "eval_fraction=0.1",
                                       "eval_holdout=tail", "eval_interval=100", "eval_steps=5"}),
                          {.folder = place.path(), .environment = {{"TERM", "xterm-256color"}}, .terminal = true})
                      .finish();
  EXPECT_EQ(r.exit, 0) << r.out;
  EXPECT_EQ(r.out.find('\x1b'), std::string::npos);
  EXPECT_NE(r.out.find("step 1/300 ["), std::string::npos);  // there is a status line
  // What a terminal shows: CR goes to the first column, what follows overwrites.
  std::vector<std::string> screen(1);
  size_t column = 0;
  for (const char c : r.out) {
    if (c == '\n')
      screen.emplace_back(), column = 0;
    else if (c == '\r')
      column = 0;
    else {
      std::string& line = screen.back();
      if (column >= line.size()) line.resize(column + 1, ' ');
      line[column++] = c;
    }
  }
  int64_t steps = 0;
  const std::regex whole(
      "completed step: \\d+, seconds: [\\d.]+, TFLOP/s/device: [\\d.]+, Tokens/s/device: [\\d.]+, total_weights: \\d+, "
      "loss: [\\d.]+, lm_loss: [\\d.]+, "
      "perplexity: [\\d.]+, grad_norm: [\\d.]+, lr: [-+\\d.e]+, mfu: n/a, mem: [\\d.]+MiB, eta: [\\dhms]+ *");
  for (const std::string& line : screen) {
    if (line.find("completed step:") == std::string::npos) continue;
    EXPECT_TRUE(std::regex_match(line, whole)) << line;
    ++steps;
  }
  EXPECT_EQ(steps, 300);
}

}  // namespace
}  // namespace nibble
