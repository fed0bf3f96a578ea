"""Lists of publishers, everything wrong said at once; and parts drawn by name: the same for ever, in stated shares."""

import hashlib
import random
from pathlib import Path

import pytest

from equipoise.data.prepare.original import Problems, find_list, part_by_hash, read_list

THREE = {"train": 0.8, "validation": 0.1, "test": 0.1}


def test_the_point_is_the_first_64_bits_of_sha256() -> None:
    for key in map(str, range(200)):
        point = int(hashlib.sha256(f"salt/{key}".encode()).hexdigest()[:16], 16) / 16**16
        expected = "train" if point < 0.8 else "validation" if point < 0.9 else "test"
        assert part_by_hash(key, THREE, "salt") == expected


@pytest.mark.parametrize("seed", range(5))
def test_parts_get_their_shares(seed: int) -> None:
    draw = random.Random(seed)
    weights = [draw.random() for _ in range(draw.randint(1, 5))]
    shares = {str(number): weight / sum(weights) for number, weight in enumerate(weights)}
    found = [part_by_hash(f"{seed} {key}", shares) for key in range(4_000)]
    for part, share in shares.items():
        assert abs(found.count(part) / 4_000 - share) < 5 * (share * (1 - share) / 4_000) ** 0.5 + 1e-9


def test_two_cuts_of_the_same_keys_are_independent() -> None:
    halves = {"a": 0.5, "b": 0.5}
    same = sum(part_by_hash(str(key), halves, "one") == part_by_hash(str(key), halves, "other") for key in range(4_000))
    assert abs(same / 4_000 - 0.5) < 0.05


def test_a_part_without_a_share_stays_empty() -> None:
    assert {part_by_hash(str(key), {"none": 0.0, "all": 1.0, "nothing": 0.0}) for key in range(500)} == {"all"}


@pytest.mark.parametrize("shares", [{}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": float("nan")}])
def test_shares_that_are_none_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        part_by_hash("key", shares)


def test_rows_survive_a_byte_order_mark_quotes_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b'\xef\xbb\xbfone,1,"a, b"\r\n\r\n two ,2,c\r\n')
    problems = Problems()
    assert read_list(path, 3, problems) == [["one", "1", "a, b"], ["two", "2", "c"]]
    assert problems == []


@pytest.mark.parametrize("content", [b"\xff\xfe\x00x", b"a\x00b,c\n" * 3, b'"never closed,1\n'])
def test_what_is_no_list_is_a_problem_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(content)
    problems = Problems()
    read_list(path, 2, problems)
    assert problems == [] or str(path) in problems[0]
    assert problems or b"\x00" in content  # since Python 3.11 a zero byte is a character like others


def test_short_rows_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("a,1\nb\nc,3\n" + "d\n" * 9)
    problems = Problems()
    assert read_list(path, 2, problems) == [["a", "1"], ["c", "3"]]
    assert "expected 2 columns, found row 2: 'b'" in problems[0]
    assert "and 5 more" in problems[0]


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_rows_or_a_problem(tmp_path: Path, seed: int) -> None:
    path, draw = tmp_path / "list.csv", random.Random(seed)
    for _ in range(50):
        path.write_bytes(draw.randbytes(draw.randrange(1, 200)))
        problems = Problems()
        assert all(len(row) >= 2 for row in read_list(path, 2, problems))
        assert all(str(path) in problem for problem in problems)


def test_a_list_is_found_in_the_folder_or_below(tmp_path: Path) -> None:
    assert find_list(tmp_path, "list.txt", ["sub"]) is None
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/list.txt").touch()
    assert find_list(tmp_path, "list.txt", ["sub"]) == tmp_path / "sub/list.txt"
