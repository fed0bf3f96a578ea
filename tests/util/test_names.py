from collections.abc import Mapping

import pytest
import torch
from torch import nn

from equipoise.models.fusion import NamedModules
from equipoise.util.errors import name_problems, unknown_name

ODD = ["a%2Eb", "keys", "%6Beys", "training", "_modules", "_key_of", "forward", "", "%", "ü 1", "items", "T"]


def test_any_name_works_and_ordinary_ones_stay_readable() -> None:
    modules = {name: nn.Linear(1, 1) for name in ["audio", *ODD]}
    named = NamedModules(modules)
    assert isinstance(named, Mapping)
    assert list(named) == list(modules)
    assert all(named[name] is module for name, module in modules.items())
    assert "audio.weight" in named.state_dict()
    assert len(named.state_dict()) == 2 * len(modules)
    assert all(isinstance(named.get_submodule(key), nn.Linear) for key, _ in named.named_children())


def test_a_state_dict_finds_its_way_back() -> None:
    first = NamedModules({name: nn.Linear(2, 1) for name in ODD})
    second = NamedModules({name: nn.Linear(2, 1) for name in reversed(ODD)})
    second.load_state_dict(first.state_dict())
    for name in ODD:
        torch.testing.assert_close(second[name].weight, first[name].weight)


def test_mappings_of_modules_compare_by_identity() -> None:
    module = nn.Linear(1, 1)
    assert NamedModules({"a": module}) != NamedModules({"a": module})
    assert len({NamedModules({}), NamedModules({})}) == 2


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fused", "joint output"),
        ("label", "answers"),
        ("split", "test marks"),
        ("group", "speakers"),
        ("audio_length", "ragged time"),
        ("cam.left", "dots separate modules in PyTorch; write 'cam_left'"),
        (3, "must be a string, found 3: write '3'"),
    ],
)
def test_taken_names_are_refused_with_the_reason(name: object, why: str) -> None:
    (problem,) = name_problems(["audio", name])
    assert why in problem


def test_every_bad_name_is_reported() -> None:
    assert len(name_problems(["fused", "x", "x_length", "split"])) == 3


def test_a_near_miss_gets_a_hint() -> None:
    assert unknown_name("vidoe", ["audio", "video"]).endswith("Did you mean 'video'?")
    assert "mean" not in unknown_name("zzz", ["audio", "video"])


@pytest.mark.parametrize("ending", ["_valid", "_used", "_head"])
def test_outputs_of_an_exported_model_are_taken(ending: str) -> None:
    (problem,) = name_problems(["cam", f"cam{ending}"])
    assert "an exported model has it beside 'cam'" in problem
    assert name_problems([f"cam{ending}", "radar"]) == []
    assert len(name_problems(["committee", "fused_low", "committee_high"])) == 3
