"""Files that are broken in every way chance can find, through every reader of a user's own data.

As a program: `python broken_files.py FOLDER COUNT SEED` reads COUNT of each kind, in little memory, and says how many.
"""

import io
import resource
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from equipoise.data.own.manifest import samples_of_manifest
from equipoise.data.own.npz import read_npy, samples_of_npz
from equipoise.data.splits import Splits
from equipoise.util.errors import BadInput, Unreadable

MEMORY = 6 * 2**30
STARTS = (b"", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00", b"PK\x03\x04", b"PAR1", b"label,a\n", b"\x1f\x8b", b"BZh9")


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    table = {"label": ["a", "b"] * 4, "heat": [1.0, None] * 4, "v": [[1.0, 2.0], [3.0]] * 4, "id": list(range(8))}
    pyarrow.parquet.write_table(pyarrow.table(table), file, compression="none")
    return file.getvalue()


def boxed() -> np.ndarray:
    box = np.empty(6, object)
    box[:] = [np.ones((2, 1 + number)) for number in range(6)]
    return box


SERIES, LABEL = npy(boxed()), npy(np.arange(6) % 2)
CSV = b'label,group,heat,pose_0,pose_1,"sound"\na,1,2.5,1,2,x.wav\nb,2,1e3,3,4,y.wav\n"c ""x""",3,,5,6,z.wav\n'


def damaged(whole: bytes, random: np.random.Generator) -> bytes:
    """Some bytes changed, left out or put in, or the end cut off."""
    content = bytearray(whole)
    for _ in range(int(random.integers(1, 6))):
        place = int(random.integers(0, len(content)))
        how = random.integers(0, 4)
        if how == 0:
            content[place] = int(random.integers(0, 256))
        elif how == 1:
            del content[place : place + int(random.integers(1, 9))]
        elif how == 2:
            content[place:place] = random.bytes(int(random.integers(1, 9)))
        elif random.random() < 0.3:
            del content[max(place, 1) :]
        content = content or bytearray(b"x")
    return bytes(content)


def noise(random: np.random.Generator) -> bytes:
    return STARTS[random.integers(0, len(STARTS))] + random.bytes(int(random.integers(0, 400)))


def broken_npz(random: np.random.Generator) -> bytes:
    if random.random() < 0.5:  # a good archive of a broken array: its checksums are right
        return archive(imu=damaged(SERIES, random), label=LABEL)
    return damaged(archive(imu=npy(np.zeros((6, 2))), label=LABEL), random)


def read_manifest(path: Path) -> Splits:
    return Splits.from_samples(samples_of_manifest(path))


KINDS: dict[str, tuple[Callable[[Path], object], Callable[[np.random.Generator], bytes]]] = {
    ".npz": (lambda path: Splits.from_samples(samples_of_npz(path)), broken_npz),
    ".npy": (read_npy, lambda random: damaged(npy(np.zeros((3, 4))), random)),
    ".csv": (read_manifest, lambda random: damaged(CSV, random)),
    ".parquet": (
        lambda path: Splits.from_samples(samples_of_manifest(path)),
        lambda random: damaged(parquet_file(), random),
    ),
}
_made: list[bytes] = []


def parquet_file() -> bytes:
    if not _made:
        _made.append(parquet())
    return _made[0]


def read_broken(kind: str, folder: Path, count: int, seed: int) -> dict[str, int]:
    """Read so many broken files, and say how many were refused and how many were still whole enough."""
    read, damage = KINDS[kind]
    random = np.random.default_rng(seed)
    path, found = folder / f"broken{kind}", {"refused": 0, "read": 0, "without its name": 0}
    for number in range(count):
        content = noise(random) if number % 2 else damage(random)
        path.write_bytes(content)
        try:
            read(path)
            found["read"] += 1
        except (BadInput, Unreadable) as refused:
            found["refused" if path.name in str(refused) else "without its name"] += 1
        except Exception as escaped:
            raise AssertionError(f"{kind} file {content!r} made a reader raise {escaped!r}") from escaped
    return found


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    place, wanted, first = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for each in KINDS:
        print(each, read_broken(each, place, wanted, first), flush=True)
