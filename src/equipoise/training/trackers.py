"""Experiment trackers that log a run while it trains: TensorBoard, Weights & Biases, MLflow."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from equipoise.util.errors import BadInput, raise_all, unknown_name
from equipoise.util.files import inside

NAMES = ("tensorboard", "wandb", "mlflow")
"""Trackers by name, each the name of its package too."""
PROJECT = "equipoise"
_OTHER_SIGNS = re.compile(r"[^\w./ -]")  # than every tracker takes in a name
_PREPARE = {
    "wandb": "import wandb; wandb.login()",
    "mlflow": f"import os, mlflow; mlflow.set_experiment(os.environ.get('MLFLOW_EXPERIMENT_NAME', {PROJECT!r}))",
}
"""Done once before runs begin side by side, which would otherwise all do it at once: log in, and make the experiment
with its data base."""


@final
@dataclass(frozen=True)
class Trackers:
    """The trackers of one run.

    Args:
        names: Some of `NAMES`.
        run: Name of the run.
        facts: Logged beside its settings.
        stays_open: Leave them open after training, for the numbers that `finish` logs.

    Example:
        >>> Trackers(("tensorboard",), run="mimo, seed 0", facts={"seed": 0}).names
        ('tensorboard',)
    """

    names: tuple[str, ...] = ()
    run: str = "run"
    facts: Mapping[str, Any] = field(default_factory=dict)
    stays_open: bool = False

    def __post_init__(self) -> None:
        known = [name for name in self.names if name in NAMES]
        problems = [f"trackers: {unknown_name(name, NAMES)}" for name in self.names if name not in known]
        missing = [name for name in known if not _installed(name)]
        if missing:
            problems.append(
                f"trackers: expected {' and '.join(missing)} to be installed, found nothing of that name; "
                f"type: pip install {' '.join(missing)}"
            )
        raise_all(problems)

    def try_out(self) -> None:
        """Check that runs can be logged, before the first one begins.

        Raises:
            BadInput: With what a tracker says, where it cannot be used.
        """
        quick = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "WANDB_SILENT": "true", **os.environ}
        for name in self.names:
            # In a process of its own: what a tracker opens must not be inherited by the runs.
            program = [sys.executable, "-c", _PREPARE.get(name, "")]
            done = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=quick)
            if done.returncode:
                message = done.stderr.strip().rpartition("\n")[2]
                raise BadInput(f"trackers: {name} cannot be used: {message}\nFix it, or leave {name} out of --track")

    def make(self, folder: Path | None) -> list[Any]:
        """Make Accelerate's trackers; what they store on this machine goes to the folder of the run."""
        if not self.names:
            return []
        from accelerate.tracking import MLflowTracker, TensorBoardTracker, WandBTracker

        if folder is None:
            raise BadInput("trackers: expected a folder for what they write, found none; type train(…, folder=…)")
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_SILENT", "true")  # runs side by side share a terminal with the progress of all
        plain = re.sub(r"[^\w.]+", "-", self.run)
        make = {
            "tensorboard": lambda: TensorBoardTracker(plain, inside(folder, "tensorboard", plain).parent),
            "wandb": lambda: WandBTracker(PROJECT, name=self.run, dir=inside(folder, "wandb").parent),
            "mlflow": lambda: MLflowTracker(PROJECT, run_name=self.run),
        }
        return [make[name]() for name in self.names]

    def finish(self, opened: Sequence[Any], numbers: Mapping[str, float], step: int) -> None:
        """Log the final numbers of a run, and close its trackers.

        Args:
            opened: Accelerate's trackers, as training left them open.
            numbers: As `flat_results` gives them; none where the run failed.
            step: The last epoch.
        """
        for name, tracker in zip(self.names, opened, strict=True):
            # Their own objects: Accelerate's trackers ask for a state that ended with training.
            if name == "tensorboard":
                for key, number in numbers.items():
                    tracker.tracker.add_scalar(key, number, step)
                tracker.tracker.close()
            elif name == "wandb":
                tracker.tracker.summary.update(dict(numbers))
                tracker.tracker.finish()
            else:
                mlflow = import_module(name)
                mlflow.log_metrics(dict(numbers), step=step)
                mlflow.end_run()

    def publish(self, folder: Path, text: str, files: Sequence[Path]) -> None:
        """Log a text and files as a run of its own: the table and the page of a study, or the card of a model.

        TensorBoard takes texts only.

        Args:
            folder: What trackers store on this machine goes there.
            text: In markdown.
            files: That exist.
        """
        plain = re.sub(r"[^\w.]+", "-", self.run)
        os.environ.setdefault("WANDB_SILENT", "true")
        for name in self.names:
            if name == "tensorboard":
                from torch.utils.tensorboard import SummaryWriter

                with SummaryWriter(str(inside(folder, "tensorboard", plain))) as writer:
                    writer.add_text(self.run, text)
            elif name == "wandb":
                run = import_module(name).init(project=PROJECT, name=self.run, dir=str(folder))
                for file in files:
                    run.save(str(file), base_path=str(file.parent), policy="now")
                run.finish()
            else:
                mlflow = import_module(name)
                mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
                with mlflow.start_run(run_name=self.run):
                    for file in files:
                        mlflow.log_artifact(str(file))


def flat_results(measured: Mapping[str, Any], name: str = "test") -> dict[str, float]:
    """Flatten the final numbers of a run; of the sensor faults their mean and the worst.

    Example:
        >>> flat_results({"fused": 0.5, "view": "head", "head": {"audio": 0.4}, "committee": None})
        {'test/fused': 0.5, 'test/head/audio': 0.4}
    """
    flat: dict[str, float] = {}
    for key, value in measured.items():
        path = f"{name}/{key}"
        if isinstance(value, Mapping):
            some = {own: value[own] for own in ("mean", "worst") if own in value} if key == "faults" else value
            flat |= flat_results(some, path)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            flat[_OTHER_SIGNS.sub("_", path)] = float(value)
    return flat


def flat_numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Flatten the record of an epoch, as trackers take it.

    Example:
        >>> flat_numbers({"epoch": 3, "train": {"fused": 0.5}, "table": {"fused": {"audio": 1.0}}})
        {'train/fused': 0.5, 'table/fused/audio': 1.0}
    """
    flat: dict[str, float] = {}
    for part in ("train", "validation", "table"):
        for name, value in record.get(part, {}).items():
            blocks = {f"/{block}": number for block, number in value.items()} if part == "table" else {"": value}
            flat |= {_OTHER_SIGNS.sub("_", f"{part}/{name}{block}"): number for block, number in blocks.items()}
    return {name: number for name, number in flat.items() if number is not None}


def _installed(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # a folder of that name, such as wandb makes, has none
