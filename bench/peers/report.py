"""The Markdown report of a comparison, from its results alone. Standard library only."""
from statistics import median

from trainers import SHAPES, TRAINERS, step_flops


def speed(row):
    shape = SHAPES[row["model"]]
    return shape["batch"] * shape["length"] / median(row["seconds"])


def neighbours(runs, index):
    """Median step of nibble in the visits right before and after a run, same model, threads and dtype; None if none."""
    run, seconds = runs[index], []
    for indices in (range(index - 1, -1, -1), range(index + 1, len(runs))):
        for i in indices:
            r = runs[i]
            if r["trainer"] == "nibble" and all(r[k] == run[k] for k in ("model", "threads", "dtype")) and r.get("seconds"):
                seconds.append(median(r["seconds"]))
                break
    return median(seconds) if seconds else None


def summarize(runs, model, threads, trainer):
    """All visits to one trainer as the cells of its row."""
    mine = [(i, r) for i, r in enumerate(runs)
            if (r["model"], r["threads"], r["trainer"], r["dtype"]) == (model, threads, trainer.name, trainer.dtype)]
    good = [(i, r) for i, r in mine if r.get("seconds")]
    if not good:
        return {"error": mine[0][1].get("error", "no steps") if mine else "not asked for"}
    ratios = [median(r["seconds"]) / near for i, r in good if (near := neighbours(runs, i))]
    shape = SHAPES[model]
    steps = [t for _, r in good for t in r["seconds"]]
    tokens = shape["batch"] * shape["length"]
    return {"median": tokens / median(steps), "fastest": tokens / min(steps), "steps": len(steps),
            "flops": step_flops(trainer.name, shape) / median(steps), "ratio": median(ratios) if ratios else None,
            "first": good[0][1]["first_loss_seconds"], "bytes": max(r["peak_bytes"] for _, r in good)}


def table(runs, model, threads, trainers):
    cells = {t.key: summarize(runs, model, threads, t) for t in trainers}
    lines = ["| trainer | dtype | tokens/s, median (fastest) | GFLOP/s | nibble is faster by | start to first loss "
             "| peak memory (nibble takes) | steps |", "|---|---|---|---|---|---|---|---|"]
    for t in trainers:
        c = cells[t.key]
        if "error" in c:
            lines.append(f"| {t.name} | {t.dtype} | {c['error'].replace('|', '/')} | | | | | |")
            continue
        own = cells.get(f"nibble {t.dtype}", {})
        share = f" ({own['bytes'] / c['bytes']:.2f} x)" if "bytes" in own and t.name != "nibble" else ""
        ratio = f"{c['ratio']:.2f} x" if c["ratio"] and t.name != "nibble" else "-"
        lines.append(f"| {t.name} | {t.dtype} | {c['median']:,.0f} ({c['fastest']:,.0f}) | {c['flops'] / 1e9:.1f} | {ratio} "
                     f"| {c['first']:.1f} s | {c['bytes'] / 2**30:.2f} GiB{share} | {c['steps']} |")
    f32, bf16 = cells.get("nibble float32", {}), cells.get("nibble bfloat16", {})
    if "median" in f32 and "median" in bf16:
        lines += ["", f"nibble bfloat16 runs at {bf16['median'] / f32['median']:.2f} x nibble float32."]
    return lines


def environments_table(environments):
    lines = ["| environment | Python | versions | installed in | on disk |", "|---|---|---|---|---|"]
    for e in environments:
        if "error" in e:
            lines.append(f"| {e['name']} | | {e['error'].replace('|', '/')} | {e['seconds']:.0f} s | |")
            continue
        versions = ", ".join(f"{k} {v}" for k, v in e["versions"].items())
        took = f"{e['seconds']:.0f} s" + (" (earlier)" if e["reused"] else "")
        lines.append(f"| {e['name']} | {e['python']} | {versions} | {took} | {e['bytes'] / 1e9:.1f} GB |")
    return lines


def quoted(word):
    return word if word and not set(word) & set(" \"'{}$*()&;|<>") else "'" + word.replace("'", "'\\''") + "'"


def commands(results):
    """The command of every trainer, of its first visit for each model; folders by name."""
    seen, lines = set(), []
    for r in results["runs"]:
        key = (r["model"], r["trainer"], r["dtype"])
        if "command" in r and key not in seen:
            seen.add(key)
            text = " ".join(quoted(w) for w in r["command"])
            for name, folder in results["folders"].items():
                text = text.replace(folder, name)
            lines += [f"{r['trainer']} {r['dtype']}, {r['model']}:", "", "    " + text, ""]
    return lines


def markdown(results):
    runs = results["runs"]
    trainers = [t for t in TRAINERS if t.key in results["trainers"]]
    lines = ["# nibble and its peers, side by side", "",
             f"{results['cpu']} ({results['instructions']}), {results['cores']} cores, {results['memory_bytes'] / 2**30:.0f} GiB; {results['date']}; "
             f"{results['nibble']}; load at the start {results['load']:.1f}.", "",
             f"`{results['invocation']}` took {results['seconds'] / 60:.1f} minutes, of which {results['setup_seconds']:.0f} s "
             "went into environments. nibble runs before and after every peer; ratios compare a peer with these two neighbours "
             "(same model, threads, dtype), medians of steps after the first two. All processes are pinned to as many cores "
             "as there are threads. Memory is the peak resident size of the process.", ""]
    for model in results["models"]:
        s = SHAPES[model]
        for threads in results["threads"]:
            lines += [f"## {model}, {threads} thread{'s' if threads > 1 else ''}", "",
                      f"E {s['width']}, L {s['layers']}, H {s['heads']}, K {s['kv_heads']}, D {s['head']}, F {s['hidden']}, "
                      f"V {s['vocab']} {'tied' if s['tied'] else 'untied'}; B {s['batch']}, T {s['length']}; AdamW, gradient "
                      "clipped.", "", *table(runs, model, threads, trainers), ""]
    if any(t.name == "llm.c" for t in trainers):
        lines += ["llm.c trains a GPT-2 of the same width, depth, vocabulary and tokens: no grouped heads, an MLP of two "
                  "matrices (4 E), a tied head, no clipping; T and the number of steps are edited, validation and samples are left out.", ""]
    lines += ["## Environments", "", *environments_table(results["environments"]), "", "## Commands", "", *commands(results)]
    return "\n".join(lines).rstrip() + "\n"
