"""Files that are cut, empty, misnamed, made up or hostile: an array or `Unreadable` with the name, and nothing else."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from equipoise.media import container, video
from equipoise.media.container import check_header
from equipoise.media.sound import read_sound
from equipoise.media.video import read_frames
from equipoise.util.errors import Unreadable
from media.made import IMAGES, SOUNDS, VIDEOS, make_image, make_video, make_wav
from media.random_files import READERS, read_all
from memory_peak import takes_less_than

TESTS = Path(__file__).parents[1]


def readers_of(suffix: str) -> list[Callable[[Path], np.ndarray]]:
    return [read for suffixes, read in READERS.values() if suffix in suffixes]


def make(path: Path) -> Path:
    """A whole file, by its suffix, with something to see or hear in every tenth of it."""
    if path.suffix in VIDEOS:
        return make_video(path, 2.0, 10, 32)
    noise = np.random.default_rng(0)
    if path.suffix in IMAGES:
        return make_image(path, pixels=noise.integers(256, size=(64, 64, 3), dtype=np.uint8))
    return make_wav(path, wave=noise.uniform(-0.5, 0.5, 44_100), rate=22_050)


def black(side: int, sent: int) -> bytes:
    """A png that says to be of this size, of one bit per pixel, and how many bytes of pixels there are in it."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(sent), 1)) + chunk(b"IEND", b"")


class TestCutShort:
    @pytest.mark.parametrize("suffix", [*SOUNDS, *VIDEOS, *IMAGES])
    def test_at_every_tenth(self, tmp_path: Path, suffix: str, capfd: pytest.CaptureFixture[str]) -> None:
        path = make(tmp_path / f"clip{suffix}")
        content = path.read_bytes()
        for read in readers_of(suffix):
            path.write_bytes(content)
            assert read(path).size
            for tenth in range(10):
                path.write_bytes(content[: len(content) * tenth // 10])
                with pytest.raises(Unreadable, match=rf"clip\{suffix}: "):
                    read(path)
        assert capfd.readouterr() == ("", "")

    def test_the_message_says_how_much_is_missing(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.wav")
        content = path.read_bytes()
        path.write_bytes(content[:1000])
        with pytest.raises(Unreadable, match=r"a\.wav: cut short, 1000 bytes of the 88244 its header states"):
            read_sound(path)

    @pytest.mark.parametrize("stated", [0, 0xFFFFFFFF, 0x7FFFFFFF])
    def test_sizes_written_before_they_were_known(self, tmp_path: Path, stated: int) -> None:
        """What a program that writes to a pipe puts there."""
        path = make(tmp_path / "a.wav")
        content = bytearray(path.read_bytes())
        content[4:8] = content[40:44] = struct.pack("<I", stated)
        path.write_bytes(content)
        check_header(path)
        if stated:
            assert len(read_sound(path)[0]) == 44_100

    def test_a_size_that_is_a_few_bytes_off(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.wav")
        content = bytearray(path.read_bytes())
        content[4:8] = struct.pack("<I", len(content))  # the first eight are not to be counted, and often are
        path.write_bytes(content)
        assert len(read_sound(path)[0]) == 44_100

    @pytest.mark.parametrize("suffix", [".flv", ".mp4", ".avi"])
    def test_something_after_the_end(self, tmp_path: Path, suffix: str) -> None:
        path = make(tmp_path / f"a{suffix}")
        path.write_bytes(path.read_bytes() + b"downloaded from somewhere")
        assert len(read_frames(path, None, 99, 8)) == 20


class TestNoMedia:
    @pytest.mark.parametrize("suffix", [*SOUNDS, *VIDEOS, *IMAGES])
    @pytest.mark.parametrize(
        ("content", "why"), [(b"", "empty, 0 bytes"), (b"Not found. " * 50, ""), (b"x", ""), (bytes(5000), "")]
    )
    def test_other_content(self, tmp_path: Path, suffix: str, content: bytes, why: str) -> None:
        path = tmp_path / f"clip{suffix}"
        path.write_bytes(content)
        for read in readers_of(suffix):
            with pytest.raises(Unreadable, match=rf"clip\{suffix}: .*{why}"):
                read(path)

    @pytest.mark.parametrize("read", [read for _, read in READERS.values()])
    def test_no_file(self, tmp_path: Path, read: Callable[[Path], np.ndarray]) -> None:
        with pytest.raises(Unreadable, match=r"clip\.mp4: there is no such file"):
            read(tmp_path / "clip.mp4")
        with pytest.raises(Unreadable, match=f"{tmp_path.name}: not a file"):
            read(tmp_path)
        os.mkfifo(tmp_path / "pipe.mp4")  # reading it would wait for someone to write
        with pytest.raises(Unreadable, match=r"pipe\.mp4: not a file"):
            read(tmp_path / "pipe.mp4")

    @pytest.mark.parametrize(
        "content",
        [
            "ffconcat version 1.0\nfile 'private.flv'\n",
            "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nprivate.flv\n#EXT-X-ENDLIST\n",
            "<?xml?><MPD><Period><AdaptationSet><BaseURL>private.flv</BaseURL></AdaptationSet></Period></MPD>",
        ],
    )
    def test_a_playlist_opens_no_other_file(self, tmp_path: Path, content: str) -> None:
        make_video(tmp_path / "private.flv")
        (tmp_path / "clip.mp4").write_text(content)
        for read in readers_of(".mp4"):
            with pytest.raises(Unreadable, match=r"clip\.mp4: "):
                read(tmp_path / "clip.mp4")

    def test_postscript_is_not_run(self, tmp_path: Path) -> None:
        path = tmp_path / "clip.png"
        path.write_text(f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n({tmp_path}/ran) (w) file closefile\n")
        with pytest.raises(Unreadable, match=r"clip\.png: not an image in one of the formats"):
            READERS["image"][1](path)
        assert not (tmp_path / "ran").exists()


class TestHeadersThatClaimTooMuch:
    """Nothing is set aside for what is not there."""

    def test_a_wave_of_100_gigabytes(self, tmp_path: Path) -> None:
        path = tmp_path / "clip.wav"
        content = bytearray(make_wav(path).read_bytes())
        content[:4] = b"RF64"
        extra = b"ds64" + struct.pack("<IQQQI", 28, 100 * 2**30, 100 * 2**30, 50 * 2**30, 0)
        path.write_bytes(content[:12] + extra + content[12:])
        with (
            pytest.raises(Unreadable, match=r"clip\.wav: cut short, 44180 bytes of the 107374182408 its header states"),
            takes_less_than(100),
        ):
            read_sound(path)

    def test_a_flac_of_a_month(self, tmp_path: Path) -> None:
        path = make_wav(tmp_path / "clip.flac")
        content = bytearray(path.read_bytes())
        content[21] |= 0x0F  # 36 bits, the upper four of them
        content[22:26] = b"\xff" * 4
        path.write_bytes(content)
        with pytest.raises(Unreadable, match=r"clip\.flac: "), takes_less_than(100):
            read_sound(path)

    @pytest.mark.parametrize(("side", "why"), [(65_535, ""), (10_000, "10000 × 10000, larger than 8192 × 8192")])
    def test_an_image_of_65535_squared(self, tmp_path: Path, side: int, why: str) -> None:
        path = tmp_path / "clip.png"
        path.write_bytes(black(side, sent=2**22))
        with pytest.raises(Unreadable, match=rf"clip\.png: .*{why}"), takes_less_than(100):
            READERS["image"][1](path)

    def test_an_image_just_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = make_image(tmp_path / "clip.png", (7, 9))
        monkeypatch.setattr(video, "LARGEST_PICTURE", 63)
        assert video.read_image(path).shape == (3, 7, 9)
        monkeypatch.setattr(video, "LARGEST_PICTURE", 62)
        with pytest.raises(Unreadable, match=r"clip\.png: 9 × 7, larger than"):
            video.read_image(path)

    @pytest.mark.parametrize("kind", [b"stsz", b"stts"])
    def test_a_video_of_fifty_million_frames(self, tmp_path: Path, kind: bytes) -> None:
        """ffmpeg would fill gigabytes with where each of them lies."""
        path = make_video(tmp_path / "clip.mp4")
        content = bytearray(path.read_bytes())
        place = content.index(kind)
        content[place + 8 : place + 16] = struct.pack(">II", 1, 50_000_000)
        path.write_bytes(content)
        for read in readers_of(".mp4"):
            said = r"clip\.mp4: its header counts more samples than the file has bytes"
            with pytest.raises(Unreadable, match=said), takes_less_than(100):
                read(path)

    def test_a_header_within_headers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What counts too much is found however deep it lies, and no crowd of boxes hides it."""
        table = struct.pack(">I4sIII", 20, b"stsz", 0, 1, 2**31)
        path = tmp_path / "clip.mp4"
        for _ in range(5000):
            table = struct.pack(">I4s", 8 + len(table), b"trak") + table
        path.write_bytes(struct.pack(">I4sI", 12, b"any?", 0) + table)
        with pytest.raises(Unreadable, match=r"clip\.mp4: its header counts more"):
            check_header(path)
        path.write_bytes(struct.pack(">I4s", 8, b"free") * 1000 + table)
        monkeypatch.setattr(container, "MOST_BOXES", 1000)
        with pytest.raises(Unreadable, match=r"clip\.mp4: made of more than 1000 boxes"):
            check_header(path)

    @pytest.mark.parametrize(("side", "fits"), [(64, True), (8200, False)])
    def test_a_frame_that_is_larger_than_the_header_says(self, tmp_path: Path, side: int, fits: bool) -> None:
        """The decoder itself is told to refuse it, before there is memory for it."""
        path = tmp_path / "clip.avi"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("png", rate=10)
            stream.height, stream.width, stream.pix_fmt = 16, 16, "rgb24"
            packet = av.Packet(black(side, sent=side * (side // 8 + 1)))
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, 0, 0, Fraction(1, 10)
            container.mux(packet)
        if fits:
            assert not READERS["frames"][1](path).any()
        else:
            with pytest.raises(Unreadable, match=r"clip\.avi: cannot be decoded"), takes_less_than(100):
                READERS["frames"][1](path)


class TestRandomBytes:
    @pytest.mark.parametrize("reader", READERS)
    def test_some(self, tmp_path: Path, reader: str, capfd: pytest.CaptureFixture[str]) -> None:
        assert 0 < read_all(reader, 150, tmp_path, seed=1) < 150
        assert capfd.readouterr() == ("", "")

    @pytest.mark.slow
    def test_thousands_for_each_reader(self, tmp_path: Path) -> None:
        """In a process of its own, so that one that dies or never ends is seen to."""
        cases = int(os.environ.get("EQUIPOISE_CASES", "3000"))
        program = [
            sys.executable,
            "-X",
            "faulthandler",
            "-W",
            "error",
            "-m",
            "media.random_files",
            str(cases),
            str(tmp_path),
        ]
        path = os.pathsep.join([str(TESTS), *sys.path])
        done = subprocess.run(
            program, capture_output=True, text=True, timeout=600, check=False, env=os.environ | {"PYTHONPATH": path}
        )
        assert (done.returncode, done.stderr) == (0, "")
        said = dict(line.split() for line in done.stdout.splitlines())
        assert list(said) == [*READERS, "megabytes"]
        assert all(0 < int(said[reader]) < cases for reader in READERS)
        assert int(said["megabytes"]) < 2500  # a legal picture of 8192 × 8192 takes several hundred, and is held twice
