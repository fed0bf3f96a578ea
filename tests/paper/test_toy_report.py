"""`equipoise toy`: what it prints, draws and refuses."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from equipoise.cli import toy as command
from equipoise.cli.options import from_words
from equipoise.paper import toy_constrained, toy_report
from equipoise.paper.toy import ToySettings
from equipoise.paper.toy_constrained import ConflictRest
from equipoise.paper.toy_report import draw_all
from equipoise.paper.toy_results import ToyResults, claims, gather
from equipoise.report import drawing
from equipoise.util.errors import BadInput

WORDS = ["samples=60", "inputs=4", "hidden=6", "start=0.05", "lr=0.05", "steps=40", "level=0.5"]
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command(epilog=command.EXAMPLE)(command.toy)


@pytest.fixture
def equipoise_toy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the command in this process."""

    def run(*words: str | Path) -> None:
        monkeypatch.setattr(sys, "argv", ["equipoise toy", *map(str, words)])
        app(standalone_mode=False)

    return run


@pytest.fixture(scope="module")
def results() -> ToyResults:
    return gather(from_words("toy", ToySettings, WORDS), [0], theory=False)


def looks_right(folder: Path, names: list[str]) -> None:
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        picture = (folder / f"{name}.svg").read_text(encoding="utf-8")
        assert "</svg>" in picture
        assert "Made by" in picture, "the caption says how it was made"


@pytest.mark.slow
def test_json_and_nothing_else(equipoise_toy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    equipoise_toy(*WORDS, "--seeds", "1", "--quick", "--json", "--out", tmp_path)
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out, parse_constant=pytest.fail)
    assert found["recipe"]["samples"] == 60
    assert [seed["seed"] for seed in found["seeds"]] == [0]
    assert "theory" not in found
    assert found == json.loads((tmp_path / "toy.json").read_text(encoding="utf-8"))
    assert sorted(Path(path).name for path in found["figures"]) == [
        "toy-runs.png",
        "toy-runs.svg",
        "toy.png",
        "toy.svg",
    ]
    looks_right(tmp_path, ["toy", "toy-runs"])


@pytest.mark.slow
def test_all_of_it_in_words_and_primal_dual_comes_to_rest_at_newtons_solution(
    equipoise_toy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[ConflictRest] = []
    measured = toy_constrained.beside_newton

    def noting(*given: Any) -> ConflictRest:
        rests.append(measured(*given))
        return rests[-1]

    monkeypatch.setattr(toy_constrained, "beside_newton", noting)
    equipoise_toy(*WORDS, "--seeds", "1", "--out", tmp_path)
    assert tuple(rest.tolerance for rest in rests) == toy_constrained.TOLERANCES
    for rest in rests:
        assert rest.apart < 0.02
        assert rest.found.stationary < 1e-2
        assert rest.found.slack < 1e-3
        assert rest.found.fused == pytest.approx(rest.fused, rel=1e-2)
    printed = capsys.readouterr()
    assert printed.err.startswith("toy: training each way\n")
    for part in ("MIMO, f* exact", "autograd / printed", "lexicographic", "Theorem 2", "Proposition 2", str(tmp_path)):
        assert part in printed.out
    looks_right(tmp_path, ["toy", "toy-runs", "toy-theory"])
    found = json.loads((tmp_path / "toy.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert len(found["theory"]["proposition 2"]) == 100
    assert len(found["theory"]["theorem 2"]["bound"]) == 40


@pytest.mark.slow
def test_a_figure_drawn_again_is_the_same_file(results: ToyResults, tmp_path: Path) -> None:
    first, second = (draw_all(results, tmp_path / name, "Made by hand.") for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with drawing.style():
        assert dict(mpl.rcParams) != before
    assert dict(mpl.rcParams) == before


def test_without_matplotlib_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[plot\]'"), drawing.style():
        pass


def test_the_report_tells_the_same_in_words_and_in_numbers(results: ToyResults) -> None:
    text, content = toy_report.text(results), toy_report.as_dict(results)
    for claim in content["claims"]:
        assert claim["where"] in text
    assert text.count("\nagrees ") + text.count("\ndiffers ") == len(content["claims"])
    assert f"joint training          {content['seeds'][0]['steps']['joint']}" in text


def test_a_claim_that_does_not_hold_is_said_to_differ(results: ToyResults) -> None:
    slower = [seed._replace(steps={**seed.steps, "mimo-exact": 10**6}) for seed in results.seeds]
    never = [seed._replace(steps=dict.fromkeys(seed.steps, None)) for seed in results.seeds]
    for seeds in (slower, never):
        changed = results._replace(seeds=seeds)
        (faster,) = [claim for claim in claims(changed) if "with exact f*" in claim.says]
        assert faster.verdict == "differs"
        assert "differs  Figure 1: MIMO converges faster" in toy_report.text(changed)
    assert "never" in toy_report.text(changed)


def test_words_become_settings() -> None:
    found = from_words(
        "toy", ToySettings, ["scales=5,0.5,1", "coefficients=0.001,1,0.3", "label=mean", "penalty=3", "level=0.001"]
    )
    assert found == ToySettings(
        scales=(5.0, 0.5, 1.0), coefficients=(0.001, 1.0, 0.3), label="mean", penalty=3.0, level=0.001
    )
    assert found.names == ("m1", "m2", "m3")
    assert from_words("toy", ToySettings, []) == ToySettings()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["sampels=3"], ["unknown option of toy 'sampels'; did you mean 'samples'?"]),
        (["samples"], ["'samples' should read name=value"]),
        (
            ["samples=many", "label=total", "lr=x"],
            ["samples should be a whole number", "label should be", "lr should be"],
        ),
        (["scales=5,y"], ["scales should be a number, found 'y'"]),
        (["scales=5,1,1"], ["coefficients should be as many as scales (3), found (0.001, 1.0)"]),
        (["label=mean"], ["level should be below the loss at the start, about 0.005, such as level=0.0004"]),
        (["samples=10", "penalty=0"], ["samples should be more than inputs (50), found 10", "penalty should be above"]),
    ],
)
def test_bad_words_get_one_message(words: list[str], parts: list[str]) -> None:
    with pytest.raises(BadInput) as found:
        from_words("toy", ToySettings, words, "samples=700")
    for part in parts:
        assert part in str(found.value)


def test_help_shows_an_example(equipoise_toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    equipoise_toy("--help")
    assert "Example: equipoise toy" in capsys.readouterr().out
