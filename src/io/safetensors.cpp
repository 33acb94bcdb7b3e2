// Safetensors: reader, checks and writer.  Source: spec/training.md 6.1, 6.3; huggingface/safetensors src/tensor.rs.
#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "core/error.h"
#include "io/json.h"

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

namespace nibble {
namespace fs = std::filesystem;
namespace {

constexpr std::pair<std::string_view, int64_t> dtypes[] = {{"F64", 8}, {"I64", 8},  {"F32", 4}, {"I32", 4},
                                                           {"F16", 2}, {"BF16", 2}, {"U8", 1},  {"F8_E4M3", 1}};
constexpr int64_t largest_header = 100'000'000;
constexpr size_t listed = 10;  // names in one message

Error bad_file(const fs::path& path, std::string_view rule) {
  return Error("E401", "{} is truncated or no safetensors file: {}", path.string(), rule)
      .hint("copy the file again from where it came from");
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// shape x dtype in bytes; -1 when it does not fit 63 bits.
int64_t product_bytes(const std::vector<int64_t>& shape, int64_t element) {
  int64_t n = element;
  for (int64_t d : shape)
    if (__builtin_mul_overflow(n, d, &n)) return -1;
  return n;
}

bool is_size(const Json& v) {
  return v.is_number_unsigned() && v.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
}

/// One entry of the header. `begin` and `bytes` still count from the end of the header.
TensorView read_entry(const fs::path& path, const std::string& name, const Json& entry) {
  const auto broken = [&](std::string_view what) { return bad_file(path, fmt::format("{} of tensor {}", what, name)); };
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets"))
    throw broken("the header has not exactly dtype, shape and data_offsets");
  if (!entry["dtype"].is_string()) throw broken("dtype is no string");
  const Json &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_size)) throw broken("bad shape");
  if (!offsets.is_array() || offsets.size() != 2 || !is_size(offsets[0]) || !is_size(offsets[1]) ||
      offsets[0].get<int64_t>() > offsets[1].get<int64_t>())
    throw broken("bad data_offsets");
  TensorView t;
  t.name = name;
  t.dtype = entry["dtype"].get<std::string>();
  t.shape = shape.get<std::vector<int64_t>>();
  t.begin = offsets[0].get<int64_t>();
  t.bytes = offsets[1].get<int64_t>() - t.begin;
  const int64_t element = dtype_bytes(t.dtype);
  if (element == 0)
    throw Error("E403", "tensor {} has dtype {}, which is not in this version", name, t.dtype)
        .where("{}", path.string())
        .expected("F32, F64, F16, BF16, I64, I32, U8 or F8_E4M3", t.dtype)
        .hint("convert the tensor to one of these");
  if (product_bytes(t.shape, element) != t.bytes)
    throw Error("E403", "tensor {} of shape {} and dtype {} has {} bytes", name, shape_text(t.shape), t.dtype, t.bytes)
        .where("{}", path.string())
        .expected("shape x dtype = length", fmt::format("{} bytes", t.bytes))
        .hint("copy the file again from where it came from");
  return t;
}

/// Every tensor begins where the one before it ends, and the last ends with the file.
void check_layout(const fs::path& path, const std::vector<TensorView>& tensors, int64_t data_bytes) {
  int64_t at = 0;
  for (const TensorView& t : tensors) {
    if (t.begin != at)
      throw bad_file(path,
                     fmt::format("data of tensor {} begins at {}, the one before it ends at {}", t.name, t.begin, at));
    at += t.bytes;
  }
  if (at == data_bytes) return;
  std::vector<std::string> cut;
  for (const TensorView& t : tensors)
    if (t.begin + t.bytes > data_bytes) cut.push_back(t.name);
  Error error = bad_file(path, cut.empty() ? "there are bytes after the last tensor" : "tensors are cut off");
  error.expected_text = fmt::format("{} bytes of data", at), error.got_text = fmt::format("{}", data_bytes);
  if (!cut.empty())
    error.where_text =
        fmt::format("{} tensors: {}", cut.size(),
                    fmt::join(cut.begin(), cut.begin() + static_cast<long>(std::min(cut.size(), listed)), ", "));
  throw error;
}

}  // namespace

int64_t dtype_bytes(std::string_view dtype) {
  for (const auto& [name, bytes] : dtypes)
    if (name == dtype) return bytes;
  return 0;
}

int64_t TensorRef::numel() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : path_(path), map_(path) {
  uint64_t length = 0;
  if (map_.size() < 8) throw bad_file(path, fmt::format("{} bytes have no room for a header", map_.size()));
  std::memcpy(&length, map_.data(), 8);
  if (length > uint64_t{largest_header})
    throw bad_file(path, fmt::format("header of {} bytes, the limit is {}", length, largest_header));
  header_bytes_ = 8 + static_cast<int64_t>(length);
  if (header_bytes_ > map_.size())
    throw std::move(bad_file(path, "the header is cut off"))
        .expected(fmt::format("at least {} bytes", header_bytes_), fmt::format("{}", map_.size()));
  const std::string_view text = map_.text().substr(8, length);
  if (!text.starts_with('{')) throw bad_file(path, "the header does not begin with {");
  std::string problem;
  const Json header = parse_json(text, problem);
  if (!problem.empty()) throw bad_file(path, "header: " + problem);
  for (const auto& item : header.items()) {
    if (item.key() == "__metadata__") {
      if (!item.value().is_object()) throw bad_file(path, "__metadata__ is no object");
      continue;
    }
    tensors_.push_back(read_entry(path, item.key(), item.value()));
  }
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorView& a, const TensorView& b) {
    return std::pair(a.begin, a.begin + a.bytes) < std::pair(b.begin, b.begin + b.bytes);
  });
  check_layout(path, tensors_, map_.size() - header_bytes_);
  for (TensorView& t : tensors_) {
    t.begin += header_bytes_;
    t.data = map_.data() + t.begin;
  }
}

namespace {

/// weight_map of an index: tensor name -> file name in the same folder.
std::map<std::string, std::string> read_index(const fs::path& index) {
  const std::string text = read_file(index);
  std::string problem;
  const Json json = parse_json(text, problem);
  const auto broken = [&](std::string_view what) {
    return Error("E401", "{} is no index of safetensors files: {}", index.string(), what)
        .hint("copy the file again from where it came from");
  };
  if (!problem.empty()) throw broken(problem);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    throw broken("no weight_map");
  std::map<std::string, std::string> map;
  for (const auto& item : json["weight_map"].items()) {
    if (!item.value().is_string()) throw broken("the file of " + item.key() + " is no string");
    const std::string file = item.value().get<std::string>();
    if (file.empty() || fs::path(file).filename() != file || file == "..") throw broken("bad file name " + file);
    map[item.key()] = file;
  }
  return map;
}

}  // namespace

SafetensorsModel::SafetensorsModel(const fs::path& path) : path_(path) {
  const fs::path index = path / "model.safetensors.index.json";
  std::error_code error;
  if (!fs::exists(index, error)) {
    files_.push_back(
        std::make_unique<SafetensorsFile>(fs::is_directory(path, error) ? path / "model.safetensors" : path));
    tensors_ = files_[0]->tensors();
  } else {
    const std::map<std::string, std::string> weight_map = read_index(index);
    std::map<std::string, std::vector<std::string>> by_file;
    for (const auto& [name, file] : weight_map) by_file[file].push_back(name);
    for (const auto& [file, names] : by_file) {
      if (!fs::exists(path / file, error))
        throw Error("E401", "{} is missing, {} names it", (path / file).string(), index.string())
            .where("{} tensors: {}", names.size(),
                   fmt::join(names.begin(), names.begin() + static_cast<long>(std::min(names.size(), listed)), ", "))
            .hint("copy the missing file to {}", path.string());
      files_.push_back(std::make_unique<SafetensorsFile>(path / file));
      std::set<std::string> absent(names.begin(), names.end());
      for (const TensorView& t : files_.back()->tensors())
        if (absent.erase(t.name)) tensors_.push_back(t);
      if (!absent.empty())
        throw Error("E404", "{} has no tensor {}, which the index promises", (path / file).string(), *absent.begin())
            .hint("copy the files of {} again from where they came from", path.string());
    }
  }
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
}

const TensorView* SafetensorsModel::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

const TensorView& SafetensorsModel::at(std::string_view name) const {
  const TensorView* t = find(name);
  if (!t) throw Error("E404", "{} has no tensor {}", path_.string(), name).hint("name a folder that holds this tensor");
  return *t;
}

fs::path SafetensorsModel::file_of(const TensorView& tensor) const {
  for (const auto& file : files_)
    if (tensor.data >= file->map().data() && tensor.data <= file->map().data() + file->map().size())
      return file->path();
  return path_;
}

namespace {

std::string name_list(const std::vector<std::string>& names) {
  std::string s = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<long>(std::min(names.size(), listed)), ", "));
  if (names.size() > listed) s += fmt::format(" and {} more", names.size() - listed);
  return s;
}

void check_tied_head(const TensorView& head, const TensorView* embedding) {
  constexpr std::string_view what =
      "the configuration ties the head to the embedding, but lm_head.weight differs from it";
  if (!embedding || head.dtype != embedding->dtype || head.shape != embedding->shape)
    throw Error("E405", "{} in shape or dtype", what).hint("set tie_word_embeddings to false in config.json");
  if (std::memcmp(head.data, embedding->data, static_cast<size_t>(head.bytes)) == 0) return;
  std::vector<float> a(static_cast<size_t>(head.numel())), b(a.size());
  read_f32(head, a.data());
  read_f32(*embedding, b.data());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double{a[i]} - double{b[i]});
    if (!(d <= largest)) largest = d;  // keeps NaN
  }
  throw Error("E405", "{}, by at most {}", what, largest).hint("set tie_word_embeddings to false in config.json");
}

}  // namespace

void check_tensors(const std::vector<TensorView>& tensors, const std::vector<WantedTensor>& wanted) {
  std::map<std::string_view, const TensorView*> by_name;
  for (const TensorView& t : tensors) by_name[t.name] = &t;
  const auto find = [&](std::string_view name) {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : it->second;
  };
  std::set<std::string_view> names;
  std::vector<std::string> missing, surplus, different;
  for (const WantedTensor& w : wanted) {
    names.insert(w.name);
    const TensorView* t = find(w.name);
    if (!t)
      missing.push_back(w.name);
    else if (t->shape != w.shape)
      different.push_back(fmt::format("{} is {}, wanted {}", w.name, shape_text(t->shape), shape_text(w.shape)));
    else if (t->dtype != "F32" && t->dtype != "F16" && t->dtype != "BF16")
      different.push_back(fmt::format("{} is {}, wanted F32, F16 or BF16", w.name, t->dtype));
  }
  const TensorView* tied_head = nullptr;
  for (const TensorView& t : tensors) {
    if (names.count(t.name) || t.name.ends_with(".rotary_emb.inv_freq")) continue;
    if (t.name == "lm_head.weight" && names.count("model.embed_tokens.weight"))
      tied_head = &t;
    else
      surplus.push_back(t.name);
  }
  if (!missing.empty() || !surplus.empty())
    throw Error("E404", "the tensors are not those of this model: {} missing ({}), {} surplus ({})", missing.size(),
                name_list(missing), surplus.size(), name_list(surplus))
        .hint("use the config.json that belongs to these tensors");
  if (!different.empty())
    throw Error("E403", "{} tensors differ from the configuration", different.size())
        .where("{}", name_list(different))
        .hint("use the config.json that belongs to these tensors");
  if (tied_head) check_tied_head(*tied_head, find("model.embed_tokens.weight"));
}

namespace {

float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    const float x = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(x) | sign);
  }
  const uint32_t e = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (e << 23) | (mantissa << 13));
}

}  // namespace

void read_f32(const TensorView& tensor, float* out) {
  const int64_t n = tensor.numel();
  const auto half = [&](int64_t i) {
    uint16_t h;
    std::memcpy(&h, tensor.data + 2 * i, 2);
    return h;
  };
  if (tensor.dtype == "F32") {
    if (n > 0) std::memcpy(out, tensor.data, static_cast<size_t>(tensor.bytes));
  } else if (tensor.dtype == "BF16") {
    for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{half(i)} << 16);
  } else if (tensor.dtype == "F16") {
    for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(half(i));
  } else {
    throw Error("E403", "tensor {} has dtype {} and cannot be read as float32", tensor.name, tensor.dtype)
        .expected("F32, F16 or BF16", tensor.dtype)
        .hint("convert the tensor to one of these");
  }
}

namespace {

/// [first, last) of each file.
std::vector<std::pair<size_t, size_t>> split(std::span<const TensorRef> tensors, int64_t max_bytes) {
  std::vector<std::pair<size_t, size_t>> files;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t n = tensors[i].bytes();
    if (i == 0 || bytes + n > max_bytes) files.emplace_back(i, i), bytes = 0;
    files.back().second = i + 1;
    bytes += n;
  }
  return files;
}

std::string file_name(std::string_view stem, size_t file, size_t files) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, file + 1, files);
}

std::string header_text(std::span<const TensorRef> tensors) {
  std::string s = R"({"__metadata__":{"format":"pt"})";
  int64_t at = 0;
  for (const TensorRef& t : tensors) {
    NIBBLE_CHECK(dtype_bytes(t.dtype) > 0, "tensor {} to write has dtype {}", t.name, t.dtype);
    const int64_t end = at + t.bytes();
    s += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", Json(t.name).dump(), t.dtype,
                     fmt::join(t.shape, ","), at, end);
    at = end;
  }
  s += '}';
  s.append((8 - s.size() % 8) % 8, ' ');
  NIBBLE_CHECK(static_cast<int64_t>(s.size()) <= largest_header, "safetensors header of {} bytes", s.size());
  return s;
}

}  // namespace

std::vector<FileRecord> write_safetensors(const fs::path& folder, std::string_view stem,
                                          std::span<const TensorRef> tensors, int64_t max_bytes,
                                          const TensorSource& source) {
  std::set<std::string_view> names;
  for (const TensorRef& t : tensors) NIBBLE_CHECK(names.insert(t.name).second, "tensor {} written twice", t.name);
  std::vector<FileRecord> records;
  const auto files = split(tensors, max_bytes);
  for (size_t f = 0; f < files.size(); ++f) {
    const std::span<const TensorRef> part = tensors.subspan(files[f].first, files[f].second - files[f].first);
    FileWriter writer(folder / file_name(stem, f, files.size()));
    const std::string header = header_text(part);
    const uint64_t length = header.size();
    writer.write(&length, 8);
    writer.write(header);
    for (const TensorRef& t : part) writer.write(source ? source(t) : t.data, t.bytes());
    records.push_back(writer.finish());
  }
  return records;
}

std::string safetensors_index(std::string_view stem, std::span<const TensorRef> tensors, int64_t max_bytes) {
  int64_t total = 0;
  Json weight_map = Json::object();
  const auto files = split(tensors, max_bytes);
  for (size_t f = 0; f < files.size(); ++f)
    for (size_t i = files[f].first; i < files[f].second; ++i) {
      weight_map.push_back({tensors[i].name, file_name(stem, f, files.size())});
      total += tensors[i].bytes();
    }
  return json_text({{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}}) + "\n";
}

}  // namespace nibble
