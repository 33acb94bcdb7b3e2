"""Virtual environments of the peers: which interpreter, what is installed, what it cost. Standard library only."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# MaxText's own requirements pull in what only TPUs and clusters need; these run its trainer on a CPU.
MAXTEXT_NEEDS = """jax flax optax orbax-checkpoint grain[parquet] qwix aqtp tokamax drjax pathwaysutils omegaconf pydantic
    jinja2 pyyaml absl-py etils jaxtyping psutil pillow sentencepiece tiktoken tokenizers transformers huggingface_hub sympy
    ml-collections datasets protobuf tensorboardX""".split()

# name -> (version of Python or None, lists of arguments of pip install, packages whose versions the report names)
ENVIRONMENTS = {
    "torch": (None, [["torch", "transformers"]], ["torch", "transformers"]),
    "jax": (None, [["jax"]], ["jax", "jaxlib"]),
    "maxtext": ((3, 12), [["--no-deps", "maxtext==0.2.5"], MAXTEXT_NEEDS], ["maxtext", "jax", "flax", "optax"]),
}


class NotInstallable(Exception):
    """Why a peer cannot run here, in one line."""


def size_of(folder):
    return sum(f.lstat().st_size for f in Path(folder).rglob("*") if f.is_file() and not f.is_symlink())


def run_logged(command, log, seconds, **more):
    """Runs a command with its output in a file; NotInstallable on failure or when it takes longer."""
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   start_new_session=True, **more)
        try:
            status = process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NotInstallable(f"not installed: stopped after {seconds:.0f} s (log: {log})") from None
    if status != 0:
        raise NotInstallable(f"not installed: {reason_in(Path(log).read_text(errors='replace'))} (log: {log})")


def reason_in(text):
    """The line that says most about a failure: the last one with 'error' in it, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:300]


def usable(python, version):
    """Whether an interpreter starts, has that version and can make environments."""
    want = f"sys.version_info[:2] == {version}" if version else "sys.version_info >= (3, 10)"
    code = f"import sys, venv, ensurepip; sys.exit(0 if {want} else 1)"
    try:
        return subprocess.run([python, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_python(version, given=None):
    """An interpreter of that version. Without one: Python 3.12 if there is one, which all peers run on, else this one."""
    dotted = "{}.{}".format(*(version or (3, 12)))
    candidates = [given] if given else []
    candidates += [p for p in [shutil.which("python" + dotted)] if p]
    candidates += sorted(str(p) for p in Path.home().glob(f".pyenv/versions/{dotted}*/bin/python3"))
    if version is None:
        candidates.append(sys.executable)
    for python in candidates:
        if usable(python, version):
            return python
    raise NotInstallable(f"not installable: no Python {dotted if version else '3.10 or newer'} with venv here "
                         f"(looked for python{dotted} on PATH and in ~/.pyenv; --python FILE names one)")


def create(name, folder, python, torch_index, deadline):
    """Makes an environment, or finds a complete one. Returns what the report says about it."""
    version, installs, named = ENVIRONMENTS[name]
    folder = Path(folder)
    done = folder / "complete.json"
    if done.is_file():
        return {**json.loads(done.read_text()), "reused": True}
    start = time.monotonic()
    info = {"name": name, "reused": False}
    try:
        interpreter = find_python(version, python)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = folder.parent / f"{name}-install.log"
        log.write_bytes(b"")
        run_logged([interpreter, "-m", "venv", str(folder)], log, deadline - time.monotonic())
        if name == "torch" and torch_index:
            installs = [["torch", "--index-url", torch_index], ["transformers"]]
        pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
        for arguments in installs:
            run_logged(pip + arguments, log, deadline - time.monotonic())
        info.update(versions=versions_in(folder, named), python=python_version(folder), bytes=size_of(folder),
                    seconds=time.monotonic() - start)
        done.write_text(json.dumps(info))
    except NotInstallable as reason:
        info.update(error=str(reason), seconds=time.monotonic() - start)
    return info


def python_version(folder):
    return subprocess.run([str(Path(folder) / "bin/python"), "-c", "import platform; print(platform.python_version())"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def versions_in(folder, packages):
    code = "import sys, importlib.metadata as m; print(*[m.version(p) for p in sys.argv[1:]])"
    words = subprocess.run([str(Path(folder) / "bin/python"), "-c", code, *packages], stdout=subprocess.PIPE, text=True,
                           check=True).stdout.split()
    return dict(zip(packages, words))
