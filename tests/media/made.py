"""Real files of known content, made on the spot: sounds that are pure tones, videos whose frames say their number."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile
from PIL import Image

SOUNDS = (".wav", ".flac", ".ogg", ".aiff", ".mp3")
VIDEOS = (".flv", ".mp4", ".avi", ".webm")
IMAGES = (".png", ".jpg")

CODECS = {  # per container: pictures, sound
    ".flv": ("flv1", "libmp3lame"),
    ".mp4": ("libx264", "aac"),
    ".avi": ("mpeg4", "libmp3lame"),
    ".webm": ("libvpx", "libopus"),
}


def tone(seconds: float, rate: int, hertz: float = 440.0, height: float = 0.5) -> np.ndarray:
    """A sine wave, float32 [T]."""
    return (height * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def shade(index: int) -> int:
    """How grey frame `index` of a made video is: ten steps, far enough apart to survive any codec."""
    return 16 + 24 * (index % 10)


def index_of(frame: np.ndarray) -> int:
    """Which frame (modulo ten) a decoded one is, by its grey."""
    return round((float(frame.mean()) - 16) / 24) % 10


def make_wav(
    path: Path,
    seconds: float = 1.0,
    rate: int = 22_050,
    hertz: float = 440.0,
    *,
    height: float = 0.5,
    channels: int = 1,
    wave: np.ndarray | None = None,
) -> Path:
    """A sound: wav, flac, ogg, aiff or mp3, by the suffix.

    Give `wave`, [T] or [T, channels], to say every sample; otherwise it is a tone, the same in every channel.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.repeat(tone(seconds, rate, hertz, height)[:, None], channels, axis=1) if wave is None else wave
    soundfile.write(path, samples, rate)
    return path


def make_video(
    path: Path,
    seconds: float = 2.0,
    fps: int | Fraction = 10,
    size: int | tuple[int, int] = 32,
    sound: bool = True,
    *,
    rate: int = 22_050,
    hertz: float = 440.0,
    pixels: Sequence[np.ndarray] | None = None,
) -> Path:
    """A video: flv, mp4, avi or webm, by the suffix, with a tone as its sound track.

    Frame i is all of the grey `shade(i)`. Give `pixels`, uint8 [H, W, 3] each, to say every frame instead.
    `size` is height and width, both even.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    high, wide = (size, size) if isinstance(size, int) else size
    pictures, voice = CODECS[path.suffix]
    if pixels is None:
        pixels = [np.full((high, wide, 3), shade(index), np.uint8) for index in range(round(seconds * fps))]
    with av.open(str(path), "w") as container:
        video = container.add_stream(pictures, rate=Fraction(fps))
        video.height, video.width = pixels[0].shape[:2] if pixels else (high, wide)
        video.pix_fmt = "yuv420p"
        video.thread_count = 1
        if pictures == "libx264":
            video.options = {"preset": "ultrafast", "crf": "10"}
        elif pictures == "libvpx":
            video.options = {"deadline": "realtime", "cpu-used": "8", "crf": "4", "b": "2M"}
        else:
            video.bit_rate = 2_000_000
        track = None
        if sound:
            track = container.add_stream(voice, rate=48_000 if voice == "libopus" else rate)
            track.codec_context.layout = "mono"
        for picture in pixels:
            for packet in video.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")):
                container.mux(packet)
        for packet in video.encode():
            container.mux(packet)
        if track is not None:
            _add_tone(container, track, seconds, hertz)
    return path


def make_image(path: Path, size: int | tuple[int, int] = 32, *, pixels: np.ndarray | None = None) -> Path:
    """An image, by its suffix: a ramp from black on the left to white on the right, or the given [H, W(, 3)] bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    high, wide = (size, size) if isinstance(size, int) else size
    if pixels is None:
        ramp = np.linspace(0, 255, wide).astype(np.uint8)
        pixels = np.repeat(np.broadcast_to(ramp, (high, wide))[..., None], 3, axis=2)
    Image.fromarray(np.ascontiguousarray(pixels)).save(path)
    return path


def _add_tone(container: av.container.OutputContainer, track: av.AudioStream, seconds: float, hertz: float) -> None:
    rate = track.codec_context.sample_rate
    wave = tone(seconds, rate, hertz)
    chunk = 1024
    for start in range(0, len(wave), chunk):
        part = wave[None, start : start + chunk]
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(part), format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        for packet in track.encode(frame):
            container.mux(packet)
    for packet in track.encode():
        container.mux(packet)
