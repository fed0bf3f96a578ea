"""Methods of a user's own by dotted path: compared, tuned, sent elsewhere, and every mistake answered."""

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ended import Ended
from equipoise.data.source import all_data
from equipoise.deploy import load_saved_model
from equipoise.paper.bench import chosen_methods
from equipoise.study.job import Job
from equipoise.study.registry import entries, method_of
from equipoise.study.store import Store
from equipoise.study.tuning import search_of
from equipoise.util.errors import BadInput
from equipoise.util.named import fingerprint, imported, is_path

Command = Callable[..., Ended]
GAP = '''
from typing import Annotated

import torch
from equipoise import Coefficients, Losses, Needs, Weighting
from equipoise.util.annotated import Tried


class Gap(Weighting):
    """Weigh each uni-modal loss by how far it lies above the smallest."""

    needs = Needs(encoders=False)

    def __init__(self, strength: Annotated[float, Tried(0.5, 2.0)] = 1.0, offset=1.0, names: tuple = ()):
        super().__init__()
        if strength < 0:
            raise LookupError("strength should be zero or more")
        self.strength, self.offset = strength, offset

    def weigh(self, losses: Losses) -> Coefficients:
        behind = losses.unimodal - losses.unimodal.min()
        return Coefficients.shared(torch.cat([torch.ones_like(behind[:1]), self.offset + self.strength * behind]))


class Mimo(Gap):
    """Has the name of a method of the package."""


class FromZero(Gap):
    def __init__(self, strength: Annotated[float, Tried(0.0, 1.5)] = 1.0):
        super().__init__(strength)


class Unresolved(Gap):
    def __init__(self, strength: "Annotated[float, NotThere]" = 1.0):
        super().__init__(strength)


class Wanting(Gap):
    def __init__(self, strength: float, *more: float, **most: float):
        super().__init__(strength)


class Nothing: ...


def function() -> None: ...
'''
QUICK = ("--data", "generated", "--seeds", "1", "--quick", "--json", "epochs=1", "features=4", "device=cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with files of the user's own, which Python forgets afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    files = {"own_gap.py": GAP, "own_broken.py": "import no_such_library", "own_wrong.py": "1 +"}
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    yield tmp_path
    for name in files:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_words_set_the_parameters_of_a_class_of_ones_own() -> None:
    for word in ("strength=2", "gap.strength=2", "Gap.strength=2", "own_gap.Gap.strength=2"):
        msl, gap = entries(["msl", "own_gap.Gap"], [word, "epochs=3"])
        assert (gap.label, gap.method.name) == ("own_gap.Gap", "own_gap.Gap")
        assert gap.params == {"strength": 2.0, "offset": 1.0}, "a tuple is no word; a default tells a type"
        assert gap.balancer().strength == 2.0
        assert (msl.params, gap.settings.epochs) == ({}, 3)


def test_a_class_of_the_same_name_as_a_method_is_told_apart() -> None:
    mimo, own = entries(["mimo", "own_gap.Mimo"], ["mimo.penalty=3", "own_gap.Mimo.strength=4", "offset=2"])
    assert (mimo.params["penalty"], own.params) == (3.0, {"strength": 4.0, "offset": 2.0})
    Path("own_other.py").write_text("from own_gap import Gap", encoding="utf-8")
    with pytest.raises(BadInput, match=r"type own_gap\.Gap\.strength=2 or own_other\.Gap\.strength=2"):
        entries(["own_gap.Gap", "own_other.Gap"], ["gap.strength=2"])
    assert not sys.modules.pop("own_other").__name__.startswith("own_gap")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mimmo", "did you mean 'mimo'? (or a class of your own by dotted path: my_file.Gap)"),
        ("own_gap.Gapp", "has no attribute 'Gapp'; did you mean own_gap.Gap?"),
        ("own_gap.Nothing", "expected a subclass of equipoise.Balancer, found the class Nothing"),
        ("own_gap.function", "expected a subclass of equipoise.Balancer, found something of type function"),
        ("own_gap.Weighting", "expected a class that answers `weigh` or `mix`, found an abstract one"),
        (
            "own_gap.Wanting",
            "expected parameters with defaults, such as strength: float = 1.0, found none for strength",
        ),
        ("own_gone.Gap", "No module named 'own_gone': looked in "),
        ("own_gone.deeper.Gap", "No module named 'own_gone': looked in "),
        ("own_broken.Gap", "importing own_broken failed: No module named 'no_such_library'"),
        ("own_wrong.Gap", "importing own_wrong failed: SyntaxError: "),
        ("own_gap.py", "expected the class behind the name of its file, such as own_gap.Gap"),
        ("./own_gap.Gap", "or a class of your own by dotted path"),
    ],
)
def test_a_mistake_gets_one_message(name: str, message: str) -> None:
    with pytest.raises(BadInput) as found:
        method_of(name)
    assert message in str(found.value)
    with pytest.raises(BadInput) as found:
        chosen_methods(name)
    assert message in str(found.value)


def test_what_a_constructor_raises_is_told() -> None:
    with pytest.raises(BadInput, match=r"'own_gap\.Gap' cannot be made: LookupError: strength should be zero or more"):
        entries(["own_gap.Gap"], ["strength=-1"])


def test_it_is_compared_and_its_model_is_read_again_without_its_code(equipoise: Command, folder: Path) -> None:
    ended = equipoise("compare", "--methods", "msl,own_gap.Gap", "--out", folder / "out", *QUICK, "gap.strength=2")
    assert (ended.code, ended.err) == (0, "")
    msl, row = json.loads(ended.out)
    assert (row["method"], row["label"], row["params"]) == (
        "own_gap.Gap",
        "own_gap.Gap",
        {"strength": 2.0, "offset": 1.0},
    )
    assert (row["code"], "code" in msl) == ({"own_gap.Gap": fingerprint("own_gap.Gap")}, False)
    (folder / "own_gap.py").unlink()
    del sys.modules["own_gap"]
    kept = load_saved_model(Store(folder / "out").run_folder(row["config"]))
    assert kept.row["method"] == "own_gap.Gap"
    assert "own_gap" not in sys.modules, "no code runs because a file names it"


def test_a_file_that_was_changed_is_run_again_and_is_another_line(equipoise: Command, folder: Path) -> None:
    command = ("compare", "--methods", "own_gap.Gap", "--out", folder / "out", *QUICK)
    (first,) = json.loads(equipoise(*command).out)
    assert json.loads(equipoise(*command).out) == [first]
    (folder / "own_gap.py").write_text(GAP.replace("strength * behind", "strength * behind ** 2"), encoding="utf-8")
    assert json.loads(equipoise(*command).out) == [first], "what is loaded is what runs"
    del sys.modules["own_gap"]
    (second,) = json.loads(equipoise(*command).out)
    assert first["config"] != second["config"]
    table = equipoise("report", folder / "out", "--format", "csv").out
    assert sum(line.startswith("own_gap.Gap (code=") for line in table.splitlines()) == 2


def test_a_configuration_may_name_it(equipoise: Command, folder: Path) -> None:
    lines = "methods: own_gap.Gap\ngap.strength: 3\nown_gap.Gap:\n  offset: 2\n"
    (folder / "study.yaml").write_text(lines, encoding="utf-8")
    ended = equipoise("compare", "--config", "study.yaml", "--out", folder / "out", *QUICK)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)[0]["params"] == {"strength": 3.0, "offset": 2.0}
    (folder / "study.yaml").write_text("methods: own_gap.Gap\nstrenth: 3\n", encoding="utf-8")
    ended = equipoise("compare", "--config", "study.yaml", "--out", folder / "out", *QUICK)
    assert ended.code == 2
    assert "unknown setting 'strenth'; did you mean 'gap.strength'?" in ended.err


def test_values_that_span_no_range_are_tried_as_they_are() -> None:
    assert str(search_of("own_gap.FromZero", []).space["own_gap.FromZero.strength"]) == "0,1.5"  # no logarithms


def test_annotations_that_do_not_resolve_do_no_harm() -> None:
    (entry,) = entries(["own_gap.Unresolved"], ["strength=2"])
    assert (entry.params, entry.method.tried) == ({"strength": 2.0}, {})


def test_it_is_tuned_swept_and_timed(equipoise: Command, folder: Path) -> None:
    assert str(search_of("own_gap.Gap", []).space["own_gap.Gap.strength"]) == "0.5..2:log"
    assert list(chosen_methods("own_gap.Gap")) == ["msl", "own_gap.Gap"]
    words = ("--data", "generated", "--seeds", "1", "--json", "epochs=1", "features=4", "device=cpu")
    ended = equipoise("ablate", "--method", "own_gap.Gap", "--out", folder / "out", *words)
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in (folder / "out" / "results.jsonl").read_text().splitlines()]
    assert {row["params"]["strength"] for row in rows} == {0.5, 2.0}


def test_it_travels_and_says_where_it_cannot_be_found(folder: Path) -> None:
    (entry,) = entries(["own_gap.Gap"], ["strength=2"])
    sent = pickle.dumps(entry)
    assert pickle.loads(sent) == entry
    (folder / "own_gap.py").unlink()
    del sys.modules["own_gap"]
    there = pickle.loads(sent)
    with pytest.raises(BadInput, match=r"'own_gap\.Gap': No module named 'own_gap'.*set PYTHONPATH there"):
        there.balancer()
    job = Job(there, all_data()["generated"], None, 0, "sha256:0")
    with pytest.raises(BadInput, match="No module named 'own_gap'"):
        job.facts()


def test_a_file_here_takes_no_library_s_place(folder: Path) -> None:
    (folder / "wave.py").write_text("Gap = None", encoding="utf-8")
    with pytest.raises(BadInput, match=r"wave \(.*wave\.py\) has no attribute 'Gap'"):
        imported("wave.Gap")
    assert imported("own_gap.Gap").__name__ == "Gap"
    assert sys.path[-1] == str(folder)


def test_paths() -> None:
    assert [is_path(text) for text in ("a.b", "a.b.c", "a", "", ".", "a.", ".b", "a b.c", "../a.b", "a.1")] == [
        *[True] * 2,
        *[False] * 8,
    ]
    assert fingerprint("torch.nn.Linear") == fingerprint("torch.nn.Conv1d") != ""
    assert torch.nn.Linear is imported("torch.nn.Linear")


def test_the_version_is_printed(equipoise: Command) -> None:
    assert equipoise("--version") == equipoise("version")
    assert equipoise("--version").code == 0
