#!/usr/bin/env python3
"""bench/scaling: its arguments, and the report and plots of canned results.

usage: scaling_test.py BENCH_SCALING
"""
import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

SCALING = Path(sys.argv.pop(1)).resolve()


def run(*arguments):
    return subprocess.run([sys.executable, "-B", str(SCALING), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


def row(series, step, attention, **keys):
    keys = {"model_name": "nibble-1m", "per_device_batch_size": 4, "max_target_length": 512, "threads": 2, **keys}
    return {"series": series, "keys": keys, "step_seconds": step, "tokens": 2000, "share": 0.75, "attention_share": attention,
            "parameters": 918656, "arena_bytes": 64 << 20, "resident_bytes": 80 << 20, "cpu": "Test CPU",
            "cpu_target": "avx2", "version": "0.1.0"}


CANNED = {"schema": "nibble-scaling-1", "date": "2026-01-01", "cores": 2, "minutes": 7.4, "visits": 2, "rows": [
    row("length", 0.1, 0.2, max_target_length=128), row("length", 0.4, 0.8, max_target_length=2048),
    {"series": "length", "keys": {"max_target_length": 4096, "per_device_batch_size": 1}, "error": "error[E107]: | no room"},
    row("model", 0.2, 0.1, threads=1), row("model", 0.1, 0.1, threads=2)]}


class Scaling(unittest.TestCase):
    def report(self, results):
        with tempfile.TemporaryDirectory() as folder:
            stored = Path(folder) / "stored.json"
            stored.write_text(json.dumps(results))
            r = run("--from", str(stored), "--out", str(Path(folder) / "out"))
            self.assertEqual((r.returncode, r.stderr), (0, ""))
            return {f.name: f.read_text() for f in (Path(folder) / "out").iterdir()}

    def test_rows_by_hand(self):
        text = self.report(CANNED)["scaling.md"]
        for line in ["| 128 | 4 | 100.0 ms | 10.00 | 40.00 | 75.0 % | 64.0 MiB | 80.0 MiB |",
                     "| 2048 | 4 | 400.0 ms | 160.00 | 40.00 | 75.0 % | 64.0 MiB | 80.0 MiB |",
                     "| 4096 | 1 | error[E107]: / no room | | | | | |",
                     "| nibble-1m | 918,656 | 1 | 10,000 | 1.00 x | 75.0 % | 10.0 % | 80 MiB |",
                     "| nibble-1m | 918,656 | 2 | 20,000 | 2.00 x | 75.0 % | 10.0 % | 80 MiB |"]:
            self.assertIn("\n" + line + "\n", text)
        self.assertIn("2026-01-01, 7 minutes: Test CPU, `cpu_target=avx2`, 2 cores, nibble 0.1.0. Medians of `nibble bench train`, the fastest of 2 visits", text)

    def test_every_picture_of_the_page_is_there_and_parses(self):
        files = self.report(CANNED)
        for name in ("scaling-length.svg", "scaling-models.svg", "scaling-threads.svg"):
            self.assertIn(f"({name})", files["scaling.md"])
            lines = [e for e in xml.fromstring(files[name]).iter() if e.tag.endswith("polyline")]
            self.assertGreaterEqual(len(lines), 2, name)
            for line in lines:
                for x, y in (map(float, p.split(",")) for p in line.get("points").split()):
                    self.assertTrue(0 <= x <= 640 and 0 <= y <= 400, (name, x, y))

    def test_one_point_is_enough(self):
        one = {**CANNED, "rows": [row("model", 0.1, 0.1, threads=1)]}
        files = self.report(one)
        self.assertNotIn("scaling-length.svg", files)
        xml.fromstring(files["scaling-models.svg"])

    def test_mistakes_exit_64_and_say_what_to_write(self):
        for arguments, message in [(["--threads", "0"], "numbers from 1"), (["--lengths", "128,x"], "numbers from 1"),
                                   (["--lengths", "128,192", "--tokens", "512"], "no multiple"), (["--nibble", "/none"], "/none"),
                                   (["--from", "/none"], "holds no results"), (["--frobnicate"], "unrecognized")]:
            r = run(*arguments)
            self.assertEqual(r.returncode, 64, arguments)
            self.assertIn(message, r.stderr)
            self.assertIn("hint: ", r.stderr)


if __name__ == "__main__":
    unittest.main()
