"""Files of rows: what is written in any order is read as it was, by us and by others."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from equipoise.data.prepare.original import Field
from equipoise.data.prepare.prepared import START, file_bytes, header, mapped, problems_of
from equipoise.data.prepare.writer import RowFile


@pytest.mark.parametrize("seed", range(12))
def test_rows_come_back_as_they_were_written(tmp_path: Path, seed: int) -> None:
    draws = random.Random(seed)
    shape = tuple(draws.randint(1, 4) for _ in range(draws.randint(1, 4)))
    kinds = [Field(shape, each, ragged=True) for each in ("uint8", "int16", "float16", "float32")]
    field, count = draws.choice(kinds), draws.randint(1, 9)
    file = RowFile(tmp_path / "x.safetensors", "x", field, count)
    numbers = np.random.default_rng(seed)
    expected = np.zeros((count, *shape), field.dtype)
    for row in draws.sample(range(count), count):
        steps = draws.randint(1, shape[0])
        expected[row, :steps] = numbers.integers(0, 200, (steps, *shape[1:]))
        assert file.write(row, expected[row, :steps]) == file.checksum(row)
    assert np.array_equal(mapped(file.path, field, count).numpy(), expected)
    assert problems_of(file.path, "x", field, count) == []
    assert file.path.stat().st_size == file_bytes(field, count) == START + expected.nbytes
    assert np.array_equal(load_file(file.path)["x"].numpy(), expected)  # as others read it
    file.copy(0, count - 1)
    file.resize(count + 2)
    assert np.array_equal(mapped(file.path, field, count + 2)[count - 1].numpy(), expected[0])
    assert not mapped(file.path, field, count + 2)[count:].any()
    file.close()


def test_a_file_larger_than_the_memory_can_be_mapped(tmp_path: Path) -> None:
    field = Field((1 << 20, 1 << 10), "uint8")
    count = 4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    path = tmp_path / "large.safetensors"
    path.write_bytes(header("x", field, count))
    os.truncate(path, file_bytes(field, count))  # it takes no room
    assert mapped(path, field, count)[count - 1, -1, -1] == 0


def test_no_rows_are_a_tensor_too(tmp_path: Path) -> None:
    assert mapped(tmp_path / "x", Field((3, 2), "int16"), 0).shape == (0, 3, 2)
