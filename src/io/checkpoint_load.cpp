// Models from checkpoints and Hugging Face directories alike.  Source: spec/training.md 1.7, 6.3.
#include "io/checkpoint_load.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "core/error.h"
#include "core/hash.h"
#include "io/checkpoint.h"
#include "numerics/fp8.h"

namespace nibble {

namespace fs = std::filesystem;

namespace {

/// One of the two kinds, open.
class OpenModel {
 public:
  explicit OpenModel(const ModelSource& source) : source_(source) {
    if (source.kind == ModelSource::checkpoint)
      checkpoint_ = std::make_unique<Checkpoint>(source.path);
    else
      files_ = std::make_unique<SafetensorsModel>(source.path);
  }
  Checkpoint* checkpoint() { return checkpoint_.get(); }
  std::string config_json() {
    return checkpoint_ ? checkpoint_->read_file("config.json") : read_file(source_.path / "config.json");
  }
  /// Parameters, with `state` also what only a checkpoint has. Of a checkpoint not verified yet.
  std::vector<TensorView> tensors(bool state) {
    if (!checkpoint_) return files_->tensors();
    std::vector<TensorView> list = checkpoint_->tensors();
    if (state) return list;
    std::set<std::string_view> names;
    for (const auto& p : checkpoint_->info().parameters) names.insert(p.name);
    std::erase_if(list, [&](const TensorView& t) { return !names.count(t.name); });
    return list;
  }
  const TensorView& at(const std::string& name) { return checkpoint_ ? checkpoint_->at(name) : files_->at(name); }

 private:
  ModelSource source_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<SafetensorsModel> files_;
};

using Keys = std::map<std::string, std::string>;

Keys keys_of(const CheckpointInfo& info) {
  Keys keys = {{"step", fmt::format("{}", info.step)},
               {"updates", fmt::format("{}", info.updates)},
               {"position", fmt::format("{}", info.position)},
               {"tokens", fmt::format("{}", info.tokens)},
               {"global_batch", fmt::format("{}", info.global_batch)},
               {"skipped", Json(info.skipped).dump()},
               {"tokenizer", fmt::format("\"{} {}\"", info.tokenizer_name, hex16(info.tokenizer_hash))}};
  for (const auto& [key, value] : info.config) keys["config." + key] = value.dump();
  for (const auto& d : info.data) keys["data." + d.name] = fmt::format("\"{} bytes, {}\"", d.bytes, hex16(d.hash));
  return keys;
}

Keys keys_of(const std::string& config_json) {
  std::string problem;
  const Json json = parse_json(config_json, problem);
  if (!problem.empty())
    throw Error("E401", "no config.json: {}", problem).hint("copy the file again from where it came from");
  Keys keys;
  for (const auto& item : json.items()) keys[item.key()] = item.value().dump();
  return keys;
}

std::vector<ModelDifference::Key> compare_keys(const Keys& a, const Keys& b) {
  std::vector<ModelDifference::Key> list;
  const auto value = [](const Keys& keys, const std::string& key) {
    const auto it = keys.find(key);
    return it == keys.end() ? std::string() : it->second;
  };
  Keys all = a;
  all.insert(b.begin(), b.end());
  for (const auto& [key, unused] : all)
    if (value(a, key) != value(b, key)) list.push_back({key, value(a, key), value(b, key)});
  return list;
}

double element(const TensorView& t, int64_t i) {
  const auto load = [&](auto x) {
    std::memcpy(&x, t.data + i * static_cast<int64_t>(sizeof x), sizeof x);
    return static_cast<double>(x);
  };
  if (t.dtype == "F64") return load(double{});
  if (t.dtype == "I64") return load(int64_t{});
  if (t.dtype == "I32") return load(int32_t{});
  if (t.dtype == "U8") return load(uint8_t{});
  if (t.dtype == "F8_E4M3") return static_cast<double>(e4m3_decode(static_cast<int>(load(uint8_t{}))));
  float x;
  const int64_t size = dtype_bytes(t.dtype);
  read_f32({t.name, t.dtype, {1}, t.data + i * size, 0, size}, &x);
  return x;
}

double largest_difference(const TensorView& a, const TensorView& b) {
  double largest = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double x = element(a, i), y = element(b, i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double d = std::abs(x - y);
    if (std::isnan(d)) return d;
    largest = std::max(largest, d);
  }
  return largest;
}

}  // namespace

LlamaShape load_shape(const ModelSource& source) {
  const std::string name = (source.path / "config.json").string();
  if (source.kind == ModelSource::checkpoint)
    return parse_hf_config(Checkpoint(source.path).read_file("config.json"), name);
  LlamaShape shape = read_hf_config(name);
  const fs::path beside = source.path / "hf_quant_config.json";
  if (shape.packed || !fs::exists(beside)) return shape;
  std::string problem;
  const Json json = parse_json(read_file(beside), problem);
  if (!problem.empty())
    throw Error("E401", "{} is no hf_quant_config.json: {}", beside.string(), problem)
        .hint("copy the file again from where it came from");
  shape.packed = parse_packed_format(json, beside.string());
  return shape;
}

struct ParameterReader::Impl {
  explicit Impl(const ModelSource& source) : model(source) {}
  OpenModel model;
  std::map<std::string, PackedWeight, std::less<>> packed;
};

ParameterReader::ParameterReader(const ModelSource& source, const std::vector<WantedTensor>& wanted)
    : impl_(std::make_unique<Impl>(source)) {
  const std::optional<PackedFormat> format = load_shape(source).packed;
  std::vector<TensorView> tensors = impl_->model.tensors(false);
  if (Checkpoint* checkpoint = impl_->model.checkpoint())  // before a byte is looked at
    for (const TensorView& t : tensors) checkpoint->at(t.name);
  if (format) {
    PackedTensors sorted = sort_packed(tensors, *format);
    for (PackedWeight& w : sorted.weights) impl_->packed.emplace(w.name, std::move(w));
    tensors = std::move(sorted.plain);
  }
  std::vector<WantedTensor> plain;
  std::set<std::string_view> names;
  for (const WantedTensor& t : wanted) {
    names.insert(t.name);
    const PackedWeight* const w = packed(t.name);
    if (w == nullptr)
      plain.push_back(t);
    else if (const std::vector<int64_t> shape = {w->rows, w->columns}; shape != t.shape)
      throw Error("E403", "packed weight {} has another shape", t.name)
          .where("{}", t.name)
          .expected(fmt::format("[{}]", fmt::join(t.shape, ", ")), fmt::format("[{}]", fmt::join(shape, ", ")))
          .hint("use the config.json that belongs to these tensors");
  }
  for (const auto& [name, w] : impl_->packed)
    if (!names.contains(name))
      throw Error("E404", "the model has no layer for the packed weight {}", name)
          .where("{}", name)
          .hint("use the config.json that belongs to these tensors");
  check_tensors(tensors, plain);
}
ParameterReader::~ParameterReader() = default;

const PackedWeight* ParameterReader::packed(std::string_view name) const {
  const auto found = impl_->packed.find(name);
  return found == impl_->packed.end() ? nullptr : &found->second;
}

void ParameterReader::read(const std::string& name, float* out) const {
  if (const PackedWeight* const w = packed(name))
    w->decode(0, w->rows, out);
  else
    read_f32(impl_->model.at(name), out);
}

void load_parameters(const ModelSource& source, const std::vector<ParameterTarget>& targets) {
  std::vector<WantedTensor> wanted;
  for (const ParameterTarget& t : targets) wanted.push_back({t.name, t.shape});
  load_parameters(ParameterReader(source, wanted), targets);
}

void load_parameters(const ParameterReader& reader, const std::vector<ParameterTarget>& targets) {
  std::vector<float> passing;
  for (const ParameterTarget& t : targets) {
    int64_t elements = 1;
    for (const int64_t d : t.shape) elements *= d;
    if (t.data == nullptr) passing.resize(static_cast<size_t>(elements));
    float* const to = t.data != nullptr ? t.data : passing.data();
    reader.read(t.name, to);
    if (t.take) t.take(to);
  }
}

ModelDifference compare_models(const ModelSource& source_a, const ModelSource& source_b) {
  OpenModel a(source_a), b(source_b);
  const bool both = a.checkpoint() && b.checkpoint();
  ModelDifference result;
  result.keys = both ? compare_keys(keys_of(a.checkpoint()->info()), keys_of(b.checkpoint()->info()))
                     : compare_keys(keys_of(a.config_json()), keys_of(b.config_json()));
  std::map<std::string_view, const TensorView*> of_b;
  const std::vector<TensorView> list_a = a.tensors(both), list_b = b.tensors(both);
  for (const TensorView& t : list_b) of_b[t.name] = &t;
  const auto type = [](const TensorView& t) { return fmt::format("{} [{}]", t.dtype, fmt::join(t.shape, ", ")); };
  for (const TensorView& unread : list_a) {
    const auto it = of_b.find(unread.name);
    if (it == of_b.end()) {
      result.tensors.push_back({unread.name, "only in A", 0});
      continue;
    }
    of_b.erase(it);
    const TensorView &x = a.at(unread.name), &y = b.at(unread.name);
    if (x.shape != y.shape)
      result.tensors.push_back({x.name, type(x) + " and " + type(y), 0});
    else if (x.dtype != y.dtype || std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes)) != 0)
      result.tensors.push_back({x.name, "", largest_difference(x, y)});
  }
  for (const TensorView& t : list_b)
    if (of_b.count(t.name)) result.tensors.push_back({t.name, "only in B", 0});
  return result;
}

}  // namespace nibble
