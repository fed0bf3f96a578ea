"""What a process that a launcher started is told, without starting any."""

from __future__ import annotations

import io
import sys

import pytest
import torch

from equipoise import MGDA, MIMO, OGM, Balancer
from equipoise.training import launch
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput
from everything import GRADIENT_PATH, METHODS


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**told, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def problems(settings: Settings, balancer: Balancer) -> list[str]:
    try:
        launch.check_launch(settings, balancer)
    except BadInput as found:
        return str(found).splitlines()
    return []


def test_one_process_is_told_nothing() -> None:
    assert not launch.launched()
    assert launch.is_main()
    assert not problems(Settings(parallel="fsdp", device="cuda:1", precision="fp16"), MGDA())
    with launch.one_rank_at_a_time():
        assert launch.broadcast("word") == "word"
    assert launch.gather("word") == ["word"]


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize("method", METHODS)
def test_pieces_are_for_methods_that_weigh_losses(method: str) -> None:
    found = problems(Settings(parallel="fsdp"), METHODS[method]())
    assert bool(found) == (method in GRADIENT_PATH and method != "msl")
    assert not problems(Settings(), METHODS[method]())


@pytest.mark.usefixtures("second_of_two")
def test_all_problems_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    found = problems(Settings(device="cuda:1", precision="fp16", compile=True), OGM())
    starts = ["device=cuda:1: every", "expected DDP or FSDP, found DeepSpeed", *["parallel=fsdp: expected"] * 3]
    assert all(each.startswith(start) for each, start in zip(found, starts, strict=True))


@pytest.mark.usefixtures("second_of_two")
def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (found,) = problems(Settings(), MIMO())
    assert found.startswith("expected a GPU for each process of a machine, found 2 processes and 1 GPUs; start 1")
    assert not problems(Settings(device="cpu"), MIMO())


@pytest.mark.usefixtures("second_of_two")
def test_the_second_is_silent_and_only_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", before := sys.stdout)
    launch.silence_other_ranks(["train", "--data", "watch"])
    assert isinstance(sys.stdout, io.StringIO)
    assert sys.stdout is not before
    with pytest.raises(BadInput, match="expected one process, found 2: several can train, compare, diagnose together"):
        launch.silence_other_ranks(["reproduce", "1"])
    with pytest.raises(BadInput, match="type equipoise compare --on ray"):
        launch.silence_other_ranks(["compare", "--on", "ray"])
