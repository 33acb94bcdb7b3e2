// Text generation with random weights: what a token costs after a prompt, and what a prompt costs. Decoding reads every
// weight once a token, so its limit is the time of reading them: that is timed beside each repeat, on the same memory.
#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/bench.h"
#include "bench/limits.h"
#include "bench/measure.h"
#include "bench/result.h"
#include "kernels/cpu/probes.h"
#include "numerics/normal.h"
#include "ops/ops.h"
#include "sample/decoder.h"
#include "train/gen_recipe.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t prompt_tokens = 512, decoded_tokens = 8;  // of a repeat
constexpr const char* recipes[] = {"fp32", "weight_only", "weight_only_all", "te_nvfp4"};

// Normal numbers, the same few again and again: drawing them is no part of the work.
class Weights {
 public:
  Weights() : values_(size_t{1} << 18) {
    fill_normal(values_.data(), 0, static_cast<int64_t>(values_.size()), 0, "bench", 1, false);
  }
  void fill(const Parameter& p, std::vector<float>& w) {
    w.resize(static_cast<size_t>(p.shape.numel()));
    for (float& x : w) x = p.init == Parameter::Init::ones ? 1.0f : static_cast<float>(p.std) * next();
  }

 private:
  float next() {
    at_ = at_ + 1 == values_.size() ? 0 : at_ + 1;
    return values_[at_];
  }
  std::vector<float> values_;
  size_t at_ = 0;
};

// One model in one precision.
class Subject {
 public:
  Subject(const Config& config, const LlamaConfig& model, const char* name, int threads, CpuTarget target,
          Weights& weights)
      : name_(name), recipe_(gen_recipe_of(config.with("gen_recipe", name, "bench"), model.layers)) {
    const std::vector<int64_t> buckets = row_buckets(std::min(config.get_int("prefill_chunk"), prompt_tokens));
    const int64_t context = prompt_tokens + decoded_tokens;
    std::vector<NamedGraph> graphs = decode_graphs(model, buckets, context);
    const WeightSpecs specs = apply_gen_recipe(recipe_, graphs);
    program_ = std::make_unique<Program>(plan_program(std::move(graphs), threads, target));
    std::vector<float> w;
    for (const Parameter& p : llama_parameters(model)) weights.fill(p, w), put_weight(*program_, p, w.data(), specs);
    const Tensor table = program_->state(StateRole::constant, "rope_table");
    fill_rope_table(model.rope, model.head_size, 0, table.dim(0), table.as<float>());
    decoder_ = std::make_unique<Decoder>(*program_, buckets, context);
    ids_.resize(prompt_tokens);
    for (int64_t i = 0; i < prompt_tokens; ++i)
      ids_[static_cast<size_t>(i)] = static_cast<int32_t>(i * 7919 % model.vocab);
    find_weights();
  }

  // One repeat of each. A prompt's peak: multiply-adds of float32.
  void measure(Peak& peak) {
    const double flops = peak.measure();
    decoder_->truncate(0);
    double start = now();
    decoder_->encode(ids_);
    prompt_.add(now() - start, flops, prompt_flops_);
    const double read = read_seconds();
    start = now();
    for (int64_t i = 0; i < decoded_tokens; ++i) decoder_->encode(std::span(ids_).first(1));
    const double seconds = (now() - start) / static_cast<double>(decoded_tokens);
    decode_.add(seconds, 1 / std::min(read, read_seconds()), 1);  // before and after: the quieter one
  }

  void append(BenchResult& r, int threads) const {
    const double decode = decode_.seconds(), prompt = prompt_.seconds() / static_cast<double>(prompt_tokens);
    const auto bytes = static_cast<double>(bytes_);
    r.json["rows"].push_back({{"threads", threads},
                              {"gen_recipe", name_},
                              {"weight_bytes_a_token", bytes_},
                              {"weight_bytes", state_bytes()},
                              {"decode_tokens_per_second", 1 / decode},
                              {"decode_bytes_per_second", bytes / decode},
                              {"decode_share_of_read", decode_.has_share() ? Json(decode_.share()) : Json()},
                              {"prompt_tokens_per_second", 1 / prompt},
                              {"prompt_share_of_peak", prompt_.has_share() ? Json(prompt_.share()) : Json()},
                              {"repeats", decode_.count()}});
    if (decode_.has_share()) {
      r.samples.push_back({fmt::format("decode {} threads {}", name_, threads), decode_.shares()});
      r.samples.push_back({fmt::format("prompt {} threads {}", name_, threads), prompt_.shares()});
    }
    r.text += fmt::format("{:>7}  {:<16}{:>9.1f}{:>9.1f}{:>10.1f}{:>9.1f}{:>9}{:>10.0f}{:>9}\n", threads, name_,
                          static_cast<double>(state_bytes()) / 1e6, bytes / 1e6, 1 / decode, bytes / decode / 1e9,
                          decode_.share_text(), 1 / prompt, prompt_.share_text());
  }

 private:
  // Weights that a decoding step reads whole: operands of its products that are states.
  void find_weights() {
    const Graph& graph = program_->plan().executable("decode_1").graph;
    for (const Node& n : graph.nodes) {
      if (n.op != &linear_op && n.op != &linear_w4_op && n.op != &qlinear_op && n.op != &qlinear_rows_op) continue;
      for (const Value v : n.in) {
        const Node& read = graph.producer(v);
        StateRole role{};
        if (read.op != &read_op || !parse_state_role(read.attrs.get_string("role"), &role)) continue;
        const Tensor w = program_->state(role, read.attrs.get_string("name"));
        weights_.push_back(w), bytes_ += w.type.nbytes();
        const int64_t rows = n.label == "head" ? 1 : prompt_tokens;  // logits of a prompt's last token only
        prompt_flops_ += 2.0 * static_cast<double>(w.numel() * rows);
      }
    }
  }
  int64_t state_bytes() const {
    int64_t bytes = 0;
    for (const StateInfo& s : program_->plan().states)
      if (s.role == StateRole::parameter || s.role == StateRole::codes) bytes += s.type.nbytes();
    return bytes;
  }
  // A thread takes a piece at a time, as the kernels do.
  double read_seconds() const {
    constexpr int64_t piece = 64 << 10;
    if (!cpu_runs(CpuTarget::avx2)) return 0;
    MemoryLoop* const loop = cpu_runs(CpuTarget::avx512) ? avx512::read_loop : avx2::read_loop;
    std::vector<std::pair<const std::byte*, int64_t>> pieces;
    for (const Tensor& w : weights_)
      for (int64_t at = 0; at < w.type.nbytes(); at += piece)
        pieces.emplace_back(static_cast<const std::byte*>(w.data) + at, std::min(piece, w.type.nbytes() - at));
    const double start = now();
    program_->pool().run(static_cast<int64_t>(pieces.size()), [&](int64_t i, int) {
      const auto& [at, bytes] = pieces[static_cast<size_t>(i)];
      float sink = 0;
      loop(reinterpret_cast<const float*>(at), nullptr, bytes / 512 * 128, 1, &sink);
    });
    return now() - start;
  }

  const char* name_;
  GenRecipe recipe_;
  std::unique_ptr<Program> program_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<int32_t> ids_;
  std::vector<Tensor> weights_;
  int64_t bytes_ = 0;
  double prompt_flops_ = 0;
  Timing decode_, prompt_;
};

}  // namespace

BenchResult bench_generate(const Config& config, const BenchOptions& options) {
  const LlamaConfig model = llama_of(config);
  const CpuTarget target = resolve_target(config.get_string("cpu_target"));
  const std::vector<int> counts = thread_counts(resolve_threads(config.get_int("threads")));
  Weights weights;
  BenchResult r;
  for (const int threads : config.is_set("threads") ? std::vector{counts.back()} : counts) {
    ThreadPool pool(threads);
    Peak peak(pool);
    peak.measure();
    if (r.json.empty()) {
      ProgramPlan named;
      named.threads = threads, named.target = target;
      r = begin_result("generate", config, named, peak.summary());
      r.text += fmt::format("{} parameters, prompts of {} tokens in chunks of {}\n", parameter_count(model),
                            prompt_tokens, std::min(config.get_int("prefill_chunk"), prompt_tokens));
      r.text += fmt::format("{:>7}  {:<16}{:>9}{:>9}{:>10}{:>9}{:>9}{:>10}{:>9}\n", "threads", "gen_recipe", "MB held",
                            "MB read", "decode/s", "GB/s", "of read", "prompt/s", "of peak");
    }
    std::vector<std::unique_ptr<Subject>> subjects;
    for (const char* name : recipes)
      subjects.push_back(std::make_unique<Subject>(config, model, name, threads, target, weights));
    const double start = now(), limit = options.seconds / static_cast<double>(counts.size());
    for (int i = 0; i < options.repeats && (i == 0 || now() - start < limit); ++i)
      for (const auto& s : subjects) s->measure(peak);
    for (const auto& s : subjects) s->append(r, threads);
  }
  r.text +=
      "\ndecode/s, prompt/s: tokens a second; of read: the time of reading the weights of a token, measured beside "
      "it;\nof peak: of a prompt's products alone, of float32 multiply-adds\n";
  return r;
}

}  // namespace nibble
