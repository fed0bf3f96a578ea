"""Videos whose frames say their number: which ones are kept, and whether their pixels survive."""

from __future__ import annotations

import struct
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from equipoise.media import video
from equipoise.media.video import read_frames, read_timed_frames
from equipoise.util.errors import Unreadable
from media.made import VIDEOS, index_of, make_video, shade


def numbers(frames: np.ndarray) -> list[int]:
    """Which frames these are, modulo ten."""
    return [index_of(frame) for frame in frames]


def flags() -> np.ndarray:
    """A red left and a blue right half, 48 high and 64 wide."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:, :32, 0] = 255
    pixels[:, 32:, 2] = 255
    return pixels


class TestChoice:
    @pytest.mark.parametrize("suffix", VIDEOS)
    def test_by_hand_in_every_format(self, tmp_path: Path, suffix: str) -> None:
        """Two and a half seconds of ten frames: one of each second is 0, 10, 20; two are 0, 5, 10, 15, 20."""
        path = make_video(tmp_path / f"a{suffix}", seconds=2.5, fps=10)
        assert numbers(read_frames(path, 1, 99, 8)) == [0, 0, 0]
        assert numbers(read_frames(path, 2, 99, 8)) == [0, 5, 0, 5, 0]
        assert numbers(read_frames(path, 3, 99, 8)) == [0, 3, 6, 0, 3, 6, 0, 3]
        assert numbers(read_frames(path, None, 99, 8)) == [n % 10 for n in range(25)]

    @pytest.mark.parametrize(
        ("fps", "per_second", "expected"),
        [
            (Fraction(30_000, 1001), 3, [0, 9, 18, 29, 38, 47, 58]),  # 29 to a second, a multiple of 9 three times
            (Fraction(30_000, 1001), 1, [0, 29, 58]),
            (12, 5, [0, 2, 4, 6, 8, 12, 14, 16, 18, 20, 24, 26, 28, 30, 32, 36, 38, 40, 42, 44, 48, 50, 52, 54, 56]),
            (10, 0.5, [0, 20, 40]),
            (10, 2.5, [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56]),
            (2, 1, [n for n in range(60) if n % 2 == 0]),
            (10, 10, list(range(60))),
            (10, 1000, list(range(60))),
        ],
    )
    def test_by_hand_at_other_rates(
        self, tmp_path: Path, fps: int | Fraction, per_second: float, expected: list[int]
    ) -> None:
        path = make_video(tmp_path / "a.mp4", seconds=60 / fps, fps=fps, sound=False)  # ty: ignore[invalid-argument-type]
        assert numbers(read_frames(path, per_second, 99, 8)) == [n % 10 for n in expected]

    @pytest.mark.parametrize(
        ("most", "expected"), [(1, [10]), (2, [5, 15]), (4, [2, 7, 12, 17]), (20, list(range(20))), (3, [3, 10, 16])]
    )
    def test_thinned_to_the_middles_of_equal_stretches(self, tmp_path: Path, most: int, expected: list[int]) -> None:
        path = make_video(tmp_path / "a.avi", seconds=2, fps=10)
        assert numbers(read_frames(path, None, most, 8)) == [n % 10 for n in expected]

    def test_long_videos_are_held_in_part(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Room for 8: frame 8 drops every second one, so do 16 and 32, and 0, 8, 16, 24, 32 are left."""
        path = make_video(tmp_path / "a.flv", seconds=4, fps=10, sound=False)
        monkeypatch.setattr(video, "BYTES_HELD", 8 * 3 * 8 * 8)
        assert numbers(read_frames(path, None, 99, 8)) == [n % 10 for n in range(40)]
        assert numbers(read_frames(path, None, 4, 8)) == [0, 8, 4, 2]  # 0, 8, 24, 32
        monkeypatch.undo()
        assert numbers(read_frames(path, None, 4, 8)) == [5, 5, 5, 5]  # 5, 15, 25, 35

    @pytest.mark.parametrize("options", [{"flvflags": "no_duration_filesize"}, {"flvflags": "no_metadata"}])
    def test_flv_that_states_nothing(self, tmp_path: Path, options: dict[str, str]) -> None:
        path = remuxed(make_video(tmp_path / "a.flv", 2.5), tmp_path / "b.flv", options)
        assert numbers(read_frames(path, 2, 99, 8)) == [0, 5, 0, 5, 0]

    def test_webm_without_size_and_duration(self, tmp_path: Path) -> None:
        path = remuxed(make_video(tmp_path / "a.webm", 2.5), tmp_path / "b.webm", {"live": "1"})
        assert numbers(read_frames(path, 2, 99, 8)) == [0, 5, 0, 5, 0]

    def test_metadata_in_another_alphabet(self, tmp_path: Path) -> None:
        path = make_video(tmp_path / "a.webm")
        content = path.read_bytes()
        assert b"Lavf" in content
        path.write_bytes(content.replace(b"Lavf", b"\xe9\xff\xfe\x80"))  # the program that wrote it
        assert len(read_frames(path, None, 99, 8)) == 20

    def test_mp4_in_fragments(self, tmp_path: Path) -> None:
        path = remuxed(
            make_video(tmp_path / "a.mp4", 2.5), tmp_path / "b.mp4", {"movflags": "frag_keyframe+empty_moov"}
        )
        assert numbers(read_frames(path, 2, 99, 8)) == [0, 5, 0, 5, 0]

    def test_a_rate_that_is_not_believed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing between one frame per minute and 240 per second: then 25 to the second."""
        path = make_video(tmp_path / "a.avi", seconds=3, fps=10)
        monkeypatch.setattr(video, "FASTEST", Fraction(9))
        assert numbers(read_frames(path, 1, 99, 8)) == [0, 5]

    @pytest.mark.parametrize(
        ("per_second", "most", "size"), [(0, 1, 8), (-1, 1, 8), (1, 0, 8), (1, 1, 0), (float("nan"), 1, 8)]
    )
    def test_impossible_wishes(self, tmp_path: Path, per_second: float, most: int, size: int) -> None:
        with pytest.raises(ValueError, match=r"expected per_second of 0\.001 or more"):
            read_frames(tmp_path / "a.mp4", per_second, most, size)


class TestPixels:
    @pytest.mark.parametrize("suffix", VIDEOS)
    def test_shape_and_colours(self, tmp_path: Path, suffix: str) -> None:
        frames = read_frames(make_video(tmp_path / f"a{suffix}", pixels=[flags()] * 3), None, 9, 16)
        assert (frames.shape, frames.dtype) == ((3, 3, 16, 16), np.uint8)
        assert frames.flags.c_contiguous
        np.testing.assert_allclose(frames[:, :, 4, 3], [[255, 0, 0]] * 3, atol=20)
        np.testing.assert_allclose(frames[:, :, 12, 12], [[0, 0, 255]] * 3, atol=20)

    def test_shrinking_averages(self, tmp_path: Path) -> None:
        stripes = np.zeros((64, 64, 3), np.uint8)
        stripes[:, ::2] = 200
        path = lossless(tmp_path / "a.avi", stripes, "bgr0")
        np.testing.assert_allclose(read_frames(path, None, 1, 8), 100, atol=4)

    @pytest.mark.parametrize(
        "pixel_format", ["yuv420p", "yuv444p", "yuv422p10le", "gray", "gray16le", "bgr0", "bgra", "gbrp10le"]
    )
    def test_any_pixel_format(self, tmp_path: Path, pixel_format: str) -> None:
        grey = np.full((16, 16, 3), 150, np.uint8)
        frames = read_frames(lossless(tmp_path / "a.avi", grey, pixel_format), None, 1, 8)
        np.testing.assert_allclose(frames, 150, atol=3)

    @pytest.mark.parametrize(
        ("turns", "matrix"), [(0, (1, 0, 0, 1)), (-1, (0, 1, -1, 0)), (2, (-1, 0, 0, -1)), (1, (0, -1, 1, 0))]
    )
    def test_turned_as_the_camera_says(self, tmp_path: Path, turns: int, matrix: tuple[int, int, int, int]) -> None:
        """An mp4 states a matrix, rows (a b) and (c d): (0 1) and (−1 0) is a quarter clockwise."""
        path = make_video(tmp_path / "a.mp4", pixels=[flags()] * 3, sound=False)
        upright = read_frames(path, None, 1, 16)[0]
        content = path.read_bytes()
        as_stated = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
        a, b, c, d = (65536 * each for each in matrix)
        turned = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
        start = content.index(as_stated, content.index(b"tkhd"))
        path.write_bytes(content[:start] + turned + content[start + 36 :])
        np.testing.assert_array_equal(read_frames(path, None, 1, 16)[0], np.rot90(upright, turns, axes=(1, 2)))


class TestDamage:
    """Packets that are images of their own, some of which no longer say how large they are."""

    @pytest.mark.parametrize(("damaged", "left"), [({1}, [0, 2, 3, 4]), ({0, 4}, [1, 2, 3]), ({0, 1, 2, 4}, [3])])
    def test_what_does_not_decode_is_passed_over(self, tmp_path: Path, damaged: set[int], left: list[int]) -> None:
        assert numbers(read_frames(self.damage(tmp_path / "a.avi", damaged), None, 9, 8)) == left

    def test_nothing_decodes(self, tmp_path: Path) -> None:
        with pytest.raises(Unreadable, match=r"a\.avi: cannot be decoded \(Invalid data"):
            read_frames(self.damage(tmp_path / "a.avi", {0, 1, 2, 3, 4}), None, 9, 8)

    def damage(self, path: Path, numbers: set[int]) -> Path:
        with av.open(str(path), "w") as container:
            stream = container.add_stream("png", rate=10)
            stream.height, stream.width, stream.pix_fmt = 16, 16, "rgb24"
            for number in range(5):
                grey = np.full((16, 16, 3), shade(number), np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
            container.mux(stream.encode())
        before, *packets = path.read_bytes().split(b"IHDR")
        parts = [(b"xxxx" if number in numbers else b"IHDR") + part for number, part in enumerate(packets)]
        path.write_bytes(before + b"".join(parts))
        return path


class TestNoFrames:
    def test_sound_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "a.mp4"
        with av.open(str(path), "w") as container:
            track = container.add_stream("aac", rate=22_050)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate = 22_050
            container.mux([*track.encode(frame), *track.encode()])
        with pytest.raises(Unreadable, match=r"a\.mp4: no video in it"):
            read_frames(path, 1, 1, 8)

    @pytest.mark.parametrize("suffix", VIDEOS)
    def test_pictures_announced_and_none_there(self, tmp_path: Path, suffix: str) -> None:
        with pytest.raises(Unreadable, match=rf"a\{suffix}: "):
            read_frames(make_video(tmp_path / f"a{suffix}", pixels=[]), 1, 1, 8)

    def test_more_pixels_than_anyone_needs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = make_video(tmp_path / "a.avi", seconds=2, fps=10, size=32)
        monkeypatch.setattr(video, "MOST_PIXELS", 20 * 32 * 32 - 1)
        with pytest.raises(Unreadable, match=r"a\.avi: more than 2e\+04 pixels"):
            read_frames(path, 1, 1, 8)

    def test_a_missing_package_says_what_to_type(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = make_video(tmp_path / "a.avi")
        monkeypatch.setitem(sys.modules, "av", None)
        with pytest.raises(ModuleNotFoundError, match=r"needs av.*type: pip install .*\[media\]'"):
            read_frames(path, 1, 1, 8)


def remuxed(source: Path, target: Path, options: dict[str, str]) -> Path:
    """The same packets in a container written with other options."""
    with av.open(str(source)) as before, av.open(str(target), "w", options=options) as after:
        streams = {stream.index: after.add_stream_from_template(stream) for stream in before.streams}
        for packet in before.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                after.mux(packet)
    return target


def lossless(path: Path, pixels: np.ndarray, pixel_format: str) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.height, stream.width, stream.pix_fmt = *pixels.shape[:2], pixel_format
        container.mux([*stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")), *stream.encode()])
    return path


@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
def test_timed_frames_are_the_first_of_each_stretch_in_real_seconds(suffix: str, tmp_path: Path) -> None:
    rate = Fraction(30_000, 1001)  # 29.97: whole seconds hold no whole number of frames
    path = make_video(tmp_path / f"a{suffix}", seconds=10, fps=rate, sound=False)
    frames, times = read_timed_frames(path, 4, 16)
    assert frames.shape == (len(times), 3, 16, 16)
    assert len(times) == 40
    assert np.abs(times - np.arange(40) / 4).max() <= 1 / float(rate) + 1e-3
    every, all_times = read_timed_frames(path, 100, 16)
    assert len(every) == round(10 * rate)
    np.testing.assert_allclose(np.diff(all_times), 1 / float(rate), atol=2e-3)
