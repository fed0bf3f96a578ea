"""What submitit needs of Slurm, imitated by processes of this machine: one program under four names."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(sys.argv[0]).parent
ARRAYS = HERE / "arrays.txt"
"""How many tasks each array had; its line is its number."""


def install(folder: Path) -> None:
    """Put the four names into a folder, which is to be on the path."""
    folder.mkdir()
    for name in ("sbatch", "srun", "sacct", "scancel"):
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text(encoding='utf-8')}", encoding="utf-8")
        program.chmod(0o755)


def sbatch(script: str) -> None:
    """Start every task of the array."""
    found = re.search(r"--array=0-(\d+)", Path(script).read_text(encoding="utf-8"))
    assert found, "expected an array"
    with ARRAYS.open("a+", encoding="ascii") as file:
        print(int(found[1]) + 1, file=file)
    number = len(ARRAYS.read_text(encoding="ascii").splitlines())
    for task in range(int(found[1]) + 1):
        told = {
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_JOB_NUM_NODES"), "1"),
            **dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"), "0"),
            "SLURM_JOB_ID": f"{100 * number + task}",
            "SLURM_ARRAY_JOB_ID": str(number),
            "SLURM_ARRAY_TASK_ID": str(task),
        }
        process = subprocess.Popen(
            ["bash", script],
            env={**os.environ, **told},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        (HERE / f"task-{number}_{task}").write_text(str(process.pid), encoding="ascii")
    print(f"Submitted batch job {number}")


def srun(*words: str) -> None:
    """Run a command, less what was said to srun itself."""
    command = list(words)[list(words).index(next(word for word in words if "python" in word)) :]
    os.execvp(command[0], command)


def sacct(*_: str) -> None:
    """Say who runs."""
    print("JobID|State|NodeList")
    for task in HERE.glob("task-*"):
        alive = Path(f"/proc/{task.read_text()}").exists()
        print(f"{task.name.removeprefix('task-')}|{'RUNNING' if alive else 'COMPLETED'}|here")


def scancel(number: str) -> None:
    """End a task."""
    os.killpg(int((HERE / f"task-{number}").read_text()), signal.SIGKILL)


if __name__ == "__main__":
    globals()[Path(sys.argv[0]).name](*sys.argv[1:])
