// Every row of the error table (spec/training.md 7.2) that one machine and this version can meet, produced by a command
// line: id, exit code, required words, and nothing made before step 0. Obligation T57.
#include "program.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Row {
  std::string id;
  int exit;
  std::vector<std::string> arguments, words;
};

/// Names and contents of everything in the folder but token caches, which are made beside the data and may stay.
std::map<std::string, std::string> everything(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& e : fs::recursive_directory_iterator(folder)) {
    if (e.path().string().find("/nibble-", folder.size()) != std::string::npos) continue;
    std::ifstream file(e.path(), std::ios::binary);
    files[e.path().string()] = e.is_directory() ? "folder" : std::string(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

void expect_row(const Ended& r, const Row& row) {
  std::string shown = "nibble";
  for (const std::string& a : row.arguments) shown += " " + a;
  EXPECT_EQ(r.exit, row.exit) << shown << "\n" << r.err;
  EXPECT_NE(r.err.find("error[" + row.id + "]: "), std::string::npos) << shown << "\n" << r.err;
  EXPECT_NE(r.err.find("\n  hint: "), std::string::npos) << "no way out: " << shown << "\n" << r.err;
  for (const std::string& word : row.words)
    EXPECT_NE(r.err.find(word), std::string::npos) << "missing: " << word << " in " << shown << "\n" << r.err;
}

/// Each row leaves every file as it was and makes none.
void expect_rows(const Workplace& place, const std::vector<Row>& rows) {
  const auto before = everything(place.path());
  for (const Row& row : rows) {
    expect_row(place(row.arguments), row);
    const auto after = everything(place.path());
    for (const auto& [name, content] : after) EXPECT_TRUE(before.contains(name)) << row.id << " made " << name;
    EXPECT_TRUE(after == before) << row.id << ": something changed";
  }
}

std::vector<std::string> tiny(std::initializer_list<std::string> more) {
  std::vector<std::string> words = {"train", "tiny.yml"};
  words.insert(words.end(), more);
  return words;
}

TEST(TrainingT57, CommandLineAndConfiguration) {
  const Workplace place;
  std::ofstream(place / "twice.yml") << "steps: 1\nseed: 2\nsteps: 3\n";
  std::ofstream(place / "tab.yml") << "steps: 1\nx:\n\ty: 2\n";
  std::ofstream(place / "bad.yml") << "steps: [1\n";
  std::ofstream(place / "a.yml") << "base_config: b.yml\n";
  std::ofstream(place / "b.yml") << "base_config: a.yml\n";
  fs::create_directory(place / "folder.yml");
  expect_rows(
      place,
      {
          {"E001", 64, {"train", "stepz=5"}, {"stepz", "steps", "argument 1"}},
          {"E001",
           64,
           {"plan", "dataset_type=synthetic", "--learning-rat=5"},
           {"learning_rat", "learning_rate", "argument 2"}},
          {"E002", 64, {"train", "steps=fifty"}, {"steps", "fifty", "int"}},
          {"E002", 64, {"train", "dtype=bf17"}, {"dtype", "bf17", "bfloat16"}},
          {"E002", 64, {"train", "packing=2"}, {"packing", "2", "bool"}},
          {"E002", 64, {"train", "learning_rate=[1]"}, {"learning_rate"}},
          {"E003", 64, {"train", "twice.yml"}, {"steps", "twice.yml:1", "twice.yml:3"}},
          {"E004", 64, {"train", "no_such_book.txt"}, {"no_such_book.txt", "key=value"}},
          {"E005", 66, {"train", "none.yml"}, {"none.yml", "configs/base.yml"}},
          {"E005", 66, {"train", "folder.yml"}, {"folder.yml"}},
          {"E006", 64, {"train", "tab.yml"}, {"tab.yml:3:1"}},
          {"E006", 64, {"train", "bad.yml"}, {"bad.yml:"}},
          {"E006", 64, {"train", "a.yml"}, {"a.yml", "b.yml"}},
          {"E007", 64, {"trian"}, {"trian", "train", "generate"}},
          {"E007", 64, {"help", "evla"}, {"evla", "eval"}},
          {"E007", 64, {"verify", "hg"}, {"hg", "hf"}},
          {"E007", 64, {"ckpt", "verfy", "x"}, {"verfy", "verify"}},
          {"E008",
           64,
           {"train", "model_name=nibble-1m", "base_emb_dim=64", "dataset_type=synthetic"},
           {"base_emb_dim", "128", "64", "override_model_config=true"}},
          {"E009", 64, {"train", "model_name=nibble-2m"}, {"nibble-2m", "nibble-1m"}},
          {"E010", 64, {"train", "use_sft=true"}, {"use_sft"}},
          {"E010",
           64,
           {"train", "quantization=te_nvfp4", "recipe_addons=[averis]", "dataset_type=synthetic"},
           {"recipe_addons", "averis", "not in this version"}},
          {"E010", 64, {"train", "opt_type=muon", "dataset_type=synthetic"}, {"muon", "not in this version"}},
          {"E010", 64, {"ckpt", "import", "a", "b"}, {"not in this version"}},
          {"E010", 64, {"verify", "gpu"}, {"not in this version"}},
          {"E101",
           78,
           tiny({"dataset_type=synthetic", "per_device_batch_size=1.5"}),
           {"1.5", "per_device_batch_size", "gradient_accumulation_steps", "2"}},
          {"E102", 78, tiny({"dataset_type=synthetic", "steps=5", "token_budget=500"}), {"steps", "token_budget"}},
          {"E102",
           78,
           tiny({"dataset_type=synthetic", "load_parameters_path=a", "load_full_state_path=b"}),
           {"load_parameters_path", "load_full_state_path"}},
          {"E104",
           78,
           tiny({"dataset_type=synthetic", "base_num_query_heads=3", "base_num_kv_heads=2"}),
           {"3", "2", "base_num_kv_heads"}},
          {"E107",
           78,
           tiny({"dataset_type=synthetic", "memory_limit=800Ki"}),
           {"819,200", "weights", "largest tensors", "hint: per_device_batch_size=1"}},
          {"E105",
           78,
           tiny({"dataset_type=synthetic", "ici_fsdp_parallelism=-1", "ici_data_parallelism=-1"}),
           {"ici_fsdp_parallelism", "ici_data_parallelism"}},
          {"E102",
           78,
           tiny({"dataset_type=synthetic", "quantization=quartet2", "recipe_disable=[rht]"}),
           {"quartet2", "EDEN needs the rotation"}},
          {"E102", 78, tiny({"dataset_type=synthetic", "quantization=bf16"}), {"bf16", "dtype=bfloat16"}},
          {"E502", 64, tiny({"dataset_type=synthetic", "quantization=int8"}), {"int8"}},
          {"E108", 78, tiny({"dataset_type=synthetic", "head_dim=15"}), {"head_dim", "15", "16"}},
          {"E108",
           78,
           tiny({"dataset_type=synthetic", "max_position_embeddings=16"}),
           {"max_target_length", "32", "16"}},
          {"E503", 69, tiny({"dataset_type=synthetic", "hardware=gpu"}), {"hardware=gpu", "hardware=cpu"}},
      });
  const Running::Options overridden{.folder = place.path(), .environment = {{"M_STEPS", "5"}}};
  expect_row(Running({"train", "tiny.yml", "dataset_type=synthetic"}, overridden).finish(),
             {"E011", 64, {}, {"M_STEPS", "steps="}});
}

TEST(TrainingT57, DataBeforeStepZero) {
  const Workplace place;
  std::ofstream(place / "empty.txt");
  std::ofstream(place / "short.txt") << "x";
  std::ofstream(place / "bad.jsonl") << "{\"text\": \"fine\"}\n{\"text\": \n";
  std::ofstream(place / "field.jsonl") << "{\"text\": \"fine\"}\n{\"body\": \"no text\"}\n";
  std::ofstream(place / "latin.txt", std::ios::binary) << "caf\xe9 au lait, many of them, in a file that is no UTF-8\n";
  std::ofstream(place / "bad.nbt") << std::string(100, 'x');
  const Ended made = place({"data", "tokenize", "book.txt", "out=shards", "tokenizer_type=byte"});
  ASSERT_EQ(made.exit, 0) << made.err;
  expect_rows(place,
              {
                  {"E201", 66, tiny({}), {"dataset_type=synthetic", "train_files="}},
                  {"E202", 66, tiny({"train_files=[none*.txt]"}), {"none*.txt"}},
                  {"E203", 66, tiny({"train_files=[empty.txt]"}), {"documents", "targets"}},
                  {"E301",
                   65,
                   tiny({"train_files=[book.txt]", "vocab_size=200", "steps=1"}),
                   {"200", "vocab_size=384", "override_model_config"}},
                  {"E302", 65, tiny({"train_files=[allenai/c4]"}), {"allenai/c4", "download"}},
                  {"E302",
                   65,
                   tiny({"train_files=[https://example.com/book.txt]"}),
                   {"https://example.com/book.txt", "download"}},
                  {"E303",
                   65,
                   tiny({"train_files=[shards/00000.nbt]", "vocab_size=250", "tokenizer_type=auto"}),
                   {"token id 256", "250", "00000.nbt", "token offset 0", "document 0"}},
                  {"E304",
                   78,
                   tiny({"train_files=[shards/00000.nbt]", "steps=100000"}),
                   {"num_epoch", "epochs", "ends at step"}},
                  {"E307", 65, tiny({"train_files=[bad.jsonl]"}), {"bad.jsonl:2", "on_bad_record=skip"}},
                  {"E307", 65, tiny({"train_files=[field.jsonl]"}), {"field.jsonl:2", "text", "on_bad_record=skip"}},
                  {"E307", 65, tiny({"train_files=[latin.txt]"}), {"latin.txt", "on_bad_record=skip"}},
                  {"E309", 65, tiny({"train_files=[bad.nbt]"}), {"bad.nbt", "NIBBLTOK"}},
                  {"E102",
                   78,
                   tiny({"train_files=[shards/00000.nbt]", "tokenizer_type=auto", "sample_interval=5", "steps=10"}),
                   {"sample_interval", "tokenizer"}},
              });
}

TEST(TrainingT57, ModelsAndCheckpoints) {
  const Workplace place;
  ASSERT_EQ(place(place.train({"steps=4", "run_name=run", "checkpoint_period=2"})).exit, 0);
  ASSERT_EQ(place({"train", "dataset_type=synthetic", "model_name=default", "override_model_config=true",
                   "base_emb_dim=32", "base_mlp_dim=64", "base_num_query_heads=2", "base_num_kv_heads=1", "head_dim=16",
                   "base_num_decoder_layers=1", "vocab_size=64", "max_target_length=16", "per_device_batch_size=1",
                   "steps=2", "run_name=synthetic"})
                .exit,
            0);
  const std::string newest = "nibble_output/run/checkpoints/00000004/";
  const auto copy_of_run = [&](const std::string& name) {
    fs::copy(place / newest, place / name, fs::copy_options::recursive);
    return place / name;
  };
  fs::resize_file(copy_of_run("cut") + "/model-00001-of-00001.safetensors", 1000);
  {
    std::fstream f(copy_of_run("flipped") + "/model-00001-of-00001.safetensors",
                   std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(-5, std::ios::end);
    f.put('x');
  }
  const auto hf = [&](const std::string& name) {
    fs::create_directories(place / name);
    for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json"})
      fs::copy_file(place / (newest + file), place / (name + "/" + file));
    fs::copy_file(place / (newest + "model-00001-of-00001.safetensors"), place / (name + "/model.safetensors"));
    return place / name;
  };
  hf("hf");
  fs::resize_file(hf("hf_cut") + "/model.safetensors", 5000);
  {
    hf("hf_other");
    std::string text = place.content("hf_other/config.json");
    const size_t at = text.find("\"intermediate_size\": 64");
    ASSERT_NE(at, std::string::npos) << text;
    std::ofstream(place / "hf_other/config.json") << text.replace(at, 23, "\"intermediate_size\": 96");
    hf("hf_more");
    text = place.content("hf_more/config.json");
    const size_t layers = text.find("\"num_hidden_layers\": 2");
    ASSERT_NE(layers, std::string::npos);
    std::ofstream(place / "hf_more/config.json") << text.replace(layers, 22, "\"num_hidden_layers\": 3");
  }
  {
    hf("hf_tokenizer");
    std::string text = place.content("hf_tokenizer/tokenizer.json");
    const size_t at = text.find("\"BPE\"");
    ASSERT_NE(at, std::string::npos);
    std::ofstream(place / "hf_tokenizer/tokenizer.json") << text.replace(at, 5, "\"WordPiece\"");
    std::fstream f(hf("hf_nan") + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(-4, std::ios::end);
    f.write("\0\0\xc0\x7f", 4);  // the last element of lm_head.weight
  }
  fs::create_directory(place / "pickle");
  std::ofstream(place / "pickle/config.json") << "{}";
  std::ofstream(place / "pickle/pytorch_model.bin") << "x";
  fs::create_directory(place / "nothing");
  expect_rows(
      place,
      {
          {"E204", 66, {"generate", "nothing", "prompt=x"}, {"nothing", "nibble.json", "config.json"}},
          {"E204", 66, {"eval", "no_such_folder"}, {"no_such_folder", "nibble.json"}},
          {"E204", 66, {"eval"}, {"checkpoint"}},
          {"E204", 66, {"generate", "prompt=x"}, {"checkpoint"}},
          {"E204", 66, {"ckpt", "ls", "nothing"}, {"nothing", "checkpoints"}},
          {"E204", 66, {"verify", "hf", "hf"}, {"golden.safetensors"}},
          {"E204", 66, {"generate", "nibble_output/synthetic", "prompt=x"}, {"tokenizer"}},
          {"E201", 66, {"eval", "hf"}, {"hf"}},
          {"E311", 65, {"generate", "nibble_output/run", "prompt=" + std::string(40, 'a')}, {"41", "32", "n_ctx="}},
          {"E401", 65, {"generate", "cut", "prompt=x"}, {"model-00001-of-00001.safetensors", "1000"}},
          {"E401",
           65,
           {"generate", "hf_cut", "prompt=x"},
           {"model.safetensors", "140928", "2896", "21 tensors", "model.embed_tokens.weight"}},
          {"E402",
           65,
           {"generate", "flipped", "prompt=x"},
           {"model-00001-of-00001.safetensors", "chunk 0 of 1", "model.embed_tokens.weight"}},
          {"E403", 65, {"generate", "hf_other", "prompt=x"}, {"mlp.up_proj.weight", "96", "64"}},
          {"E404", 65, {"generate", "hf_more", "prompt=x"}, {"model.layers.2."}},
          {"E406", 65, {"eval", "pickle", "book.txt"}, {"pickle", "safetensors"}},
          {"E308", 65, {"generate", "hf_tokenizer", "prompt=x"}, {"WordPiece"}},
          {"E705", 81, {"generate", "hf_nan", "prompt=x"}, {"position"}},
          {"E102",
           78,
           {"generate", "nibble_output/run", "prompt=x", "prompt_file=book.txt"},
           {"prompt", "prompt_file"}},
          {"E202", 66, {"generate", "nibble_output/run", "prompt_file=none.txt"}, {"none.txt"}},
          {"E002", 64, {"generate", "nibble_output/run", "prompt=x", "temperature=-1"}, {"temperature"}},
          {"E001", 64, {"generate", "nibble_output/run", "promt=x"}, {"promt", "prompt"}},
          // A resume that cannot be one leaves checkpoints, metrics and config.yml alone.
          {"E103", 78, place.train({"steps=3", "run_name=run"}), {"4", "steps=3", "run_name"}},
          {"E110", 78, place.train({"steps=9", "run_name=run", "base_mlp_dim=96"}), {"base_mlp_dim", "64", "96"}},
          {"E803", 73, place.train({"steps=9", "run_name=new", "base_output_directory=book.txt"}), {"book.txt"}},
      });
  const Ended nan = place(place.train({"steps=9", "run_name=nan", "load_parameters_path=hf_nan"}));
  expect_row(nan, {"E701",
                   81,
                   {},
                   {"step 0", "parameter lm_head.weight", "element 8319", "nan", "batch ", "rows 0 to 1",
                    "no checkpoint was saved"}});
  EXPECT_EQ(place({"ckpt", "ls", "nibble_output/nan"}).out, "no checkpoints in nibble_output/nan\n");
  std::ofstream(place / "book.txt", std::ios::app) << "one line more\n";
  expect_rows(place,
              {{"E310", 65, place.train({"steps=9", "run_name=run"}), {"book.txt", "allow_fallback=[data_changed]"}}});
  EXPECT_EQ(place(place.train({"steps=9", "run_name=run", "allow_fallback=[data_changed]"})).exit,
            0);  // the hint works
}

TEST(TrainingT57, RunFolders) {
  const Workplace place;
  ASSERT_EQ(place(place.train({"steps=2", "run_name=run", "enable_checkpointing=false"})).exit, 0);
  expect_rows(place, {{"E802",
                       73,
                       place.train({"steps=2", "run_name=run", "learning_rate=0.5"}),
                       {"learning_rate", "0.5", "run_name=run_2"}}});

  Running first(place.train({"steps=2000", "num_epoch=0", "run_name=locked"}), {.folder = place.path()});
  ASSERT_TRUE(first.read_out_until("completed step: 1,"));
  expect_row(place(place.train({"steps=2000", "num_epoch=0", "run_name=locked"})),
             {"E605", 73, {}, {"locked", "process ", "started "}});
  first.send(SIGTERM);
  EXPECT_EQ(first.finish().exit, 75);
}

TEST(TrainingT57, AtMostTwentyErrorsAreReportedTogether) {
  const Workplace place;
  std::vector<std::string> words = {"train"};
  for (int i = 0; i < 23; ++i) words.push_back("nonsense_" + std::to_string(i) + "=1");
  const Ended r = place(words);
  EXPECT_EQ(r.exit, 64);
  int64_t count = 0;
  for (size_t at = 0; (at = r.err.find("error[E001]", at)) != std::string::npos; ++at) ++count;
  EXPECT_EQ(count, 20);
  EXPECT_NE(r.err.find("3 more errors"), std::string::npos) << r.err;
}

// A metrics file that can no longer be written is a warning; training goes on and ends well.
TEST(TrainingT57, E804MetricsThatCannotBeWritten) {
  const Workplace place;
  const Ended r = place(place.train({"steps=3", "run_name=run", "metrics_file=/dev/full"}));
  EXPECT_EQ(r.exit, 0) << r.err;
  EXPECT_NE(r.err.find("warning[E804]"), std::string::npos) << r.err;
  EXPECT_EQ(metrics_of(place / "nibble_output/run").size(), 3u);
}

}  // namespace
}  // namespace nibble
