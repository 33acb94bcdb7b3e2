// Checkpoints: save, open, read with checksums, verify.  Source: spec/training.md 6.1, 6.2, 6.4.
#include "io/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "core/hash.h"
#include "io/run_folder.h"

namespace nibble {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view program = "nibble 0.1.0";
constexpr int64_t format_number = 1;
constexpr std::string_view manifest = "nibble.json", index_name = "model.safetensors.index.json",
                           quant_name = "hf_quant_config.json";
constexpr size_t listed = 10;  // tensors in one message

// The last line of nibble.json is the hash of all bytes before it: '  "hash": "<16 hex>"\n}\n'
constexpr std::string_view hash_open = "  \"hash\": \"", hash_close = "\"\n}\n";
constexpr size_t hash_line = hash_open.size() + 16 + hash_close.size();

Json manifest_json(const CheckpointContent& c, const std::vector<FileRecord>& files) {
  Json config = Json::object(), mixture = Json::array(), data = Json::array(), parameters = Json::array(),
       list = Json::array();
  auto sorted = c.config;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [key, value] : sorted) config.push_back({key, value});
  for (const auto& m : c.mixture)
    mixture.push_back({{"source", m.source}, {"weight", m.weight}, {"count", m.count}, {"base", m.base}});
  for (const auto& d : c.data) data.push_back({{"name", d.name}, {"bytes", d.bytes}, {"hash", hex16(d.hash)}});
  for (const TensorRef& t : c.tensors)
    parameters.push_back({{"name", t.name}, {"shape", Json(t.shape)}, {"dtype", t.dtype}});
  for (const FileRecord& f : files) {
    Json chunks = Json::array();
    for (uint64_t h : f.chunks) chunks.push_back(hex16(h));
    list.push_back({{"name", f.name}, {"bytes", f.bytes}, {"chunks", std::move(chunks)}});
  }
  Json j;
  j["format"] = format_number;
  j["program"] = program;
  j["step"] = c.step;
  j["updates"] = c.updates;
  j["position"] = c.position;
  j["tokens"] = c.tokens;
  j["global_batch"] = c.global_batch;
  j["config"] = std::move(config);
  j["config_hash"] = hex16(c.config_hash);
  j["mixture"] = std::move(mixture);
  j["skipped"] = c.skipped;
  j["tokenizer"] = {{"name", c.tokenizer_name}, {"hash", hex16(c.tokenizer_hash)}};
  j["data"] = std::move(data);
  j["parameters"] = std::move(parameters);
  j["sites"] = c.sites;
  if (!c.recipe.empty()) j["recipe"] = c.recipe;
  j["files"] = std::move(list);
  return j;
}

std::string manifest_text(const CheckpointContent& content, const std::vector<FileRecord>& files) {
  std::string text = json_text(manifest_json(content, files));
  text.resize(text.size() - 2);  // "\n}"
  text += ",\n";
  const std::string hash = hex16(xxh3(text));
  return text.append(hash_open).append(hash).append(hash_close);
}

uint64_t parse_hex16(const std::string& s) {
  NIBBLE_CHECK(s.size() == 16 && s.find_first_not_of("0123456789abcdef") == std::string::npos, "hash {}", s);
  return std::stoull(s, nullptr, 16);
}

Error damaged_manifest(const fs::path& path, std::string_view what) {
  return Error("E402", "{} is damaged: {}", path.string(), what).where("file {}, chunk 0", manifest);
}

/// Checks the hash line, then parses.
Json read_manifest(const fs::path& path) {
  const std::string text = read_file(path);
  const size_t body = text.size() < hash_line ? 0 : text.size() - hash_line;
  const std::string_view line = std::string_view(text).substr(body);
  if (body == 0 || !line.starts_with(hash_open) || !line.ends_with(hash_close))
    throw damaged_manifest(path, "it does not end with the line of its hash");
  const std::string want = hex16(xxh3(std::string_view(text).substr(0, body)));
  if (line.substr(hash_open.size(), 16) != want) throw damaged_manifest(path, "its hash does not match its content");
  std::string problem;
  Json json = parse_json(text, problem);
  if (!problem.empty()) throw damaged_manifest(path, problem);
  return json;
}

void parse_manifest(const Json& j, CheckpointInfo& info, std::vector<FileRecord>& files) {
  const auto integer = [](const Json& v) { return v.get<int64_t>(); };
  info.step = integer(j.at("step")), info.updates = integer(j.at("updates")), info.position = integer(j.at("position"));
  info.tokens = integer(j.at("tokens")), info.global_batch = integer(j.at("global_batch"));
  for (const auto& item : j.at("config").items()) info.config.emplace_back(item.key(), item.value());
  info.config_hash = parse_hex16(j.at("config_hash"));
  for (const Json& m : j.at("mixture"))
    info.mixture.push_back(
        {m.at("source"), m.at("weight").get<double>(), integer(m.at("count")), integer(m.at("base"))});
  info.skipped = j.at("skipped").get<std::vector<int64_t>>();
  info.tokenizer_name = j.at("tokenizer").at("name");
  info.tokenizer_hash = parse_hex16(j.at("tokenizer").at("hash"));
  for (const Json& d : j.at("data"))
    info.data.push_back({d.at("name"), integer(d.at("bytes")), parse_hex16(d.at("hash"))});
  for (const Json& p : j.at("parameters"))
    info.parameters.push_back({p.at("name"), p.at("shape").get<std::vector<int64_t>>(), p.at("dtype")});
  info.sites = j.at("sites").get<std::vector<std::string>>();
  if (j.contains("recipe")) info.recipe = j.at("recipe");
  for (const Json& f : j.at("files")) {
    FileRecord record{f.at("name"), integer(f.at("bytes")), {}};
    for (const Json& h : f.at("chunks")) record.chunks.push_back(parse_hex16(h));
    files.push_back(std::move(record));
  }
}

bool holds_tensors(std::string_view name) { return name.ends_with(".safetensors"); }

std::string tensor_list(const std::vector<std::string>& names) {
  const auto end = names.begin() + static_cast<long>(std::min(names.size(), listed));
  std::string s = fmt::format("{}", fmt::join(names.begin(), end, ", "));
  if (names.size() > listed) s += fmt::format(" and {} more", names.size() - listed);
  return s;
}

/// What transformers reads: parameters, configuration, tokenizer.
std::vector<FileRecord> write_model(const fs::path& folder, const CheckpointContent& content) {
  std::vector<FileRecord> files = write_safetensors(folder, "model", content.tensors, shard_bytes, content.source);
  const auto add = [&](std::string_view name, std::string_view text) {
    files.push_back(write_file(folder / name, text));
  };
  add(index_name, safetensors_index("model", content.tensors));
  add("config.json", content.config_json);
  add("generation_config.json", content.generation_config_json);
  if (!content.hf_quant_config_json.empty()) add(quant_name, content.hf_quant_config_json);
  for (const auto& [name, bytes] : content.tokenizer_files) add(name, bytes);
  return files;
}

void write_manifest(const fs::path& folder, const CheckpointContent& content, const std::vector<FileRecord>& files) {
  write_file(folder / "run_info.json", json_text(content.run_info) + "\n");
  write_file(folder / manifest, manifest_text(content, files));
}

// A file that may be replaced by a model: one that write_model_folder or a tool like it could have written.
bool is_model_file(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  return entry.is_regular_file() && !entry.is_symlink() &&
         (ends(".safetensors") || ends(".json") || ends(".jinja") || ends(".model") || name == "merges.txt");
}

void check_free(const fs::path& out, bool overwrite) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(out, error))) return;
  const auto used = [&](std::string_view what) {
    return Error("E802", "{} {}", out.string(), what).where("{}", out.string());
  };
  if (!fs::is_directory(out, error) || fs::is_symlink(out, error))
    throw used("is there already and is no folder").hint("another path");
  const fs::directory_iterator entries(out);
  if (entries == fs::directory_iterator()) return;
  if (!overwrite) throw used("is not empty").hint("overwrite=true, or another path");
  if (!fs::exists(out / "config.json", error)) throw used("holds no model to overwrite").hint("another path");
  for (const fs::directory_entry& entry : entries)
    if (!is_model_file(entry))
      throw used(fmt::format("holds more than a model: {}", entry.path().filename().string())).hint("another path");
}

}  // namespace

void write_model_folder(const fs::path& out, const CheckpointContent& content, bool checkpoint, bool overwrite) {
  check_free(out, overwrite);
  const fs::path full = fs::absolute(out).lexically_normal();
  const fs::path folder = full.has_filename() ? full : full.parent_path();
  make_directories(folder.parent_path());
  StagedDirectory staged(folder.parent_path(), folder.filename());
  const std::vector<FileRecord> files = write_model(staged.path(), content);
  if (checkpoint) write_manifest(staged.path(), content, files);
  staged.commit();
}

fs::path save_checkpoint(const fs::path& run, const CheckpointContent& content) {
  const fs::path parent = run / "checkpoints";
  make_directories(parent);
  StagedDirectory staged(parent, step_name(content.step));
  std::vector<FileRecord> files = write_model(staged.path(), content);
  if (!content.state.empty())
    for (FileRecord& record : write_safetensors(staged.subdirectory("state"), "optim", content.state)) {
      record.name = "state/" + record.name;
      files.push_back(std::move(record));
    }
  write_manifest(staged.path(), content, files);
  const fs::path target = parent / step_name(content.step);
  std::error_code error;
  if (fs::exists(target, error)) {
    std::string why;
    try {
      Checkpoint{target};
    } catch (const Error& e) {
      why = e.what_text;
    }
    // What is invalid is never deleted: somebody may still want to rescue tensors from it.
    if (!why.empty()) rename_aside(target, step_name(content.step) + ".damaged");
  }
  staged.commit();
  return target;
}

int64_t predicted_checkpoint_bytes(const std::vector<TensorRef>& tensors, const std::vector<TensorRef>& state) {
  int64_t bytes = int64_t{4} << 20;  // texts; tokenizers
  for (const auto* list : {&tensors, &state})
    for (const TensorRef& t : *list) bytes += t.bytes() + 512;  // header and index entries
  return bytes;
}

struct Checkpoint::Impl {
  struct File {
    FileRecord record;
    MappedFile map;
    std::vector<bool> checked;  // chunks whose hash was found right
    std::unique_ptr<SafetensorsFile> tensors;
  };
  fs::path directory;
  CheckpointInfo info;
  std::vector<FileRecord> records;
  std::vector<File> files;
  std::vector<TensorView> views;
  std::map<std::string, std::pair<size_t, size_t>, std::less<>> by_name;  // -> view, file
  bool headers_read = false;

  void open();
  uint64_t chunk_hash(const File& file, size_t chunk) const;
  Error mismatch(const File& file, size_t chunk) const;
  std::vector<std::string> tensors_in(const File& file, size_t chunk) const;
  void check(File& file, int64_t begin, int64_t end);
  void check(File& file) { check(file, 0, file.record.bytes); }
  void read_headers();
};

void Checkpoint::Impl::open() {
  const fs::path path = directory / manifest;
  std::error_code error;
  if (!fs::exists(path, error))
    throw Error("E204", "{} holds no checkpoint", directory.string())
        .expected(std::string(manifest), "no such file")
        .hint("name a folder below <run>/checkpoints, or the run folder");
  const Json json = read_manifest(path);
  const int64_t format =
      json.contains("format") && json["format"].is_number_integer() ? json["format"].get<int64_t>() : -1;
  if (format != format_number)
    throw Error("E010", "{} has format {}, which is not in this version", path.string(), format)
        .expected(fmt::format("format {}", format_number), fmt::format("{}", format))
        .hint("use the program that wrote it");
  try {
    parse_manifest(json, info, records);
  } catch (const std::exception& e) {
    throw damaged_manifest(path, e.what());
  }
  for (const FileRecord& record : records) {
    const fs::path name = directory / record.name;
    const bool there = fs::is_regular_file(name, error);
    const int64_t size = there ? static_cast<int64_t>(fs::file_size(name, error)) : 0;
    if (!there || size != record.bytes)
      throw Error("E401", "{} is {}", name.string(), there ? "truncated or has grown" : "missing")
          .expected(fmt::format("{} bytes", record.bytes), there ? fmt::format("{}", size) : "no such file")
          .hint("use an older checkpoint of the same run");
    const size_t chunks = static_cast<size_t>((record.bytes + hash_chunk_bytes - 1) / hash_chunk_bytes);
    if (record.chunks.size() != chunks) throw damaged_manifest(path, "wrong number of chunks for " + record.name);
    files.push_back({record, MappedFile(name), std::vector<bool>(chunks, false), nullptr});
  }
}

uint64_t Checkpoint::Impl::chunk_hash(const File& file, size_t chunk) const {
  const int64_t begin = static_cast<int64_t>(chunk) * hash_chunk_bytes;
  return xxh3(file.map.data() + begin, static_cast<size_t>(std::min(hash_chunk_bytes, file.map.size() - begin)));
}

std::vector<std::string> Checkpoint::Impl::tensors_in(const File& file, size_t chunk) const {
  const int64_t begin = static_cast<int64_t>(chunk) * hash_chunk_bytes, end = begin + hash_chunk_bytes;
  std::vector<std::string> names;
  try {
    const SafetensorsFile tensors(directory / file.record.name);
    for (const TensorView& t : tensors.tensors())
      if (t.begin < end && t.begin + t.bytes > begin) names.push_back(t.name);
  } catch (const Error&) {  // the damage is in the header
  }
  return names;
}

Error Checkpoint::Impl::mismatch(const File& file, size_t chunk) const {
  std::string where = fmt::format("file {}, chunk {} of {}", file.record.name, chunk, file.record.chunks.size());
  if (holds_tensors(file.record.name)) {
    const std::vector<std::string> names = tensors_in(file, chunk);
    where += names.empty() ? ", the header: all tensors of the file" : ", tensors: " + tensor_list(names);
  }
  Error error("E402", "{} does not have its checksum", (directory / file.record.name).string());
  error.where_text = std::move(where);
  error.expected_text = hex16(file.record.chunks[chunk]), error.got_text = hex16(chunk_hash(file, chunk));
  const fs::path older = newest_valid_checkpoint(directory.parent_path().parent_path(), info.step);
  error.hint_text = older.empty() ? "copy the checkpoint again from where it came from"
                                  : fmt::format("use the older valid checkpoint {}", older.string());
  return error;
}

void Checkpoint::Impl::check(File& file, int64_t begin, int64_t end) {
  for (int64_t chunk = begin / hash_chunk_bytes; chunk * hash_chunk_bytes < end; ++chunk) {
    const size_t c = static_cast<size_t>(chunk);
    if (file.checked[c]) continue;
    if (chunk_hash(file, c) != file.record.chunks[c]) throw mismatch(file, c);
    file.checked[c] = true;
  }
}

void Checkpoint::Impl::read_headers() {
  if (headers_read) return;
  for (size_t f = 0; f < files.size(); ++f) {
    File& file = files[f];
    if (!holds_tensors(file.record.name)) continue;
    uint64_t length = 0;
    check(file, 0, std::min<int64_t>(8, file.record.bytes));
    if (file.record.bytes >= 8) std::memcpy(&length, file.map.data(), 8);
    check(file, 0, static_cast<int64_t>(std::min(length + 8, static_cast<uint64_t>(file.record.bytes))));
    file.tensors = std::make_unique<SafetensorsFile>(directory / file.record.name);
    for (const TensorView& t : file.tensors->tensors()) {
      by_name[t.name] = {views.size(), f};
      views.push_back(t);
    }
  }
  headers_read = true;
}

Checkpoint::Checkpoint(fs::path directory) : impl_(std::make_unique<Impl>()) {
  impl_->directory = std::move(directory);
  impl_->open();
}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const fs::path& Checkpoint::path() const { return impl_->directory; }
const CheckpointInfo& Checkpoint::info() const { return impl_->info; }
const std::vector<FileRecord>& Checkpoint::files() const { return impl_->records; }

int64_t Checkpoint::bytes() const {
  int64_t bytes = 0;
  for (const FileRecord& record : impl_->records) bytes += record.bytes;
  return bytes;
}

std::vector<TensorView> Checkpoint::tensors() {
  impl_->read_headers();
  return impl_->views;
}

const TensorView* Checkpoint::find(std::string_view name) {
  impl_->read_headers();
  const auto it = impl_->by_name.find(name);
  return it == impl_->by_name.end() ? nullptr : &impl_->views[it->second.first];
}

const TensorView& Checkpoint::at(std::string_view name) {
  const TensorView* view = find(name);
  if (!view) throw Error("E404", "{} has no tensor {}", path().string(), name).hint("name a checkpoint that holds it");
  impl_->check(impl_->files[impl_->by_name.find(name)->second.second], view->begin, view->begin + view->bytes);
  return *view;
}

void Checkpoint::read(const std::vector<TensorTarget>& targets) {
  impl_->read_headers();
  std::vector<std::string> missing, different;
  for (const TensorTarget& target : targets) {
    const TensorView* view = find(target.name);
    if (!view)
      missing.push_back(target.name);
    else if (view->shape != target.shape || view->dtype != target.dtype)
      different.push_back(fmt::format("{} is {} [{}], wanted {} [{}]", target.name, view->dtype,
                                      fmt::join(view->shape, ", "), target.dtype, fmt::join(target.shape, ", ")));
  }
  if (!missing.empty())
    throw Error("E404", "{} lacks {} tensors", path().string(), missing.size())
        .where("{}", tensor_list(missing))
        .hint("resume with the configuration that the checkpoint was written with");
  if (!different.empty())
    throw Error("E403", "{} tensors of {} have another shape or dtype", different.size(), path().string())
        .where("{}", tensor_list(different))
        .hint("resume with the configuration that the checkpoint was written with");
  for (Impl::File& file : impl_->files)
    if (!holds_tensors(file.record.name)) impl_->check(file);
  for (const TensorTarget& target : targets) {
    const TensorView& view = at(target.name);
    if (view.bytes > 0) std::memcpy(target.data, view.data, static_cast<size_t>(view.bytes));
  }
}

std::string Checkpoint::read_file(std::string_view name) {
  for (Impl::File& file : impl_->files) {
    if (file.record.name != name || holds_tensors(name)) continue;
    impl_->check(file);
    return std::string(file.map.text());
  }
  throw Error("E404", "{} lists no file {}", path().string(), name).hint("use a checkpoint that holds it");
}

std::vector<std::string> Checkpoint::tokenizer_files() const {
  std::vector<std::string> names;
  for (const FileRecord& record : impl_->records)
    if (!holds_tensors(record.name) && record.name != index_name && record.name != "config.json" &&
        record.name != "generation_config.json" && record.name != quant_name)
      names.push_back(record.name);
  return names;
}

std::vector<Error> Checkpoint::verify() {
  std::vector<Error> found;
  for (Impl::File& file : impl_->files)
    for (size_t chunk = 0; chunk < file.record.chunks.size(); ++chunk) {
      file.checked[chunk] = impl_->chunk_hash(file, chunk) == file.record.chunks[chunk];
      if (!file.checked[chunk]) found.push_back(impl_->mismatch(file, chunk));
    }
  return found;
}

}  // namespace nibble
