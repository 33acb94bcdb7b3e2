"""PyTorch peer: Hugging Face's Llama, one optimizer step after another on random tokens, one JSON line a step.

bench/peers/run starts it in an environment of its own. Same work as a step of nibble: mean loss, gradient clipped to
norm 1, AdamW with weight decay. Attention is scaled_dot_product_attention, the optimizer PyTorch's fused one.
"""
import argparse
import json
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--shape", required=True, help="JSON: width, hidden, heads, kv_heads, head, layers, vocab, tied")
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--length", type=int, required=True)
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--mode", choices=["eager", "compile"], required=True)
parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True, help="bfloat16: autocast")
parser.add_argument("--steps", type=int, required=True)
a = parser.parse_args()

import torch  # noqa: E402: after the arguments, because it takes seconds
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

torch.set_num_threads(a.threads)
torch.manual_seed(0)
s = json.loads(a.shape)
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=s["width"], intermediate_size=s["hidden"], num_attention_heads=s["heads"],
    num_key_value_heads=s["kv_heads"], head_dim=s["head"], num_hidden_layers=s["layers"], vocab_size=s["vocab"],
    tie_word_embeddings=s["tied"], max_position_embeddings=a.length, use_cache=False,
    attn_implementation="sdpa")).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
forward = torch.compile(model) if a.mode == "compile" else model
tokens = torch.Generator().manual_seed(1)


def step():
    x = torch.randint(0, s["vocab"], (a.batch, a.length), generator=tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bfloat16"):
        loss = forward(input_ids=x, labels=x).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}), flush=True)
for i in range(a.steps):
    start = time.perf_counter()
    loss = step()
    print(json.dumps({"step": i, "seconds": time.perf_counter() - start, "loss": loss}), flush=True)
