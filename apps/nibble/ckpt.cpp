// nibble ckpt: what checkpoints a run has, whether their bytes are right, how two differ.  Source:
// spec/training.md 1.7.
#include <cstdio>
#include <string>
#include <vector>

#include "command.h"
#include "core/error.h"
#include "io/checkpoint.h"
#include "io/checkpoint_load.h"
#include "io/json.h"
#include "io/run_folder.h"
#include "io/suggest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

void print_json(const Json& json) { fmt::print("{}\n", json_text(json)); }

int list(const std::string& run, bool json) {
  const std::vector<CheckpointEntry> entries = list_checkpoints(run);
  if (entries.empty() && !fs::is_directory(fs::path(run) / "checkpoints"))
    throw Error("E204", "{} is no run folder", run)
        .expected("a folder checkpoints/ in it", fs::exists(run) ? "none" : "no such folder")
        .hint("name the folder <base_output_directory>/<run_name>");
  if (json) {
    Json rows = Json::array();
    for (const CheckpointEntry& e : entries)
      rows.push_back({{"step", e.step},
                      {"path", e.path.string()},
                      {"bytes", e.bytes},
                      {"valid", e.valid()},
                      {"problem", e.problem}});
    print_json({{"run", run}, {"checkpoints", rows}});
    return exit_done;
  }
  if (entries.empty()) fmt::print("no checkpoints in {}\n", run);
  if (!entries.empty()) fmt::print("{:>12} {:>16}  {}\n", "step", "bytes", "state");
  for (const CheckpointEntry& e : entries)
    fmt::print("{:>12} {:>16}  {}\n", e.step, e.bytes, e.valid() ? "valid" : "invalid: " + e.problem);
  return exit_done;
}

/// Everything that is wrong with a checkpoint; damage that prevents opening it counts.
std::vector<Error> damage_of(const fs::path& path, int64_t& bytes) {
  try {
    Checkpoint checkpoint(path);
    bytes = checkpoint.bytes();
    return checkpoint.verify();
  } catch (const Error& error) {
    if (error.id != "E401" && error.id != "E402") throw;
    return {error};
  }
}

int verify(const std::string& argument, bool json) {
  fs::path path = argument;
  if (!fs::exists(path / "nibble.json")) {
    const ModelSource source = resolve_model(path);
    if (source.kind == ModelSource::hugging_face)
      throw Error("E204", "{} is a Hugging Face directory, which has no checksums", argument)
          .expected("nibble.json", "none")
          .hint("nibble verify hf DIR compares it with its golden.safetensors");
    for (const CheckpointEntry& e : list_checkpoints(path))  // newer than the one chosen, and passed over
      if (!e.valid() && e.step > Checkpoint(source.path).info().step)
        fmt::print(stderr, "warning: step {} is invalid and not the one verified: {}\n", e.step, e.problem);
    path = source.path;
  }
  int64_t bytes = 0;
  const std::vector<Error> damage = damage_of(path, bytes);
  if (json) {
    Json rows = Json::array();
    for (const Error& e : damage)
      rows.push_back({{"id", e.id},
                      {"what", e.what_text},
                      {"where", e.where_text},
                      {"expected", e.expected_text},
                      {"got", e.got_text}});
    print_json({{"path", path.string()}, {"bytes", bytes}, {"valid", damage.empty()}, {"damage", rows}});
  } else {
    for (const Error& e : damage) fmt::print("{}\n", e.message());
    if (damage.empty()) fmt::print("{}: all checksums of {} bytes are right\n", path.string(), bytes);
  }
  return damage.empty() ? exit_done : exit_no;
}

int diff(const std::string& a, const std::string& b, bool json) {
  const ModelDifference d = compare_models(resolve_model(a), resolve_model(b));
  if (json) {
    Json keys = Json::array(), tensors = Json::array();
    for (const auto& k : d.keys) {
      const auto value = [](const std::string& text) { return text.empty() ? Json() : Json::parse(text); };
      keys.push_back({{"key", k.key}, {"a", value(k.a)}, {"b", value(k.b)}});
    }
    for (const auto& t : d.tensors)
      tensors.push_back({{"name", t.name},
                         {"problem", t.problem},
                         {"largest", t.largest - t.largest == 0 && t.problem.empty() ? Json(t.largest) : Json()}});
    print_json({{"keys", keys}, {"tensors", tensors}});
  } else {
    const auto value = [](const std::string& text) { return text.empty() ? "absent" : text.c_str(); };
    for (const auto& k : d.keys) fmt::print("{}: {} and {}\n", k.key, value(k.a), value(k.b));
    for (const auto& t : d.tensors)
      fmt::print("{}: {}\n", t.name, t.problem.empty() ? fmt::format("largest difference {}", t.largest) : t.problem);
    if (d.none()) fmt::print("no difference\n");
  }
  return d.none() ? exit_done : exit_no;
}

int run(const std::vector<std::string>& arguments) {
  bool json = false;
  std::vector<std::string> words;
  for (const std::string& word : arguments) {
    if (word == "--json")
      json = true;
    else if (word.starts_with('-'))
      throw Error("E007", "nibble ckpt has no option {}", word).expected("--json", word).hint("nibble help ckpt");
    else
      words.push_back(word);
  }
  const std::string what = words.empty() ? "" : words[0];
  if (what == "import" || what == "export")
    throw Error("E010", "nibble ckpt {} is not in this version", what)
        .hint("a checkpoint directory in float32 is a Hugging Face directory already: transformers loads it as it is");
  const std::vector<std::string> known = {"ls", "verify", "diff"};
  if (what != "ls" && what != "verify" && what != "diff") {
    const std::vector<std::string> near = nearest(what, known, 1);
    throw Error("E007", "nibble ckpt {}: no such command", what)
        .expected("ls, verify or diff", what.empty() ? "none" : what)
        .hint("{}", near.empty() || what.empty() ? "nibble help ckpt" : "nibble ckpt " + near[0]);
  }
  const size_t wanted = what == "diff" ? 3 : 2;
  if (words.size() != wanted)
    throw Error("E007", "nibble ckpt {} takes {} path{}", what, wanted - 1, wanted == 2 ? "" : "s")
        .expected(fmt::format("{}", wanted - 1), fmt::format("{}", words.size() - 1))
        .hint("nibble ckpt {} {}", what,
              what == "ls"       ? "RUN"
              : what == "verify" ? "CKPT"
                                 : "A B");
  if (what == "ls") return list(words[1], json);
  if (what == "verify") return verify(words[1], json);
  return diff(words[1], words[2], json);
}

}  // namespace

extern const Command ckpt_command;
constinit const Command ckpt_command{"ckpt", "nibble ckpt ls RUN | verify CKPT | diff A B [--json]",
                                     "checkpoints: list, verify, compare",
                                     R"(DESCRIPTION
  ls RUN       steps, sizes and validity of the checkpoints of a run folder. Valid means: nibble.json
               parses and has its own hash, and every file has the size that it lists.
  verify CKPT  hashes every byte; names file, chunk and tensors of each mismatch.
  diff A B     differing keys, and for each differing tensor the largest difference.

  CKPT, A and B are a checkpoint directory or a run folder (its newest valid checkpoint); A and B may
  also be Hugging Face directories. --json prints the result as JSON.

EXIT STATUS
  0 all is well, no difference; 1 damage, a difference; 64 usage; 65 damaged files (diff);
  66 no checkpoint there

EXAMPLES
  nibble ckpt ls nibble_output/my_run
  nibble ckpt verify nibble_output/my_run/checkpoints/00001000
  nibble ckpt diff nibble_output/my_run nibble_output/other_run
)",
                                     run};

}  // namespace nibble
