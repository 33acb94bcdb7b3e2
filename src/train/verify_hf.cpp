#include "train/verify_hf.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/safetensors.h"
#include "sample/decoder.h"
#include "train/open_model.h"
#include "train/step.h"

namespace nibble {
namespace {

constexpr double logits_limit = 1e-5, loss_limit = 2e-6, gradient_limit = 2e-5;

std::vector<int32_t> read_ids(const TensorView& t) {
  std::vector<int32_t> ids(static_cast<size_t>(t.numel()));
  for (size_t i = 0; i < ids.size(); ++i) {
    int64_t id = 0;
    std::memcpy(&id, t.data + 8 * i, 8);
    ids[i] = static_cast<int32_t>(id);
  }
  return ids;
}

Comparison compare(std::string name, const TensorView& golden, const float* got, double limit) {
  std::vector<float> want(static_cast<size_t>(golden.numel()));
  read_f32(golden, want.data());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(difference <= worst)) worst = difference;  // keeps NaN
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
  }
  return {std::move(name), worst / largest, limit, 0};
}

class Golden {
 public:
  Golden(const std::filesystem::path& folder, int threads, CpuTarget target)
      : open_(open_model(folder)),
        file_(golden_file(folder)),
        ids_(read_ids(file_.at("input_ids"))),
        rows_(file_.at("input_ids").shape.at(0)),
        length_(file_.at("input_ids").shape.at(1)),
        generated_(read_ids(file_.at("generated"))) {
    StepConfig c;
    c.model = open_.model, c.microbatch = {rows_, length_};
    std::vector<NamedGraph> extra = decode_graphs(c.model, {1, prompt_length}, length_);
    extra.push_back({"logits", llama_logits_graph(c.model, c.microbatch)});
    stepper_ = std::make_unique<Stepper>(c, plan_training(c, threads, target, std::move(extra)));
    load_weights(open_, stepper_->program());
  }

  std::vector<Comparison> run() {
    logits();
    gradients();
    greedy();
    std::ranges::stable_sort(list_, std::greater<>{}, [](const Comparison& c) {
      return std::isnan(c.relative) || c.differing > 0 ? INFINITY : c.relative / c.limit;
    });
    return list_;
  }

 private:
  static constexpr int64_t prompt_length = 16;

  static std::filesystem::path golden_file(const std::filesystem::path& folder) {
    auto file = folder / "golden.safetensors";
    if (!std::filesystem::exists(file))
      throw Error("E204", "{} has no golden.safetensors", folder.string())
          .where("{}", file.string())
          .hint("a folder with the golden tensors of a model");
    return file;
  }

  void logits() {
    Executable& x = stepper_->program().executable("logits");
    for (int64_t i = 0; i < rows_ * length_; ++i) {
      x.input("tokens").as<int32_t>()[i] = ids_[static_cast<size_t>(i)];
      x.input("positions").as<int32_t>()[i] = static_cast<int32_t>(i % length_);
      x.input("segments").as<int32_t>()[i] = 1;
    }
    x.run();
    list_.push_back(compare("logits", file_.at("logits"), x.output("logits").as<float>(), logits_limit));
  }

  // Mean over the next tokens within a row: the last position has no target.
  void gradients() {
    const auto n = static_cast<size_t>(rows_ * length_);
    std::vector<int32_t> targets(n), segments(n, 1), positions(n);
    std::vector<float> weights(n);
    for (size_t i = 0; i < n; ++i) {
      positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % length_);
      weights[i] = positions[i] + 1 < length_ ? 1.0f : 0.0f;
      targets[i] = weights[i] != 0 ? ids_[i + 1] : 0;
    }
    const LossSum sum =
        stepper_->gradients({ids_.data(), targets.data(), segments.data(), positions.data(), weights.data(), rows_});
    const auto loss = static_cast<float>(sum.loss());
    list_.push_back(compare("loss", file_.at("loss"), &loss, loss_limit));
    for (const Parameter& p : stepper_->parameters()) {
      const Tensor first = stepper_->program().state(StateRole::gradient, p.name);
      std::vector<float> total(first.as<float>(), first.as<float>() + first.numel());
      if (stepper_->program().has_state(StateRole::gradient, p.name + "#1"))  // a tied table's use as the head
        for (int64_t i = 0; i < first.numel(); ++i)
          total[static_cast<size_t>(i)] += stepper_->program().state(StateRole::gradient, p.name + "#1").as<float>()[i];
      list_.push_back(compare("grad." + p.name, file_.at("grad." + p.name), total.data(), gradient_limit));
    }
  }

  void greedy() {
    const auto steps = static_cast<int64_t>(generated_.size()) / rows_;
    Comparison c{"generated (greedy ids)", 0, 0, 0};
    Decoder decoder(stepper_->program(), {1, prompt_length}, length_);
    for (int64_t r = 0; r < rows_; ++r) {
      decoder.truncate(0);
      std::span<const float> logits = decoder.encode({ids_.data() + r * length_, static_cast<size_t>(prompt_length)});
      for (int64_t i = 0; i < steps; ++i) {
        const auto id = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
        c.differing += id != generated_[static_cast<size_t>(r * steps + i)];
        if (i + 1 < steps) logits = decoder.encode({&id, 1});
      }
    }
    list_.push_back(c);
  }

  OpenModel open_;
  SafetensorsModel file_;
  std::vector<int32_t> ids_;
  int64_t rows_, length_;
  std::vector<int32_t> generated_;
  std::unique_ptr<Stepper> stepper_;
  std::vector<Comparison> list_;
};

}  // namespace

std::vector<Comparison> compare_with_golden(const std::filesystem::path& folder, int threads, CpuTarget target) {
  return Golden(folder, threads, target).run();
}

}  // namespace nibble
