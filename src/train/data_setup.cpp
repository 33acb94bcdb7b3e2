#include "train/data_setup.h"

#include <algorithm>

#include "core/hash.h"
#include "data/tokenize.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

DataKind kind_of(const std::string& name) {
  if (name == "text") return DataKind::text;
  if (name == "jsonl") return DataKind::jsonl;
  if (name == "tokens") return DataKind::tokens;
  return DataKind::detect;
}

TextOptions text_options(const Config& config, const std::vector<std::string>& columns, Part part) {
  TextOptions o;
  const std::string& document = config.get_string("text_document");
  o.document = document == "line"         ? DocumentRule::line
               : document == "blank_line" ? DocumentRule::blank_line
                                          : DocumentRule::file;
  if (!columns.empty()) o.column = columns[0];
  o.on_bad_record = config.get_string("on_bad_record") == "skip" ? BadRecord::skip : BadRecord::error;
  const double fraction = config.get_double("eval_fraction");
  if (fraction > 0)
    o.split = {config.get_string("eval_holdout") == "tail" ? Holdout::tail : Holdout::hash, fraction, part};
  return o;
}

bool all_tokens(const std::vector<std::string>& files, DataKind kind) {
  return std::ranges::all_of(files, [&](const std::string& f) { return kind_of_file(f, kind) == DataKind::tokens; });
}

class Preparation {
 public:
  explicit Preparation(const DataRequest& request) : r_(request), c_(request.config) {}

  TrainingData run() {
    const std::string& type = c_.get_string("dataset_type");
    if (type == "synthetic") return synthetic();
    kind_ = kind_of(type);
    const std::vector<std::string>&train = c_.get_list("train_files"), &eval = c_.get_list("eval_files");
    if (train.empty() && (r_.training || eval.empty())) throw no_data_error();
    const std::vector<std::string> train_files = train.empty() ? std::vector<std::string>{} : expand_files(train);
    const std::vector<std::string> eval_files = eval.empty() ? std::vector<std::string>{} : expand_files(eval);
    tokenizer(train_files);
    if (!train_files.empty() && r_.training) {
      d_.train = source(train_files, c_.get_list("train_data_columns"), Part::train, true);
      for (const std::string& f : train_files)
        d_.fingerprints.push_back({fs::path(f).filename(), static_cast<int64_t>(fs::file_size(f)), hash_of(f)});
    }
    if (!eval_files.empty())
      d_.evaluation = source(eval_files, c_.get_list("eval_data_columns"), Part::eval, false);
    else if (c_.get_double("eval_fraction") > 0 && !train_files.empty())
      d_.evaluation = source(train_files, c_.get_list("train_data_columns"), Part::eval, false);
    if (d_.evaluation) d_.evaluation_bytes = d_.evaluation->report().source_bytes;
    return std::move(d_);
  }

 private:
  uint64_t hash_of(const std::string& file) const {
    const MappedFile in(file);
    return xxh3(in.text());
  }

  TrainingData synthetic() {
    const int64_t rows = global_batch(c_);
    auto table = std::shared_ptr<RowSource>(
        synthetic_rows(rows, c_.get_int("max_target_length"), c_.get_int("vocab_size"), seed()));
    d_.train = std::make_unique<BatchSource>(table, BatchOrder{false, 0, 0});
    return std::move(d_);
  }

  uint32_t seed() const { return static_cast<uint32_t>(c_.get_int("data_shuffle_seed")); }

  // The run's own tokenizer, else tokenizer_path, else one trained on the training files.
  void tokenizer(const std::vector<std::string>& train_files) {
    const std::string& path = c_.get_string("tokenizer_path");
    if (fs::exists(r_.run_folder / "tokenizer.json"))
      d_.tokenizer = Tokenizer::load(r_.run_folder);
    else if (!path.empty())
      d_.tokenizer = Tokenizer::load(path);
    else if (c_.get_string("tokenizer_type") == "byte")
      d_.tokenizer = Tokenizer::byte_level();
    else if (!train_files.empty() && !all_tokens(train_files, kind_))
      d_.tokenizer = train_tokenizer(train_files);
    if (d_.tokenizer)
      check_vocabulary(*d_.tokenizer, c_.get_bool("add_bos"), c_.get_bool("add_eos"), c_.get_int("vocab_size"),
                       d_.notices);
  }

  Tokenizer train_tokenizer(const std::vector<std::string>& files) {
    const DocumentList list(files, kind_, text_options(c_, c_.get_list("train_data_columns"), Part::train));
    if (r_.poll) r_.poll();
    const int64_t wanted = c_.get_int("vocab_size");
    const TrainedBpe bpe =
        train_bpe(list.documents(), {wanted, c_.get_string("tokenizer_split"), c_.get_int("min_frequency"), &r_.pool});
    if (bpe.vocab_size < wanted)
      d_.notices.push_back(
          fmt::format("the text gives a tokenizer of {} tokens, not {}: no further pair occurs {} times",
                      bpe.vocab_size, wanted, c_.get_int("min_frequency")));
    return Tokenizer::from_trained(bpe);
  }

  std::unique_ptr<BatchSource> source(const std::vector<std::string>& files, const std::vector<std::string>& columns,
                                      Part part, bool train) {
    const TextOptions text = text_options(c_, columns, part);
    std::vector<std::string> shards = files;
    Split split = text.split;
    if (!all_tokens(files, kind_)) {
      if (!d_.tokenizer)
        throw Error("E102", "{} is text, and neither the run nor the model has a tokenizer", files.front())
            .where("tokenizer_path is empty")
            .hint("tokenizer_path=FOLDER with the model's tokenizer.json, or tokenizer_type=byte");
      TokenizeOptions o{text,
                        kind_,
                        c_.get_bool("add_bos"),
                        c_.get_bool("add_eos"),
                        c_.get_string("tokenizer_split"),
                        shard_max_tokens,
                        r_.poll};
      if (part == Part::eval && !c_.get_list("eval_files").empty()) o.text.split = {};
      const TokenFolder folder = tokenize_cached(files, d_.tokenizer->encoder(c_.get_bool("parse_special")), o,
                                                 c_.get_string("cache_directory"), r_.cache_fallback.string(), r_.pool);
      if (!folder.notice.empty()) d_.notices.push_back(folder.notice);
      if (folder.bad_records > 0)
        d_.notices.push_back(fmt::format("{} records that could not be read were skipped", folder.bad_records));
      shards = folder.shards;
      split = {};
    } else if (part == Part::eval && !c_.get_list("eval_files").empty()) {
      split = {};
    }
    auto data = std::make_shared<const TokenDataset>(shards, c_.get_int("vocab_size"), split);
    RowOptions rows;
    rows.length = c_.get_int("max_target_length");
    rows.pad = d_.tokenizer ? d_.tokenizer->pad() : -1;
    rows.cross_document_targets = c_.get_bool("cross_document_targets") || c_.get_string("numerics") == "maxtext";
    rows.document_mask = c_.get_bool("document_mask");
    std::shared_ptr<const RowSource> packed = concat_then_split(data, rows);
    const BatchOrder order{train && c_.get_bool("enable_data_shuffling"), seed(), train ? c_.get_int("num_epoch") : 1};
    return std::make_unique<BatchSource>(packed, order);
  }

  const DataRequest& r_;
  const Config& c_;
  DataKind kind_ = DataKind::detect;
  TrainingData d_;
};

}  // namespace

TrainingData prepare_data(const DataRequest& request) { return Preparation(request).run(); }

void check_vocabulary(const Tokenizer& t, bool add_bos, bool add_eos, int64_t vocab,
                      std::vector<std::string>& notices) {
  // The special tokens behind the ordinary ones are only emitted where the options ask for them.
  int64_t needed = 0;
  for (int64_t id = t.vocab_size() - 1; id >= 0 && needed == 0; --id)
    if (!t.is_special(static_cast<int32_t>(id)) && !t.bytes_of(static_cast<int32_t>(id)).empty()) needed = id + 1;
  if (add_bos) needed = std::max<int64_t>(needed, t.bos() + 1);
  if (add_eos) needed = std::max<int64_t>(needed, t.eos() + 1);
  if (needed > vocab)
    throw Error("E301", "tokenizer {} can emit {} ids, the model has vocab_size={}", t.name(), needed, vocab)
        .expected(fmt::format("vocab_size of at least {}", needed), fmt::format("{}", vocab))
        .hint("vocab_size={} (with override_model_config=true if a model file sets it)", (needed + 127) / 128 * 128);
  if (t.vocab_size() < vocab)
    notices.push_back(fmt::format("{} of {} rows of the embedding are unused: tokenizer {} has {} ids",
                                  vocab - t.vocab_size(), vocab, t.name(), t.vocab_size()));
}

}  // namespace nibble
