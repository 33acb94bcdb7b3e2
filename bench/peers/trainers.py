"""What runs: shapes, the command of each trainer, and how its steps are read. Standard library only."""
import array
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Models of configs/models, at the batch and length of the comparison. `steps` are those that count in one visit.
SHAPES = {
    "nibble-34m": dict(width=512, hidden=1536, heads=8, kv_heads=4, head=64, layers=8, vocab=8192, tied=False, batch=4,
                       length=512, steps=8),
    "nibble-1m": dict(width=128, hidden=384, heads=4, kv_heads=2, head=32, layers=4, vocab=1024, tied=True, batch=4,
                      length=64, steps=150),
}
WARM_UP = 2  # steps of each visit that do not count: memory is touched, caches fill, MaxText's first lines are wrong


class Trainer:
    def __init__(self, name, dtype, environment, command):
        self.name, self.dtype, self.environment, self.command = name, dtype, environment, command

    @property
    def key(self):
        return f"{self.name} {self.dtype}"


def worker_shape(shape):
    return json.dumps({k: shape[k] for k in ("width", "hidden", "heads", "kv_heads", "head", "layers", "vocab", "tied")})


def nibble_command(dtype):
    def make(job):
        s = job.shape
        return [job.paths["nibble"], "train", f"model_name={job.model}", "dataset_type=synthetic",
                f"per_device_batch_size={s['batch']}", f"max_target_length={s['length']}", f"threads={job.threads}",
                f"dtype={dtype}", f"steps={job.steps}", "enable_checkpointing=false", "run_name=run",
                f"base_output_directory={job.folder}"], {}
    return make


def torch_command(mode, dtype):
    def make(job):
        s = job.shape
        cache = job.folder.parent / "inductor"
        return [str(job.paths["torch"] / "bin/python"), str(HERE / "torch_step.py"), "--shape", worker_shape(s), "--batch",
                str(s["batch"]), "--length", str(s["length"]), "--threads", str(job.threads), "--mode", mode, "--dtype",
                dtype, "--steps", str(job.steps)], {"TORCHINDUCTOR_CACHE_DIR": str(cache), "HF_HUB_OFFLINE": "1"}
    return make


def jax_command(dtype):
    def make(job):
        s = job.shape
        return [str(job.paths["jax"] / "bin/python"), str(HERE / "jax_step.py"), "--shape", worker_shape(s), "--batch",
                str(s["batch"]), "--length", str(s["length"]), "--dtype", dtype, "--steps", str(job.steps)], {
                    "JAX_PLATFORMS": "cpu"}
    return make


def maxtext_command(dtype):
    def make(job):
        s = job.shape
        keys = dict(run_name="run", base_output_directory=job.folder, hardware="cpu", skip_jax_distributed_system=True,
                    attention="dot_product", dataset_type="synthetic", packing=False, steps=job.steps,
                    per_device_batch_size=s["batch"], max_target_length=s["length"], base_emb_dim=s["width"],
                    base_mlp_dim=s["hidden"], base_num_query_heads=s["heads"], base_num_kv_heads=s["kv_heads"],
                    head_dim=s["head"], base_num_decoder_layers=s["layers"], vocab_size=s["vocab"],
                    logits_via_embedding=s["tied"], weight_dtype="float32", dtype=dtype, remat_policy="minimal",
                    enable_dropout=False, learning_rate="1e-3", enable_checkpointing=False, enable_tensorboard=False,
                    enable_goodput_recording=False, sharding_tolerance=1.0, jax_cache_dir="", log_config=False,
                    metrics_file=job.folder / "metrics.jsonl")
        return [str(job.paths["maxtext"] / "bin/python"), "-m", "maxtext.trainers.pre_train.train",
                *[f"{k}={v}" for k, v in keys.items()]], {
                    "DECOUPLE_GCLOUD": "TRUE", "JAX_PLATFORMS": "cpu",
                    "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    return make


def llmc_command(job):
    prepare_llmc(job)
    return ["stdbuf", "-oL", "./train_gpt2"], {}


TRAINERS = [
    Trainer("nibble", "float32", "nibble", nibble_command("float32")),
    Trainer("nibble", "bfloat16", "nibble", nibble_command("bfloat16")),
    Trainer("PyTorch eager", "float32", "torch", torch_command("eager", "float32")),
    Trainer("MaxText", "float32", "maxtext", maxtext_command("float32")),
    Trainer("JAX jit", "float32", "jax", jax_command("float32")),
    Trainer("llm.c", "float32", "llmc", llmc_command),
    Trainer("PyTorch autocast", "bfloat16", "torch", torch_command("eager", "bfloat16")),
    Trainer("MaxText", "bfloat16", "maxtext", maxtext_command("bfloat16")),
    Trainer("JAX jit", "bfloat16", "jax", jax_command("bfloat16")),
    Trainer("PyTorch compile", "float32", "torch", torch_command("compile", "float32")),
]


class Job:
    """One visit to one trainer: what its command is made from."""

    def __init__(self, model, threads, steps, folder, paths):
        self.model, self.shape, self.threads, self.steps = model, SHAPES[model], threads, steps + WARM_UP
        self.folder, self.paths = Path(folder), paths


# --- steps, as each trainer prints them ---------------------------------------------------------------------------

COMPLETED = re.compile(r"completed step: (\d+), seconds: ([0-9.]+)")  # nibble and MaxText
LLMC = re.compile(r"step (\d+): train loss [-0-9.naif]+ \(took ([0-9.]+) ms\)")


def step_in(line):
    """(index, seconds) of a line that ends a step, else None."""
    if line.startswith('{"step"'):
        j = json.loads(line)
        return j["step"], j["seconds"]
    if found := COMPLETED.search(line):
        return int(found[1]), float(found[2])
    if found := LLMC.search(line):
        return int(found[1]), float(found[2]) / 1e3
    return None


def precise_seconds(folder):
    """Times of metrics.jsonl, which nibble and MaxText write with all digits, by step; {} for the others."""
    times = {}
    for file in [*Path(folder).glob("run/metrics.jsonl"), *Path(folder).glob("metrics.jsonl")]:
        for line in file.read_text().splitlines():
            try:
                j = json.loads(line)
            except ValueError:
                continue  # the last line of a process that was stopped
            if "perf/step_time_seconds" in j:
                times[int(j["step"])] = j["perf/step_time_seconds"]
    return times


# --- FLOPs ----------------------------------------------------------------------------------------------------------

def step_flops(trainer, shape):
    """6 a parameter of a matrix and token, and the causal half of attention: MaxText's convention."""
    s = shape
    tokens = s["batch"] * s["length"]
    if trainer == "llm.c":
        matrices = s["layers"] * 12 * s["width"] ** 2 + s["vocab"] * s["width"]
    else:
        layer = s["width"] * s["head"] * (2 * s["heads"] + 2 * s["kv_heads"]) + 3 * s["width"] * s["hidden"]
        matrices = s["layers"] * layer + s["vocab"] * s["width"]
    return 6 * matrices * tokens + 6 * s["layers"] * s["heads"] * s["head"] * s["length"] * tokens


# --- llm.c ----------------------------------------------------------------------------------------------------------

LLMC_EDITS = {"int T = 64;": "int T = {length};", "step <= 40;": "step < {steps};",
              "if (step % 10 == 0) {{": "if (0) {{", "if (step > 0 && step % 20 == 0) {{": "if (0) {{"}


def prepare_llmc(job):
    """Builds train_gpt2.c with its length and steps changed and without validation and samples, beside a checkpoint of the wanted size and random tokens."""
    s, folder = job.shape, job.folder
    source = (Path(job.paths["llmc"]) / "train_gpt2.c").read_text()
    for old, new in LLMC_EDITS.items():
        old, new = old.format(), new.format(length=s["length"], steps=job.steps)
        if source.count(old) != 1:
            raise ValueError(f"llm.c: train_gpt2.c does not hold {old!r} once: another version?")
        source = source.replace(old, new)
    shutil.copytree(Path(job.paths["llmc"]) / "llmc", folder / "llmc")
    shutil.copy(Path(job.paths["llmc"]) / "Makefile", folder)
    (folder / "train_gpt2.c").write_text(source)
    made = subprocess.run(["make", "train_gpt2"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120)
    if made.returncode != 0:
        raise ValueError(f"llm.c: make train_gpt2 failed: {made.stdout.strip().splitlines()[-1]}")
    write_gpt2(folder / "gpt2_124M.bin", s)
    tokens = array.array("H", (random.Random(0).randrange(s["vocab"]) for _ in range(16 * s["batch"] * s["length"] + 1)))
    data = folder / "dev/data/tinyshakespeare"
    data.mkdir(parents=True)
    for name in ("train", "val"):
        with open(data / f"tiny_shakespeare_{name}.bin", "wb") as f:
            array.array("i", [20240520, 1, len(tokens)] + 253 * [0]).tofile(f)
            tokens.tofile(f)


def write_gpt2(file, s):
    """A checkpoint of llm.c, version 3: 256 integers, then float32 parameters; here small random numbers, repeated."""
    E, L, V, T = s["width"], s["layers"], s["vocab"], s["length"]
    count = V * E + T * E + L * (12 * E * E + 13 * E) + 2 * E
    block = array.array("f", (random.Random(0).uniform(-0.05, 0.05) for _ in range(1 << 16)))
    with open(file, "wb") as f:
        array.array("i", [20240326, 3, T, V, L, s["heads"], E, V] + 248 * [0]).tofile(f)
        for start in range(0, count, len(block)):
            block[:min(len(block), count - start)].tofile(f)
