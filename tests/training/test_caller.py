"""What a caller in Python finds as it was: threads, environment, the command line, and an Accelerator of their own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ended import Ended
from equipoise import MIMO
from equipoise.data import Splits
from equipoise.data.bundled import two_sensors
from equipoise.data.source import DataSet
from equipoise.paper.ablation import run as ablate
from equipoise.paper.ablation import sweep_of
from equipoise.study.compare import COMMAND, compare
from equipoise.study.registry import entries
from equipoise.training.settings import Settings
from equipoise.training.train import train
from equipoise.util.errors import BadInput

SHORT = Settings(epochs=2, batch=20, features=4)
WORDS = ["epochs=1", "features=4", "device=cpu"]


def small(_: int | None) -> Splits:
    return two_sensors(samples=60)


DATA = DataSet("small", small, 0, "Small.")


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


# -- threads, environment and command line --


def thread_settings() -> dict[str, Any]:
    words = ("OMP", "MKL", "THREADS")
    return {"torch": torch.get_num_threads()} | {
        name: value for name, value in os.environ.items() if any(word in name for word in words)
    }


@pytest.mark.slow
@pytest.mark.usefixtures("three_threads")
def test_a_comparison_from_python_leaves_threads_and_records_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Secret(list[str]):
        def __getitem__(self, _: object) -> Any:
            pytest.fail("the command line is none of its business")

    before = thread_settings()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", Secret())
        rows = compare(entries(["msl"], WORDS), DATA, [0], tmp_path / "compare", quick=True, quiet=True)
        ablate(sweep_of("mimo", ["penalty=1,2", *WORDS], None), DATA, 1, tmp_path / "ablate", quiet=True)
    assert len(rows) == 1
    assert thread_settings() == before
    assert not (tmp_path / "compare" / COMMAND).exists()
    assert not (tmp_path / "ablate" / COMMAND).exists()


@pytest.mark.usefixtures("three_threads")
def test_a_comparison_that_is_refused_leaves_threads(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no folds"):
        compare(entries(["msl"], WORDS), DATA, [0], tmp_path, folds=True)
    assert torch.get_num_threads() == 3


# -- commands --


def test_two_commands_into_one_folder_are_both_recorded(tmp_path: Path, equipoise: Callable[..., Ended]) -> None:
    for method in ("msl", "mimo"):
        ended = equipoise("train", "--data", "generated", "--method", method, "--out", tmp_path, *WORDS)
        assert ended.code == 0, ended.err
    first, second = (
        f"equipoise train --data generated --method {method} --out {tmp_path.name} {' '.join(WORDS)}"
        for method in ("msl", "mimo")
    )
    dated = r"# \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d"
    lines = (tmp_path / COMMAND).read_text(encoding="utf-8").splitlines()
    assert [lines[1], lines[3]] == [first, second]
    for line in (lines[0], lines[2]):
        assert re.fullmatch(dated, line)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert first in page
    assert second in page


def test_a_link_in_place_of_the_commands_is_not_followed(tmp_path: Path, equipoise: Callable[..., Ended]) -> None:
    precious = tmp_path / "precious"
    precious.write_text("here first")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / COMMAND).symlink_to(precious)
    ended = equipoise("train", "--data", "generated", "--out", tmp_path / "out", *WORDS)
    assert ended.code == 2
    assert f"{tmp_path / 'out' / COMMAND}: expected a file or folder, found a link, which is not followed" in ended.err
    assert precious.read_text() == "here first"


# -- Accelerate --


@pytest.fixture
def no_accelerator() -> Iterator[None]:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    kinds = (AcceleratorState, GradientState, PartialState)
    for state in kinds:
        state._reset_state()
    yield
    for state in kinds:
        state._reset_state()


def seen_by(accelerator: Any) -> dict[str, Any]:
    """What an Accelerator says of itself, and what new objects of Accelerate's say."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    return {
        "precision": (accelerator.mixed_precision, AcceleratorState().mixed_precision),
        "device": (accelerator.device, PartialState().device),
        "steps": (accelerator.gradient_accumulation_steps, GradientState().num_steps),
        "syncs": (accelerator.sync_gradients, GradientState().sync_gradients),
        "everything": [dict(kind._shared_state) for kind in (AcceleratorState, GradientState, PartialState)],
    }


@pytest.mark.usefixtures("no_accelerator")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_leaves_the_callers_accelerator_as_it_was(precision: str) -> None:
    from accelerate import Accelerator

    theirs = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=3)
    theirs.gradient_state._set_sync_gradients(False)
    before, within = seen_by(theirs), []
    settings = SHORT.changed({"precision": precision})
    trained = train(two_sensors(samples=60), MIMO(), settings, on_epoch=lambda _: within.append(seen_by(theirs)))
    assert seen_by(theirs) == before
    assert within == [before] * 2, "a function of the caller's finds it so, too"
    assert trained.path["precision"] == precision
    with theirs.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


@pytest.mark.usefixtures("no_accelerator")
def test_training_that_fails_leaves_it_too_and_where_there_was_none_there_is_none() -> None:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    def fails(_: object) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        train(two_sensors(samples=60), MIMO(), SHORT, on_epoch=fails)
    assert [dict(kind._shared_state) for kind in (AcceleratorState, GradientState, PartialState)] == [{}, {}, {}]


@pytest.mark.usefixtures("no_accelerator")
def test_the_same_bits_beside_an_accelerator_of_the_callers() -> None:
    from accelerate import Accelerator

    alone = train(two_sensors(samples=60), MIMO(), SHORT).model.state_dict()
    Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=4)
    beside = train(two_sensors(samples=60), MIMO(), SHORT).model.state_dict()
    for name, value in alone.items():
        assert torch.equal(beside[name], value), name
