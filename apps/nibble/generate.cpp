// nibble generate: text from a checkpoint, a run folder or a Hugging Face folder (spec/generation.md 1.10).
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

#include "command.h"
#include "core/error.h"
#include "io/checkpoint_load.h"
#include "io/config.h"
#include "io/file.h"
#include "sample/generate.h"
#include "train/console.h"
#include "train/gen_recipe.h"
#include "train/metrics.h"
#include "train/model_setup.h"
#include "train/open_model.h"

namespace nibble {
namespace {

std::atomic<bool> interrupted{false};  // any thread may run the handler
static_assert(std::atomic<bool>::is_always_lock_free);
void on_interrupt(int) { interrupted = true; }

std::string read_prompt(const Config& config) {
  const std::string& path = config.get_string("prompt_file");
  if (path.empty()) return config.get_string("prompt");
  if (!config.get_string("prompt").empty())
    throw Error("E102", "prompt and prompt_file are both given").hint("one of them");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error("E202", "cannot read prompt_file={}", path).hint("prompt=\"...\"");
  return {std::istreambuf_iterator<char>(in), {}};
}

GenerateOptions options_of(const Config& c) {
  GenerateOptions o;
  o.sampling = {c.get_double("temperature"), c.get_int("top_k"), c.get_double("top_p"), c.get_double("min_p"),
                c.get_double("repetition_penalty")};
  o.seed = static_cast<uint32_t>(c.get_int("seed"));
  o.max_new_tokens = c.get_int("max_new_tokens"), o.min_new_tokens = c.get_int("min_new_tokens");
  o.stop = c.get_list("stop"), o.ignore_eos = c.get_bool("ignore_eos"), o.special = c.get_bool("special");
  for (const int64_t id : c.get_int_list("stop_ids")) o.stop_ids.push_back(static_cast<int32_t>(id));
  for (const int64_t id : c.get_int_list("forbid_ids")) o.forbid_ids.push_back(static_cast<int32_t>(id));
  return o;
}

// Command line > generation_config.json of the folder > table of keys (spec/generation.md 1.3).
Config with_model_defaults(Config c, const OpenModel& open) {
  std::string taken;
  for (const auto& [key, value] : open.generation) {
    if (c.is_explicit(key)) continue;
    c = c.with(key, value, "generation_config.json");
    taken += fmt::format("{}{}={}", taken.empty() ? "" : ", ", key, value);
  }
  if (!taken.empty()) fmt::print(stderr, "note: generation_config.json of the model sets {}\n", taken);
  return c;
}

void check_out(const Config& c) {
  const std::string& out = c.get_string("out");
  if (!out.empty() && std::filesystem::exists(out) && !c.get_bool("overwrite"))
    throw Error("E802", "out={} exists", out).where("{}", c.origin("out")).hint("overwrite=true, or another out");
}

// A file or a pipe gets the model's text byte for byte, a terminal without what could control it.
void write_text(std::string_view text, bool terminal) {
  const std::string shown = terminal ? printable(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

std::string json_lines(const std::vector<Generated>& all, const std::vector<int32_t>& prompt) {
  std::string lines;
  for (size_t i = 0; i < all.size(); ++i) {
    Json j = Json::object();
    j["sample"] = i, j["text"] = all[i].text, j["ids"] = all[i].ids, j["prompt_tokens"] = prompt.size(),
    j["finish_reason"] = name_of(all[i].reason);
    j["prompt_seconds"] = all[i].prompt_seconds, j["decode_seconds"] = all[i].decode_seconds;
    lines += j.dump() + "\n";
  }
  return lines;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].find('=') != std::string::npos || arguments[0].starts_with('-'))
    throw Error("E204", "generate needs a checkpoint, a run folder or a Hugging Face folder")
        .where("argument 1")
        .hint("nibble generate nibble_output/RUN prompt=\"...\"");
  const OpenModel open = open_model(arguments[0]);
  ResolveOptions grammar;
  grammar.command = "generate", grammar.operands = 1, grammar.stored = open.stored, grammar.word_options = {"n"};
  std::vector<std::string> words(arguments);
  const Resolved r = resolve(words, grammar);
  for (const auto* notices : {&open.notices, &r.notices})
    for (const std::string& notice : *notices) fmt::print(stderr, "note: {}\n", notice);
  if (r.config.is_explicit("train_files"))  // where the common grammar puts a file that has no key
    throw Error("E004", "generate reads no training files: {}", fmt::join(r.config.get_list("train_files"), ", "))
        .where("{}", r.config.origin("train_files"))
        .hint("prompt_file={}", r.config.get_list("train_files").front());
  const Config c = with_model_defaults(r.config, open);
  check_out(c);
  if (!open.tokenizer)
    throw Error("E204", "{} has no tokenizer.json: text needs one", open.source.path.string())
        .hint("copy the tokenizer of the model into the folder");
  int64_t samples = c.get_int("n");
  if (r.options.contains("n")) samples = c.with("n", r.options.at("n"), "-n").get_int("n");
  const std::vector<int32_t> prompt = prompt_ids(open, read_prompt(c));
  const GenerateOptions base = options_of(c);
  int64_t context = c.get_int("n_ctx");
  if (context == 0) context = open.is_checkpoint() ? c.get_int("max_target_length") : open.shape.max_positions;
  const int64_t trained = open.shape.max_positions;
  if (context > trained)
    fmt::print(stderr, "note: n_ctx={} is beyond the {} positions the model knows: text gets worse there\n", context,
               trained);
  const std::vector<int64_t> buckets = row_buckets(std::min(c.get_int("prefill_chunk"), context));
  std::optional<ParameterReader> packed;  // whose codes are taken as they are
  if (open.shape.packed && c.get_string("gen_recipe") == "same") packed.emplace(open.source, wanted_tensors(open.model));
  const GenRecipe recipe = packed ? packed_recipe(*packed, open.model) : gen_recipe_of(c, open.model.layers);
  std::vector<NamedGraph> graphs = decode_graphs(open.model, buckets, context);
  const WeightSpecs codes = apply_gen_recipe(recipe, graphs);
  Program program(plan_program(std::move(graphs), resolve_threads(c.get_int("threads")),
                               resolve_target(c.get_string("cpu_target"))));
  load_weights(open, program, codes, packed ? &*packed : nullptr);
  Decoder decoder(program, buckets, context);
  const std::string& out = c.get_string("out");
  const bool terminal = isatty(STDOUT_FILENO) != 0, json = c.get_bool("json");
  const bool stream = !json && out.empty() &&
                      (c.is_null("stream") || c.json_of("stream") == "\"auto\"" ? terminal : c.get_bool("stream"));
  fmt::print(stderr,
             "{}: {} prompt tokens, context {}, KV cache {} ({} bytes), {}, recipe {}, seed {}, temperature {}\n",
             open.source.path.string(), prompt.size(), context, bytes_text(cache_bytes(open.model, context)),
             cache_bytes(open.model, context), weight_bytes_text(program.plan()), recipe.text, base.seed,
             base.sampling.temperature);
  std::signal(SIGINT, on_interrupt);
  std::vector<Generated> all;
  std::string text;
  for (int64_t i = 0; i < samples && !interrupted; ++i) {
    GenerateOptions o = base;
    o.sample = static_cast<uint32_t>(i);
    GenerateEvents events;
    events.cancelled = [] { return interrupted.load(); };
    if (stream) events.text = [terminal](std::string_view delta) { write_text(delta, terminal), std::fflush(stdout); };
    all.push_back(generate(decoder, *open.tokenizer, open.eos(), prompt, open.model.vocab, o, events));
    const Generated& g = all.back();
    if (!json && out.empty()) write_text(stream ? "\n" : g.text + "\n", terminal), std::fflush(stdout);
    if (!json && !out.empty()) text += g.text + "\n";
    fmt::print(stderr, "[{} tokens, {}; prompt {:.0f} tokens/s, generation {:.0f} tokens/s]\n", g.ids.size(),
               name_of(g.reason), static_cast<double>(prompt.size()) / g.prompt_seconds,
               static_cast<double>(g.ids.size()) / g.decode_seconds);
  }
  if (json) text = json_lines(all, prompt);
  if (!out.empty())
    replace_file(out, text);
  else
    fmt::print("{}", text);
  return interrupted ? exit_interrupted : exit_done;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    Continues a prompt with a model: a checkpoint, a run folder (its newest
    valid checkpoint) or a Hugging Face folder of the Llama family. Text goes
    to stdout, one line of statistics to stderr. The same seed gives the same
    text for any number of threads.

KEYS
    prompt, prompt_file             what to continue
    temperature (1; 0 = greedy), top_k, top_p, min_p, repetition_penalty
    seed, n                         n continuations differ by their index
    max_new_tokens (256), min_new_tokens, stop, stop_ids, ignore_eos, forbid_ids
    n_ctx                           context; 0 = the length trained with
    gen_recipe (same)               same: as the run was trained; weight_only:
                                    the linear layers' weights in 4 bits;
                                    weight_only_all: embedding and head too; or a
                                    recipe such as te_nvfp4, or fp32
    out, overwrite                  a file for the text instead of stdout
    stream (at a terminal), json, special, threads, cpu_target, prefill_chunk
    What is not given comes from the model's generation_config.json, then from
    the table of keys: nibble config explain KEY

    EOS, stop_ids and stop strings end a text; so do max_new_tokens and the end
    of the context.

EXIT STATUS
    0 done   64 usage   65 bad model or prompt too long   66 no such model
    73 out exists   81 logits that are not numbers   130 interrupted

EXAMPLES
    nibble generate nibble_output/quickstart prompt="In the beginning"
    nibble generate nibble_output/quickstart prompt="The" temperature=0 -n 1
)";

}  // namespace

constinit const Command generate_command{"generate", "nibble generate CKPT prompt=\"...\" [key=value ...]",
                                         "continue a text", help, run};

}  // namespace nibble
