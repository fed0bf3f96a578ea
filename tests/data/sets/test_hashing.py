"""Cuts by name: the same for ever, whatever else there is, in the stated shares."""

import hashlib
import random

import pytest

from equipoise.data.sets.lists import part_by_hash

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
