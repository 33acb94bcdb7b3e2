"""JAX peer: a Llama training step in plain JAX under one jit, layers by lax.scan; one JSON line a step.

bench/peers/run starts it in an environment of its own. Same work as a step of nibble: mean loss, gradient clipped to
norm 1, AdamW with weight decay. dtype=bfloat16 computes in bfloat16; parameters, moments, logits and softmax stay float32.
"""
import argparse
import json
import math
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--shape", required=True, help="JSON: width, hidden, heads, kv_heads, head, layers, vocab, tied")
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--length", type=int, required=True)
parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
parser.add_argument("--steps", type=int, required=True)
a = parser.parse_args()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

s = json.loads(a.shape)
E, F, H, K, D, L, V = (s[k] for k in ("width", "hidden", "heads", "kv_heads", "head", "layers", "vocab"))
B, T = a.batch, a.length
compute, full = jnp.dtype(a.dtype), jnp.float32
LAYER = ("q", "k", "v", "o", "gate", "up", "down", "norm1", "norm2")


def initial():
    random = np.random.default_rng(0)

    def normal(*shape, fan_in):
        return random.standard_normal(shape, dtype=np.float32) / math.sqrt(fan_in)

    p = {"embed": normal(V, E, fan_in=E), "norm": np.ones(E, np.float32),
         "q": normal(L, E, H * D, fan_in=E), "k": normal(L, E, K * D, fan_in=E), "v": normal(L, E, K * D, fan_in=E),
         "o": normal(L, H * D, E, fan_in=H * D), "gate": normal(L, E, F, fan_in=E), "up": normal(L, E, F, fan_in=E),
         "down": normal(L, F, E, fan_in=F), "norm1": np.ones((L, E), np.float32), "norm2": np.ones((L, E), np.float32)}
    if not s["tied"]:
        p["head"] = normal(E, V, fan_in=E)
    return jax.tree.map(jnp.asarray, p)


def norm(x, w):
    x = x.astype(full)
    return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w).astype(compute)


def hidden(p, tokens):
    angle = jnp.arange(T, dtype=full)[:, None] / 10000.0 ** (jnp.arange(0, D, 2, dtype=full) / D)
    cos, sin = (f(angle).astype(compute)[None, :, None, :] for f in (jnp.cos, jnp.sin))
    mask = jnp.tril(jnp.ones((T, T), bool))

    def product(x, w):
        return x @ w.astype(compute)

    def rope(x):
        u, v = jnp.split(x, 2, -1)
        return jnp.concatenate([u * cos - v * sin, v * cos + u * sin], -1)

    def layer(x, w):
        y = norm(x, w["norm1"])
        q = rope(product(y, w["q"]).reshape(B, T, H, D)).reshape(B, T, K, H // K, D)
        k = rope(product(y, w["k"]).reshape(B, T, K, D))
        v = product(y, w["v"]).reshape(B, T, K, D)
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(full) / math.sqrt(D)
        shares = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1).astype(compute)
        x = x + product(jnp.einsum("bkgts,bskd->btkgd", shares, v).reshape(B, T, H * D), w["o"])
        y = norm(x, w["norm2"])
        return x + product(jax.nn.silu(product(y, w["gate"])) * product(y, w["up"]), w["down"]), None

    x, _ = jax.lax.scan(layer, p["embed"].astype(compute)[tokens], {k: p[k] for k in LAYER})
    return norm(x, p["norm"])


def loss_of(p, tokens):
    head = p["embed"].T if s["tied"] else p["head"]
    logits = (hidden(p, tokens[:, :-1]) @ head.astype(compute)).astype(full)
    target = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - target)


def train_step(state, tokens):
    p, m, v, t = state
    loss, g = jax.value_and_grad(loss_of)(p, tokens)
    scale = jnp.minimum(1.0, 1.0 / jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(g))))
    t = t + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * scale * g, m, g)
    v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * (scale * g) ** 2, v, g)
    p = jax.tree.map(lambda p, m, v: p - 1e-3 * (m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.95**t)) + 1e-8) + 0.1 * p),
                     p, m, v)
    return (p, m, v, t), loss


parameters = initial()
print(json.dumps({"parameters": sum(x.size for x in jax.tree.leaves(parameters))}), flush=True)
state = (parameters, jax.tree.map(jnp.zeros_like, parameters), jax.tree.map(jnp.zeros_like, parameters),
         jnp.zeros((), full))
run = jax.jit(train_step, donate_argnums=0)
random = np.random.default_rng(1)
for i in range(a.steps):
    tokens = jnp.asarray(random.integers(0, V, (B, T + 1), dtype=np.int32))
    start = time.perf_counter()
    state, loss = run(state, tokens)
    loss = float(loss)
    print(json.dumps({"step": i, "seconds": time.perf_counter() - start, "loss": loss}), flush=True)
