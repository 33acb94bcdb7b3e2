// Resolution of configurations: obligations T2, T3, T5, T6, T8 to T10 of spec/training.md 9 and the rows E001 to E108
// of 7.2 that a configuration alone can raise.
#include "io/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "io/keys.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::vector<std::string> no_environment;

ResolveOptions quiet(bool check = true) {
  ResolveOptions options;
  options.environment = &no_environment;
  options.check = check;
  return options;
}

Config config(const Words& words, bool check = true) { return resolve(words, quiet(check)).config; }

std::vector<Error> errors_of(const Words& words, const ResolveOptions& options = quiet()) {
  try {
    resolve(words, options);
  } catch (const Errors& e) {
    return e.errors;
  }
  return {};
}

std::string ids(const std::vector<Error>& errors) {
  std::string out;
  for (const Error& e : errors) out += (out.empty() ? "" : " ") + e.id;
  return out;
}

Words split(const std::string& line) {
  std::istringstream in(line);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

/// An empty folder that is the working folder while the test runs.
class Folder {
 public:
  Folder() : before_(fs::current_path()), path_(fs::temp_directory_path() / fmt::format("nibble_config_{}", getpid())) {
    fs::create_directories(path_);
    fs::current_path(path_);
  }
  ~Folder() {
    fs::current_path(before_);
    fs::remove_all(path_);
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }

 private:
  fs::path before_, path_;
};

struct MaxTextRow {
  std::string name, type, type_default, base;
};

std::vector<MaxTextRow> maxtext_rows() {
  std::ifstream file(NIBBLE_GOLDEN_DIR "/maxtext_keys.tsv");
  std::vector<MaxTextRow> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    MaxTextRow row;
    std::getline(in, row.name, '\t');
    std::getline(in, row.type, '\t');
    std::getline(in, row.type_default, '\t');
    std::getline(in, row.base, '\t');
    rows.push_back(row);
  }
  return rows;
}

const std::string launch_line =
    "maxtext/configs/base.yml run_name=debug_run base_output_directory=./debug_logs hardware=gpu "
    "dataset_type=synthetic "
    "model_name=llama3-8b remat_policy='minimal_with_context_and_quantization' scan_layers=False "
    "attention='cudnn_flash_te' "
    "steps=50 dtype=bfloat16 max_target_length=8192 per_device_batch_size=4 ici_data_parallelism=1 "
    "dcn_data_parallelism=1 "
    "ici_fsdp_parallelism=4 dcn_fsdp_parallelism=1 profiler=nsys enable_checkpointing=false override_model_config=True "
    "gradient_accumulation_steps=1 quantization=te_nvfp4_no_rht max_segments_per_seq=32";

TEST(TrainingT2, LaunchLineResolves) {
  const Folder empty;
  const Config c = config(split(launch_line), false);
  EXPECT_EQ(c.get_string("remat_policy"), "minimal_with_context_and_quantization");  // the quotes are gone
  EXPECT_EQ(c.get_string("attention"), "cudnn_flash_te");
  EXPECT_EQ(c.get_string("quantization"), "te_nvfp4_no_rht");
  EXPECT_EQ(c.get_string("hardware"), "gpu");
  EXPECT_EQ(c.get_string("dtype"), "bfloat16");
  EXPECT_EQ(c.get_int("steps"), 50);
  EXPECT_EQ(c.get_double("per_device_batch_size"), 4);
  EXPECT_EQ(c.get_int("ici_fsdp_parallelism"), 4);
  EXPECT_EQ(c.get_int("max_segments_per_seq"), 32);
  EXPECT_EQ(c.get_int("base_emb_dim"), 4096);
  EXPECT_EQ(c.get_int("vocab_size"), 128256);
  EXPECT_EQ(c.get_double("rope_max_timescale"), 500000);
  EXPECT_TRUE(c.get_bool("override_model_config"));
  EXPECT_FALSE(c.get_bool("enable_checkpointing"));
  EXPECT_EQ(c.origin("base_emb_dim"), "model llama3-8b");
}

TEST(TrainingT2, LaunchLineNamesEveryRefusalOfThisVersion) {
  const Folder empty;
  const auto errors = errors_of(split(launch_line));
  EXPECT_EQ(ids(errors), "E503 E010 E010");
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors[0].exit_code(), 69);
  const char* keys[] = {"hardware=gpu", "ici_fsdp_parallelism=4", "profiler=nsys"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NE(errors[i].what_text.find(keys[i]), std::string::npos) << errors[i].message();
    EXPECT_NE(errors[i].what_text.find("in this version"), std::string::npos);
  }
}

TEST(TrainingT3, MaxTextBaseFileBringsMaxTextDefaults) {
  const Folder folder;
  std::string text;
  for (const MaxTextRow& row : maxtext_rows())
    if (row.base != "(absent)") text += fmt::format("{}: {}\n", row.name, row.base);
  folder.write("base.yml", text);
  const Resolved r = resolve({"base.yml"}, quiet());
  EXPECT_EQ(r.notices, Words{});
  const Config& c = r.config;
  EXPECT_EQ(c.get_string("dataset_type"), "synthetic");
  EXPECT_EQ(c.get_double("rope_factor"), 40);
  EXPECT_EQ(c.get_int("max_position_embeddings"), 163840);
  EXPECT_TRUE(c.get_bool("save_checkpoint_on_start"));
  EXPECT_FALSE(c.get_bool("float32_logits"));
  EXPECT_EQ(c.get_list("adamw_mask"), Words{});
  EXPECT_TRUE(c.get_list("train_files").empty());  // hf_train_files: "" says nothing
  EXPECT_EQ(c.get_string("hardware"), "auto");     // tpu is refused elsewhere and means unset here
  EXPECT_EQ(c.get_string("dtype"), "bfloat16");
  // So do values that this version lacks.
  EXPECT_EQ(c.get_string("packing_type"), "concat_then_split");
  EXPECT_FALSE(c.get_bool("use_truncation"));
  int compared = 0;
  for (const MaxTextRow& row : maxtext_rows()) {  // every other key has MaxText's value
    const int i = key_index(row.name);
    if (i < 0 || row.base == "(absent)") continue;
    const Key& key = key_at(i);
    const bool refused = c.origin(key.name) == "default";
    if (refused) continue;
    ++compared;
    EXPECT_EQ(c.value(key.name),
              Config().with(key.name, key.maxtext.empty() ? key.initial : key.maxtext, "").value(key.name))
        << key.name;
  }
  EXPECT_GT(compared, 190);
  // and the model file still wins over it
  EXPECT_EQ(config({"base.yml", "model_name=llama2-7b"}).get_int("max_position_embeddings"), 4096);
}

TEST(TrainingT5, TheLastLayerWinsAndIsNamed) {
  const Folder folder;
  folder.write("base.yml", "max_target_length: 100\nadam_b1: 0.8\n");
  folder.write("run.yml", "base_config: base.yml\nmodel_name: nibble-1m\n\nmax_target_length: 300\nadam_b2: 0.9\n");
  const Config c = config({"run.yml", "max_target_length=400"});
  EXPECT_EQ(c.get_int("max_target_length"), 400);
  EXPECT_EQ(c.origin("max_target_length"), "argument 2");
  EXPECT_EQ(config({"run.yml"}).get_int("max_target_length"), 300);
  EXPECT_EQ(config({"run.yml"}).origin("max_target_length"), "run.yml:4");
  EXPECT_EQ(config({"base.yml", "model_name=nibble-1m"}).get_int("max_target_length"), 256);  // model over base
  EXPECT_EQ(config({"base.yml"}).get_int("max_target_length"), 100);
  EXPECT_EQ(c.origin("adam_b1"), "base.yml:2");
  EXPECT_EQ(c.origin("adam_b2"), "run.yml:5");
  EXPECT_EQ(c.origin("learning_rate"), "model nibble-1m");
  EXPECT_EQ(c.origin("seed"), "default");
  for (const char* line :
       {"max_target_length: 400 ", "# argument 2", "# run.yml:5", "# model nibble-1m", "# base.yml:2"})
    EXPECT_NE(c.yaml().find(line), std::string::npos) << line;
  EXPECT_FALSE(c.is_explicit("learning_rate"));
  EXPECT_TRUE(c.is_set("learning_rate"));
  EXPECT_TRUE(c.is_explicit("max_target_length"));
}

TEST(TrainingT6, ModelKeysNeedPermission) {
  const Folder folder;
  folder.write("run.yml", "model_name: llama2-7b\nbase_emb_dim: 128\n");
  for (const Words& words : {Words{"run.yml"}, Words{"model_name=llama2-7b", "base_emb_dim=128"}}) {
    const auto errors = errors_of(words);
    ASSERT_EQ(ids(errors), "E008");
    EXPECT_EQ(errors[0].exit_code(), 64);
    for (const char* word : {"base_emb_dim", "4096", "128", "override_model_config=true"})
      EXPECT_NE(errors[0].message().find(word), std::string::npos) << errors[0].message();
    Words permitted = words;
    permitted.push_back("override_model_config=true");
    EXPECT_EQ(config(permitted).get_int("base_emb_dim"), 128);
  }
  EXPECT_EQ(config({"model_name=llama2-7b", "base_emb_dim=4096"}).get_int("base_emb_dim"), 4096);
  EXPECT_EQ(
      config({"model_name=nibble-1m", "max_target_length=512", "learning_rate=1e-4"}).get_int("max_target_length"),
      512);
}

TEST(TrainingT9, PrintedConfigurationsReadBackTheSame) {
  const Folder folder;
  folder.write("book.txt", "once upon a time\n");
  const std::vector<Words> cases = {
      {},
      {"model_name=llama3.1-8b", "prompt=it's a [test] * ~ \"q\"", "stop=[\"a b\", \"\\n\"]"},
      {"book.txt"},
      {"model_name=nibble-1m", "max_target_length=2048", "numerics=nibble", "run_name=true"},
      {"numerics=maxtext", "adamw_mask=[x]", "head_dim=64", "memory_limit=3Gi", "max_num_checkpoints_to_keep=3"}};
  for (const Words& words : cases) {
    const Config c = config(words);
    const Config again = config(split(c.args()));
    EXPECT_EQ(again.hash(), c.hash()) << c.args();
    folder.write("printed.yml", c.yaml());
    const Config read = config({"printed.yml"});
    EXPECT_EQ(read.hash(), c.hash());
    EXPECT_EQ(read.json(), c.json());
  }
  EXPECT_NE(config({"seed=1"}).hash(), config({}).hash());
}

TEST(TrainingT10, EnvironmentNeverChangesAResult) {
  const std::vector<std::string> override_of_maxtext = {"M_STEPS=7"};
  ResolveOptions options = quiet();
  options.environment = &override_of_maxtext;
  const auto errors = errors_of({}, options);
  ASSERT_EQ(ids(errors), "E011");
  EXPECT_NE(errors[0].message().find("M_STEPS"), std::string::npos);
  EXPECT_NE(errors[0].message().find("steps=7"), std::string::npos);
  EXPECT_EQ(errors[0].exit_code(), 64);
  const std::vector<std::string> others = {"XLA_FLAGS=--x", "NVTE_FUSED_ATTN=1", "M_LETTER=x", "JAX_COORDINATOR_IP=1",
                                           "HOME=/"};
  options.environment = &others;
  const Resolved r = resolve({}, options);
  EXPECT_EQ(r.notices, Words{"notice: environment variables without effect in nibble: NVTE_FUSED_ATTN, XLA_FLAGS"});
  EXPECT_EQ(r.config.json(), config({}).json());
}

TEST(TrainingConfig, TextFilesAloneMeanTheSmallModel) {
  const Folder folder;
  folder.write("book.txt", "x\n");
  const Config c = config({"book.txt", "steps=5"});
  EXPECT_EQ(c.get_string("model_name"), "nibble-1m");
  EXPECT_EQ(c.get_int("base_emb_dim"), 128);
  EXPECT_EQ(c.get_int("steps"), 5);
  EXPECT_EQ(c.get_double("eval_fraction"), 0.05);
  EXPECT_EQ(c.get_string("eval_holdout"), "tail");
  EXPECT_EQ(c.get_int("sample_interval"), 200);
  EXPECT_EQ(c.origin("eval_fraction"), "train on text files");
  EXPECT_EQ(c.get_list("train_files"), Words{"book.txt"});
  EXPECT_EQ(config({"book.txt"}).get_int("steps"), 1000);
  EXPECT_EQ(config({"book.txt", "model_name=nibble-10m"}).get_int("steps"), 150001);
  EXPECT_EQ(total_steps(config({"book.txt", "token_budget=1M"})), 245);  // 1e6 / (16 x 256), rounded up
}

TEST(TrainingConfig, GrammarOfWords) {
  const Config c =
      config({"--steps=1_000", "learning-rate=1e-3", "token_budget=0", "--add_bos=False", "--ignore_eos", "seed=4k",
              "vocab_size=64Ki", "warmup_steps=1e2", "memory_limit=2GiB", "max_num_checkpoints_to_keep=None"});
  EXPECT_EQ(c.get_int("steps"), 1000);
  EXPECT_EQ(c.get_double("learning_rate"), 1e-3);
  EXPECT_FALSE(c.get_bool("add_bos"));
  EXPECT_TRUE(c.get_bool("ignore_eos"));
  EXPECT_EQ(c.get_int("seed"), 4000);
  EXPECT_EQ(c.get_int("vocab_size"), 65536);
  EXPECT_EQ(c.get_int("warmup_steps"), 100);
  EXPECT_EQ(c.get_int("memory_limit"), int64_t{2} << 30);
  EXPECT_TRUE(c.is_null("max_num_checkpoints_to_keep"));
  EXPECT_EQ(config({"prompt=[INST] hello: # you"}).get_string("prompt"), "[INST] hello: # you");
  EXPECT_EQ(config({"hf_train_files=a.txt"}).get_list("train_files"), Words{"a.txt"});
  EXPECT_EQ(config({"stop_ids=[3, 5]"}).get_int_list("stop_ids"), (std::vector<int64_t>{3, 5}));
  ResolveOptions options = quiet();
  options.operands = 1;
  options.word_options = {"n", "seeds"};
  options.flags = {"changed"};
  const Resolved r = resolve({"runs/a", "--seeds", "3", "-n", "8", "--changed", "steps=5", "steps=6"}, options);
  EXPECT_EQ(r.operands, Words{"runs/a"});
  EXPECT_EQ(r.options.at("seeds"), "3");
  EXPECT_EQ(r.options.at("n"), "8");
  EXPECT_TRUE(r.options.contains("changed"));
  EXPECT_EQ(r.config.get_int("steps"), 6);
  EXPECT_EQ(r.notices, Words{"notice: given twice, the last one counts: steps=5 (argument 7) by 6 (argument 8)"});
}

TEST(TrainingConfig, StoredKeysStandInForTheModelFile) {
  const auto stored = config({"model_name=nibble-1m", "add_bos=false"}).determining();
  ResolveOptions options = quiet();
  options.command = "generate";
  options.stored = stored;
  const Config c = resolve({"temperature=0"}, options).config;
  EXPECT_EQ(c.get_int("base_emb_dim"), 128);
  EXPECT_FALSE(c.get_bool("add_bos"));
  EXPECT_EQ(c.origin("vocab_size"), "checkpoint");
  EXPECT_EQ(c.architecture(), config({"model_name=nibble-1m"}).architecture());
  EXPECT_EQ(ids(errors_of({"vocab_size=2048"}, options)), "E008");
  for (const auto& [key, json] : stored) {
    EXPECT_TRUE(find_key(key)->flags & key_determines) << key;
    EXPECT_NE(key, "steps");
    EXPECT_NE(key, "threads");
  }
}

TEST(TrainingConfig, NoticesOfNamesWithoutEffect) {
  const Resolved r =
      resolve({"scan_layers=False", "sa_block_q=512", "max_segments_per_seq=3", "attention=flash"}, quiet());
  ASSERT_EQ(r.notices.size(), 2u);
  EXPECT_EQ(r.notices[0], "warning: names of MaxText without meaning in nibble: scan_layers=False");
  EXPECT_NE(r.notices[1].find("max_segments_per_seq=3, attention=flash"), std::string::npos) << r.notices[1];
}

TEST(TrainingConfig, NoticesOfRematerialization) {
  EXPECT_EQ(resolve({"remat_policy=minimal"}, quiet()).notices, std::vector<std::string>{});
  EXPECT_EQ(resolve({"remat_policy=custom", "mlpwi_0=device"}, quiet()).notices, std::vector<std::string>{});
  const auto unread = resolve({"remat_policy=full", "mlpwi_0=device", "context=offload"}, quiet()).notices;
  EXPECT_EQ(unread,
            std::vector<std::string>{"notice: read with remat_policy=custom only: context=offload, mlpwi_0=device"});
  const auto moved = resolve({"remat_policy=custom", "mlpwi_0=device", "context=offload"}, quiet()).notices;
  EXPECT_EQ(moved,
            std::vector<std::string>{"notice: context=offload: kept where it is, a CPU computes in host memory"});
  EXPECT_EQ(resolve({"remat_policy=minimal_offloaded"}, quiet()).notices,
            std::vector<std::string>{
                "notice: remat_policy=minimal_offloaded: kept where it is, a CPU computes in host memory"});
}

TEST(TrainingConfig, NoticesOfRecipes) {
  EXPECT_EQ(resolve({"quantization=te_nvfp4", "quantize_sites=mlp"}, quiet()).notices, std::vector<std::string>{});
  EXPECT_EQ(resolve({"quantize_sites=mlp", "tensor_scale=pow2"}, quiet()).notices,
            std::vector<std::string>{
                "notice: read with a recipe only (quantization=te_nvfp4): quantize_sites=mlp, tensor_scale=pow2"});
  EXPECT_EQ(resolve({"quantization=fp8"}, quiet()).notices,
            std::vector<std::string>{
                "notice: quantization=fp8 is fp8_delayed: one scale a tensor, from its last 1,024 steps"});
}

struct Row {
  const char* why;
  Words words;
  const char* id;
  int exit;
  Words needed;  // words of the message
};

TEST(TrainingT57, ErrorsOfAConfiguration) {
  const Folder folder;
  folder.write("twice.yml", "steps: 5\nseed: 1\nsteps: 6\n");
  folder.write("tab.yml", "steps: 5\n\tseed: 1\n");
  folder.write("broken.yml", "steps: [5\n");
  folder.write("cycle.yml", "base_config: cycle2.yml\n");
  folder.write("cycle2.yml", "base_config: cycle.yml\n");
  folder.write("typo.yml", "# a run\nlerning_rate: 1\n");
  fs::create_directories("folder.yml");
  // clang-format off
  const std::vector<Row> rows = {
      {"unknown key", {"seed=1", "stepz=5"}, "E001", 64, {"stepz", "steps", "argument 2"}},
      {"unknown key in a file", {"typo.yml"}, "E001", 64, {"lerning_rate", "learning_rate", "typo.yml:2"}},
      {"wrong type", {"steps=fifty"}, "E002", 64, {"steps", "fifty", "int"}},
      {"illegal value", {"dtype=bf17"}, "E002", 64, {"dtype", "bf17", "float32", "dtype=bfloat16"}},
      {"out of range", {"max_num_checkpoints_to_keep=0"}, "E002", 64, {"max_num_checkpoints_to_keep", ">=1"}},
      {"truth value", {"packing=2"}, "E002", 64, {"packing", "true or false"}},
      {"a list for a number", {"learning_rate=[1]"}, "E002", 64, {"learning_rate", "[1]", "float"}},
      {"twice in a file", {"twice.yml"}, "E003", 64, {"steps", "twice.yml:1", "twice.yml:3"}},
      {"no key, no file", {"fifty"}, "E004", 64, {"fifty", "key=value"}},
      {"a key without a value", {"steps", "50"}, "E004", 64, {"steps=..."}},
      {"no such configuration", {"none.yml"}, "E005", 66, {"none.yml", "configs/runs/tiny.yml"}},
      {"a folder as configuration", {"folder.yml"}, "E005", 66, {"folder.yml", "is a folder"}},
      {"tab", {"tab.yml"}, "E006", 64, {"tab.yml:2:1"}},
      {"syntax", {"broken.yml"}, "E006", 64, {"broken.yml:"}},
      {"cycle", {"cycle.yml"}, "E006", 64, {"cycle.yml", "cycle2.yml", " -> "}},
      {"unknown option", {"--stepz"}, "E007", 64, {"--stepz", "--steps"}},
      {"unknown model", {"model_name=lama3-8b"}, "E009", 64, {"lama3-8b", "llama3-8b"}},
      {"model of later", {"model_name=qwen3-8b"}, "E010", 64, {"qwen3-8b", "not in this version", "llama3-8b"}},
      {"refused name", {"use_dpo=true"}, "E010", 64, {"use_dpo", "not in this program"}},
      {"refused name with a way out", {"enable_wandb=true"}, "E010", 64, {"enable_wandb", "metrics.jsonl"}},
      {"not yet", {"opt_type=muon"}, "E010", 64, {"opt_type=muon", "not in this version", "adamw", "opt_type=adamw"}},
      {"not yet", {"packing=false"}, "E010", 64, {"packing=false", "not in this version"}},
      {"not yet", {"grain_packing_type=first_fit"}, "E010", 64, {"packing_type=first_fit", "concat_then_split"}},
      {"not yet", {"devices=4"}, "E010", 64, {"devices=4", "not in this version"}},
      {"not yet", {"mlp_activations=[silu]"}, "E010", 64, {"mlp_activations", "not in this version"}},
      {"cloud", {"base_output_directory=gs://b/x"}, "E010", 64, {"gs://b/x", "base_output_directory"}},
      {"tpu", {"hardware=tpu"}, "E010", 64, {"hardware=tpu"}},
      {"fraction of a sequence", {"per_device_batch_size=1.5"}, "E101", 78, {"1.5", "gradient_accumulation_steps", "1 or 2"}},
      {"two lengths", {"steps=5", "token_budget=1M"}, "E102", 78, {"steps", "token_budget"}},
      {"no length", {"steps=-1"}, "E102", 78, {"steps", "learning_rate_schedule_steps"}},
      {"two starts", {"load_parameters_path=a", "load_full_state_path=b"}, "E102", 78, {"load_parameters_path", "load_full_state_path"}},
      {"preset with tied head", {"numerics=maxtext", "logits_via_embedding=true", "head_dim=64"}, "E102", 78, {"numerics", "logits_via_embedding"}},
      {"preset with inexact root", {"numerics=maxtext", "head_dim=128"}, "E102", 78, {"head_dim=128", "16, 64 or 256"}},
      {"heads", {"base_num_query_heads=6", "base_num_kv_heads=4"}, "E104", 78, {"6", "4", "base_num_kv_heads=3"}},
      {"two open axes", {"ici_data_parallelism=-1"}, "E105", 78, {"ici_data_parallelism", "ici_fsdp_parallelism"}},
      {"odd head", {"head_dim=33"}, "E108", 78, {"33", "rope_type=default"}},
      {"too long", {"model_name=llama2-7b", "max_target_length=8192"}, "E108", 78, {"8192", "4096"}},
      {"no window", {"attention_type=local_sliding"}, "E108", 78, {"local_sliding", "sliding_window_size"}},
      {"unused window", {"sliding_window_size=64"}, "E108", 78, {"64", "attention_type=local_sliding"}},
      {"foreign recipe", {"quantization=int8"}, "E502", 64, {"int8", "te_nvfp4"}},
      {"gpu", {"hardware=gpu"}, "E503", 69, {"no GPU back-end in this version"}},
  };
  // clang-format on
  for (const Row& row : rows) {
    const auto errors = errors_of(row.words);
    const size_t count = row.words == Words{"steps", "50"} ? 2 : 1;
    ASSERT_EQ(errors.size(), count) << row.why << ": " << ids(errors);
    EXPECT_EQ(errors[0].id, row.id) << row.why << errors[0].message();
    EXPECT_EQ(errors[0].exit_code(), row.exit) << row.why;
    for (const std::string& word : row.needed)
      EXPECT_NE(errors[0].message().find(word), std::string::npos) << row.why << ", " << word << "\n"
                                                                   << errors[0].message();
  }
  EXPECT_EQ(ids(errors_of({"stepz=1", "steps=x", "packing=2", "opt_type=muon"})), "E001 E002 E002 E010");
}

}  // namespace
}  // namespace nibble
