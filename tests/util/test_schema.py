"""Files of JSON that may hold anything."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from equipoise.util.errors import BadInput
from equipoise.util.schema import LARGEST, SHOWN, TEXT, every, one_of, or_null, read_json, record, whole
from mutated_json import mutated_json

CHECK = record({"name": TEXT, "sizes": every(whole(1, 9), list, 2, 3)}, {"kind": or_null(one_of("a", "b"))})
FINE = {"name": "x", "sizes": [1, 9], "kind": "a", "more": {"": [None]}}


def read(folder: Path, content: bytes | str, **how: Any) -> Any:
    (folder / "a.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_json(folder, "a.json", CHECK, "a thing", **how)


def test_what_fits_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps(FINE)) == FINE
    assert read(tmp_path, '{"name": "x", "sizes": [1, 2, 3], "kind": null}')["sizes"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "damage: Expecting value"),
        ("[" * 200_000, "damage: maximum recursion depth exceeded"),
        ("1" * 5_000, "damage: Exceeds the limit"),
        ("null", "the file: expected an object, found None"),
        ("[]", "the file: expected an object, found []"),
        ('{"name": NaN, "sizes": [1, 2]}', "damage: NaN is no number"),
        (
            '{"name": 3, "sizes": [1]}',
            "name: expected a text, found 3; sizes: expected a list of at least 2, found [1]",
        ),
        ('{"name": "x", "sizes": [1, true]}', "sizes[1]: expected a whole number from 1 to 9, found True"),
        ('{"name": "x", "sizes": [1, 1e400]}', "sizes[1]: expected a whole number from 1 to 9, found inf"),
        ('{"name": "x", "sizes": [1, 2], "kind": []}', "kind: expected one of a, b, found []"),
        (b"{\xff", "damage: 'utf-"),
        (b"1" * (LARGEST + 1), f"damage: expected at most {LARGEST:,} bytes, found more"),
    ],
)
def test_anything_else_is_one_message(content: bytes | str, found: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        read(tmp_path, content, advice="Make one")
    message = str(refused.value)
    assert message.startswith(f"{tmp_path}/a.json: expected a thing, found {found}")
    assert message.endswith(". Make one")
    assert len(message) < 500


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"a\.json: expected a thing, found no such file"):
        read_json(tmp_path, "a.json", CHECK, "a thing")
    (tmp_path / "a.json").mkdir()
    with pytest.raises(BadInput, match=r"a\.json: expected a thing, found damage: .*directory"):
        read_json(tmp_path, "a.json", CHECK, "a thing")
    (tmp_path / "b.json").symlink_to("/dev/zero")
    with pytest.raises(BadInput, match="found a link"):
        read_json(tmp_path, "b.json", CHECK, "a thing")


def test_of_a_million_problems_some_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([0] * 10**6))
    with pytest.raises(BadInput) as refused:
        read_json(tmp_path, "a.json", every(whole(1), list), "a thing")
    assert str(refused.value).count("expected a whole number") == SHOWN
    assert str(refused.value).endswith("; and more")


def test_a_file_that_fits_has_what_was_asked_for(tmp_path: Path) -> None:
    """Whatever is changed in a file: it is refused, or every field that was asked for is as it should be."""
    draw, counts = random.Random(0), {True: 0, False: 0}
    for _ in range(500):
        try:
            content = read(tmp_path, mutated_json(FINE, draw))
        except BadInput:
            counts[False] += 1
            continue
        counts[True] += 1
        assert isinstance(content["name"], str)
        assert all(type(size) is int and 1 <= size <= 9 for size in content["sizes"])
        assert 2 <= len(content["sizes"]) <= 3
        assert content.get("kind") in ("a", "b", None)
    assert min(counts.values()) > 50
