"""Reading what was prepared: everything wrong is said at once, and every clip is in the part it belongs to."""

import csv
import hashlib
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.prepare.original import Clip, InMemory, Protocol
from equipoise.data.prepare.prepare import check_listing, prepare
from equipoise.data.prepare.prepared import FOLDS, Prepared, fingerprint_of, fold_of
from equipoise.data.views import TimeLast
from equipoise.util.errors import BadInput
from made_up import MadeUp, arrays_of, make_source
from mutated_json import mutated_json

PARTS = ("train", "validation", "test")
SKIPPED = (0, 7, 12, 29)  # the first of family 0 among them


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("prepared")
    source = make_source(folder / "source", 60, happening={f"c{number}": "broken" for number in SKIPPED})
    return prepare(MadeUp(), source, folder / "out", workers=2)


@pytest.fixture
def copied(whole: Prepared, tmp_path: Path) -> Path:
    """A copy to damage."""
    for path in whole.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def numbers(prepared: Prepared, rows: torch.Tensor | None) -> list[int]:
    """Which clips some rows are."""
    assert rows is not None
    return [int(prepared.index[row]["id"][1:]) for row in rows.tolist()]


# -- splits --


def test_every_clip_is_in_the_part_its_protocol_says(whole: Prepared) -> None:
    here = [number for number in range(60) if number not in SKIPPED]
    expected = {
        "official": {part: [n for n in here if n // 3 % 3 == code] for code, part in enumerate(PARTS)},
        "families": {part: [n for n in here if n % 7 % 3 == code] for code, part in enumerate(PARTS)},
        "published": {
            "train": [n for n in here if n % 4 in (1, 2)],
            "validation": [n for n in here if n % 4 == 3],  # nothing else to choose on, as published
            "test": [n for n in here if n % 4 == 3],
        },
    }
    for protocol, parts in expected.items():
        splits = whole.splits(protocol).check()
        assert splits.protocol == protocol
        for name, part in splits.parts.items():
            assert numbers(whole, part.rows) == parts[name]
            assert part.label.tolist() == [number % 3 for number in parts[name]]
            groups = None if part.group is None else part.group.tolist()
            assert groups == ([number % 7 for number in parts[name]] if protocol == "families" else None)
    assert whole.splits().protocol == "official"


@pytest.mark.parametrize("protocol", ["official", "published", "families"])
def test_what_is_taken_is_what_the_clip_holds(whole: Prepared, protocol: str) -> None:
    for part in whole.splits(protocol).parts.values():
        taken = part.take(torch.arange(len(part)))
        for row, number in enumerate(numbers(whole, part.rows)):
            expected = arrays_of(f"c{number}", MadeUp())
            steps = int(taken.inputs["film_length"][row])
            assert np.array_equal(taken.inputs["tone"][row].numpy(), expected["tone"])
            assert np.array_equal(taken.inputs["film"][row, :steps].numpy(), expected["film"])
        assert part.views == {"film": TimeLast()}


def test_parts_share_one_map(whole: Prepared) -> None:
    splits = whole.splits()
    places = {part.inputs["tone"].data_ptr() for part in splits.parts.values()}
    assert len(places) == 1
    assert splits.train.inputs["tone"].shape == (56, 2, 3)
    assert splits.modalities == ("tone", "film")


@pytest.mark.parametrize("fold", range(FOLDS))
def test_folds_share_no_group(whole: Prepared, fold: int) -> None:
    splits = whole.splits(fold=fold)
    assert splits.protocol == "families"
    families = {name: {number % 7 for number in numbers(whole, part.rows)} for name, part in splits.parts.items()}
    assert sum(map(len, families.values())) == len(set.union(*families.values())) == 7
    expected = {"test": fold, "validation": (fold + 1) % 5}
    for name, found in families.items():
        for family in found:
            digest = hashlib.sha256(f"family {family}".encode()).hexdigest()[:16]
            assert int(digest, 16) % 5 in (
                {expected[name]} if name in expected else set(range(5)) - {*expected.values()}
            )
    tested = [number for each in range(FOLDS) for number in numbers(whole, whole.splits(fold=each).test.rows)]
    assert sorted(tested) == [number for number in range(60) if number not in SKIPPED]  # each tests once


def test_folds_of_many_groups_are_of_like_size() -> None:
    sizes = np.bincount([fold_of(f"speaker {number}") for number in range(5000)])
    assert len(sizes) == 5
    assert sizes.min() > 900


def test_unknown_protocols_and_folds_are_named(whole: Prepared) -> None:
    with pytest.raises(BadInput, match=r"unknown made-up split 'officail'; did you mean 'official'"):
        whole.splits("officail")
    with pytest.raises(BadInput, match="whose groups may be cut anew, found official; choose families"):
        whole.splits("official", fold=0)
    for fold in (-1, 5):
        with pytest.raises(BadInput, match=f"fold should be one of 0 to 4, found {fold}"):
            whole.splits(fold=fold)
    alone = replace(whole, protocols={"official": Protocol("as listed")})
    fixed = replace(whole, protocols={"families": Protocol("as listed", by_group=True, folds=False)})
    assert (whole.folds, alone.folds, fixed.folds) == (5, 0, 0)
    for other in (alone, fixed):
        with pytest.raises(BadInput, match="whose groups may be cut anew, found none; it has none that does"):
            other.splits(fold=0)


def test_what_is_said_of_the_parts(whole: Prepared) -> None:
    assert whole.splits().about == "as listed; 4 of 60 clips could not be read"
    assert whole.splits(fold=2).about.startswith(
        "fold 2 of 5 by a hash of the group's name, over the clips of: no family"
    )


def test_the_source_is_told_by_every_number(whole: Prepared) -> None:
    assert whole.splits().source == whole.splits("families", fold=3).source == whole.source
    assert replace(whole, fingerprints={**whole.fingerprints, "tone": "sha256:0"}).source != whole.source
    other = replace(whole)
    other.__dict__["index"] = [{**line, "film_length": "1"} for line in whole.index]
    assert other.source != whole.source


def test_another_process_opens_the_same(whole: Prepared) -> None:
    sent = pickle.loads(pickle.dumps(whole))
    assert sent == whole
    for name, part in sent.splits("families").parts.items():
        assert numbers(sent, part.rows) == numbers(whole, whole.splits("families").parts[name].rows)
        assert torch.equal(part.inputs["film"], whole.splits().train.inputs["film"])


def test_writing_to_the_map_changes_no_file(whole: Prepared) -> None:
    before = (whole.folder / "tone.safetensors").read_bytes()
    whole.splits().train.inputs["tone"].zero_()
    assert (whole.folder / "tone.safetensors").read_bytes() == before
    assert whole.splits().train.inputs["tone"].any()


# -- folders that are not what they say --

DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "short": (
        lambda f: os.truncate(f / "tone.safetensors", 5000),
        r"tone.safetensors: expected 5,440 bytes, found 5,000",
    ),
    "long": (
        lambda f: os.truncate(f / "tone.safetensors", 9000),
        r"tone.safetensors: expected 5,440 bytes, found 9,000",
    ),
    "empty": (lambda f: os.truncate(f / "film.safetensors", 0), r"film.*: expected a header .*, found none"),
    "gone": (lambda f: (f / "film.safetensors").unlink(), r"film.safetensors: expected a file, found no such file"),
    "exchanged": (
        lambda f: (f / "film.safetensors").write_bytes((f / "tone.safetensors").read_bytes()),
        r"film.safetensors: expected a header for 56 × \(5, 2\) uint8, found tone \[56, 2, 3\] F32",
    ),
    "no index": (lambda f: (f / "index.csv").unlink(), r"index.csv: expected a file, found none"),
    "edited index": (lambda f: (f / "index.csv").open("a").write("c99\n"), r"index.csv: its content was changed"),
    "edited list": (lambda f: (f / "skipped.csv").write_text("id,reason\n"), r"skipped.csv: its content was changed"),
    "no facts": (lambda f: (f / "prepared.json").unlink(), r"expected a folder that .* made, found no prepared.json"),
    "torn facts": (lambda f: os.truncate(f / "prepared.json", 90), r"prepared.json: expected what .* JSONDecodeError"),
    "bytes": (lambda f: (f / "prepared.json").write_bytes(b"\xff\xfe"), r"expected .* UnicodeDecodeError"),
    "list": (lambda f: (f / "prepared.json").write_text("[]"), r"prepared.json: expected .* TypeError"),
    "few facts": (lambda f: (f / "prepared.json").write_text('{"schema": 1}'), r"prepared.json: expected .* KeyError"),
    "later": (lambda f: (f / "prepared.json").write_text('{"schema": 9}'), r"expected schema 1, found 9; prepare"),
    "strange view": (
        lambda f: (f / "prepared.json").write_text((f / "prepared.json").read_text().replace("TimeLast", "Prism")),
        r"prepared.json: expected .* KeyError: 'Prism'",
    ),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(copied: Path, what: str) -> None:
    Prepared.open(copied)
    damage, message = DAMAGE[what]
    damage(copied)
    with pytest.raises(BadInput, match=message):
        Prepared.open(copied)


def test_all_damage_is_named_at_once(copied: Path) -> None:
    os.truncate(copied / "tone.safetensors", 10)
    (copied / "film.safetensors").unlink()
    (copied / "index.csv").unlink()
    with pytest.raises(BadInput, match=f"{copied} is damaged; to prepare it again, type first: rm -r") as found:
        Prepared.open(copied)
    assert [line.split(":")[0].strip() for line in str(found.value).splitlines()[1:]] == [
        "tone.safetensors",
        "tone.safetensors",
        "film.safetensors",
        "index.csv",
    ]


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere: expected a folder that .* made, found no such folder"):
        Prepared.open(tmp_path / "nowhere")
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(BadInput, match="is not complete: preparing it was stopped; to go on, type the same"):
        Prepared.open(tmp_path)


def test_a_changed_number_is_found_by_reading_all(copied: Path) -> None:
    opened = Prepared.open(str(copied))
    opened.verify()
    content = bytearray((copied / "film.safetensors").read_bytes())
    content[-1] ^= 1
    (copied / "film.safetensors").write_bytes(content)
    with pytest.raises(BadInput, match=r"film.safetensors: its content was changed"):
        Prepared.open(copied).verify()


def test_fingerprints_are_what_sha256sum_says(whole: Prepared) -> None:
    facts = json.loads((whole.folder / "prepared.json").read_text())
    for name in ("tone", "film"):
        digest = hashlib.sha256((whole.folder / f"{name}.safetensors").read_bytes()).hexdigest()
        assert facts["fingerprints"][name] == f"sha256:{digest}"
    assert facts["options"] == {"width": 3, "flavour": "plain"}
    assert (facts["listed"], facts["count"]) == (60, 56)
    assert "numpy" in facts["made_with"]


# -- lists --


def test_a_protocol_without_lists_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = [Clip(f"c{n}", n % 3, f"family {n % 3}", {"families": PARTS[n % 3]}) for n in range(9)]
    arrays = {key: [arrays_of(f"c{n}", MadeUp())[key] for n in range(9)] for key in ("tone", "film")}
    monkeypatch.setattr(MadeUp, "open", lambda *_: InMemory(clips, arrays))
    made = prepare(MadeUp(), tmp_path, tmp_path / "out", workers=1)
    assert list(made.protocols) == ["families"]
    assert made.splits().protocol == "families"
    with pytest.raises(BadInput, match="unknown made-up split 'official'; expected one of families"):
        made.splits("official")
    monkeypatch.setattr(MadeUp, "open", lambda *_: InMemory([replace(clip, parts={}) for clip in clips], arrays))
    with pytest.raises(BadInput, match=r"expected clips in parts under official, .*, found none in any"):
        prepare(MadeUp(), tmp_path, tmp_path / "other", workers=1)


def test_a_group_in_two_parts_and_strange_parts_are_refused() -> None:
    clips = InMemory(
        [
            Clip("a", 0, "Ann", {"families": "train"}),
            Clip("b", 1, "Ann", {"families": "test"}),
            Clip("c", 2, "Bo", {"official": "dev", "families": "train"}),
            Clip("d", 2, "Bo", {"unofficial": "train", "families": "train"}),
        ]
    )
    with pytest.raises(BadInput, match="what the source lists cannot be used") as found:
        check_listing(MadeUp(), clips)
    lines = [line.strip() for line in str(found.value).splitlines()[1:]]
    assert lines == [
        "expected parts under the protocols official, published, families, found others for d",
        "expected the parts train, validation, test, found others for c",
        "families: expected every group in one part, found in several: Ann",
    ]


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    facts = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
    change(facts)
    (folder / "prepared.json").write_text(json.dumps(facts), encoding="utf-8")


ODD_VALUES: list[Any] = [None, True, -1, 10**30, 1.5, "text", [], {}, [None], {"a": None}, "\x1b[31m"]


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_edited_folder_is_refused_or_read_with_a_message(copied: Path, value: Any) -> None:
    """Every value of `prepared.json` replaced, also those below; whatever comes of it, it is no other error."""
    original = (copied / "prepared.json").read_text(encoding="utf-8")
    refused = 0
    for path in [*paths_in(json.loads(original))]:
        (copied / "prepared.json").write_text(original, encoding="utf-8")
        edited(copied, lambda facts, path=path: put(facts, path, value))
        try:
            found = Prepared.open(copied).splits()
            assert len(found.train.label) > 0
        except BadInput:
            refused += 1
    assert refused > 20


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from paths_in(value[key], (*path, key))


def put(content: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("label", "9999"),
        ("label", "-1"),
        ("label", "x"),
        ("group_number", ""),
        ("official", "elsewhere"),
        ("group", None),
    ],
)
def test_an_edited_index_is_refused(copied: Path, column: str, value: str | None) -> None:
    """Also where the fingerprint beside it was made to fit."""
    with (copied / "index.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    if value is None:
        lines = [{key: each for key, each in line.items() if key != column} for line in lines]
    else:
        lines[3][column] = value
    with (copied / "index.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    edited(copied, lambda facts: facts["tables"].update({"index.csv": fingerprint_of(copied / "index.csv")}))
    with pytest.raises(BadInput, match=r"index\.csv: expected what `equipoise prepare` writes, found"):
        Prepared.open(copied).splits()


def test_a_pipe_in_place_of_a_file_is_refused(copied: Path) -> None:
    for name in ("tone.safetensors", "index.csv"):
        (copied / name).unlink()
        os.mkfifo(copied / name)
    with pytest.raises(BadInput, match=r"(?s)tone\.safetensors: expected a file, found .*index\.csv: expected a file"):
        Prepared.open(copied)


def test_deep_facts_are_refused(copied: Path) -> None:
    (copied / "prepared.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(BadInput, match="expected what `equipoise prepare` writes, found RecursionError"):
        Prepared.open(copied)


def test_mutated_folders_are_refused_or_read(whole: Prepared, tmp_path: Path) -> None:
    """Bytes changed, left out, doubled or put in, in any file of a folder; and values of its facts by odd ones."""
    draw, counts = random.Random(0), {True: 0, False: 0}
    files = sorted(path for path in whole.folder.iterdir() if path.is_file())
    facts = json.loads((whole.folder / "prepared.json").read_text(encoding="utf-8"))
    for number in range(int(os.environ.get("EQUIPOISE_CASES", "200"))):
        folder = tmp_path / str(number)
        shutil.copytree(whole.folder, folder)
        if draw.random() < 0.4:
            (folder / "prepared.json").write_bytes(mutated_json(facts, draw))
        else:
            changed = folder / draw.choice(files).name
            content = bytearray(changed.read_bytes())
            place = draw.randrange(len(content)) if draw.random() < 0.5 else draw.randrange(min(300, len(content)))
            what = draw.choice([b"", b"\0", b"\xff" * 8, content[place : place + 20] * 2, b"9" * 400, b'"', b"\r\n"])
            content[place : place + draw.randrange(9)] = what
            changed.write_bytes(content[: draw.randrange(len(content))] if draw.random() < 0.2 else content)
        message = ""
        try:
            splits = Prepared.open(folder).splits().check()
            assert len(splits.train) > 0
        except BadInput as refused:
            message = str(refused)
        counts[not message] += 1
        assert len(message) < 5_000
        shutil.rmtree(folder)
    assert min(counts.values()) >= 5
