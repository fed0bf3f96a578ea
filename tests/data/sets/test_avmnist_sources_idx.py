"""The files of MNIST, and everything that can be wrong with them."""

import gzip
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from data.sets.made_avmnist import idx_bytes
from equipoise.data.sets.avmnist_sources import read_idx
from equipoise.util.errors import Unreadable

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3)).astype(np.uint8)


def refused(path: Path, content: bytes, axes: int = 3) -> str:
    path.write_bytes(content)
    with pytest.raises(Unreadable) as caught:
        read_idx(path, axes)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def test_bytes_come_back(tmp_path: Path) -> None:
    for name in ("plain", "misnamed.gz"):
        (tmp_path / name).write_bytes(idx_bytes(IMAGES))
        assert np.array_equal(read_idx(tmp_path / name, 3), IMAGES)
    (tmp_path / "zipped").write_bytes(gzip.compress(idx_bytes(IMAGES)))
    assert np.array_equal(read_idx(tmp_path / "zipped", 3), IMAGES)
    (tmp_path / "labels").write_bytes(bytes.fromhex("00000801 00000003 07 02 01"))  # as the format says
    assert read_idx(tmp_path / "labels", 1).tolist() == [7, 2, 1]


def test_another_magic_number(tmp_path: Path) -> None:
    for content, found in [
        (idx_bytes(IMAGES[0, 0]), "00000801"),
        (b"\x00\x00\x0d\x03" + idx_bytes(IMAGES)[4:], "00000d03"),
        (b"PK", "504b"),
        (gzip.compress(b""), "nothing"),
    ]:
        message = refused(tmp_path / "file", content)
        assert message.endswith(f"expected the magic number 00000803 (idx, unsigned bytes, 3 axes), found {found}")


def test_a_file_cut_anywhere(tmp_path: Path) -> None:
    whole = idx_bytes(IMAGES)
    for content in (whole, gzip.compress(whole)):
        for tenth in range(10):
            refused(tmp_path / "file", content[: len(content) * tenth // 10])
    assert "the header claims (5, 4, 3), which is 60 bytes; found 59" in refused(tmp_path / "file", whole[:-1])
    assert "a damaged one" in refused(tmp_path / "file", gzip.compress(whole)[:-4])
    assert "expected a header of 16 bytes, found 11" in refused(tmp_path / "file", whole[:11])


def test_more_than_the_header_claims(tmp_path: Path) -> None:
    """Also a few kilobytes that would unpack to very many: no more is unpacked than claimed."""
    message = refused(tmp_path / "file", idx_bytes(IMAGES) + b"\0")
    assert message.endswith("the header claims (5, 4, 3), which is 60 bytes; found more")
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = bomb.compress(idx_bytes(IMAGES)) + b"".join(bomb.compress(bytes(2**20)) for _ in range(64)) + bomb.flush()
    assert len(packed) < 2**17
    assert "found more" in refused(tmp_path / "file", packed)


def test_a_header_that_claims_too_much(tmp_path: Path) -> None:
    message = refused(tmp_path / "file", bytes([0, 0, 8, 3]) + b"\xff" * 12)
    assert "expected at most 1,073,741,824 bytes, found a header that claims (4294967295, 4294967295," in message


def test_a_checksum_that_does_not_fit(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(idx_bytes(IMAGES)))
    content[-6] ^= 1
    assert "a damaged one" in refused(tmp_path / "file", bytes(content))


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(Unreadable, match=str(path)):
            read_idx(path, 3)


def test_any_bytes_are_refused_or_read(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    path = tmp_path / "file"
    for number in range(500):
        noise = random.bytes(int(random.integers(0, 60)))
        start = (b"", b"\x1f\x8b\x08", b"\0\0\x08\x03", b"\0\0\x08\x03" + bytes(9))[number % 4]
        path.write_bytes(start + noise)
        with suppress(Unreadable):
            assert read_idx(path, 3).ndim == 3
