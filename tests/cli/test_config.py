"""`--config`: a file says what could be typed, what is typed wins, and everything wrong in it is said at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli import main as cli
from equipoise.study import compare as comparison


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command would run: its options and lines. Nothing is trained."""
    monkeypatch.chdir(tmp_path)

    def ask(text: str, *words: str, command: str = "compare") -> Any:
        Path("study.yaml").write_text(text, encoding="utf-8")
        caught: list[Any] = []

        def catch(studies: Any, seeds: Any, out: Path, **options: Any) -> list[Any]:
            ((source, chosen),) = studies
            lines = [(entry.label, entry.params, entry.settings) for entry in chosen]
            assert options.pop("command").startswith(f"equipoise {command}")  # what was typed, and no setting
            caught.append((lines, source.name, list(seeds), out, options))
            return [{}]

        monkeypatch.setattr(comparison, "compare_each", catch)
        config = ["--config", "study.yaml"] if text else []
        monkeypatch.setattr(sys, "argv", ["equipoise", command, *config, *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return caught[0] if ended.value.code == 0 else said.err

    return ask


PAIRS = {
    "nothing": ("seeds: 3", ""),
    "options": ("seeds: 2\nout: there\nworkers: 1", "--seeds 2 --out there --workers 1"),
    "flags": ("folds: true\nquick: false", "--folds"),
    "folds": ("folds: 5", "--folds 5"),
    "lists": ("methods: [msl, ew]", "--methods msl,ew"),
    "settings": ("epochs: 3\nlr: 1e-3\nweight_decay: 0\nclip: none", "epochs=3 lr=1e-3 weight_decay=0 clip=none"),
    "truths": ("compile: false\ndeterministic: yes", "compile=false deterministic=yes"),
    "below a name": (
        "methods: mimo\nmimo:\n  penalty: 5\n  smoothing: 0.5\nrun: {epochs: 2}",
        "--methods mimo mimo.penalty=5 mimo.smoothing=0.5 run.epochs=2",
    ),
    "bare": ("methods: mimo\npenalty: 5", "--methods mimo penalty=5"),
}


@pytest.mark.parametrize(("text", "typed"), PAIRS.values(), ids=PAIRS)
def test_a_file_says_what_could_be_typed(text: str, typed: str, asked: Any) -> None:
    from_file = asked(f"data: generated\n{text}")
    assert not isinstance(from_file, str), from_file
    assert from_file == asked("", "--data", "generated", *typed.split())
    assert (from_file == asked("", "--data", "generated")) == (typed == "")


def test_what_is_typed_wins(asked: Any) -> None:
    text = "data: generated\nseeds: 2\nmethods: mimo\nepochs: 3\nbatch: 16\nmimo: {penalty: 5}"
    lines, _, seeds, *_ = asked(text, "--seeds", "1", "epochs=4", "penalty=6")
    (_, params, settings) = lines[0]
    assert (seeds, settings.epochs, settings.batch, params["penalty"]) == ([0], 4, 16, 6.0)
    lines, *_ = asked(text, "run.epochs=5", "--methods", "mimo,msl")
    assert [(label, settings.epochs) for label, _, settings in lines] == [("mimo", 5), ("msl", 5)]


def test_train_and_diagnose_have_it_too(asked: Any) -> None:
    lines, _, seeds, *_ = asked("data: generated\nmethod: ew\nseed: 7\nweight: 2\nstep: given", command="train")
    assert ([label for label, *_ in lines], lines[0][1]["weight"], seeds) == (["ew"], 2.0, [7])
    assert "unknown key 'methods'; did you mean 'method'?" in asked("methods: ew", command="train")
    assert "unknown key 'method'" in asked("method: ew", command="diagnose")


def test_a_word_that_yaml_would_take_for_a_truth_is_an_option(asked: Any) -> None:
    assert "nowhere" in asked("data: generated\non: nowhere")


def test_what_varies_is_read_by_the_command_itself(asked: Any) -> None:
    assert "lr should be a number, found 'fast'" in asked("data: generated\nlr: [0.1, fast]", command="ablate")
    # The range is understood: nothing but the place is wrong.
    told = asked("data: generated\nlr: 0.001..0.1:log\ntrials: 2\non: nowhere", command="tune")
    assert "nowhere" in told
    assert "lr" not in told.replace("nowhere", "")


def test_everything_wrong_is_said_at_once_with_its_line(asked: Any) -> None:
    told = asked(
        "metods: [msl]\nseeds: many\nepocs: 3\nlr: fast\nquick: perhaps\nepochs: 1\nepochs: 2\n"
        "mimo: {penalty: much, penaltie: 3, deep: {er: 1}}\nconfig: other.yaml\nas_json: true"
    )
    expected = [
        (1, "unknown key 'metods'; did you mean 'methods'?"),
        (2, "seeds: "),
        (3, "unknown key 'epocs'; did you mean 'epochs'?"),
        (4, "lr should be a number, found 'fast'"),
        (5, "quick: "),
        (7, "epochs: it is there twice"),
        (8, "mimo.penalty should be a number, found 'much'"),
        (8, "unknown key 'mimo.penaltie'; did you mean 'mimo.penalty'?"),
        (8, "mimo.deep: expected a value, a list of values, or the parameters of a method"),
        (9, "unknown key 'config'"),
        (10, "unknown key 'as_json'"),
    ]
    lines = told.removeprefix("equipoise: ").splitlines()
    assert len(lines) == len(expected), told
    for line, (number, text) in zip(lines, expected, strict=True):
        assert line.startswith(f"study.yaml, line {number}: {text}"), line
    assert "found 'many'" in lines[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- msl\n- ew", "expected lines such as `epochs: 30`, found a sequence"),
        ("epochs", "expected lines such as `epochs: 30`, found a scalar"),
        ("methods: [msl", "this is no YAML"),
        ("seeds: &seeds [*seeds]", "seeds: expected a value, a list of values"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, expected: str, asked: Any) -> None:
    assert expected in asked(text)


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 30_000, "found lists in each other, very deep"),
        ("a: {" * 8_000, "found lists in each other, very deep"),
        (LAUGHS, "a39: expected a value, a list of values"),
        (LAUGHS.replace("a", "? a", 1) + "? [*a39, *a39]\n: 1\n", "a sequence: expected a name before the colon"),
        ("? &a [*a]\n: 1", "a sequence: expected a name before the colon"),
        ("epochs: 3\n" + "#" * 65_536, "expected a YAML file of at most 65,536 bytes, found more"),
    ],
    ids=["lists", "mappings", "laughs", "laughs as a key", "a key that holds itself", "long"],
)
def test_malice_ends_with_a_message(text: str, expected: str, asked: Any) -> None:
    assert expected in asked(text)


def test_what_is_no_file_is_refused_unread(asked: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("/dev/zero", "pipe", "zeros", "."):
        assert f"--config {name}: expected a YAML file, found a folder, a pipe or a device" in asked(
            "", "--config", name
        )
    assert "--config circle: expected a YAML file; " in asked("", "--config", "circle")


def test_words_in_another_encoding_are_refused(asked: Any) -> None:
    for words in (["--data", "caf\udce9.npz"], ["--config", "\udcff"], ["--data", "generated", "--out", "\udce9"]):
        told = asked("", *words)
        assert told == f"equipoise: expected words in UTF-8, found {words[-1]!a}; rename the file or folder\n"


def test_a_file_that_is_not_there_is_refused(asked: Any) -> None:
    assert "--config none.yaml: expected a YAML file" in asked("", "--config", "none.yaml")
