"""Try every extra where nothing else is installed: `python .ci/extras.py [EXTRA …]`, about half a minute for each.

For each, an environment of its own gets the package from this folder, without the extra. What the extra is for has to
fail there with a message; the line that the message says is typed as it stands, once; and then it has to work.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = """
import numpy as np
draw = np.random.default_rng(0)
label = np.arange(120) % 3
sensors = {name: draw.normal(size=(120, 8)) + label[:, None] for name in ("sonar", "lidar")}
np.savez("my.npz", label=label, **sensors)
np.savez("new.npz", **{name: values[:4] for name, values in sensors.items()})
"""
PREDICT = """
import numpy as np, equipoise
answer = equipoise.load("runs/one").predict({"sonar": np.zeros(8), "lidar": None})
assert answer.sensors == ("sonar",), answer
"""
FILES = """
import struct, wave, zlib
from pathlib import Path
from equipoise.media.sound import read_sound
from equipoise.media.video import read_image
with wave.open("a.wav", "wb") as file:
    file.setnchannels(1), file.setsampwidth(2), file.setframerate(8000), file.writeframes(bytes(1600))
chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
size, pixels = struct.pack(">IIBBBBB", 3, 2, 8, 2, 0, 0, 0), zlib.compress(bytes(20))
picture = chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
Path("a.png").write_bytes(bytes.fromhex("89504e470d0a1a0a") + picture)
assert len(read_sound("a.wav")[0]) == 800
assert read_image("a.png").shape == (3, 2, 3)
import av, h5py, pyarrow.parquet
from equipoise.data.own.manifest import read_manifest
pyarrow.parquet.write_table(pyarrow.table({"heat": [1.0, 2.0], "label": [0, 1]}), "a.parquet")
assert len(read_manifest(Path("a.parquet")).label()[0]) == 2
"""
FIGURE = """
from pathlib import Path
from equipoise.report import drawing
with drawing.style():
    drawing.save(drawing.canvas(2, 2), Path("."), "figure", "nothing")
"""
SERVER = """
import json, threading, time, urllib.request
import uvicorn
from server import create_app
server = uvicorn.Server(uvicorn.Config(create_app("runs/one"), port=0, log_level="error"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.05)
port = server.servers[0].sockets[0].getsockname()[1]
body = json.dumps({"sensors": {"sonar": {"values": [0.0] * 8}}}).encode()
asked = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, {"content-type": "application/json"})
assert json.load(urllib.request.urlopen(asked))["sensors"] == ["sonar"]
"""
ESTIMATOR = """
import numpy as np
from equipoise.integrations.sklearn import MultimodalClassifier
arrays = np.load("my.npz")
sensors = {name: arrays[name] for name in ("sonar", "lidar")}
assert MultimodalClassifier(method="instant").fit(sensors, arrays["label"]).predict(sensors).shape == (120,)
"""
RAY = """
from equipoise.study.executors import cluster_of
cluster_of("ray")
import equipoise.study.executors.ray
"""
SLURM = """
from equipoise.study.executors import cluster_of
cluster_of("slurm")
import equipoise.study.executors.slurm
"""
SIMULATOR = """
from equipoise.control.camera import load_model, open_camera
load_model()
open_camera("rays")
import equipoise.control.film, PIL.Image
"""


class Trial(NamedTuple):
    """What an extra is for.

    Args:
        programs: In Python.
        commands: Of `equipoise`, with their options.
        told: Whether a message says what to type; otherwise a page does, and the extra is installed at once.
    """

    programs: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    told: bool = True


def example(library: str) -> str:
    """A program that runs an example, behind what the package has for that library."""
    file = ROOT / "examples" / f"with_{library}.py"
    return f"import equipoise.integrations.{library}, runpy; runpy.run_path({str(file)!r}, run_name='__main__')"


TRIALS = {
    "train": Trial((), ("train --data my.npz --method instant --out runs/two", "report runs/two --json")),
    "predict": Trial((PREDICT,), ("predict runs/one --data new.npz --out answers.csv",)),
    "media": Trial((FILES,)),
    "plot": Trial((FIGURE,)),
    "export": Trial((), ("export runs/one --to onnx",)),
    "serve": Trial((SERVER,), told=False),
    "ray": Trial((RAY,), ("compare --help",)),
    "slurm": Trial((SLURM,), ("compare --help",)),
    "tune": Trial((), ("tune --data my.npz --method ew weight=0.5,1 --trials 2 epochs=1 --out runs/tune",)),
    "lightning": Trial((example("lightning"),)),
    "transformers": Trial((example("huggingface"),)),
    "torchjd": Trial((example("torchjd"),)),
    "sklearn": Trial((ESTIMATOR,)),
    "control": Trial((SIMULATOR,), ("control --help",)),
}


def main(*extras: str) -> None:
    """Try some extras, or all; end with what is wrong, one line for each."""
    if unknown := [extra for extra in extras if extra not in TRIALS]:
        sys.exit(f"expected extras among {', '.join(TRIALS)}, found {', '.join(unknown)}")
    problems = []
    with TemporaryDirectory() as folder:
        work = Path(folder)
        make_run(work)
        for extra in extras or TRIALS:
            began = time.perf_counter()
            problem = try_extra(extra, TRIALS[extra], work)
            problems += [f"{extra}: {problem}"] if problem else []
            print(f"{extra}: {problem or 'good'} ({time.perf_counter() - began:.0f} s)", flush=True)
    if problems:
        sys.exit("\n".join(problems))


def make_run(work: Path) -> None:
    """Train a model with the package that this Python has."""
    subprocess.run([sys.executable, "-c", SAMPLES], cwd=work, check=True)
    program = "import equipoise_command; equipoise_command.main()"
    words = ["train", "--data", "my.npz", "--method", "instant", "--out", "runs/one"]
    subprocess.run([sys.executable, "-c", program, *words], cwd=work, check=True, capture_output=True)


def try_extra(extra: str, trial: Trial, work: Path) -> str:
    """Return what is wrong with an extra; nothing where it does what it is for."""
    with TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        bin_ = Path(folder) / "bin"
        env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        env |= {"PATH": f"{bin_}:{env['PATH']}", "PYTHONPATH": str(ROOT / "examples"), "PIP_QUIET": "1"}
        if sys.version_info[:2] == (3, 11):  # of which constraints.txt has the versions
            env["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(words, cwd=work, env=env, capture_output=True, text=True, check=False)

        def install(line: str) -> str:
            done = run(*shlex.split(line))
            return f"{line!r} failed: {done.stderr}" if done.returncode else ""

        if problem := install(f"pip install --no-compile {shlex.quote(str(ROOT))}"):
            return problem
        tasks = [("python", "-c", program) for program in trial.programs]
        tasks += [("equipoise", *command.split()) for command in trial.commands]
        line = f"pip install {shlex.quote(f'{ROOT}[{extra}]')}"
        for task in tasks if trial.told else []:
            said = run(*task).stderr.strip().rpartition("\n")[2]
            found = re.search(r" needs \w+, which is not installed; type: (.*)$", said)
            if found is None and task[-1] != "--help":
                return f"expected {task[-1]!r} to say what to type, found: {said}"
            if found is not None and found[1] != line and task[-1] != "--help":
                return f"expected {task[-1]!r} to say {line!r}, found {found[1]!r}"
        if problem := install(line):
            return problem
        for task in tasks:
            done = run(*task)
            if done.returncode:
                return f"{task[-1]!r} failed after {line!r}: {done.stderr.strip()[-600:]}"
        return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
