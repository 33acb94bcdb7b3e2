// Everything between the data keys of a configuration and batches: tokenizer, token shards, rows, fingerprints.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/tokenizer.h"
#include "io/checkpoint.h"
#include "io/config.h"

namespace nibble {

struct TrainingData {
  std::optional<Tokenizer> tokenizer;  // none for synthetic data and bare token shards
  std::unique_ptr<BatchSource> train;
  std::unique_ptr<BatchSource> evaluation;             // null: no evaluation set
  std::vector<CheckpointInfo::DataFile> fingerprints;  // of the training files
  std::vector<std::string> notices;
  int64_t evaluation_bytes = 0;  // source bytes of all evaluation targets
};

struct DataRequest {
  const Config& config;
  std::filesystem::path run_folder;      // where a tokenizer of the run lies or will lie
  std::filesystem::path cache_fallback;  // for token shards, when the folder of the data cannot be written
  ThreadPool& pool;
  std::function<void()> poll;  // called now and then; may throw to stop
  bool training = true;        // false: only the evaluation set is wanted (`nibble eval`)
};

/// Errors: E201 no data, E202, E203, E301 (tokenizer larger than V), E302, E303, E305, E307 to E309.
TrainingData prepare_data(const DataRequest& request);

/// Fails with E301 unless every id that the tokenizer can emit under these options is below vocab; a notice when rows
/// of the embedding stay unused.
void check_vocabulary(const Tokenizer& tokenizer, bool add_bos, bool add_eos, int64_t vocab,
                      std::vector<std::string>& notices);

}  // namespace nibble
