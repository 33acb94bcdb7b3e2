// Keys of the groups data, evaluation, checkpointing, parallelism, memory, logging, profiling, diffusion, generation
// and of single commands.  Source: spec/training.md 1.5, spec/generation.md 1.3, 1.10, 2.9, 3.1. Columns: name, type,
// default, MaxText's default where it differs, legal values, values of this version, flags, meaning.
#include "io/keys.h"

namespace nibble {
namespace {

using enum KeyType;
constexpr unsigned o = 0, D = key_determines, N = key_nullable;
constexpr std::string_view remat = "remat|device|offload";
constexpr std::string_view one_axis = "-1|>=1", here = "-1|1";

// clang-format off
constexpr Key data_rows[] = {
    {"dataset_type", choice, "auto", "synthetic", "auto|synthetic|text|jsonl|tokens|hf", every, D, "kind of data; hf is mapped: with hf_path=text to text with text_document=line, with hf_path=json to jsonl"},
    {"hf_path", text, "\"\"", "", "", every, o, "with dataset_type=hf: text or json (nothing is downloaded)"},
    {"train_files", list, "[]", "", "", every, o, "paths and globs to train on"},
    {"eval_files", list, "[]", "", "", every, o, "paths and globs to evaluate on"},
    {"eval_fraction", number, "0", "", ">=0,<1", every, D, "share of the documents held out for evaluation"},
    {"eval_holdout", choice, "hash", "", "hash|tail", every, D, "which: by hash of the text, or the end of every file"},
    {"data_mixture_file", path, "\"\"", "", "", only_default, D, "weights of several sources"},
    {"tokenizer_path", path, "\"\"", "", "", every, o, "tokenizer file or folder; empty: the model's, else a BPE trained on the training files"},
    {"tokenizer_type", choice, "auto", "sentencepiece", "auto|byte|sentencepiece|huggingface|tiktoken", "auto|byte|huggingface", D, "kind of tokenizer; auto: by file content"},
    {"tokenize_train_data", boolean, "true", "", "", "true", D, "false: MaxText's way of saying that the data are ids; use dataset_type=tokens"},
    {"tokenizer_split", choice, "gpt2", "", "gpt2|llama3|qwen2", every, D, "pre-tokenizer of a newly trained BPE"},
    {"parse_special", boolean, "false", "", "", every, D, "read the strings of special tokens in documents as those tokens"},
    {"add_bos", boolean, "true", "", "", every, D, "begin every document with BOS"},
    {"add_eos", boolean, "true", "", "", every, D, "end every document with EOS"},
    {"train_data_columns", list, "[text]", "", "", every, D, "field of the JSON lines"},
    {"eval_data_columns", list, "[text]", "", "", every, o, "field of the JSON lines of eval_files"},
    {"text_document", choice, "file", "", "file|line|blank_line", every, D, "what a document of a text file is"},
    {"packing", boolean, "true", "", "", "true", D, "several documents in a row"},
    {"packing_type", choice, "concat_then_split", "first_fit", "concat_then_split|first_fit|best_fit", "concat_then_split", D, "how documents become rows"},
    {"max_segments_per_seq", integer, "-1", "", "-1|>=1", no_effect, D, "pieces in a row at most, for packing_type first_fit and best_fit; -1: no limit"},
    {"use_truncation", boolean, "false", "true", "", only_default, D, "keep only the first T tokens of a document"},
    {"cross_document_targets", boolean, "false", "", "", every, D, "the last token of a document predicts the first of the next"},
    {"document_mask", boolean, "true", "", "", every, D, "attention stays within a document"},
    {"enable_data_shuffling", boolean, "true", "", "", every, D, "permute the rows of every epoch"},
    {"data_shuffle_seed", integer, "0", "", ">=0,<=4294967295", every, D, "key of the permutation"},
    {"init_weights_seed", integer, "0", "", ">=0,<=4294967295", every, D, "key of the initial weights"},
    {"on_bad_record", choice, "error", "", "error|skip", every, D, "after a broken JSON line or invalid UTF-8"},
    {"cache_directory", path, "\"\"", "", "", every, o, "where tokenised data are kept; empty: beside the data"},
};

constexpr Key evaluation_rows[] = {
    {"eval_interval", integer, "-1", "", "-1|>=1", every, o, "steps between evaluations; -1: at the end only"},
    {"eval_steps", integer, "-1", "", "-1|>=1", every, o, "batches of an evaluation; -1: the whole set"},
    {"eval_start_step", integer, "0", "", ">=0", every, o, "first step that may be followed by an evaluation"},
    {"eval_per_device_batch_size", number, "0", "", ">=0", every, o, "batch of an evaluation; 0: per_device_batch_size"},
    {"target_eval_loss", number, "0", "", ">=0", every, o, "stop when the evaluation loss is at or below it; 0: never"},
    {"abort_on_nan_loss", boolean, "true", "", "", every, o, "false: only warn; no update is made from it either way"},
    {"abort_on_inf_loss", boolean, "true", "", "", every, o, "false: only warn; no update is made from it either way"},
    {"sample_interval", integer, "0", "", ">=0", every, o, "steps between text samples from the running weights; 0: none"},
    {"sample_prompt", text, "\"\"", "", "", every, o, "prompt of these samples"},
};

constexpr Key checkpoint_rows[] = {
    {"enable_checkpointing", boolean, "true", "", "", every, o, "write checkpoints"},
    {"async_checkpointing", boolean, "true", "", "", every, o, "write while training goes on, from a copy of the state, if memory_limit has room for it; false: between two steps"},
    {"checkpoint_period", integer, "10000", "", "auto|>=1", ">=1", o, "steps between checkpoints"},
    {"max_num_checkpoints_to_keep", integer, "null", "", ">=1", every, o | N, "newest checkpoints kept; null: all"},
    {"checkpoint_keep_period", integer, "0", "", ">=0", every, o, "also keep every checkpoint at a multiple of it; 0: none"},
    {"save_checkpoint_on_start", boolean, "false", "true", "", every, o, "save before the first step"},
    {"save_checkpoint_on_completion", boolean, "true", "", "", every, o, "save after the last step"},
    {"enable_autocheckpoint", boolean, "true", "false", "", every, o, "save on a stop signal"},
    {"load_parameters_path", path, "\"\"", "", "", every, o, "start from the weights of a checkpoint or Hugging Face folder"},
    {"load_full_state_path", path, "\"\"", "", "", every, o, "start from the whole state of another run's checkpoint"},
    {"checkpoint_model_dtype", choice, "float32", "", "float32|bfloat16", "float32", o, "type of the weights in model-*.safetensors"},
    {"local_checkpoint_directory", path, "\"\"", "", "", only_default, o, "further copies on a disk of the node"},
    {"local_checkpoint_period", integer, "0", "", ">=0", only_default, o, "steps between them"},
};

constexpr Key parallel_rows[] = {
    {"ici_data_parallelism", integer, "1", "", one_axis, here, o, "replicas within a node"},
    {"ici_fsdp_parallelism", integer, "-1", "", one_axis, here, o, "shards of weights and state within a node; -1: the rest of the devices"},
    {"ici_fsdp_transpose_parallelism", integer, "1", "", one_axis, here, o, "adds to fsdp"},
    {"ici_tensor_parallelism", integer, "1", "", one_axis, here, o, "cuts of the matrices"},
    {"ici_tensor_sequence_parallelism", integer, "1", "", one_axis, here, o, "adds to tensor"},
    {"ici_context_parallelism", integer, "1", "", one_axis, here, o, "cuts of the sequence"},
    {"ici_sequence_parallelism", integer, "1", "", one_axis, here, o, "adds to context"},
    {"ici_pipeline_parallelism", integer, "1", "", one_axis, here, o, "stages of layers"},
    {"ici_expert_parallelism", integer, "1", "", one_axis, here, o, "cuts of the experts"},
    {"dcn_data_parallelism", integer, "-1", "", one_axis, here, o, "replicas across nodes; -1: the rest of the nodes"},
    {"dcn_fsdp_parallelism", integer, "1", "", one_axis, here, o, "across nodes"},
    {"dcn_fsdp_transpose_parallelism", integer, "1", "", one_axis, here, o, "across nodes"},
    {"dcn_tensor_parallelism", integer, "1", "", one_axis, here, o, "across nodes"},
    {"dcn_tensor_sequence_parallelism", integer, "1", "", one_axis, here, o, "across nodes"},
    {"dcn_context_parallelism", integer, "1", "", one_axis, here, o, "across nodes"},
    {"dcn_sequence_parallelism", integer, "1", "", one_axis, here, o, "across nodes"},
    {"dcn_pipeline_parallelism", integer, "1", "", one_axis, here, o, "across nodes"},
    {"dcn_expert_parallelism", integer, "1", "", one_axis, here, o, "across nodes"},
    {"shard_optimizer_over_data", boolean, "false", "", "", no_effect, o, "cut the optimizer state over replicas too"},
    {"sharding_tolerance", number, "0.02", "", ">=0,<=1", no_effect, o, "largest replicated share of the weight bytes"},
    {"num_layers_per_pipeline_stage", integer, "1", "", ">=1", no_effect, o, "layers of a stage"},
    {"num_pipeline_repeats", integer, "-1", "", "-1|>=1", no_effect, o, "visits of a stage per microbatch"},
    {"num_pipeline_microbatches", integer, "-1", "", "-1|>=1", no_effect, o, "microbatches in the pipeline"},
    {"context_parallel_strategy", choice, "all_gather", "", "all_gather|ring", no_effect, o, "how keys and values travel"},
    {"context_parallel_load_balance", boolean, "true", "", "", no_effect, o, "give every rank early and late tokens"},
    {"jax_distributed_initialization_timeout", integer, "300", "", ">=1", no_effect, o, "seconds for the ranks to meet"},
    {"reduction_groups", integer, "auto", "", "auto|>=1", "auto|1", D, "groups of the sums across ranks; auto: the mesh of the first start"},
    {"reduction_expert", integer, "auto", "", "auto|>=1", "auto|1", D, "the same, expert axis"},
    {"reduction_context", integer, "auto", "", "auto|>=1", "auto|1", D, "the same, context axis"},
    {"reduction_tensor", integer, "auto", "", "auto|>=1", "auto|1", D, "the same, tensor axis"},
    {"reduce_grads", choice, "auto", "", "auto|step|microbatch", "auto", D, "when gradients are summed across ranks"},
    {"collectives", choice, "canonical", "", "canonical|library", only_default, D, "whose order of sums"},
    {"tensor_wire", choice, "float32", "", "float32|bfloat16", only_default, D, "type of partial sums on the wire"},
    {"grad_wire", choice, "float32", "", "float32|bfloat16", only_default, D, "type of gradients on the wire"},
    {"wire_check", boolean, "auto", "", "auto", no_effect, o, "hash of every message; auto: by transport"},
    {"pipeline_schedule", choice, "1f1b", "", "1f1b|interleaved|zero_bubble", no_effect, o, "order of the microbatches"},
    {"pipeline_layers", list, "[]", "", "", no_effect, o, "layers of each stage; empty: balanced"},
    {"context_slices", integer, "auto", "", "auto|>=1", no_effect, o, "slices of a context shard; auto: 1, ring 4"},
    {"expert_buffer_factor", number, "1.5", "", ">=1", no_effect, o, "room for tokens that arrive at a rank's experts"},
    {"expert_dedup", boolean, "true", "", "", no_effect, o, "send a token once per rank"},
    {"keep_gathered", boolean, "false", "", "", no_effect, o, "keep gathered weights for the backward pass"},
    {"comm_inflight", integer, "2", "", ">=1", no_effect, o, "collectives under way at a time"},
    {"dist_interface", text, "\"\"", "", "", no_effect, o, "network to use"},
    {"heartbeat_timeout", number, "15", "", ">0", no_effect, o, "seconds until a silent rank is lost"},
    {"hang_timeout", number, "auto", "", "auto|>0", no_effect, o, "seconds until a step hangs; auto: max(60, 20 x median step)"},
    {"replica_check_period", integer, "100", "", ">=0", no_effect, o, "steps between comparisons of replicas"},
    {"replay_period", integer, "0", "", ">=0", only_default, o, "steps between replayed steps; 0: off"},
    {"device_mtbf_hours", number, "50000", "", ">0", no_effect, o, "for checkpoint_period=auto"},
    {"elastic_ranks", text, "\"\"", "", "", only_default, o, "legal numbers of ranks; empty: as started"},
    {"restarts", integer, "10", "", ">=0", no_effect, o, "restarts of `launch`"},
    {"gemm_kernel", choice, "auto", "", "auto|bf16_exact", only_default, o, "GPU kernel of quantized products"},
    {"tune_gemm", boolean, "false", "", "", no_effect, o, "GPU: time the candidates at the start"},
    {"wgrad_add", choice, "beta", "", "beta|separate", only_default, D, "GPU: how weight gradients are added up"},
    {"cuda_graph", boolean, "true", "", "", no_effect, o, "GPU: replay a step as one graph"},
    {"cuda_sync", choice, "off", "", "off|node", no_effect, o, "GPU: wait after every node"},
    {"cuda_trace", choice, "layer", "", "layer|node", no_effect, o, "GPU: granularity of traces"},
    {"cuda_library_path", path, "\"\"", "", "", no_effect, o, "GPU: where the libraries are"},
    {"poison_arena", boolean, "false", "", "", only_default, o, "fill freed buffers with NaN"},
};

constexpr Key memory_rows[] = {
    {"remat_policy", choice, "auto", "full", "auto|none|full|minimal|minimal_with_context|minimal_with_quantization|minimal_with_context_and_quantization|minimal_flash|minimal_offloaded|save_dot_with_context_except_mlp|save_dot_except_mlpwi|save_dot_except_mlp|save_qkv_proj|save_out_proj|qkv_proj_offloaded|custom", every, o, "what the backward pass computes again to save memory; never changes a result; auto: the least that fits memory_limit"},
    {"decoder_layer_input", choice, "device", "", remat, every, o, "remat_policy=custom: a layer's input, kept in any case"},
    {"context", choice, "remat", "", remat, every, o, "remat_policy=custom: remat computes attention's output again; device and offload keep it"},
    {"attention_out", choice, "remat", "", remat, every, o, "remat_policy=custom: another name of context"},
    {"query_proj", choice, "remat", "", remat, every, o, "remat_policy=custom: q after RoPE"},
    {"key_proj", choice, "remat", "", remat, every, o, "remat_policy=custom: k after RoPE"},
    {"value_proj", choice, "remat", "", remat, every, o, "remat_policy=custom: v"},
    {"qkv_proj", choice, "remat", "", remat, every, o, "remat_policy=custom: q, k and v"},
    {"kv_proj", choice, "remat", "", remat, every, o, "remat_policy=custom: k and v"},
    {"out_proj", choice, "remat", "", remat, every, o, "remat_policy=custom: attention's output projection"},
    {"query_wa_proj", choice, "remat", "", remat, no_effect, o, "remat_policy=custom"},
    {"kv_wa_proj", choice, "remat", "", remat, no_effect, o, "remat_policy=custom"},
    {"mla_q", choice, "remat", "", remat, no_effect, o, "remat_policy=custom"},
    {"mla_kv", choice, "remat", "", remat, no_effect, o, "remat_policy=custom"},
    {"mlpwi", choice, "remat", "", remat, every, o, "remat_policy=custom: gate and up"},
    {"mlpwi_0", choice, "remat", "", remat, every, o, "remat_policy=custom: gate"},
    {"mlpwi_1", choice, "remat", "", remat, every, o, "remat_policy=custom: up"},
    {"mlpwo", choice, "remat", "", remat, every, o, "remat_policy=custom: down, which no gradient reads"},
    {"moe_mlpwi_0", choice, "remat", "", remat, no_effect, o, "remat_policy=custom"},
    {"moe_mlpwi_1", choice, "remat", "", remat, no_effect, o, "remat_policy=custom"},
    {"moe_mlpwo", choice, "remat", "", remat, no_effect, o, "remat_policy=custom"},
    {"moe_x_sorted", choice, "remat", "", remat, no_effect, o, "remat_policy=custom"},
    {"moe_routing_maps", choice, "remat", "", remat, no_effect, o, "remat_policy=custom"},
    {"attention", choice, "autoselected", "", "autoselected|dot_product|flash|cudnn_flash_te|cudnn_flash_jax", no_effect, o, "kernel of attention: same masks, same result; this version has one"},
    {"num_vocab_tiling", integer, "1", "", ">=1", every, o, "token tiles of the loss at least: more need less memory; same bits"},
    {"optimizer_memory_host_offload", boolean, "false", "", "", no_effect, o, "optimizer state in host memory, where it is on a CPU anyway"},
    {"parameter_memory_host_offload", boolean, "false", "", "", no_effect, o, "weights in host memory, where they are on a CPU anyway"},
    {"memory_limit", bytes, "null", "", ">0", every, o | N, "bytes the run may use; null: physical memory less 1 GiB"},
};

constexpr Key logging_rows[] = {
    {"log_period", integer, "100", "", ">=1", no_effect, o, "steps between flushes of the event files"},
    {"log_config", boolean, "false", "true", "", every, o, "print the whole configuration at the start"},
    {"log_extra_fields", boolean, "true", "", "", every, o, "gradient norm, rate, mfu, memory and remaining time on the step line"},
    {"enable_tensorboard", boolean, "false", "true", "", only_default, o, "write TensorBoard event files"},
    {"metrics_file", path, "\"\"", "", "", every, o, "further copy of metrics.jsonl"},
    {"numerics_period", integer, "0", "", ">=0", every, o, "steps between statistics of the quantisers in metrics.jsonl; 0: none"},
    {"peak_tflops", number, "0", "", ">=0", every, o, "peak of a device, for mfu; 0: from the hardware table"},
    {"carbon_g_per_kwh", number, "null", "", ">=0", only_default, o | N, "grams of CO2 per kWh, for `plan`"},
};

constexpr Key profiling_rows[] = {
    {"profiler", choice, "\"\"", "", "|nsys|xplane", only_default, o, "nsys: range markers; xplane: a trace of our own"},
    {"skip_first_n_steps_for_profiler", integer, "1", "", ">=0", no_effect, o, "steps before the trace"},
    {"profiler_steps", integer, "5", "", ">=1", no_effect, o, "steps in the trace"},
    {"profile_periodically_period", integer, "-1", "", "-1|>=1", no_effect, o, "steps between traces"},
};

constexpr Key command_rows[] = {
    {"axes", list, "[]", "", "data|fsdp|tensor|stage|context|expert", only_default, o, "plan --search: axes to try"},
    {"remat", list, "[]", "", "", only_default, o, "plan --search: recomputation policies to try"},
    {"micro_batch", list, "[]", "", "", only_default, o, "plan --search: microbatches to try"},
    {"objective", choice, "time", "", "time|cost|tokens_per_dollar|energy", only_default, o, "plan --search: what is to be smallest"},
    {"min_frequency", integer, "2", "", ">=1", every, o, "data train-tokenizer: a merge below this count ends the training"},
    {"format", choice, "hf", "", "hf|nvfp4|modelopt|compressed_tensors|gguf", "hf|nvfp4|modelopt|compressed_tensors", o, "ckpt export: what to write"},
    {"resize_vocab", boolean, "false", "", "", only_default, o, "ckpt import: fit the embedding to vocab_size"},
    {"check", boolean, "true", "", "", only_default, o, "ckpt: compare checksums while reading"},
    {"overwrite", boolean, "false", "", "", every, o, "write into a folder that is not empty"},
    {"meshes", list, "[]", "", "", only_default, o, "verify layout: meshes to compare"},
    {"ranks", integer, "4", "", ">=1", only_default, o, "verify layout: ranks"},
};
// clang-format on

}  // namespace

constinit const std::span<const Key> data_keys = data_rows, evaluation_keys = evaluation_rows,
                                     checkpoint_keys = checkpoint_rows, parallel_keys = parallel_rows,
                                     memory_keys = memory_rows, logging_keys = logging_rows,
                                     profiling_keys = profiling_rows, command_keys = command_rows;

}  // namespace nibble
