"""Images of known pixels read back."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from equipoise.data.own.stacked import read_all
from equipoise.media import video
from equipoise.media.video import read_image
from equipoise.util import processes
from equipoise.util.errors import Unreadable
from media.made import make_image


def corners() -> np.ndarray:
    """Red, green, blue and white quarters, 8 high and 12 wide."""
    pixels = np.zeros((8, 12, 3), np.uint8)
    pixels[:4, :6] = (255, 0, 0)
    pixels[:4, 6:] = (0, 255, 0)
    pixels[4:, :6] = (0, 0, 255)
    pixels[4:, 6:] = (255, 255, 255)
    return pixels


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".ppm", ".gif"])
def test_pixels_come_back(tmp_path: Path, suffix: str) -> None:
    image = read_image(make_image(tmp_path / f"a{suffix}", pixels=corners()))
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    np.testing.assert_array_equal(image, corners().transpose(2, 0, 1))


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_lossy_pixels_come_back_nearly(tmp_path: Path, suffix: str) -> None:
    ramp = read_image(make_image(tmp_path / f"a{suffix}", (16, 64)))
    np.testing.assert_allclose(ramp[:, 8], np.broadcast_to(np.linspace(0, 255, 64), (3, 64)), atol=12)


def test_sizes(tmp_path: Path) -> None:
    path = make_image(tmp_path / "a.png", pixels=corners())
    assert read_image(path, 6).shape == (3, 6, 6)
    assert read_image(path, (2, 4)).shape == (3, 2, 4)
    assert read_image(path, (2, 4), channels=1).shape == (1, 2, 4)


def test_resizing_by_hand(tmp_path: Path) -> None:
    """From 8 rows to 2, a triangle weighs rows 0 to 5 by 5, 7, 7, 5, 3, 1 eighths: 6/7 of it in the upper half.

    The same across: red (6/7)², each other colour 6/7 · 1/7, white (1/7)², of 255.
    """
    small = read_image(make_image(tmp_path / "a.png", pixels=corners()), 2)
    assert small[:, 0, 0].tolist() == [193, 36, 36]


def test_shrinking_averages(tmp_path: Path) -> None:
    """Stripes one pixel wide become their mean; without antialiasing they would stay black or white."""
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 200
    shrunk = read_image(make_image(tmp_path / "a.png", pixels=stripes), 8)
    np.testing.assert_allclose(shrunk, 100, atol=4)


def test_grey_by_hand(tmp_path: Path) -> None:
    """0.299 red + 0.587 green + 0.114 blue."""
    grey = read_image(make_image(tmp_path / "a.png", pixels=corners()), channels=1)
    assert [int(grey[0, y, x]) for y, x in [(0, 0), (0, 11), (7, 0), (7, 11)]] == [76, 150, 29, 255]


def test_sixteen_bits_keep_the_upper_eight(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.array([[0, 255, 256, 40_000, 65_535]], np.uint16)).save(path)
    assert read_image(path, channels=1).tolist() == [[[0, 0, 1, 156, 255]]]
    assert read_image(path)[:, 0, 3].tolist() == [156, 156, 156]


@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "CMYK"])
def test_other_kinds_of_pixels(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.fromarray(np.full((16, 16, 3), 255, np.uint8)).convert(mode).save(path)
    np.testing.assert_allclose(read_image(path).astype(int), 255, atol=2)


def test_turned_as_the_camera_says(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    image = Image.fromarray(corners())
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    image.save(path, exif=exif)
    np.testing.assert_array_equal(read_image(path), np.rot90(corners(), -1).transpose(2, 0, 1))


def test_only_grey_or_colour(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 1 or 3 channels, found 2"):
        read_image(make_image(tmp_path / "a.png"), channels=2)


def test_a_missing_package_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_image(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs PIL.*type: pip install .*\[media\]'"):
        read_image(path)


def test_real_numbers_are_not_rounded_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.pfm"
    Image.fromarray(np.array([[0.5]], np.float32)).save(path)
    with pytest.raises(Unreadable, match=r"a\.pfm"):
        read_image(path)


def test_a_picture_has_to_fit_into_memory_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_image(tmp_path / "a.png", (640, 480))
    monkeypatch.setattr(processes, "free_memory", lambda: 2**20)
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("it was decoded"))
    with pytest.raises(Unreadable, match=r"a\.png: \d+ × \d+, needs about 0\.0 GiB of memory, and 0\.0 GiB are free"):
        read_image(path)


def test_large_pictures_are_decoded_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads read pictures; those that take much wait for each other, small ones do not."""
    paths = [make_image(tmp_path / f"{number}.png", (40, 30)) for number in range(8)]
    inner, now, most = ImageOps.exif_transpose, [0], [0]

    def slow(image: Any) -> Any:
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.05)
        now[0] -= 1
        return inner(image)

    monkeypatch.setattr(ImageOps, "exif_transpose", slow)
    for room, together in ((video.PIXEL * 1200 + 1, 1), (2 * video.PIXEL * 1200, 2), (2**30, 8)):
        monkeypatch.setattr(video, "decoding", processes.Reserve(room))
        most[0] = 0
        read_all(read_image, paths, "")
        assert most[0] <= together
        assert together == 1 or most[0] > 1


@pytest.mark.slow
def test_eight_threads_take_no_more_than_one_for_large_pictures(tmp_path: Path) -> None:
    """Of 4096 × 4096 a decoder takes 200 MB and more; what a thread has freed must not be kept for it."""
    for number in range(8):
        Image.fromarray(np.zeros((4096, 4096, 4), np.uint8)).save(tmp_path / f"{number}.png", compress_level=1)
    program = (
        "import sys\nfrom pathlib import Path\nfrom equipoise.data.own.stacked import stack_files\n"
        "from equipoise.media import video\nfrom equipoise.util.processes import Reserve\n"
        "video.decoding = Reserve(2**28)\n"
        "peak = lambda: int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\n"
        "stack_files('image', [Path(sys.argv[1], '0.png')], [0])\nbefore = peak()\n"
        "stack_files('image', [Path(sys.argv[1], f'{n}.png') for n in range(8)], [0])\nprint(peak() - before)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) < 100_000  # kilobytes
