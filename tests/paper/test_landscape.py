"""The landscape from training to picture, and the command."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from equipoise.cli import landscape as command
from equipoise.data.bundled import two_sensors
from equipoise.data.splits import Splits, split_by_group
from equipoise.paper.landscape import (
    LandscapeResults,
    LandscapeSettings,
    LossSurface,
    gather,
    solve,
    stratified,
    subset,
    with_points,
)
from equipoise.paper.landscape_figure import STRONGEST, caption, draw, lead, tints
from equipoise.paper.landscape_files import load_results, save_results
from equipoise.study.registry import entries
from equipoise.training.optimisers import words_for
from equipoise.training.settings import Settings
from equipoise.training.step import evaluate
from equipoise.training.train import train
from equipoise.util.errors import BadInput

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command(epilog=command.EXAMPLE)(command.landscape)


def signals() -> Splits:
    """Two sensors whose encoders have convolutions and batch norm."""
    random = torch.Generator().manual_seed(0)
    label, group = torch.arange(120) % 3, torch.arange(120) // 12
    inputs = {name: torch.randn(120, 2, 8, generator=random) + label[:, None, None] for name in ("left", "right")}
    where = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
    parts = split_by_group(inputs, label, group, {name: tuple(people) for name, people in where.items()})
    return Splits("signals", parts["train"], parts["validation"], parts["test"], ("a", "b", "c"))


# -- training --


@pytest.mark.parametrize("size", [1, 7, 50, 99, 1000])
def test_every_class_has_its_share(size: int) -> None:
    for seed in range(5):
        random = torch.Generator().manual_seed(seed)
        label = torch.randint(0, 5, (100,), generator=random).square() % 7
        rows = stratified(label, size, seed)
        assert len(rows) == len(set(rows.tolist())) == min(size, 100)
        fair = label.bincount(minlength=7) * (len(rows) / 100)
        assert ((label[rows].bincount(minlength=7) - fair).abs() <= 1).all()
    assert torch.equal(rows, stratified(label, size, seed)), "the subset is fixed"


WAYS = {
    "schedule": ["schedule=step"],
    "micro-batches": ["accumulate=3", "clip=0.1"],
    "dropout": ["dropout=0.3"],
    "safe": words_for("safe"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [0, 1], ids=["msl", "mimo"])
def test_whole_epochs_of_steps_are_the_training_loop(number: int, way: str) -> None:
    splits = two_sensors(samples=100)
    entry = entries(["msl", "mimo"], ["fusion=sum", "batch=20", "epochs=3", *WAYS[way]])[number]
    parts = {name: subset(splits.parts[name], 20, 0, "cpu") for name in ("train", "test")}
    steps = 3 * -(-len(splits.train) // 20)
    found = solve(splits, entry, LandscapeSettings(steps=steps, seed=4), "head", parts, lambda _: None)
    expected = train(splits, entry.balancer(), entry.settings, seed=4).model.state_dict()
    for name, value in found.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert [found.curve[0]["step"], found.curve[-1]["step"]] == [0, steps]


@pytest.mark.parametrize("steps", [1, 8])
def test_a_solution_that_diverged_is_refused(steps: int) -> None:
    entry = entries(["msl"], ["fusion=sum", "lr=1e30"])[0]
    with pytest.raises(BadInput, match=r"msl diverged, .* than lr=1e\+30"):
        gather(two_sensors(samples=100), [entry, entry], LandscapeSettings(steps=steps, points=3, samples=10))


# -- all of it --


@pytest.fixture(scope="module", params=["own", "both"])
def results(request: pytest.FixtureRequest) -> LandscapeResults:
    recipe = LandscapeSettings(steps=12, points=5, samples=30, plane=request.param)
    return gather(signals(), entries(["msl", "mimo"], ["fusion=sum", "batch=24"]), recipe)


def test_the_star_is_the_solution(results: LandscapeResults) -> None:
    assert [star.name for star in results.stars] == ["msl", "mimo"]
    for star in results.stars:
        assert star.difference < 1e-5
        last = results.curves[star.name][-1]
        for part in ("train", "test"):
            assert star.loss[part] == pytest.approx(last[part]["fused"]["loss"], abs=1e-5)
            assert star.accuracy[part]["fused"] == pytest.approx(last[part]["fused"]["accuracy"])
    if results.settings.plane == "own":
        for surface in results.surfaces:
            assert surface.train[2, 2] == pytest.approx(surface.stars[0].loss["train"], abs=1e-5)
            assert surface.test[2, 2] == pytest.approx(surface.stars[0].loss["test"], abs=1e-5)


def test_the_figure_says_how_it_was_made(results: LandscapeResults, tmp_path: Path) -> None:
    svg, png = draw(results, tmp_path, "Made by a test.")
    assert png.read_bytes().startswith(b"\x89PNG")
    picture = svg.read_text(encoding="utf-8")
    assert "Made by a test." in picture
    words = caption(results)
    counts = f"{results.samples['train']} training and {results.samples['test']} test samples"
    for expected in (counts, "protocol split", "Batch norm", "standard error", "5 × 5"):
        assert expected in words
    assert f"± {results.stars[0].error['test']:.3f}" in words


def test_the_end_of_training_is_put_in_proportion(results: LandscapeResults) -> None:
    losses = [look["test"]["fused"]["loss"] for look in results.curves["mimo"] if look["step"] >= 9.6]  # of 12
    assert len(losses) == 3
    assert results.late("mimo") == (min(losses), max(losses))


def test_the_command_in_the_caption_gives_this_figure() -> None:
    view = {"plane": "both", "points": None, "reach": 0.5, "samples": 200, "protocol": None, "seed": 0}
    found = command._typed({"data": "watch", "split": None, "preset": None}, view, ["lr=0.1"])
    assert found == "equipoise landscape --data watch --plane both --reach 0.5 lr=0.1"


# -- how much it computes --


def long_series(samples: int = 60) -> Splits:
    """One sensor of three channels and a hundred steps, as the smartwatch has two."""
    return Splits.from_arrays(
        {"wrist": np.random.default_rng(0).normal(size=(samples, 3, 100)).astype(np.float32)},
        np.arange(samples) % 3,
        group=np.arange(samples) // 6,
    )


def points(splits: Splits, encoder: str, **view: Any) -> int:
    found = with_points(splits, entries(["msl"], ["fusion=sum", f"encoder={encoder}"])[0], LandscapeSettings(**view))
    assert found.points is not None
    return found.points


def test_slow_encoders_get_fewer_points() -> None:
    few, many = long_series(), long_series(6000)
    assert points(few, "cnn1d") == points(few, "inception", samples=10) == 51
    found = [points(many, "inception", samples=size) for size in (10, 100, 200, 400, 3000)]
    assert found == sorted(found, reverse=True)
    assert 15 == found[-1] < found[-2] < found[0] == 51
    assert all(number % 2 for number in found), "the solution is one of them"
    assert points(many, "inception", samples=400, plane="both") > found[-2], "one plane in place of two"
    assert points(many, "inception", points=40) == 40, "what is typed counts"


def test_points_take_what_they_may_by_operations_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of 8 to 4 numbers, the fused head and its own of 4 to 3: 2 · (8 · 4 + 2 · 4 · 3) operations a sample."""

    class Linear(torch.nn.Linear):
        features = 4

    monkeypatch.setattr("equipoise.training.step.build_encoders", lambda *_, **__: {"one": Linear(8, 4)})
    splits = Splits.from_arrays({"one": np.zeros((60, 8), np.float32)}, np.arange(60) % 3, group=np.arange(60) // 6)
    samples = len(splits.train.label) + len(splits.test.label)
    seconds = 2 * samples * 2 * (8 * 4 + 2 * 4 * 3) / 3e10  # of a point in both planes
    for side in (15, 33, 49):
        monkeypatch.setattr("equipoise.paper.landscape.AFFORDABLE", 1.0001 * side**2 * seconds)
        entry = entries(["msl"], ["fusion=sum"])[0]
        assert with_points(splits, entry, LandscapeSettings()).points == side


@pytest.mark.parametrize("plane", ["own", "both"])
def test_what_it_computes_is_said_before_it_begins(plane: str) -> None:
    told: list[str] = []
    settings = LandscapeSettings(steps=4, points=5, samples=20, plane=plane)  # ty: ignore[invalid-argument-type]
    gather(signals(), entries(["msl", "mimo"], ["fusion=sum", "batch=24"]), settings, told.append)
    evaluated = 5 * 5 * 2 * {"own": 2, "both": 1}[plane]
    assert told[0].startswith(f"8 steps of training, and {evaluated} points with 20 samples each: about ")
    assert re.search(r"about (half a minute at most|a minute|\d+ minutes) on \d+ cores?$", told[0])
    assert not any("points with" in line for line in told[1:])


def test_frozen_kernels_are_read_once_and_the_star_is_the_model_that_reads_inputs() -> None:
    splits = signals()
    chosen = entries(["msl", "mimo"], ["fusion=sum", "batch=24", "encoder=rocket", "epochs=2"])
    found = gather(splits, chosen, LandscapeSettings(steps=2 * -(-len(splits.train) // 24), points=3, samples=30))
    for entry, star in zip(chosen, found.stars, strict=True):
        model = train(splits, entry.balancer(), entry.settings, seed=0).model  # its encoders compute their kernels
        for name in ("train", "test"):
            loss = evaluate(model, subset(splits.parts[name], 30, 0, "cpu"))["fused"]["loss"]
            assert star.loss[name] == pytest.approx(loss, abs=1e-4)


def test_encoders_without_weights_are_refused_before_anything_is_trained(equipoise_landscape: Any) -> None:
    with pytest.raises(BadInput, match=r"encoder=frozen: .* found none in easy, hard; type encoder=rocket"):
        equipoise_landscape("--data", "generated", "encoder=frozen", "steps=1000000")


def test_the_command_takes_frozen_kernels(
    equipoise_landscape: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", "generated", "encoder=rocket", "steps=2", "--points", "3", "--samples", "10"]
    equipoise_landscape(*words, "--out", tmp_path)
    assert "The planes and the models themselves agree" in capsys.readouterr().out


# -- files --


def test_what_is_kept_is_found_again(results: LandscapeResults, tmp_path: Path) -> None:
    asked = {"data": "sha256:…", "seeds": (1, 2)}
    stem = {"own": "landscape", "both": "landscape-both"}[results.settings.plane]
    assert load_results(tmp_path, stem, asked) is None
    save_results(tmp_path, asked, results)
    found = load_results(tmp_path, stem, asked)
    assert found is not None
    assert found.as_dict() == results.as_dict()
    for ours, theirs in zip(results.surfaces, found.surfaces, strict=True):
        np.testing.assert_array_equal(ours.train, theirs.train)
        np.testing.assert_array_equal(ours.test, theirs.test)
        assert list(ours.accuracy) == list(theirs.accuracy)
    assert load_results(tmp_path, stem, {**asked, "data": "another"}) is None
    (tmp_path / f"{stem}.npz").write_bytes(b"no zip")
    assert load_results(tmp_path, stem, asked) is None
    assert [path.name for path in tmp_path.iterdir()] == [f"{stem}.npz"]


def test_colours_by_hand() -> None:
    accuracy = {"left": np.array([[0.9, 0.5]]), "right": np.array([[0.1, 0.5]]), "third": np.array([[0.1, 0.1]])}
    nothing = np.zeros((1, 2))
    surface = LossSurface(np.arange(2), np.arange(1), nothing, nothing, accuracy, [])
    assert lead(np.array([0.9, 0.1, 0.4])) == pytest.approx(0.5)
    assert lead(np.array([0.9])) == 0
    found = tints(surface, most=0.8)
    blue = np.array([0x0B, 0x5C, 0xAD]) / 255
    np.testing.assert_allclose(found[0, 0], 1 - STRONGEST * (1 - blue), atol=1e-9)
    np.testing.assert_allclose(found[0, 1], np.ones(3))


def test_the_protocol_follows_the_fusion() -> None:
    late, film, hybrid = (Settings(fusion=fusion) for fusion in ("sum", "film", "hybrid"))
    assert LandscapeSettings().protocol_for(late) == "split"
    assert LandscapeSettings().protocol_for(film) == "head"
    assert LandscapeSettings().protocol_for(hybrid) == "masked"
    assert LandscapeSettings().protocol_for(Settings(fusion="early", objective="head")) == "head"
    assert LandscapeSettings(protocol="head").protocol_for(late) == "head"
    assert LandscapeSettings(protocol="masked").protocol_for(hybrid) == "masked"
    with pytest.raises(ValueError, match=r"expected an additive fusion, sum or concat, found gated; .*protocol head"):
        LandscapeSettings(protocol="split").protocol_for(Settings(fusion="gated"))
    with pytest.raises(ValueError, match=r"expected an additive fusion.*found hybrid; .*protocol masked"):
        LandscapeSettings(protocol="split").protocol_for(hybrid)
    with pytest.raises(ValueError, match=r"protocol head expected objective=head, .*type --protocol masked"):
        LandscapeSettings(protocol="head").protocol_for(hybrid)


# -- the command --


@pytest.fixture
def equipoise_landscape(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the command in this process."""

    def run(*words: str | Path) -> None:
        monkeypatch.setattr(sys, "argv", ["equipoise landscape", *map(str, words)])
        app(standalone_mode=False)

    return run


def test_json_and_nothing_else_and_then_from_what_is_kept(
    equipoise_landscape: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--data", "generated", "steps=8", "--points", "5", "--samples", "20", "--out", tmp_path]
    equipoise_landscape(*words, "--json")
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out, parse_constant=pytest.fail)
    assert found["recipe"]["steps"] == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "landscape.json",
        "landscape.npz",
        "landscape.png",
        "landscape.svg",
    ]

    def again(*_: object) -> None:
        raise AssertionError("found anew")

    monkeypatch.setattr("equipoise.paper.landscape.gather", again)
    equipoise_landscape(*words)
    printed = capsys.readouterr()
    assert "joint training: train loss" in printed.out
    assert "landscape: drawing" in printed.err
    with pytest.raises(AssertionError, match="found anew"):
        equipoise_landscape(*words, "mimo.penalty=3")


def test_both_kinds_of_planes_lie_in_one_folder(equipoise_landscape: Any, tmp_path: Path) -> None:
    words = ["--data", "generated", "steps=2", "--points", "3", "--samples", "20", "--out", tmp_path]
    equipoise_landscape(*words)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    equipoise_landscape(*words, "--plane", "both")
    second = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name: second[name] for name in first} == first
    assert sorted(set(second) - set(first)) == [f"landscape-both.{kind}" for kind in ("json", "npz", "png", "svg")]


def test_every_problem_in_one_message(equipoise_landscape: Any) -> None:
    with pytest.raises(BadInput) as found:
        equipoise_landscape("--data", "wach", "steps=many", "lerning=3", "--plane", "three", "--points", "2")
    message = str(found.value)
    for expected in (
        "did you mean 'watch'?",
        "steps should be a whole number, found 'many'",
        "unknown setting 'lerning'",
        "plane should be one of own, both, found 'three'",
        "points should be a whole number of at least 3, found 2",
    ):
        assert expected in message


def test_no_steps_are_refused(equipoise_landscape: Any) -> None:
    with pytest.raises(BadInput, match="steps should be a whole number of at least 1, found 0"):
        equipoise_landscape("steps=0")
