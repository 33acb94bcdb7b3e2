// nibble ckpt: what checkpoints a run has, whether their bytes are right, how two differ; a model in another form.
// Source: spec/training.md 1.7.
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "core/error.h"
#include "io/checkpoint.h"
#include "io/checkpoint_load.h"
#include "io/json.h"
#include "io/run_folder.h"
#include "io/suggest.h"
#include "train/export_model.h"
#include "train/model_setup.h"
#include "train/open_model.h"

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

std::string commas(int64_t n) {
  std::string text = fmt::format("{}", n);
  for (int64_t i = std::ssize(text) - 3; i > 0; i -= 3) text.insert(static_cast<size_t>(i), ",");
  return text;
}

// "nvfp4" is the layout of ModelOpt: codes, scales and the manifest that every export of a checkpoint has.
std::optional<PackedLayout> layout_of(const std::string& format) {
  if (format == "hf") return std::nullopt;
  return format == "compressed_tensors" ? PackedLayout::compressed_tensors : PackedLayout::modelopt;
}

void print_export(const ExportReport& r, const std::string& out, const std::string& format, const std::string& dtype,
                  const std::string& recipe) {
  if (r.packed_layers > 0)
    fmt::print("{}: {}, {} of {} linear layers packed as {}{}, the rest in {}\n", out, format, r.packed_layers,
               r.layers, r.packed_as, recipe.empty() ? "" : " of " + recipe, dtype);
  else
    fmt::print("{}: {}, {} parameters in {}\n", out, format, commas(r.parameters), dtype);
  fmt::print("{:<12} {:>16} {:>18} {:>10}\n", "weights in", "bytes", "bits a parameter", "size");
  const auto row = [&](const std::string& name, int64_t bytes) {
    fmt::print("{:<12} {:>16} {:>18.2f} {:>9.1f}%\n", name, commas(bytes),
               8.0 * static_cast<double>(bytes) / static_cast<double>(r.parameters),
               25.0 * static_cast<double>(bytes) / static_cast<double>(r.parameters));
  };
  row("float32", 4 * r.parameters), row("bfloat16", 2 * r.parameters);
  if (r.packed_layers == 0) return;
  row("this export", r.bytes);
  fmt::print("packed layers hold {:.1f} % of the parameters at {:.2f} bits each\n",
             100.0 * static_cast<double>(r.packed_parameters) / static_cast<double>(r.parameters),
             8.0 * static_cast<double>(r.packed_bytes) / static_cast<double>(r.packed_parameters));
}

int export_to(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2 || arguments[0].find('=') != std::string::npos ||
      arguments[1].find('=') != std::string::npos || arguments[0].starts_with('-') || arguments[1].starts_with('-'))
    throw Error("E007", "nibble ckpt export takes a model and a folder to write")
        .where("arguments 2 and 3")
        .hint("nibble ckpt export RUN OUT format=nvfp4");
  const OpenModel open = open_model(arguments[0]);
  ResolveOptions grammar;
  grammar.command = "ckpt", grammar.operands = 2, grammar.stored = open.stored;
  const Resolved r = resolve(arguments, grammar);
  const Config& c = r.config;
  for (const std::string& notice : r.notices) fmt::print(stderr, "note: {}\n", notice);
  if (c.is_explicit("train_files"))  // where the common grammar puts a file that has no key
    throw Error("E004", "ckpt export reads no further files: {}", fmt::join(c.get_list("train_files"), ", "))
        .where("{}", c.origin("train_files"))
        .hint("nibble ckpt export RUN OUT format=nvfp4");
  ExportOptions o;
  const std::string &format = c.get_string("format"), &out = arguments[1];
  o.layout = layout_of(format);
  for (const char* key : {"quantization", "quantize_sites", "recipe_disable", "tensor_scale",
                          "high_precision_first_layers", "high_precision_last_layers"})
    if (!o.layout && c.is_explicit(key))
      throw Error("E102", "format=hf packs no weights: {} has no meaning", key)
          .where("{}", c.origin(key))
          .hint("format=nvfp4, or leave it out");
  if (o.layout) o.recipe = packing_recipe(c, open.model.layers);
  const std::string dtype = c.is_explicit("dtype") ? c.get_string("dtype") : "bfloat16";
  o.dtype = dtype == "bfloat16" ? DType::bf16 : DType::f32;
  o.overwrite = c.get_bool("overwrite");
  o.threads = resolve_threads(c.get_int("threads")), o.target = resolve_target(c.get_string("cpu_target"));
  const ExportReport report = export_model(open, out, o);
  if (c.get_bool("json"))
    print_json({{"out", out},
                {"format", format},
                {"dtype", dtype},
                {"recipe", o.recipe.name},
                {"packed_as", report.packed_as},
                {"parameters", report.parameters},
                {"packed_parameters", report.packed_parameters},
                {"linear_layers", report.layers},
                {"packed_layers", report.packed_layers},
                {"float32_bytes", 4 * report.parameters},
                {"bfloat16_bytes", 2 * report.parameters},
                {"bytes", report.bytes},
                {"packed_bytes", report.packed_bytes}});
  else
    print_export(report, out, format, dtype, o.recipe.name);
  return exit_done;
}

int run(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "export") return export_to({arguments.begin() + 1, arguments.end()});
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
  if (what == "import")
    throw Error("E010", "nibble ckpt import is not in this version")
        .hint("every command that takes a checkpoint takes a Hugging Face directory as it is");
  const std::vector<std::string> known = {"ls", "verify", "diff", "export"};
  if (what != "ls" && what != "verify" && what != "diff") {
    const std::vector<std::string> near = nearest(what, known, 1);
    throw Error("E007", "nibble ckpt {}: no such command", what)
        .expected("ls, verify, diff or export", what.empty() ? "none" : what)
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
constinit const Command ckpt_command{
    "ckpt", "nibble ckpt ls RUN | verify CKPT | diff A B | export CKPT OUT [key=value ...] [--json]",
    "checkpoints: list, verify, compare, export",
    R"(DESCRIPTION
  ls RUN       steps, sizes and validity of the checkpoints of a run folder. Valid means: nibble.json
               parses and has its own hash, and every file has the size that it lists.
  verify CKPT  hashes every byte; names file, chunk and tensors of each mismatch.
  diff A B     differing keys, and for each differing tensor the largest difference.

  export CKPT OUT
               writes the model as the folder OUT, in 4 bits or in plain numbers, and prints its size beside
               float32 and BF16. eval, generate and load_parameters_path read every format back.

  CKPT, A and B are a checkpoint directory or a run folder (its newest valid checkpoint); A, B
  and the CKPT of export may also be Hugging Face directories. --json prints the result as JSON.

KEYS of export
  format       hf: plain numbers, as transformers reads them; nvfp4, modelopt: NVFP4 in the layout of
               ModelOpt; compressed_tensors: NVFP4 in that layout
  dtype        bfloat16 or float32: of every tensor that is not packed
  quantization whose weight quantiser packs: by default that of the run, or blocks of 1x16 where the run's
               forward pass was not in 4 bits; with its keys quantize_sites, tensor_scale, recipe_disable,
               high_precision_first_layers, high_precision_last_layers
  overwrite, threads, cpu_target, json

EXIT STATUS
  0 all is well, no difference; 1 damage, a difference; 64 usage; 65 damaged files (diff), weights that
  cannot be packed; 66 no checkpoint there; 73, 74 OUT cannot be written; 78 a recipe that is not NVFP4

EXAMPLES
  nibble ckpt ls nibble_output/my_run
  nibble ckpt verify nibble_output/my_run/checkpoints/00001000
  nibble ckpt diff nibble_output/my_run nibble_output/other_run
  nibble ckpt export nibble_output/my_run small format=nvfp4
  nibble generate small prompt="Once upon a time"
)",
    run};

}  // namespace nibble
