"""Several ranks train to what one process trains to, go on in other numbers, and survive a kill.

torchrun_program.py is started once by itself and once by each launcher; the tests read what its ranks wrote down.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import torchrun_program as program
from equipoise.study.registry import all_methods

LIMIT_S = 240
TOLERANCE = 1e-5
TESTS = Path(__file__).parents[1]
PROGRAM = str(TESTS / "torchrun_program.py")

pytestmark = pytest.mark.slow
Found = dict[str, Any]


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    told = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **told}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done


def written(folder: Path, name: str, ranks: int) -> list[Found]:
    return [torch.load(folder / f"{name} {rank}.pt", weights_only=False) for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launched")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> dict[int, list[Found]]:
    launch(folder, PROGRAM, "everything", str(folder))
    return {count: written(folder, f"everything {count}", count) for count in program.RANKS}


@pytest.fixture(scope="module")
def killed(ranks: dict[int, list[Found]], folder: Path) -> Path:
    assert ranks
    started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    launch(folder, *started, PROGRAM, "killed", str(folder), "left by 4")
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> subprocess.CompletedProcess[str]:
    started = ["-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1", "--multi_gpu"]
    plain = ["--mixed_precision", "no", "--dynamo_backend", "no"]
    words = ["-m", "equipoise.cli", *program.COMPARE, "--out", str(folder / "undisturbed")]
    return launch(folder, *started, *plain, *words)


@cache
def alone(kind: str, name: str) -> Found:
    """What one process makes of the same batches."""
    method, changes = {"varied": program.VARIED, "sharded": program.SHARDED, "resumed": program.RESUMED}.get(
        kind, {name: (name, {})}
    )[name]
    return program.trained(program.data(), method, changes)


def assert_as_one_process(found: list[Found], key: str) -> None:
    kind, _, name = key.partition("/")
    expected = alone(kind, name)
    for rank in found:
        assert_close(rank[key]["weights"], expected["weights"], TOLERANCE)
        assert rank[key]["epoch"] == expected["epoch"]
        for epoch, wanted in zip(rank[key]["curves"], expected["curves"], strict=True):
            assert epoch["validation"] == wanted["validation"]  # shares of a whole number of samples
            assert epoch["train"] == pytest.approx(wanted["train"], abs=1e-5)
            for objective, row in wanted["table"].items():
                cells = epoch["table"][objective]
                # Nobody attaches a model of pieces, and so nobody knows which losses reach its encoders.
                heads = {"fused head", "own heads"} & {*row} if "sharded" in kind or name == "pieces" else {*row}
                assert {*cells} in ({*row}, heads)
                assert cells == pytest.approx({block: row[block] for block in cells}, abs=1e-4)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("method", "count"), [*((name, 2) for name in all_methods()), *((name, 4) for name in program.WITH_FOUR)]
)
def test_every_method_trains_as_in_one_process(ranks: dict[int, list[Found]], method: str, count: int) -> None:
    assert_as_one_process(ranks[count], f"method/{method}")
    assert ranks[count][0][f"method/{method}"]["path"]["processes"] == f"{count}, ddp"


@pytest.mark.parametrize("name", program.VARIED)
def test_settings_mean_what_they_mean_in_one_process(ranks: dict[int, list[Found]], name: str) -> None:
    assert_as_one_process(ranks[2], f"varied/{name}")


def test_a_rank_without_a_sample_counts_for_nothing(ranks: dict[int, list[Found]]) -> None:
    assert_as_one_process(ranks[4], f"varied/{next(iter(program.VARIED))}")


@pytest.mark.parametrize(("count", "method"), [(2, "msl"), (2, "ew"), (2, "mimo"), (4, "mimo")])
def test_pieces_of_a_model_train_as_the_whole(ranks: dict[int, list[Found]], count: int, method: str) -> None:
    assert_as_one_process(ranks[count], f"sharded/{method}")
    assert ranks[count][0][f"sharded/{method}"]["path"]["processes"] == f"{count}, fsdp"


def test_methods_that_take_gradients_refuse_pieces(ranks: dict[int, list[Found]]) -> None:
    for rank in ranks[2]:
        assert len(rank["refused"]) == len(program.REFUSED)
        for said in rank["refused"].values():
            assert "expected a method that only weighs losses (msl, ew, mimo)" in said
            assert said.endswith("type parallel=ddp")


@pytest.mark.parametrize("count", program.RANKS)
@pytest.mark.parametrize("key", ["normalised", "method/ogmge", "sharded/mimo"])
def test_ranks_agree_to_the_bit(ranks: dict[int, list[Found]], count: int, key: str) -> None:
    first, *others = (rank[key] for rank in ranks[count])
    for other in others:
        assert_close(other["weights"], first["weights"], 0)
        assert other["curves"] == first["curves"]


@pytest.mark.parametrize("count", program.RANKS)
def test_running_statistics_are_those_of_the_first_rank(ranks: dict[int, list[Found]], count: int) -> None:
    first, *others = (rank["normalised"]["statistics"] for rank in ranks[count])
    assert len(first) == 6 + 1  # steps, and one look
    assert len(first.unique(dim=0)) == len(first)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("name", program.RESUMED)
def test_four_ranks_go_on_where_two_stopped(ranks: dict[int, list[Found]], name: str) -> None:
    assert_as_one_process(ranks[4], f"resumed/{name}")


@pytest.mark.parametrize("name", program.RESUMED)
def test_two_ranks_go_on_where_four_stopped(killed: Path, name: str) -> None:
    assert_as_one_process(written(killed, "went on", 2), f"resumed/{name}")


@pytest.mark.parametrize("name", program.RESUMED)
def test_one_process_goes_on_where_four_stopped(killed: Path, name: str, tmp_path: Path) -> None:
    half = killed / "left by 4" / name / "epoch-00001-batch-0000004"
    shutil.copytree(half, tmp_path / half.name)
    method, changes = program.RESUMED[name]
    found = program.trained(program.data(), method, changes, tmp_path)
    assert_as_one_process([{f"resumed/{name}": found}], f"resumed/{name}")


def test_a_killed_rank_changes_no_bit(killed: Path, undisturbed: subprocess.CompletedProcess[str]) -> None:
    assert "The page:" in undisturbed.stdout
    for rank in written(killed, "killed 2", 2):
        assert rank["code"] == 0
        assert rank["steps"] == program.LEFT  # it went on, and did not begin anew
    ours, theirs = (killed / name for name in ("killed", "undisturbed"))
    (row,), (expected,) = rows(ours), rows(theirs)
    for key in ("config", "test", "validation", "selected", "path"):
        assert row[key] == expected[key]
    assert row["path"]["processes"] == "2, ddp"
    models = [load_file(next(each.glob("runs/*/model.safetensors"))) for each in (ours, theirs)]
    assert_close(*models, 0)
    curves = [next(each.glob("runs/*/curves.jsonl")).read_text().splitlines() for each in (ours, theirs)]
    for one, other in zip(*(map(json.loads, lines) for lines in curves), strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_the_first_rank_alone_speaks(undisturbed: subprocess.CompletedProcess[str]) -> None:
    assert undisturbed.stdout.count("The page:") == 1
    assert undisturbed.stderr.count("ogmge, seed 0: validation accuracy") == 1
