#!/usr/bin/env python3
"""bench/peers/run without a network: its arguments, how steps are read, and the report of canned results.

usage: peers_test.py BENCH_PEERS_FOLDER
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
PEERS = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(PEERS))

import environments  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
import trainers  # noqa: E402


def run(*arguments):
    return subprocess.run([sys.executable, str(PEERS / "run"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


def row(trainer, dtype, seconds, **more):
    return {"trainer": trainer, "dtype": dtype, "model": "nibble-1m", "threads": 1, "command": [trainer, "/here/env/bin/x", "a b"],
            "seconds": seconds, "first_loss_seconds": 2.5, "peak_bytes": 1 << 30, **more}


CANNED = {
    "schema": "nibble-peers-1", "date": "2026-01-01 00:00 UTC", "cpu": "Test CPU", "instructions": "avx2", "folders": {"ENV": "/here/env"},
    "cores": 2, "memory_bytes": 24 << 30,
    "load": 0.5, "nibble": "nibble 0.1.0", "invocation": "bench/peers/run --quick", "models": ["nibble-1m"], "threads": [1],
    "trainers": [t.key for t in trainers.TRAINERS], "setup_seconds": 60, "seconds": 600,
    "environments": [
        {"name": "torch", "reused": False, "python": "3.12.1", "versions": {"torch": "2.0"}, "bytes": 5.6e9, "seconds": 175},
        {"name": "maxtext", "error": "not installable: no Python 3.12", "seconds": 0.1}],
    "runs": [
        row("nibble", "float32", [0.010, 0.008, 0.012]),  # median 10 ms
        row("nibble", "bfloat16", [], error="error[E010]: not in this version"),
        row("PyTorch eager", "float32", [0.050, 0.040, 0.044], peak_bytes=4 << 30),
        row("nibble", "float32", [0.012, 0.012, 0.012]),  # the machine got slower; neighbours: median of 10 and 12 ms
        row("JAX jit", "float32", [0.024]),
        row("nibble", "float32", [0.012, 0.012, 0.012]),
        {"trainer": "MaxText", "dtype": "float32", "model": "nibble-1m", "threads": 1, "error": "not installable | 3.12"},
        row("PyTorch autocast", "bfloat16", [0.020])]}


class Arguments(unittest.TestCase):
    def test_mistakes_exit_64_and_say_what_to_write(self):
        for arguments, message in [(["--threads", "0"], "numbers from 1 to"), (["--threads", "x"], "numbers from 1 to"),
                                   (["--models", "gpt5"], "no model gpt5"), (["--trainers", "tinygrad"], "tinygrad"),
                                   (["--rounds", "0"], "at least 1"), (["--nibble", "/nowhere"], "no /nowhere"),
                                   (["--frobnicate"], "unrecognized"), (["--from", __file__], "holds no results")]:
            r = run(*arguments)
            self.assertEqual(r.returncode, 64, arguments)
            self.assertIn(message, r.stderr)
            self.assertIn("hint: ", r.stderr)
            self.assertEqual(r.stdout, "")

    def test_help_names_every_peer(self):
        r = run("--help")
        self.assertEqual(r.returncode, 0)
        for word in ("PyTorch", "JAX", "MaxText", "llm.c", "--quick", "--llmc", "--torch-index"):
            self.assertIn(word, r.stdout)


class Steps(unittest.TestCase):
    def test_every_trainer_s_line(self):
        for line, want in [
                ('{"step": 3, "seconds": 0.25, "loss": 7.1}\n', (3, 0.25)),
                ("completed step: 5, seconds: 0.036, TFLOP/s/device: 0.041, Tokens/s/device: 7109.926\n", (5, 0.036)),
                ("I1130 metric_logger.py:265] completed step: 0, seconds: 1.5, TFLOP/s/device: 0.0\n", (0, 1.5)),
                ("step 7: train loss 9.010921 (took 1500.500000 ms)\n", (7, 1.5005)),
                ('{"parameters": 918656}\n', None), ("val loss 9.010921\n", None), ("\n", None)]:
            self.assertEqual(trainers.step_in(line), want)

    def test_precise_times_come_from_metrics(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "metrics.jsonl").write_text(
                '{"step": 0.0, "perf/step_time_seconds": 0.25}\n{"kind":"event"}\n{"step": 1, "perf/st')
            self.assertEqual(trainers.precise_seconds(folder), {0: 0.25})

    def test_flops_count_the_matrices_and_half_of_attention(self):
        tokens = 4 * 64
        matrices = 918656 - 9 * 128  # all parameters but the norms; tied: the embedding is the head
        self.assertEqual(trainers.step_flops("nibble", trainers.SHAPES["nibble-1m"]),
                         6 * matrices * tokens + 6 * 4 * 128 * 64 * tokens)
        untied = 33563136 - 17 * 512 - 8192 * 512
        self.assertEqual(trainers.step_flops("JAX jit", trainers.SHAPES["nibble-34m"]),
                         6 * untied * 2048 + 6 * 8 * 512 * 512 * 2048)


def script(code):
    """A trainer that runs a line of Python."""
    return trainers.Trainer("nibble", "float32", "x", lambda job: ([sys.executable, "-uc", code], {}))


class Visits(unittest.TestCase):
    def visit(self, code, limit=20.0, burst=20.0):
        with tempfile.TemporaryDirectory() as folder:
            job = trainers.Job("nibble-1m", 1, 2, Path(folder) / "visit", {})
            return measure.visit(script(code), job, {min(os.sched_getaffinity(0))}, limit, burst)

    def test_steps_after_the_warm_up_count(self):
        r = self.visit("for i in range(4): print(f'completed step: {i}, seconds: {i}.5, x')")
        self.assertEqual(r["seconds"], [2.5, 3.5])
        self.assertGreater(r["first_loss_seconds"], 0)
        self.assertGreater(r["peak_bytes"], 1 << 20)

    def test_a_failure_keeps_its_reason(self):
        r = self.visit("print('hello'); raise ValueError('no such shape')")
        self.assertEqual(r["error"], "exit status 1: ValueError: no such shape")

    def test_time_limits_end_what_hangs(self):
        self.assertEqual(self.visit("import time; time.sleep(60)", limit=1)["error"], "no loss within 1 s")
        r = self.visit("import time; print('completed step: 0, seconds: 9.0, x'); time.sleep(60)", burst=1)
        self.assertRegex(r["error"], "^1 steps in [1-9] s, too slow for a median$")
        r = self.visit("import time\nfor i in range(3): print(f'completed step: {i}, seconds: 1.0, x')\ntime.sleep(60)",
                       burst=1)
        self.assertEqual(r["seconds"], [1.0])


class Environments(unittest.TestCase):
    def test_what_cannot_be_installed_is_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            info = environments.create("jax", Path(folder) / "jax", sys.executable, None, deadline=0)
            self.assertRegex(info["error"], "^not install")

    def test_a_missing_interpreter_is_named(self):
        with self.assertRaisesRegex(environments.NotInstallable, "no Python 2.6 with venv here .*python2.6"):
            environments.find_python((2, 6))

    def test_the_line_with_the_error_is_the_reason(self):
        self.assertEqual(environments.reason_in("a\nERROR: no wheel\nnotice\n"), "ERROR: no wheel")
        self.assertEqual(environments.reason_in("a\nb\n\n"), "b")
        self.assertEqual(environments.reason_in(""), "no output")


class Report(unittest.TestCase):
    def setUp(self):
        with tempfile.TemporaryDirectory() as folder:
            stored = Path(folder) / "results.json"
            stored.write_text(json.dumps(CANNED))
            r = run("--from", str(stored), "--out", str(Path(folder) / "report.md"))
            self.assertEqual((r.returncode, r.stderr), (0, ""))
            self.text = r.stdout
            self.assertEqual((Path(folder) / "report.md").read_text(), self.text)

    def test_rows(self):
        for line in [
                "| nibble | float32 | 21,333 (32,000) | 121.6 | - | 2.5 s | 1.00 GiB | 9 |",
                # 256 tokens in 44 ms; 44 / 11 = 4; a quarter of the memory
                "| PyTorch eager | float32 | 5,818 (6,400) | 33.2 | 4.00 x | 2.5 s | 4.00 GiB (0.25 x) | 3 |",
                "| JAX jit | float32 | 10,667 (10,667) | 60.8 | 2.00 x | 2.5 s | 1.00 GiB (1.00 x) | 1 |",
                "| MaxText | float32 | not installable / 3.12 | | | | | |",
                "| nibble | bfloat16 | error[E010]: not in this version | | | | | |",
                "| PyTorch autocast | bfloat16 | 12,800 (12,800) | 73.0 | - | 2.5 s | 1.00 GiB | 1 |",
                "| torch | 3.12.1 | torch 2.0 | 175 s | 5.6 GB |",
                "| maxtext | | not installable: no Python 3.12 | 0 s | |", "PyTorch eager float32, nibble-1m:",
                "    'PyTorch eager' ENV/bin/x 'a b'"]:
            self.assertIn("\n" + line + "\n", self.text)
        self.assertIn("Test CPU (avx2), 2 cores, 24 GiB; 2026-01-01 00:00 UTC; nibble 0.1.0", self.text)

    def test_nibble_s_own_ratio_when_both_ran(self):
        runs = [row("nibble", "float32", [0.010]), row("nibble", "bfloat16", [0.005])]
        lines = report.table(runs, "nibble-1m", 1, trainers.TRAINERS[:2])
        self.assertEqual(lines[-1], "nibble bfloat16 runs at 2.00 x nibble float32.")


if __name__ == "__main__":
    unittest.main()
