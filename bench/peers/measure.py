"""One visit to a trainer: start it, read its steps, stop it in time, ask the kernel for its memory."""
import os
import queue
import shutil
import signal
import subprocess
import threading
import time

from environments import NotInstallable, reason_in
from trainers import WARM_UP, precise_seconds, step_in


class Visit:
    """A running trainer; lines of its output with the time at which they came."""

    def __init__(self, command, environment, job, cpus):
        self.start = time.monotonic()
        self.lines, self.text = queue.Queue(), []
        self.process = subprocess.Popen(
            command, cwd=job.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            errors="replace", start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            env={**os.environ, "OMP_NUM_THREADS": str(job.threads), **environment})
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put((time.monotonic(), line))
        self.lines.put((time.monotonic(), None))

    def next_line(self, deadline):
        """(when, line); line is None at the end of the output. queue.Empty after the deadline."""
        when, line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
        if line is not None:
            self.text.append(line)
        return when, line

    def end(self):
        """Stops what still runs; (exit status, peak resident bytes of the process and its children)."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.reader.join(10)
        self.process.stdout.close()
        return self.process.returncode, usage.ru_maxrss * 1024


def visit(trainer, job, cpus, limit, burst):
    """Runs a trainer for at most `limit` seconds, `burst` of them after its first loss. Returns a row of the results."""
    row = {"trainer": trainer.name, "dtype": trainer.dtype, "model": job.model, "threads": job.threads}
    shutil.rmtree(job.folder, ignore_errors=True)
    job.folder.mkdir(parents=True)
    try:
        command, environment = trainer.command(job)
    except (NotInstallable, OSError, ValueError, subprocess.SubprocessError) as reason:
        return {**row, "error": str(reason)[:300]}
    row["command"] = [f"{k}={v}" for k, v in sorted(environment.items())] + command
    running = Visit(command, environment, job, cpus)
    seconds, deadline, cut = {}, running.start + limit, False
    while len(seconds) < job.steps:
        try:
            when, line = running.next_line(deadline)
        except queue.Empty:
            cut = True
            break
        if line is None:
            break
        if (step := step_in(line)) is not None:
            if not seconds:
                row["first_loss_seconds"] = when - running.start
                deadline = min(deadline, when + burst)
            seconds[step[0]] = step[1]
    if len(seconds) == job.steps and trainer.name in ("nibble", "MaxText"):
        drain(running, deadline)  # they write the last line of metrics.jsonl, then leave by themselves
    status, row["peak_bytes"] = running.end()
    seconds.update({i: t for i, t in precise_seconds(job.folder).items() if i in seconds})
    row["seconds"] = [t for i, t in sorted(seconds.items()) if i >= WARM_UP]
    if not row["seconds"]:
        text = "".join(running.text)
        (job.folder / "log").write_text(text)
        if seconds:
            row["error"] = f"{len(seconds)} steps in {time.monotonic() - running.start:.0f} s, too slow for a median"
        elif cut:
            row["error"] = f"no loss within {limit:.0f} s"
        else:
            row["error"] = f"exit status {status}: {reason_in(text)}"
    return row


def drain(running, deadline):
    try:
        while running.next_line(deadline)[1] is not None:
            pass
    except queue.Empty:
        pass
