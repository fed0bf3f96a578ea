"""`equipoise ablate`: which runs it asks for, what it makes of their numbers, and what it refuses."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from elsewhere import Elsewhere
from equipoise.cli import ablate as command
from equipoise.paper.ablation import sweep_of
from equipoise.study.registry import Entry, all_methods
from equipoise.study.store import Store
from equipoise.util.errors import BadInput, FailedRuns

SHORT = ["--data", "generated", "epochs=1", "features=8"]
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command(epilog=command.EXAMPLE)(command.ablate)


@pytest.fixture
def equipoise_ablate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the command in this process."""

    def run(*words: str | Path) -> None:
        monkeypatch.setattr(sys, "argv", ["equipoise", *map(str, words)])
        app(standalone_mode=False)

    return run


# -- which runs --


def differences(base: Entry, entry: Entry) -> dict[str, Any]:
    before, after = ({**each.params, **each.settings.as_dict()} for each in (base, entry))
    return {name: value for name, value in after.items() if value != before[name]}


def test_one_parameter_moves_at_a_time() -> None:
    sweep = sweep_of("mimo", ["penalty=100,1,10", "smoothing=0.1,1", "run.lr=0.1,0.01", "epochs=7"])
    assert [differences(sweep.base, entry) for entry in sweep.points] == [
        {"penalty": 1.0}, {}, {"penalty": 100.0}, {"smoothing": 1.0}, {"lr": 0.1},
    ]  # fmt: skip
    assert {entry.settings.epochs for entry in sweep.points} == {7}
    penalty, smoothing, lr = sweep.curves
    assert penalty.labels == {1.0: "penalty=1", 10.0: "mimo", 100.0: "penalty=100"}, (
        "from small to large, the base once"
    )
    assert smoothing.labels == {0.1: "mimo", 1.0: "smoothing=1"}
    assert lr.labels == {0.01: "mimo", 0.1: "lr=0.1"}


def test_a_grid_holds_every_combination_once() -> None:
    sweep = sweep_of("mimo", ["penalty=1,10,100", "smoothing=0.1,1"], grid=True)
    found = {(entry.params["penalty"], entry.params["smoothing"]) for entry in sweep.points}
    assert found == {(a, b) for a in (1.0, 10.0, 100.0) for b in (0.1, 1.0)}
    assert len(sweep.points) == len({entry.label for entry in sweep.points}) == 6
    assert [(curve.axis, curve.others) for curve in sweep.curves] == [
        ("penalty", {"smoothing": 0.1}), ("penalty", {"smoothing": 1.0}),
        ("smoothing", {"penalty": 1.0}), ("smoothing", {"penalty": 10.0}), ("smoothing", {"penalty": 100.0}),
    ]  # fmt: skip
    assert [curve.around for curve in sweep.curves] == [True, False, False, True, False]


def test_a_grid_of_one_parameter_is_a_curve() -> None:
    assert sweep_of("mimo", ["penalty=1,10"], grid=True) == sweep_of("mimo", ["penalty=1,10"])


def test_base_values_are_those_that_single_words_set() -> None:
    sweep = sweep_of("mimo", ["mimo.penalty=3", "smoothing=0.5,2"])
    assert {entry.params["penalty"] for entry in sweep.points} == {3.0}
    assert [entry.label for entry in sweep.points] == ["smoothing=0.5", "smoothing=2"]


def test_where_nobody_says_what_varies_it_is_the_papers_grid() -> None:
    sweep = sweep_of("mimo", ["epochs=3"])
    assert {curve.axis: list(curve.labels) for curve in sweep.curves} == {
        "penalty": [1.0, 10.0, 100.0],
        "smoothing": [0.001, 0.01, 0.1, 1.0],
    }
    assert [curve.axis for curve in sweep_of("mimo", ["penalty=10"]).curves] == ["smoothing"]


@pytest.mark.parametrize("name", [name for name, each in all_methods().items() if each.tried])
def test_every_method_with_a_search_space_can_be_ablated_without_words(name: str) -> None:
    sweep = sweep_of(name, [])
    assert {curve.axis for curve in sweep.curves} == set(sweep.base.method.tried)
    for entry in sweep.points:
        entry.balancer()
        assert len(differences(sweep.base, entry)) <= 1


@pytest.mark.parametrize("grid", [False, True])
def test_the_divided_rate_is_the_rate_over_one_plus_the_penalty(grid: bool) -> None:
    sweep = sweep_of("mimo", ["penalty=1,10,99", "smoothing=0.1,1", "lr=0.02"], grid=grid, divided=True)
    points = {entry.label: entry for entry in sweep.points}
    for curve in sweep.curves:
        for label in curve.labels.values():
            entry = points[label]
            assert entry.settings.lr == (0.02 / (1 + entry.params["penalty"]) if curve.divided else 0.02)
    assert sum(curve.divided for curve in sweep.curves) == (5 if grid else 1)


def test_a_parameter_and_a_setting_of_one_name_are_told_apart() -> None:
    sweep = sweep_of("mses", ["mses.patience=3,4", "run.patience=3,4"])
    assert [entry.label for entry in sweep.points] == ["patience=3", "patience=4", "run.patience=3", "run.patience=4"]


def test_an_encoder_may_hold_commas() -> None:
    sweep = sweep_of("mimo", ["encoder=easy:mlp,hard:mlp", "penalty=1,2"])
    assert {entry.settings.encoder for entry in sweep.points} == {"easy:mlp,hard:mlp"}


@pytest.mark.parametrize(
    ("method", "words", "parts"),
    [
        ("mimo", ["penalty=1,x", "epoch=3"], ["penalty should be a number, found 'x'", "did you mean 'epochs'?"]),
        ("mimo", ["penalty=1,-1"], ["penalty should be a finite number of zero or more"]),
        ("mimo", ["weight=1,2"], ["unknown setting 'weight'"]),
        ("mino", [], ["unknown method 'mino'; did you mean 'mimo'?"]),
        ("msl", ["epochs=3"], ["expected something to vary, such as lr=0.003,0.01,0.03, found only epochs=3"]),
        ("mimo", ["penalty=1.00000001,1.00000002"], ["two of the values look alike", "penalty=1"]),
    ],
)
def test_bad_words_get_one_message(method: str, words: list[str], parts: list[str]) -> None:
    with pytest.raises(BadInput) as found:
        sweep_of(method, words)
    for part in parts:
        assert part in str(found.value)


def test_a_divided_rate_needs_penalties() -> None:
    with pytest.raises(BadInput, match=r"expected several values of penalty or weight.*found smoothing varied"):
        sweep_of("mimo", ["smoothing=0.1,1"], divided=True)


# -- the command --


@pytest.mark.slow
def test_an_ablation_goes_on_where_it_was(
    equipoise_ablate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Elsewhere()
    monkeypatch.setattr(command, "cluster_of", {"ray": there, None: None}.__getitem__)
    equipoise_ablate(*SHORT, "penalty=1,10", "--seeds", "2", "--on", "ray", "--json", "--out", tmp_path)
    assert there.asked == [(tmp_path.name, None)]
    printed = capsys.readouterr()
    assert printed.err == ""
    content = json.loads(printed.out, parse_constant=pytest.fail)
    assert content == json.loads((tmp_path / "ablation.json").read_text(encoding="utf-8"))
    assert [each["value"] for each in content["curves"][0]["points"]] == [1.0, 10.0]
    before = (tmp_path / "results.jsonl").read_bytes()
    picture = (tmp_path / "ablation.svg").read_bytes()
    assert b"Made by" in picture
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")

    equipoise_ablate(*SHORT, "penalty=1,10", "--seeds", "2", "--json", "--out", tmp_path)
    assert json.loads(capsys.readouterr().out) == content
    assert (tmp_path / "results.jsonl").read_bytes() == before, "nothing is run twice, and a run is the same elsewhere"
    assert (tmp_path / "ablation.svg").read_bytes() == picture

    words = [*SHORT, "penalty=1,10", "smoothing=0.1,1", "--seeds", "2", "--scaled-rate", "--preset", "recipe"]
    equipoise_ablate(*words, "--out", tmp_path)
    made = re.search("Made by `(.*?)`", (tmp_path / "ablation.svg").read_text("utf-8"))
    assert made is not None
    options = "--data generated --preset recipe --method mimo --scaled-rate --seeds 2"
    assert made[1] == f"equipoise ablate {options} epochs=1 features=8 penalty=1,10 smoothing=0.1,1"
    assert (tmp_path / "results.jsonl").read_bytes().startswith(before), "rows are only ever added"
    labels = [each["label"] for each in Store(tmp_path).rows()[4:]]
    # The rate of the recipe, 0.002, divided by 1 + penalty.
    assert sorted(labels) == sorted(2 * ["smoothing=1", "penalty=1 lr=0.001", "lr=0.000181818"])
    printed = capsys.readouterr()
    assert "Over penalty, learning rate / (1 + λ):" in printed.out
    assert "6/6 " in printed.err


@pytest.mark.slow
def test_divergence_is_an_answer_and_other_failures_are_not(
    equipoise_ablate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    equipoise_ablate(*SHORT, "lr=0.01,1e30", "--method", "ew", "--seeds", "1", "--out", tmp_path)
    assert "1 of 1 runs failed" in capsys.readouterr().out
    with pytest.raises(FailedRuns, match="NaN or infinite"):
        equipoise_ablate(*SHORT, "lr=1e29,1e30", "--method", "ew", "--seeds", "1", "--out", tmp_path)

    def broken(jobs: Any, *_: Any, on_event: Any, **__: Any) -> None:
        on_event("failed", jobs[1], {"reason": "the process of the run ended without a message"})
        raise FailedRuns("lost")

    monkeypatch.setattr("equipoise.study.study.run_study", broken)
    with pytest.raises(FailedRuns, match="ended without a message"):
        equipoise_ablate(*SHORT, "lr=0.01,0.1", "--method", "ew", "--seeds", "1", "--out", tmp_path)


def test_all_that_is_wrong_is_said_at_once(equipoise_ablate: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as found:
        equipoise_ablate("--data", "wach", "--method", "mino", "--on", "slurp", "--out", tmp_path / "none")
    assert "--on slurp: expected ray" in str(found.value)
    assert "wach" in str(found.value)
    assert "mino" in str(found.value)
    assert not (tmp_path / "none").exists()


def test_help_shows_an_example(equipoise_ablate: Any, capsys: pytest.CaptureFixture[str]) -> None:
    equipoise_ablate("--help")
    assert "Example: equipoise ablate" in capsys.readouterr().out
