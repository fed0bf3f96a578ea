"""The study of policies: its lines, its plan, a tiny one from demonstrations to rows, and one that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from equipoise.control import study
from equipoise.control.calibration import SEEDS as CALIBRATION_SEEDS
from equipoise.control.calibration import with_monitor
from equipoise.control.cloning import SENSORS
from equipoise.control.conditions import CONDITIONS
from equipoise.control.demonstrations import SEEDS, generate
from equipoise.control.lines import lines_of
from equipoise.control.policy import DESCRIPTION, MONITOR, WEIGHTS, Policy
from equipoise.control.rollout import Outcome
from equipoise.control.study import EPISODE_SEEDS, METHODS, TRAINED, RolloutPlan, lines, rollouts_as_dict, run_study
from equipoise.control.tables import control_tables
from equipoise.util.errors import BadInput

# -- lines --


def test_lines_of_the_whole_study() -> None:
    made = lines(METHODS, hybrid=["msl", "ew", "mimo"])
    assert [line.label for line in made] == [
        *METHODS,
        "ew at λ/K",
        "msl, hybrid",
        "ew, hybrid",
        "mimo, hybrid",
        *(f"{name} alone" for name in SENSORS),
    ]
    by_label = {line.label: line for line in made}
    assert by_label["camera alone"].sensors == ("camera",)
    assert by_label["camera alone"].entry.method.name == "msl"
    assert by_label["camera alone"].entry.settings.encoder == "camera:equipoise.control.encoders.SpatialSoftmaxCNN"
    assert by_label["ew at λ/K"].entry.params == {"weight": by_label["mimo"].entry.params["penalty"] / 3}
    assert by_label["ew, hybrid"].entry.settings.fusion == "hybrid"
    fusions = {label: line.entry.settings.fusion for label, line in by_label.items() if "hybrid" not in label}
    assert set(fusions.values()) == {"concat"}
    assert len({line.entry.settings.changed({"fusion": "concat", "encoder": "auto"}) for line in made}) == 1


def test_what_is_not_wanted_is_left_out() -> None:
    assert [line.label for line in lines(["mimo", "mimo"], alone=False, controls=False)] == ["mimo"]
    assert [line.label for line in lines(["ew"], alone=False)] == ["ew"]


def test_words_set_every_line() -> None:
    made = lines(["mimo", "ew"], ["epochs=7", "penalty=6", "ew.weight=5"], hybrid=["ew"])
    assert {line.entry.settings.epochs for line in made} == {7}
    weights = {line.label: line.entry.params.get("weight") for line in made}
    assert (weights["ew"], weights["ew at λ/K"], weights["ew, hybrid"]) == (5, 2, 5)


@pytest.mark.parametrize(
    ("methods", "words", "hybrid", "messages"),
    [
        (["msl"], [], ["ew"], ["--hybrid: expected methods that are named by --methods, found ew"]),
        (["mim"], [], ["ew"], ["did you mean 'mimo'", "--hybrid: "]),
        (["auto", "ensemble"], [], [], ["auto: expected a method that trains one model", "ensemble: expected"]),
        (["arl"], [], [], ["arl: ARL lets each modality"]),
        (["ew"], ["epochs=auto", "task=classes"], [], ["epochs=auto: expected a number", "task=classes: expected"]),
        (["ew"], ["model=own.Model"], [], ["model=own.Model: expected auto"]),
        (["ew"], ["encoder=camera:own.Encoder"], [], ["expected an encoder of the package, found 'own.Encoder'"]),
        (["ew"], ["encoder=radar:mlp"], [], ["radar"]),
        ([], [], [], ["no method was named"]),
    ],
)
def test_problems_are_told_together(
    methods: list[str], words: list[str], hybrid: list[str], messages: list[str]
) -> None:
    with pytest.raises(BadInput) as caught:
        lines(methods, words, hybrid=hybrid)
    assert all(message in str(caught.value) for message in messages)


def test_all_means_all_that_can_train_a_policy() -> None:
    labels = {line.label for line in lines(["all"], hybrid=["ew"], alone=False)}
    assert labels >= {*METHODS, "ew, hybrid"}
    assert not labels & {"auto", "ensemble", "unimodal", "arl"}


# -- the plan --


def test_every_policy_meets_the_same_episodes() -> None:
    plan = RolloutPlan(3, tuple(CONDITIONS[name] for name in ("clean", "force_dead", "monitored")), seed=2)
    first = EPISODE_SEEDS + 2_000_000
    assert [(one.name, seed - first) for one, seed in plan.of(SENSORS)] == [
        (name, number) for name in ("clean", "force_dead", "monitored") for number in range(3)
    ]
    assert plan.of(("camera",)) == plan.of(SENSORS)[:3]
    assert {seed for _, seed in RolloutPlan(3, seed=1).of(SENSORS)}.isdisjoint(seed for _, seed in plan.of(SENSORS))
    assert [one.name for one, _ in RolloutPlan(1).of(SENSORS)] == list(CONDITIONS)
    json.dumps(plan.facts(), allow_nan=False)


def test_outcomes_as_columns() -> None:
    first = Outcome("clean", 5, True, 40, 2.0, 17.12345, 0.5, 3.0)
    again, late = (
        Outcome("clean", 6, False, 120, 6.0, 9.0, 12.0, float("inf"), "camera", 20),
        Outcome("delay", 5, True, 41, 2.05, 1.0, 0.1, float("nan")),
    )
    found = rollouts_as_dict([first, late, again])
    assert found["clean"] == {
        "seed": [5, 6],
        "success": [True, False],
        "steps": [40, 120],
        "peak_force": [17.123, 9.0],
        "offset": [0.5, 12.0],
        "radius": [3.0, None],
        "dropped": [None, "camera"],
        "dropped_at": [None, 20],
    }
    assert list(found) == ["clean", "delay"]
    json.dumps(found, allow_nan=False)


# -- a tiny study: expert, five episodes, one epoch, two rollouts --

WORDS = ["epochs=1", "batch=64", "features=8", "device=cpu"]
PLAN = RolloutPlan(2, (CONDITIONS["clean"], CONDITIONS["camera_lost_committee"]))
Run = Callable[..., list[dict[str, Any]]]


class Studied(NamedTuple):
    """A finished study.

    Args:
        run: Runs it again: with other lines, or another plan.
        rows: Its rows.
        out: Its folder.
        shown: What the bar was told.
    """

    run: Run
    rows: list[dict[str, Any]]
    out: Path
    shown: list[tuple[str, int, int]]

    def stored(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]

    def weights(self) -> dict[str, bytes]:
        return {path.parent.name: path.read_bytes() for path in self.out.glob(f"runs/*/{WEIGHTS}")}


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    folder = tmp_path_factory.mktemp("study")
    demonstrations = generate(folder / "demonstrations", 5, workers=1, renderer="rays")
    chosen = [*lines(["msl", "ogmge"], WORDS, hybrid=["msl"], alone=False), lines(["msl"], WORDS)[2]]
    shown: list[tuple[str, int, int]] = []

    def run(some: Any = chosen, plan: RolloutPlan = PLAN, **options: Any) -> list[dict[str, Any]]:
        return run_study(some, range(1), demonstrations, folder / "out", plan, workers=1, **options)

    return Studied(run, run(bar=lambda *now: shown.append(now)), folder / "out", shown)


def forbidden(*_: object, **__: object) -> NoReturn:
    raise AssertionError("this was to be left as it is")


@pytest.mark.slow
def test_a_tiny_study_has_a_row_for_every_policy(studied: Studied) -> None:
    rows = studied.rows
    assert [row["line"] for row in rows] == ["msl", "ogmge", "msl, hybrid", "camera alone"]
    assert studied.stored() == json.loads(json.dumps(rows))
    for row in rows:
        tried = ["clean", "camera_lost_committee"] if len(row["sensors"]) > 1 else ["clean"]
        assert list(row["rollouts"]) == tried
        for own in row["rollouts"].values():
            assert own["seed"] == [EPISODE_SEEDS, EPISODE_SEEDS + 1]
            assert {len(column) for column in own.values()} == {2}
        assert (row["seed"], row["status"], row["device"]) == (0, "done", "cpu")
        assert (row["task"]["renderer"], row["task"]["episodes"]) == ("rays", 5)
        assert row["validation"]["fused"] > 0
        assert sum(row["committee"]) == pytest.approx(1)
        assert set(row["interventions"]["swap"]) == set(row["sensors"])
        assert row["seconds"]["training"] > 0 < row["seconds"]["rollouts"]
        assert (studied.out / "runs" / row["policy"] / TRAINED).is_file()
    assert len({row["config"] for row in rows}) == len({row["policy"] for row in rows}) == 4
    assert {group.label for group in lines_of(rows)} == {row["line"] for row in rows}
    assert control_tables(rows)


@pytest.mark.slow
def test_the_bar_never_goes_back_and_ends(studied: Studied) -> None:
    for what in ("training", "rolling out"):
        counts = [(done, total) for called, done, total in studied.shown if called == what]
        assert counts[-1][0] == counts[-1][1]
        if what == "training":
            assert counts == [(done, 4) for done in range(5)]
        shares = [done / total for done, total in counts]
        assert all(one <= other for one, other in pairwise(shares))


@pytest.mark.slow
def test_what_is_done_is_not_done_again(studied: Studied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "train_policy", forbidden)
    monkeypatch.setattr(study, "RolloutPool", forbidden)
    before = studied.stored()
    assert studied.run() == json.loads(json.dumps(studied.rows))
    assert studied.stored() == before


@pytest.mark.slow
def test_policies_are_rolled_out_again_where_only_the_plan_changes(
    studied: Studied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "train_policy", forbidden)
    monkeypatch.setattr(study, "with_monitor", partial(with_monitor, episodes=1))
    before, weights = studied.stored(), studied.weights()
    plan = RolloutPlan(1, (CONDITIONS["clean"], CONDITIONS["monitored"]))
    rows = studied.run(plan=plan)
    assert studied.stored() == [*before, *json.loads(json.dumps(rows))]
    assert studied.weights() == weights
    for row, old in zip(rows, studied.rows, strict=True):
        assert row["policy"] == old["policy"]
        assert row["config"] != old["config"]
        # The same episode of the same policy, and so the same numbers.
        clean, same = (one["rollouts"]["clean"] for one in (row, old))
        assert all(clean[name] == same[name][:1] for name in clean)
        folder = studied.out / "runs" / row["policy"]
        assert (folder / MONITOR).is_file() == (len(row["sensors"]) > 1)
        assert (Policy.load(folder).monitor is not None) == (len(row["sensors"]) > 1)


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on(studied: Studied) -> None:
    """A training that was killed before its last file is done again, to the same bits; so is a row that was torn."""
    weights, before, rows = studied.weights(), studied.stored(), {row["line"]: row for row in studied.rows}
    killed = studied.out / "runs" / rows["ogmge"]["policy"]
    (killed / TRAINED).unlink()
    (killed / WEIGHTS).write_bytes(b"half of it")
    times = {path: path.stat().st_mtime_ns for path in studied.out.glob(f"runs/*/{WEIGHTS}")}
    file = studied.out / "results.jsonl"
    kept = [json.dumps(row) for row in before if row["config"] != rows["ogmge"]["config"]]
    torn = json.dumps(rows["ogmge"])
    file.write_text("".join(f"{line}\n" for line in kept) + torn[: len(torn) // 2])
    again = studied.run()
    assert studied.weights() == weights
    assert [path.parent.name for path, time in times.items() if path.stat().st_mtime_ns != time] == [killed.name]
    assert len(studied.stored()) == len(before)
    for row in again:
        assert without_time(row) == without_time(json.loads(json.dumps(rows[row["line"]])))


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


@pytest.mark.slow
def test_a_training_that_fails_or_dies_says_which(studied: Studied, monkeypatch: pytest.MonkeyPatch) -> None:
    (other,) = lines(["ew"], WORDS, alone=False)
    before = studied.stored()

    def fail(*_: object) -> NoReturn:
        raise ValueError("no disk")

    def die(*_: object) -> NoReturn:
        os._exit(3)

    for broken, message in ((fail, "ew, seed 0: training failed: no disk"), (die, "ew, seed 0: the process ended")):
        monkeypatch.setattr(study, "train_policy", broken)
        with pytest.raises(RuntimeError, match=message):
            studied.run([other])
    monkeypatch.undo()
    (diverging,) = lines(["ew"], [*WORDS, "lr=1e18"], alone=False)
    with pytest.raises(RuntimeError, match=r"ew, seed 0: training failed: .*a learning rate that is too large"):
        studied.run([diverging])
    assert studied.stored() == before


@pytest.mark.slow
def test_without_mujoco_modules_can_be_read_and_say_what_to_type() -> None:
    program = """
import sys
sys.modules["mujoco"] = None
import importlib, pkgutil
import equipoise.control
for each in pkgutil.iter_modules(equipoise.control.__path__):
    importlib.import_module(f"equipoise.control.{each.name}")
from equipoise.control.study import PolicyJob, lines
for needs in (lambda: equipoise.control.simulator.Simulator("rays"), PolicyJob(lines(["ew"])[0], 0, "").facts):
    try:
        needs()
    except ModuleNotFoundError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the simulator needs mujoco, which is not installed; type: pip install") == 2


def test_seeds_of_rollouts_are_no_seeds_of_demonstrations() -> None:
    seeds = {seed for plan in range(3) for _, seed in RolloutPlan(100, seed=plan).of(SENSORS)}
    demonstrations = {number * SEEDS for number in range(900)}
    assert max(demonstrations) + SEEDS <= min(seeds)
    assert max(seeds) < CALIBRATION_SEEDS


@pytest.mark.parametrize("content", ["[" * 200_000, "null", "{}", '{"seconds": [1]}', ""])
def test_measurements_that_are_damaged_are_named_before_anything_is_trained(content: str, tmp_path: Path) -> None:
    for name in (TRAINED, DESCRIPTION):
        (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=rf"{TRAINED}: expected what `equipoise control` measures, .* remove {tmp_path}"):
        study._is_trained(tmp_path)
