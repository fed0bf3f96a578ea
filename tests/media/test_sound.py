"""Sounds of known content read back; resampling against its formula and against what a sine is at other times."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from equipoise.media import sound
from equipoise.media.sound import read_sound, resample, tile
from equipoise.util.errors import Unreadable
from media.made import SOUNDS, VIDEOS, make_video, make_wav, tone


def pitch(wave: np.ndarray, rate: int) -> float:
    """The frequency with the most energy."""
    return float(np.abs(np.fft.rfft(wave)).argmax() * rate / len(wave))


def written_out_resampling(wave: np.ndarray, before: int, after: int) -> np.ndarray:
    """The sum over all samples, for each output."""
    common = math.gcd(before, after)
    cut = 0.99 * min(before, after) / common
    out = []
    for n in range(math.ceil(len(wave) * after / before)):
        t = (n * common / after - np.arange(len(wave)) * common / before) * cut
        kernel = np.where(np.abs(t) < 6, np.sinc(t) * np.cos(np.pi * t / 12) ** 2, 0) * cut * common / before
        out.append(wave @ kernel)
    return np.array(out)


class TestReadSound:
    @pytest.mark.parametrize("suffix", SOUNDS)
    def test_every_format(self, tmp_path: Path, suffix: str) -> None:
        wave, rate = read_sound(make_wav(tmp_path / f"a{suffix}", 1.5, 22_050, 441, channels=2))
        assert (rate, wave.shape, wave.dtype) == (22_050, (33_075,), np.float32)
        assert pitch(wave, rate) == pytest.approx(441, abs=1)
        assert np.abs(wave[1000:-1000]).max() == pytest.approx(0.5, rel=0.05)

    @pytest.mark.parametrize("suffix", VIDEOS)
    def test_the_sound_of_a_video(self, tmp_path: Path, suffix: str) -> None:
        wave, rate = read_sound(make_video(tmp_path / f"a{suffix}", 2.0, hertz=880), 16_000)
        assert rate == 16_000
        assert len(wave) == pytest.approx(32_000, abs=2000)  # codecs that put some silence first do not always say so
        assert pitch(wave, rate) == pytest.approx(880, abs=5)
        assert np.abs(wave[4000:-4000]).max() == pytest.approx(0.5, rel=0.1)

    @pytest.mark.parametrize(
        "subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "IMA_ADPCM"]
    )
    def test_full_scale_is_one(self, tmp_path: Path, subtype: str) -> None:
        path = tmp_path / "a.wav"
        soundfile.write(path, tone(0.5, 8000, 100, height=0.75), 8000, subtype=subtype)
        wave, _ = read_sound(path)
        true = tone(0.5, 8000, 100, height=0.75)
        np.testing.assert_allclose(wave[50:4000], true[50:], atol=0.03)  # codecs that adapt need a moment

    @pytest.mark.parametrize("codec", ["pcm_u8", "pcm_s16le", "pcm_s32le", "pcm_f32le", "pcm_f64le"])
    def test_full_scale_is_one_in_a_video_too(self, tmp_path: Path, codec: str) -> None:
        path = tmp_path / "a.mkv"
        with av.open(str(path), "w") as container:
            track = container.add_stream(codec, rate=8000)
            track.codec_context.layout = "stereo"
            both = np.stack([tone(0.5, 8000, 100, height=0.75), tone(0.5, 8000, 100, height=0.25)])
            frame = av.AudioFrame.from_ndarray(both, format="fltp", layout="stereo")
            frame.sample_rate = 8000
            container.mux([*track.encode(frame), *track.encode()])
        wave, rate = read_sound(path)
        assert rate == 8000
        np.testing.assert_allclose(wave, tone(0.5, 8000, 100, height=0.5), atol=0.02)

    def test_channels_are_averaged(self, tmp_path: Path) -> None:
        both = np.stack([np.full(100, 0.5), np.full(100, -0.25)], axis=1)
        wave, _ = read_sound(make_wav(tmp_path / "a.wav", wave=both))
        np.testing.assert_allclose(wave, 0.125, atol=1e-4)

    def test_content_decides_not_the_name(self, tmp_path: Path) -> None:
        wave, rate = read_sound(make_video(tmp_path / "a.mp4", 1.0).rename(tmp_path / "a.wav"))
        assert pitch(wave, rate) == pytest.approx(440, abs=5)
        wave, rate = read_sound(make_wav(tmp_path / "b.wav", 1.0).rename(tmp_path / "b.raw"))
        assert pitch(wave, rate) == pytest.approx(440, abs=5)

    def test_mp3_within_wav(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """Damaged or not, nothing is written to the terminal."""
        path = tmp_path / "a.wav"
        with av.open(str(path), "w") as container:
            track = container.add_stream("libmp3lame", rate=22_050)
            track.codec_context.layout = "mono"
            frame = av.AudioFrame.from_ndarray(tone(1, 22_050)[None], format="fltp", layout="mono")
            frame.sample_rate = 22_050
            container.mux([*track.encode(frame), *track.encode()])
        wave, rate = read_sound(path)
        assert pitch(wave, rate) == pytest.approx(440, abs=5)
        content = bytearray(path.read_bytes())
        content[2000:2500] = bytes(500)
        path.write_bytes(content)
        assert read_sound(path)[0].size
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("name", ["http:x.flv", "concat:a|b.flv", "%03d.flv", "ümläut ♫.flv", "-.flv"])
    def test_a_name_is_only_a_name(self, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        make_video(tmp_path / "a.flv", 1.0).rename(tmp_path / name)
        monkeypatch.chdir(tmp_path)
        assert len(read_sound(name)[0]) > 20_000
        assert len(read_sound(tmp_path / name)[0]) > 20_000

    def test_one_sample(self, tmp_path: Path) -> None:
        path = make_wav(tmp_path / "a.wav", wave=np.array([0.5]))
        wave, _ = read_sound(path)
        np.testing.assert_allclose(wave, [0.5], atol=1e-4)
        wave, _ = read_sound(path, 16_000)
        assert wave.shape == (1,)
        assert np.isfinite(wave).all()
        assert read_sound(path, 44_100)[0].shape == (2,)

    def test_no_sample(self, tmp_path: Path) -> None:
        with pytest.raises(Unreadable, match=r"a\.wav: a sound without samples"):
            read_sound(make_wav(tmp_path / "a.wav", wave=np.zeros(0)))

    def test_a_video_without_sound(self, tmp_path: Path) -> None:
        with pytest.raises(Unreadable, match=r"a\.mp4: no audio in it"):
            read_sound(make_video(tmp_path / "a.mp4", sound=False))

    def test_samples_that_are_no_numbers(self, tmp_path: Path) -> None:
        path = tmp_path / "a.wav"
        soundfile.write(path, np.array([0.0, np.nan, np.inf]), 8000, subtype="FLOAT")
        with pytest.raises(Unreadable, match=r"a\.wav: 2 of its samples are no finite numbers"):
            read_sound(path)

    @pytest.mark.parametrize("rate", [1, 999, 2_000_000])
    def test_rates_that_nothing_has(self, tmp_path: Path, rate: int) -> None:
        path = tmp_path / "a.wav"
        soundfile.write(path, np.zeros(10), rate)
        with pytest.raises(Unreadable, match=rf"a\.wav: expected 1000 to 1000000 samples per second, it states {rate}"):
            read_sound(path)
        with pytest.raises(ValueError, match=f"expected a rate of 1000 to 1000000 samples per second, found {rate}"):
            read_sound(path, rate)

    def test_sounds_that_are_too_long(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path, video = make_wav(tmp_path / "a.wav", 1.0, 8000), make_video(tmp_path / "a.flv", 1.0)
        monkeypatch.setattr(sound, "MOST_SAMPLES", 8000)
        assert len(read_sound(path)[0]) == 8000
        for wanted in (lambda: read_sound(path, 8001), lambda: read_sound(video)):
            with pytest.raises(Unreadable, match="longer than 8000 samples"):
                wanted()

    def test_a_missing_package_says_what_to_type(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = make_wav(tmp_path / "a.wav")
        monkeypatch.setitem(sys.modules, "soundfile", None)
        with pytest.raises(ModuleNotFoundError, match=r"needs soundfile.*type: pip install .*\[media\]'"):
            read_sound(path)


class TestResample:
    @pytest.mark.parametrize(
        ("before", "after"),
        [(22_050, 16_000), (16_000, 22_050), (44_100, 22_050), (48_000, 16_000), (8_000, 48_000), (7, 5), (1009, 997)],
    )
    @pytest.mark.parametrize("samples", [1, 2, 50, 333])
    def test_equals_the_sum_written_out(self, before: int, after: int, samples: int) -> None:
        wave = np.random.default_rng(samples).standard_normal(samples)
        ours, slow = resample(wave, before, after), written_out_resampling(wave, before, after)
        assert ours.shape == slow.shape
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, slow, atol=2e-6)

    @pytest.mark.parametrize(
        ("before", "after"), [(22_050, 16_000), (16_000, 22_050), (44_099, 22_050), (48_000, 16_000)]
    )
    def test_a_sine_stays_a_sine(self, before: int, after: int) -> None:
        ours, true = resample(tone(0.2, before, 1000), before, after), tone(0.2, after, 1000)
        np.testing.assert_allclose(ours[50:-50], true[50 : len(ours) - 50], atol=2e-3)

    def test_tones_above_the_new_nyquist_frequency_vanish(self) -> None:
        for hertz in (10_000, 12_000, 15_000, 20_000):
            wave = resample(tone(0.5, 44_100, hertz), 44_100, 16_000)
            assert np.abs(wave[200:-200]).max() < 0.005  # of 0.5

    def test_same_rate(self) -> None:
        wave = tone(0.1, 8000)
        same = resample(wave, 8000, 8000)
        np.testing.assert_array_equal(same, wave)
        same[0] = 1
        assert wave[0] == 0

    def test_only_the_ratio_of_rates_matters(self) -> None:
        wave = tone(0.1, 44_100)
        np.testing.assert_array_equal(resample(wave, 44_100, 22_050), resample(wave, 2, 1))
        np.testing.assert_array_equal(resample(wave, 48_000, 22_050), resample(wave, 320, 147))

    def test_nothing_stays_nothing(self) -> None:
        assert resample(np.zeros(0), 22_050, 16_000).shape == (0,)


class TestTile:
    def test_by_hand(self) -> None:
        wave = np.array([1, 2, 3])
        assert tile(wave, 7).tolist() == [1, 2, 3, 1, 2, 3, 1]
        assert tile(wave, 2).tolist() == [1, 2]
        assert tile(wave[:1], 3).tolist() == [1, 1, 1]

    def test_nothing_cannot_be_repeated(self) -> None:
        with pytest.raises(ValueError, match="at least one sample"):
            tile(np.zeros(0), 5)
