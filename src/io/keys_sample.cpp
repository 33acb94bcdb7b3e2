// Keys of the groups diffusion (training) and generation.  Source: spec/generation.md 1.3, 1.10, 2.9, 3.1, 4.3, 5.2.
// Columns: name, type, default, MaxText's default where it differs, legal values, values of this version, flags,
// meaning.
#include "io/keys.h"

namespace nibble {
namespace {

using enum KeyType;
constexpr unsigned o = 0, D = key_determines, N = key_nullable;

// clang-format off
constexpr Key diffusion_rows[] = {
    {"training_objective", choice, "causal_lm", "", "causal_lm|block_diffusion", only_default, D, "what is learned"},
    {"causal_block_size", integer, "32", "", ">=1", only_default, D, "length of a canvas"},
    {"block_diffusion_mask_id", integer, "-1", "", ">=-1", only_default, D, ">= 0: masked noise with that id"},
    {"block_diffusion_min_noise", number, "0.001", "", ">0,<1", only_default, D, "smallest noise level"},
    {"block_diffusion_logit_alignment", choice, "same_position", "", "same_position|shifted", only_default, D, "which row predicts a token"},
    {"block_diffusion_canvas_policy", choice, "all_masked", "", "all_masked|seed_and_mask", only_default, D, "first slot of a canvas"},
    {"diffusion_noise", choice, "uniform", "", "uniform|masked", only_default, D, "noise"},
    {"diffusion_canvases", integer, "0", "", ">=0", only_default, D, "canvases per row; 0: all"},
    {"diffusion_loss", choice, "flat_all", "", "flat_all|flat|mean|inv_t|nelbo|cart", only_default, D, "weights of the loss"},
    {"diffusion_ar_weight", number, "1", "", ">=0", only_default, D, "weight of the next-token loss"},
    {"diffusion_weight", number, "1", "", ">=0", only_default, D, "weight of the diffusion loss"},
    {"diffusion_clean_mask", choice, "causal", "", "causal|block", only_default, D, "mask of the clean stream"},
    {"diffusion_self_conditioning", boolean, "false", "", "", only_default, D, "feed the previous belief back"},
    {"diffusion_sc_topk", integer, "32", "", ">=0", only_default, D, "tokens of that belief; 0: all"},
    {"diffusion_sc_prob", number, "0.5", "", ">=0,<=1", only_default, D, "how often in training"},
    {"diffusion_t_range", list, "null", "", ">=0,<=1", only_default, D | N, "noise levels in training"},
    {"diffusion_t_sampling", choice, "stratified", "", "stratified|iid", only_default, D, "how they are drawn"},
    {"diffusion_block_sizes", list, "[]", "", ">=1", only_default, D, "canvas lengths drawn per batch"},
    {"diffusion_block_offset", choice, "random", "", "random|zero", only_default, D, "where blocks begin"},
    {"diffusion_stop_grad_kv", boolean, "false", "", "", only_default, D, "no gradient into the clean stream"},
    {"diffusion_eos_weight", number, "1", "", ">=0", only_default, D, "weight of filling EOS"},
    {"diffusion_noise_vocab", choice, "tokenizer", "", "tokenizer|all", only_default, D, "ids that noise draws from"},
    {"diffusion_cart_rho", number, "0.3", "", ">0,<1", only_default, D, "diffusion_loss=cart"},
    {"diffusion_layout", choice, "two_stream", "", "two_stream|single_stream", only_default, D, "clean and noisy copy, or one"},
};

constexpr Key generation_rows[] = {
    {"temperature", number, "1", "", ">=0", every, o, "divides the logits; 0: greedy"},
    {"top_k", integer, "0", "", ">=0", every, o, "keep the k likeliest tokens; 0: all"},
    {"top_p", number, "1", "", ">0,<=1", every, o, "keep the likeliest tokens of this mass"},
    {"min_p", number, "0", "", ">=0,<=1", every, o, "keep tokens above this share of the likeliest"},
    {"repetition_penalty", number, "1", "", ">0", every, o, "penalty of ids that have occurred"},
    {"n", integer, "1", "", ">=1", every, o, "samples per prompt"},
    {"max_new_tokens", integer, "256", "", ">=1", every, o, "length limit"},
    {"min_new_tokens", integer, "0", "", ">=0", every, o, "no stop before"},
    {"stop", list, "[]", "", "", every, o, "strings that end the text"},
    {"stop_ids", list, "[]", "", ">=0", every, o, "further ids that end the text"},
    {"ignore_eos", boolean, "false", "", "", every, o, "EOS does not end the text"},
    {"forbid_ids", list, "[]", "", ">=0", every, o, "ids that are never drawn"},
    {"prompt", text, "\"\"", "I love to", "", every, o, "text to continue"},
    {"prompt_file", path, "\"\"", "", "", every, o, "file with the text to continue"},
    {"prompts", path, "\"\"", "", "", only_default, o, "JSON lines with many prompts"},
    {"out", path, "\"\"", "", "", every, o, "file or folder to write; empty: standard output"},
    {"chat", text, "raw", "", "", only_default, o, "chat template"},
    {"mode", choice, "ar", "", "ar|diffusion|draft_verify", "ar", o, "how tokens are made"},
    {"n_ctx", integer, "0", "", ">=0", every, o, "context; 0: max_target_length"},
    {"kv_dtype", choice, "\"\"", "", "|float32|bfloat16", "|float32", o, "type of the KV cache; empty: dtype"},
    {"gen_recipe", text, "same", "", "", every, o, "precision of generate and eval: same (as trained), weight_only, weight_only_all (also embedding and head), or a recipe's name"},
    {"max_rows", integer, "0", "", ">=0", no_effect, o, "rows of one forward pass at most; 0: the planner's choice"},
    {"prefill_chunk", integer, "64", "", ">=1", every, o, "tokens of a prompt per forward pass"},
    {"stream", boolean, "auto", "", "auto", every, o, "show text as it is made; auto: at a terminal"},
    {"json", boolean, "false", "", "", every, o, "machine-readable result"},
    {"special", boolean, "false", "", "", every, o, "show special tokens"},
    {"drafts", boolean, "false", "", "", only_default, o, "show drafts"},
    {"logprobs", integer, "0", "", ">=0", only_default, o, "report so many log probabilities"},
    {"trace", path, "\"\"", "", "", only_default, o, "file for one record per step"},
    {"verify", choice, "rejection", "", "rejection|match", only_default, o, "mode=draft_verify"},
    {"diffusion_sampler", choice, "dg", "", "dg|ancestral|fixed_k|first_hitting|threshold|low_confidence|dream|entropy_bound", only_default, o, "sampler"},
    {"diffusion_first_canvas", integer, "0", "", ">=0", only_default, o, "length of the first canvas; 0: as the others"},
    {"diffusion_steps", integer, "48", "", ">=1", only_default, o, "denoising passes per canvas"},
    {"diffusion_entropy_bound", number, "0.1", "", ">=0", only_default, o, "diffusion_sampler=dg"},
    {"diffusion_t_min", number, "0.4", "", ">=0", only_default, o, "diffusion_sampler=dg"},
    {"diffusion_t_max", number, "0.8", "", ">=0", only_default, o, "diffusion_sampler=dg"},
    {"diffusion_stability", integer, "1", "", ">=0", only_default, o, "diffusion_sampler=dg"},
    {"diffusion_confidence", number, "0.005", "", ">=0", only_default, o, "diffusion_sampler=dg"},
    {"diffusion_tau", number, "0.9", "", ">=0,<=1", only_default, o, "diffusion_sampler=threshold"},
    {"diffusion_edit_tau", number, "null", "", ">=0,<=1", only_default, o | N, "diffusion_sampler=threshold: editing; null: off"},
    {"diffusion_commit", choice, "argmax", "", "argmax|sample", only_default, o, "what is kept at the end"},
    {"diffusion_fuse_commit", boolean, "auto", "", "auto", only_default, o, "encode a canvas with the next one"},
    {"diffusion_window_rule", choice, "w_minus_1", "", "w_minus_1|w", only_default, o, "window of local layers"},
    {"scorer", path, "\"\"", "", "", only_default, o, "model that judges generated text"},
    {"fixed_steps", boolean, "false", "", "", only_default, o, "bench: no early stop"},
    {"host", text, "127.0.0.1", "", "", only_default, o, "serve: address"},
    {"port", integer, "8080", "", ">=1,<=65535", only_default, o, "serve: port"},
    {"api_key", text, "\"\"", "", "", only_default, o, "serve: key that requests carry"},
};
// clang-format on

}  // namespace

constinit const std::span<const Key> diffusion_keys = diffusion_rows, generation_keys = generation_rows;

}  // namespace nibble
