// nibble data: corpora and tokenizers. Text to token shards, training and checking a tokenizer, looking into data.
// Source: spec/training.md 1.7, 4.1, 4.2, 4.6.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <thread>

#include "command.h"
#include "core/error.h"
#include "core/threads.h"
#include "data/bpe_train.h"
#include "data/shards.h"
#include "data/source.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "data/tokenizer_check.h"
#include "data/utf8.h"
#include "io/config.h"
#include "io/keys.h"
#include "io/suggest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Subcommand {
  std::string_view name, synopsis;
  int operands;                        // words after the name that are not files to read
  std::vector<std::string_view> keys;  // it reads these; any other key on the command line is E001
  int (*run)(const Resolved& request);
};

bool as_json(const Resolved& request) { return request.config.get_bool("json"); }
void print_json(const Json& value) { fmt::print("{}\n", value.dump(2)); }

int thread_count(const Config& config) {
  const int64_t wanted = config.get_int("threads");
  return wanted > 0 ? static_cast<int>(wanted) : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Error missing(std::string_view key, std::string_view synopsis) {
  return Error("E002", "{} has no value", key)
      .where("command line")
      .expected(fmt::format("{}=VALUE", key), "nothing")
      .hint("{}", synopsis);
}

TextOptions text_options(const Config& config) {
  TextOptions options;
  const std::string& document = config.get_string("text_document");
  options.document = document == "line"         ? DocumentRule::line
                     : document == "blank_line" ? DocumentRule::blank_line
                                                : DocumentRule::file;
  if (!config.get_list("train_data_columns").empty()) options.column = config.get_list("train_data_columns").front();
  options.on_bad_record = config.get_string("on_bad_record") == "skip" ? BadRecord::skip : BadRecord::error;
  return options;
}

DataKind data_kind(const Config& config) {
  const std::string& type = config.get_string("dataset_type");
  if (type == "text") return DataKind::text;
  if (type == "jsonl") return DataKind::jsonl;
  if (type == "auto") return DataKind::detect;
  throw Error("E002", "dataset_type={} has no text to read", type)
      .where("{}", config.origin("dataset_type"))
      .expected("auto, text or jsonl", type)
      .hint("dataset_type=auto");
}

std::vector<std::string> input_files(const Config& config) {
  const std::vector<std::string>& patterns = config.get_list("train_files");
  if (patterns.empty()) throw no_data_error();
  return expand_files(patterns);
}

std::string output_folder(const Config& config, std::string_view synopsis) {
  const std::string& out = config.get_string("out");
  if (out.empty()) throw missing("out", synopsis);
  if (!config.get_bool("overwrite") && fs::exists(out) && !(fs::is_directory(out) && fs::is_empty(out)))
    throw Error("E802", "{} exists and is not empty", out)
        .where("{}", config.origin("out"))
        .hint("another out=, or overwrite=true");
  return out;
}

Tokenizer load_tokenizer(const std::string& path) {
  return path == "byte" ? Tokenizer::byte_level() : Tokenizer::load(path);
}

// ---- tokenize ----

constexpr std::string_view tokenize_synopsis =
    "nibble data tokenize FILES out=DIR tokenizer_path=TOKENIZER (or tokenizer_type=byte) [key=value ...]";

int tokenize(const Resolved& request) {
  const Config& config = request.config;
  const std::vector<std::string> files = input_files(config);
  const std::string out = output_folder(config, tokenize_synopsis);
  const std::string& path = config.get_string("tokenizer_path");
  const bool byte = config.get_string("tokenizer_type") == "byte";
  if (path.empty() && !byte)
    throw Error("E002", "tokenizer_path has no value: no tokenizer is given")
        .where("command line")
        .expected("tokenizer_path=FILE or folder, or tokenizer_type=byte", "nothing")
        .hint("nibble data train-tokenizer {} vocab_size=8192 out=tokenizer, then tokenizer_path=tokenizer",
              files.front());
  const Tokenizer tokenizer = byte ? Tokenizer::byte_level() : load_tokenizer(path);
  TokenizeOptions options;
  options.text = text_options(config);
  options.kind = data_kind(config);
  options.add_bos = config.get_bool("add_bos"), options.add_eos = config.get_bool("add_eos");
  ThreadPool pool(thread_count(config));
  const TextEncoder encoder = tokenizer.encoder(config.get_bool("parse_special"));
  const TokenFolder made = tokenize_to(files, encoder, options, out, pool, config.get_bool("overwrite"));
  tokenizer.save(out, config.get_int("max_target_length"));  // so that inspect and training find it with the shards
  if (as_json(request)) {
    print_json({{"folder", out},
                {"key", fmt::format("{:016x}", made.key)},
                {"tokenizer", tokenizer.name()},
                {"vocab_size", tokenizer.vocab_size()},
                {"shards", made.shards},
                {"documents", made.documents},
                {"tokens", made.tokens},
                {"source_bytes", made.source_bytes},
                {"empty_documents", made.empty_documents},
                {"bad_records", made.bad_records}});
    return exit_done;
  }
  const double per_token = made.tokens ? static_cast<double>(made.source_bytes) / static_cast<double>(made.tokens) : 0;
  fmt::print("{}: {} documents, {} tokens of {} ({:.2f} bytes a token), {} shards\n", out, made.documents, made.tokens,
             tokenizer.name(), per_token, made.shards.size());
  if (made.empty_documents > 0) fmt::print("dropped: {} empty documents\n", made.empty_documents);
  if (made.bad_records > 0) fmt::print("skipped: {} bad records\n", made.bad_records);
  fmt::print("train on them: nibble train {} tokenizer_path={}\n", out, out);
  return exit_done;
}

// ---- train-tokenizer, check-tokenizer ----

constexpr std::string_view train_synopsis =
    "nibble data train-tokenizer FILES vocab_size=V out=DIR [tokenizer_split=gpt2] [min_frequency=2] [key=value ...]";

int train_tokenizer(const Resolved& request) {
  const Config& config = request.config;
  if (!config.is_explicit("vocab_size")) throw missing("vocab_size", train_synopsis);
  const std::vector<std::string> files = input_files(config);
  const std::string out = output_folder(config, train_synopsis);
  const DocumentList list(files, data_kind(config), text_options(config));
  ThreadPool pool(thread_count(config));
  BpeTrainOptions options;
  options.vocab_size = config.get_int("vocab_size"), options.min_frequency = config.get_int("min_frequency");
  options.split = config.get_string("tokenizer_split"), options.pool = &pool;
  const TrainedBpe trained = train_bpe(list.documents(), options);
  const Tokenizer tokenizer = Tokenizer::from_trained(trained);
  std::error_code problem;
  fs::create_directories(out, problem);
  if (problem)
    throw Error("E803", "cannot create {}: {}", out, problem.message()).where("out={}", out).hint("another out=");
  tokenizer.save(out, config.get_int("max_target_length"));
  const bool early = trained.vocab_size < trained.requested_size;
  if (as_json(request)) {
    print_json({{"folder", out},
                {"tokenizer", tokenizer.name()},
                {"vocab_size", trained.vocab_size},
                {"requested_size", trained.requested_size},
                {"merges", trained.merges.size()},
                {"documents", list.documents().size()},
                {"source_bytes", list.bytes()}});
    return exit_done;
  }
  fmt::print("{}: {} tokens, {} merges learned from {} documents, {} bytes\n", out, trained.vocab_size,
             trained.merges.size(), list.documents().size(), list.bytes());
  if (early)
    fmt::print("notice: stopped at {} of {} tokens: every pair that is left occurs less than min_frequency={} times\n",
               trained.vocab_size, trained.requested_size, options.min_frequency);
  return exit_done;
}

int check(const Resolved& request) {
  const CheckResult result = check_tokenizer(load_tokenizer(request.operands[1]), request.operands[2]);
  if (as_json(request)) {
    print_json({{"equal", result.equal()},
                {"cases", result.cases},
                {"comparisons", result.comparisons},
                {"differences", result.differences},
                {"first", result.first}});
  } else {
    fmt::print("{}: {} cases, {} comparisons, {} differences\n", result.equal() ? "equal" : "different", result.cases,
               result.comparisons, result.differences);
    for (const std::string& line : result.first) fmt::print("  {}\n", line);
  }
  return result.equal() ? exit_done : exit_no;
}

// ---- inspect, verify ----

constexpr int64_t shown_documents = 3, shown_tokens = 64;

// One line of printable text: control characters escaped, cut at 200 bytes on a character.
std::string one_line(std::string_view text) {
  constexpr size_t most = 200;
  const std::string whole = utf8_lossy(text);
  const std::string_view head =
      std::string_view(whole).substr(0, utf8_valid_prefix(std::string_view(whole).substr(0, most)));
  std::string line;
  for (const char c : head) {
    if (c == '\n')
      line += "\\n";
    else if (static_cast<unsigned char>(c) < 32 || c == 127)
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      line += c;
  }
  return line + (head.size() < whole.size() ? "..." : "");
}

// The tokenizer to decode shards with: the one given, else the one stored beside the shards.
std::optional<Tokenizer> tokenizer_for(const Config& config, const std::string& shard) {
  const std::string& path = config.get_string("tokenizer_path");
  if (!path.empty()) return load_tokenizer(path);
  if (config.get_string("tokenizer_type") == "byte") return Tokenizer::byte_level();
  const fs::path beside = fs::path(shard).parent_path();
  if (fs::exists(beside / "tokenizer.json")) return Tokenizer::load(beside);
  return {};
}

int inspect_shards(const Resolved& request, const std::vector<std::string>& files) {
  int64_t documents = 0, tokens = 0, bytes = 0;
  uint64_t largest = 0;
  const std::optional<Tokenizer> tokenizer = tokenizer_for(request.config, files.front());
  Json first = Json::array();
  for (const std::string& path : files) {
    const Shard shard(path);
    documents += shard.documents(), tokens += shard.tokens(), bytes += shard.source_bytes();
    largest = std::max(largest, shard.largest_id());
    for (int64_t d = 0; d < shard.documents() && static_cast<int64_t>(first.size()) < shown_documents; ++d) {
      const int64_t begin = shard.document_begin(d), length = shard.document_begin(d + 1) - begin;
      std::vector<int32_t> ids(static_cast<size_t>(std::min(length, shown_tokens)));
      shard.read(begin, ids);
      Json entry = {{"tokens", length}, {"source_bytes", shard.document_bytes(d)}, {"ids", ids}};
      if (tokenizer) entry["text"] = one_line(tokenizer->decode(ids, false));
      first.push_back(entry);
    }
  }
  if (as_json(request)) {
    print_json({{"files", files},
                {"documents", documents},
                {"tokens", tokens},
                {"largest_id", largest},
                {"source_bytes", bytes},
                {"first", first}});
    return exit_done;
  }
  fmt::print("{} shards: {} documents, {} tokens, largest id {}, {} source bytes\n", files.size(), documents, tokens,
             largest, bytes);
  for (size_t d = 0; d < first.size(); ++d) {
    const Json& entry = first[d];
    fmt::print("document {}: {} tokens\n", d, entry["tokens"].get<int64_t>());
    if (tokenizer)
      fmt::print("  {}\n", entry["text"].get<std::string>());
    else
      fmt::print("  ids {}\n", fmt::join(entry["ids"].get<std::vector<int32_t>>(), " "));
  }
  if (!tokenizer) fmt::print("ids only: tokenizer_path= decodes them\n");
  return exit_done;
}

int inspect_text(const Resolved& request, const std::vector<std::string>& files) {
  const DocumentList list(files, data_kind(request.config), text_options(request.config));
  Json first = Json::array();
  size_t longest = 0;
  for (const std::string_view text : list.documents()) {
    longest = std::max(longest, text.size());
    if (static_cast<int64_t>(first.size()) < shown_documents)
      first.push_back({{"source_bytes", text.size()}, {"text", one_line(text)}});
  }
  if (as_json(request)) {
    print_json({{"files", files},
                {"documents", list.documents().size()},
                {"source_bytes", list.bytes()},
                {"longest_document", longest},
                {"empty_documents", list.empty()},
                {"bad_records", list.bad()},
                {"first", first}});
    return exit_done;
  }
  fmt::print("{} files: {} documents, {} bytes, longest {} bytes, {} empty, {} bad records\n", files.size(),
             list.documents().size(), list.bytes(), longest, list.empty(), list.bad());
  for (size_t d = 0; d < first.size(); ++d)
    fmt::print("document {}: {} bytes\n  {}\n", d, first[d]["source_bytes"].get<int64_t>(),
               first[d]["text"].get<std::string>());
  return exit_done;
}

int inspect(const Resolved& request) {
  const std::vector<std::string> files = expand_files({request.operands[1]});
  const bool shards = kind_of_file(files.front()) == DataKind::tokens;
  return shards ? inspect_shards(request, files) : inspect_text(request, files);
}

int verify(const Resolved& request) {
  const std::string& path = request.operands[1];
  const std::vector<std::string> files = expand_files({path});
  int64_t bad = 0;
  Json results = Json::array();
  const auto note = [&](const std::string& name, const std::string& problem) {
    bad += !problem.empty();
    if (as_json(request))
      results.push_back({{"file", name}, {"valid", problem.empty()}, {"problem", problem}});
    else
      fmt::print("{}  {}{}{}\n", problem.empty() ? "ok " : "BAD", name, problem.empty() ? "" : ": ", problem);
  };
  for (const std::string& file : files) {
    std::string problem;
    try {
      Shard(file).verify();
    } catch (const Error& error) {
      problem =
          fmt::format("{} ({}), expected {}, got {}", error.what_text, error.id, error.expected_text, error.got_text);
    }
    note(file, problem);
  }
  if (fs::exists(fs::path(path) / "meta.json"))
    note((fs::path(path) / "meta.json").string(),
         open_token_folder(path) ? "" : "it does not fit the shards of the folder");
  if (as_json(request)) print_json({{"valid", bad == 0}, {"files", results}});
  return bad == 0 ? exit_done : exit_no;
}

const std::vector<Subcommand>& subcommands() {
  static const std::vector<Subcommand> list = {
      {"tokenize",
       tokenize_synopsis,
       0,
       {"train_files", "out", "overwrite", "tokenizer_path", "tokenizer_type", "dataset_type", "text_document",
        "train_data_columns", "add_bos", "add_eos", "parse_special", "on_bad_record", "max_target_length", "threads",
        "json"},
       tokenize},
      {"train-tokenizer",
       train_synopsis,
       0,
       {"train_files", "out", "overwrite", "vocab_size", "tokenizer_split", "min_frequency", "dataset_type",
        "text_document", "train_data_columns", "on_bad_record", "max_target_length", "threads", "json"},
       train_tokenizer},
      {"check-tokenizer", "nibble data check-tokenizer TOKENIZER CASES.jsonl [--json]", 2, {"json"}, check},
      {"inspect",
       "nibble data inspect PATH [tokenizer_path=TOKENIZER] [--json]",
       1,
       {"tokenizer_path", "tokenizer_type", "dataset_type", "text_document", "train_data_columns", "on_bad_record",
        "json"},
       inspect},
      {"verify", "nibble data verify PATH [--json]", 1, {"json"}, verify}};
  return list;
}

const Subcommand& find_subcommand(const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (const Subcommand& s : subcommands()) names.emplace_back(s.name);
  for (const Subcommand& s : subcommands())
    if (!arguments.empty() && arguments[0] == s.name) return s;
  const std::string given = arguments.empty() ? "nothing" : arguments[0];
  const std::vector<std::string> near = arguments.empty() ? names : nearest(given, names);
  throw Error("E007", "nibble data has no subcommand {}", given)
      .where("argument 1")
      .expected(fmt::format("{}", fmt::join(names, ", ")), given)
      .hint("{}", near.empty() ? std::string(data_command.synopsis) : fmt::format("did you mean {}?", either(near)));
}

// Keys that would have no effect here are mistakes.
void refuse_other_keys(const Subcommand& subcommand, const Config& config) {
  for (int i = 0; i < key_count(); ++i) {
    const std::string_view name = key_at(i).name;
    const std::string& origin = config.origin(name);
    if (!origin.starts_with("argument")) continue;
    if (std::find(subcommand.keys.begin(), subcommand.keys.end(), name) != subcommand.keys.end()) continue;
    const std::vector<std::string> names(subcommand.keys.begin(), subcommand.keys.end());
    const std::vector<std::string> near = nearest(name, names);
    throw Error("E001", "{} is no key of nibble data {}", name, subcommand.name)
        .where("{}", origin)
        .expected(fmt::format("one of {}", fmt::join(names, ", ")), std::string(name))
        .hint("{}", near.empty() ? std::string(subcommand.synopsis) : fmt::format("did you mean {}?", either(near)));
  }
}

int run(const std::vector<std::string>& arguments) {
  const Subcommand& subcommand = find_subcommand(arguments);
  ResolveOptions options;
  options.command = "data";
  options.operands = 1 + subcommand.operands;
  options.check = false;  // there is no model and no run to check
  const Resolved request = resolve(arguments, options);
  refuse_other_keys(subcommand, request.config);
  if (static_cast<int>(request.operands.size()) < options.operands)
    throw Error("E004", "nibble data {} needs {} more argument(s)", subcommand.name,
                options.operands - static_cast<int>(request.operands.size()))
        .where("argument {}", request.operands.size() + 1)
        .expected(std::string(subcommand.synopsis), fmt::format("{}", fmt::join(arguments, " ")))
        .hint("{}", subcommand.synopsis);
  for (const std::string& notice : request.notices) fmt::print(stderr, "{}\n", notice);
  return subcommand.run(request);
}

}  // namespace

const Command data_command{"data", "nibble data tokenize|train-tokenizer|check-tokenizer|inspect|verify ...",
                           "token shards and tokenizers: make them, look into them, check them",
                           R"(DESCRIPTION
  nibble data tokenize FILES out=DIR tokenizer_path=TOKENIZER [key=value ...]
      Text and JSON-lines files to token shards (.nbt) in DIR, with the tokenizer beside them. tokenizer_type=byte
      needs no file. Training does this by itself; use it to prepare a corpus once.
  nibble data train-tokenizer FILES vocab_size=V out=DIR [key=value ...]
      Learns a byte-level BPE of V tokens and writes tokenizer.json and tokenizer_config.json.
  nibble data check-tokenizer TOKENIZER CASES.jsonl
      Compares with the ids and texts another library gave; TOKENIZER is a file, a folder or "byte".
  nibble data inspect PATH
      Documents, tokens, largest id and the first documents of shards, or of text files.
  nibble data verify PATH
      Every checksum of shards.

KEYS
  out, overwrite            folder to write, and whether it may hold something already
  tokenizer_path            tokenizer.json or a folder that holds one
  tokenizer_type            auto, byte, huggingface
  vocab_size                train-tokenizer: tokens, the 256 bytes and 3 special ones included
  tokenizer_split           train-tokenizer: gpt2, llama3, qwen2
  min_frequency             train-tokenizer: a rarer pair is not merged (2)
  dataset_type              auto (by content and ending), text, jsonl
  text_document             what a document of a text file is: file, line, blank_line
  train_data_columns        string field of a JSON line ([text])
  add_bos, add_eos          around every document (true)
  parse_special             strings of special tokens in the text become those tokens (false)
  on_bad_record             error, skip
  max_target_length         model_max_length of a new tokenizer_config.json
  threads                   0 = all cores; never changes a result
  json                      machine-readable result

EXIT STATUS
  0 done; 1 verify or check-tokenizer found a difference; 64 usage; 65 bad data; 66 no input; 73 output not writable

EXAMPLES
  nibble data train-tokenizer book.txt vocab_size=1024 out=tokenizer
  nibble data tokenize book.txt tokenizer_path=tokenizer out=shards
  nibble data inspect shards
)",
                           run};

}  // namespace nibble
