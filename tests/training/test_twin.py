"""f* in `train`: a twin that trains beside and goes on to the same bits, and a uni-modal run that is recorded once."""

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import MIMO, PrimalDual, Trajectory
from equipoise.balance.optimum import OptimumWeighting
from equipoise.data.bundled import two_sensors
from equipoise.study.job import run_job
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.training import checkpoint, twin
from equipoise.training import train as training
from equipoise.training.checkpoint import Checkpoints
from equipoise.training.settings import Settings
from equipoise.training.step import TrainingStep
from equipoise.training.train import train
from equipoise.util.errors import BadInput
from killed import Killed, dying
from small_study import jobs_of

DATA = two_sensors(samples=150)
SETTINGS = Settings(epochs=2, batch=16, features=8, lr=0.05, dropout=0.0)
STEPS = -(-len(DATA.train) // SETTINGS.batch)


def reached(balancer: OptimumWeighting, **changes: Any) -> list[float]:
    """Return f* at the end of a run."""
    train(DATA, balancer, SETTINGS.changed(changes))
    return balancer.optimum[:, 0].tolist()


# -- a twin --


def test_the_twin_takes_a_step_at_every_full_batch_on_a_share_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    healthy = OptimumWeighting.track

    def track(self: OptimumWeighting, losses: Any, present: Any = None) -> None:
        sizes.append(len(losses["easy"]))
        healthy(self, losses, present)

    monkeypatch.setattr(OptimumWeighting, "track", track)
    full = 2 * (len(DATA.train) // SETTINGS.batch)
    for every, size in ((1, 16), (4, 4), (8, 2), (5, 4)):  # the samples 0, 5, 10 and 15
        balancer = PrimalDual("twin", every=every)
        sizes.clear()
        train(DATA, balancer, SETTINGS)
        assert sizes == [size] * full
        assert balancer.tracked.tolist() == [full] * 2
        assert balancer.taken.tolist() == [2 * STEPS] * 2


def test_the_twin_is_the_same_beside_any_method() -> None:
    found = []
    for balancer in (PrimalDual("twin"), MIMO(optimum="twin"), PrimalDual("twin", 0.1, 0.3, heads="scaled")):
        balancer.smooth = 20  # a batch of four samples says little
        found.append(reached(balancer, epochs=10))
    assert found[0] == found[1] == found[2]
    assert found[0][DATA.modalities.index("easy")] < 0.5 * math.log(len(DATA.classes))  # it did learn


@pytest.mark.parametrize("changes", [{"accumulate": 2}, {"average": 0.9}])
def test_micro_batches_and_averages_change_nothing_for_the_twin(changes: dict[str, Any]) -> None:
    expected = reached(PrimalDual("twin", every=1), encoder="mlp")  # which has no dropout
    assert reached(PrimalDual("twin", every=1), encoder="mlp", **changes) == pytest.approx(expected, rel=1e-4)


def test_a_twin_follows_the_schedule_of_the_run() -> None:
    run = training.Run(DATA, PrimalDual("twin"), SETTINGS.changed({"schedule": "warmup-cosine"}))
    assert run.twin is not None
    optimizers, rates = (run.step.optimizer, run.twin.optimizer), set()
    for _ in run.steps():
        own, other = (float(optimizer.param_groups[0]["lr"]) for optimizer in optimizers)
        assert own == other
        rates.add(own)
    assert len(rates) == STEPS


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        *((after, {}) for after in (2, 5, 2 * STEPS, 2 * STEPS + 9)),
        (2 * STEPS + 4, {"accumulate": 2, "average": 0.9, "schedule": "cosine"}),
    ],
)
def test_killed_it_goes_on_to_the_same_bits(
    after: int, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.changed({"dropout": 0.2, "optimizer": "adamw", "select": "best", **changes})
    first, second = PrimalDual("twin", every=4), PrimalDual("twin", every=4)
    undisturbed = train(DATA, first, settings, seed=4)
    monkeypatch.setattr(Checkpoints, "due_within", lambda *_: True)
    dying(monkeypatch, after)
    with pytest.raises(Killed):
        train(DATA, PrimalDual("twin", every=4), settings, seed=4, folder=tmp_path, checkpoint_seconds=0)
    epoch, batch = divmod(after // 2, STEPS)  # killed between the twin's step and the model's, that batch is lost
    expected = f"epoch-{epoch:05d}" + (f"-batch-{batch:07d}" if batch else "")
    assert checkpoint.checkpoints(tmp_path)[-1].name == expected
    torch.manual_seed(99)
    found = train(DATA, second, settings, seed=4, folder=tmp_path)
    for name, value in undisturbed.model.state_dict().items():
        assert torch.equal(value, found.model.state_dict()[name]), name
    for name in ("optimum", "tracked", "multiplier", "violation", "first", "taken"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    told = [[{key: record[key] for key in ("train", "validation", "table")} for record in run.curves]
            for run in (undisturbed, found)]  # fmt: skip
    assert told[0] == told[1]


def test_a_twin_of_pieces_is_refused() -> None:
    with pytest.raises(BadInput, match="expected parallel=ddp, found fsdp; type optimum=trajectory"):
        twin.check_twin(PrimalDual("twin"), SETTINGS.changed({"parallel": "fsdp"}))
    for other in (PrimalDual(optimum="trajectory"), PrimalDual(optimum=0.1), MIMO()):
        twin.check_twin(other, SETTINGS.changed({"parallel": "fsdp"}))


# -- a run before --


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each uni-modal run that was trained."""
    runs: list[int] = []
    healthy: Callable[..., Trajectory] = training.record_unimodal

    def record(*arguments: Any, **others: Any) -> Trajectory:
        runs.append(1)
        return healthy(*arguments, **others)

    monkeypatch.setattr(training, "record_unimodal", record)
    return runs


def test_a_study_trains_it_once(recorded: list[int], tmp_path: Path) -> None:
    words = ["epochs=2", "features=8", "batch=32"]
    both = [f"{method}.optimum=trajectory" for method in ("primaldual", "mimo")]
    store = Store(tmp_path)
    jobs, splits = jobs_of("primaldual", "mimo", words=[*words, *both], seeds=2)
    for job in jobs:
        run_job(job, splits[job.fold], store.run_folder(job.config))
    assert len(jobs) == 4
    assert len(recorded) == 1
    assert len(list((tmp_path / "trajectories").glob("*/trajectory.json"))) == 1
    (ended,), splits = jobs_of("mimo", words=[*words, "optimum=final"])
    run_job(ended, splits[ended.fold], store.run_folder(ended.config))
    assert len(recorded) == 1  # its end is of the same run
    (other,), splits = jobs_of("mimo", words=[*words, "optimum=trajectory", "lr=0.002"])
    run_job(other, splits[other.fold], store.run_folder(other.config))
    assert len(recorded) == 2  # other settings, another run


def test_steps_of_the_run_and_of_the_record_are_the_same(tmp_path: Path) -> None:
    balancer = PrimalDual(optimum="trajectory")
    train(DATA, balancer, SETTINGS, trajectories=tmp_path)
    (file,) = tmp_path.glob("*/trajectory.json")
    rows = json.loads(file.read_text())["losses"]
    assert {name: len(row) for name, row in rows.items()} == dict.fromkeys(DATA.modalities, 2 * STEPS)
    assert balancer.optimum.shape == (len(DATA.modalities), 2 * STEPS)
    assert int(balancer.step) == 2 * STEPS
    expected = twin.trajectory_of(file.read_text())
    for row, name in zip(balancer.optimum, balancer.modalities, strict=True):
        assert torch.equal(row, expected.losses()[name].double())  # gaps are averaged, so f* is not
    compared = MIMO(optimum="trajectory")
    train(DATA, compared, SETTINGS, trajectories=tmp_path)
    for row, name in zip(compared.optimum, compared.modalities, strict=True):
        assert torch.equal(row, expected.values()[name].double())


def test_a_record_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(DATA, MIMO(optimum="trajectory"), SETTINGS, trajectories=tmp_path / "whole")
    with monkeypatch.context() as inside:
        inside.setattr(Checkpoints, "due_within", lambda *_: True)
        dying(inside, STEPS + 3)  # without a twin, one a batch
        with pytest.raises(Killed):
            train(DATA, MIMO(optimum="trajectory"), SETTINGS, trajectories=tmp_path / "torn")
    train(DATA, MIMO(optimum="trajectory"), SETTINGS, trajectories=tmp_path / "torn")
    whole, torn = (next((tmp_path / name).glob("*/trajectory.json")).read_text() for name in ("whole", "torn"))
    assert torn == whole


def test_runs_at_the_same_time_wait_for_the_first(tmp_path: Path) -> None:
    runs: list[int] = []

    def record(*_: Any) -> Trajectory:
        runs.append(1)
        time.sleep(0.2)
        trajectory = Trajectory(smooth=1)
        trajectory.record({"easy": torch.tensor(0.25), "hard": torch.tensor(0.5)})
        return trajectory

    balancers = [PrimalDual(optimum="trajectory") for _ in range(4)]
    threads = [
        threading.Thread(target=twin.refer, args=(one, DATA, SETTINGS, tmp_path, record)) for one in balancers
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(runs) == 1
    for balancer in balancers:
        balancer.settle(["easy", "hard"], torch.device("cpu"))
        assert balancer.optimum_now().tolist() == [0.25, 0.5]


def test_on_the_command_numbers_reach_the_run() -> None:
    (entry,) = entries(["primaldual"], ["optimum=easy:0.1,hard:0.5", *("epochs=1", "features=8")])
    balancer = entry.balancer()
    assert isinstance(balancer, PrimalDual)
    train(DATA, balancer, entry.settings)
    assert balancer.optimum[:, 0].tolist() == [0.1, 0.5]
    assert balancer.remarks == {}


def test_a_uni_modal_run_that_diverges_leaves_f_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy, calls = training.Run.train_epoch, []

    def train_epoch(self: training.Run) -> Any:
        calls.append(type(self.step.balancer).__name__)
        if calls == ["Unimodal", "Unimodal"]:
            raise FloatingPointError("loss 'easy' is NaN or infinite")
        return healthy(self)

    monkeypatch.setattr(training.Run, "train_epoch", train_epoch)
    balancer = PrimalDual()
    train(DATA, balancer, SETTINGS, trajectories=tmp_path)
    assert calls == ["Unimodal", "Unimodal", "PrimalDual", "PrimalDual"]
    assert balancer.optimum.shape == (2, STEPS)  # of the first epoch
    assert twin._finite([1.0, 0.5, math.nan, math.inf]) == [1.0, 0.5, 0.5, 0.5]


def test_a_twin_that_diverges_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy, steps = TrainingStep.__call__, []

    def step(self: TrainingStep, *batch: Any) -> None:
        steps.append(type(self.balancer).__name__)
        if steps.count("Unimodal") == 3 and steps[-1] == "Unimodal":
            raise FloatingPointError("loss 'easy' is NaN or infinite")
        healthy(self, *batch)

    monkeypatch.setattr(TrainingStep, "__call__", step)
    balancer = PrimalDual("twin")
    result = train(DATA, balancer, SETTINGS)
    assert steps.count("Unimodal") == 3
    assert steps.count("PrimalDual") == 2 * STEPS
    assert len(result.curves) == 2
