"""Checks that every published data set has to pass, and tools to break what must not matter."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from equipoise import MIMO
from equipoise.data.prepare.original import Clip, Clips, Original
from equipoise.data.prepare.prepare import prepare
from equipoise.data.splits import PARTS, Part, Splits
from equipoise.models.late_fusion import LateFusion
from equipoise.training.presets import all_presets
from equipoise.training.train import train


def groups_in_two_parts(clips: Iterable[Clip], protocol: str) -> set[str]:
    """Persons or videos that a protocol tears apart."""
    parts = defaultdict(set)
    for clip in clips:
        if protocol in clip.parts:
            parts[clip.group].add(clip.parts[protocol])
    return {group for group, found in parts.items() if len(found) > 1}


def counts(clips: Iterable[Clip], protocol: str) -> dict[str, int]:
    """How many clips each part of a protocol has."""
    found = [clip.parts[protocol] for clip in clips if protocol in clip.parts]
    return {part: found.count(part) for part in PARTS}


def check_listing(original: Original, clips: Clips) -> None:
    """Ids are unique, labels are classes, parts are parts, and groups stay whole where a protocol says so."""
    ids = [clip.id for clip in clips.listed]
    assert len(ids) == len(set(ids))
    classes = original.classes(clips)
    assert len(classes) == len(set(classes))
    for clip in clips.listed:
        assert 0 <= clip.label < len(classes)
        assert clip.group
        assert set(clip.parts) <= set(original.protocols)
        assert set(clip.parts.values()) <= set(PARTS)
    for name, protocol in original.protocols.items():
        assert protocol.about
        if protocol.by_group:
            assert groups_in_two_parts(clips.listed, name) == set()


def check_arrays(original: Original, arrays: dict[str, np.ndarray]) -> None:
    """Shapes and types are those of the fields; ragged arrays are no longer than their field."""
    assert list(arrays) == list(original.fields)
    for name, field in original.fields.items():
        array = arrays[name]
        assert array.dtype == field.dtype
        assert array.shape[1:] == field.shape[1:]
        assert 1 <= len(array) <= field.shape[0] if field.ragged else len(array) == field.shape[0]
        assert np.isfinite(array.astype(np.float64)).all()


def check_reading_draws_nothing(clips: Clips, number: int) -> None:
    """The generators of numpy, torch and Python are left alone, and what is read does not depend on them."""
    reads = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002 (the global one is what public code resets)
        torch.manual_seed(seed)
        random.seed(seed)
        before = _generators()
        reads.append(clips.read(number))
        assert before == _generators()
    for name, array in reads[0].items():
        assert np.array_equal(array, reads[1][name])


def _generators() -> tuple[str, list[int], object]:
    return str(np.random.get_state()), torch.get_rng_state().tolist(), random.getstate()  # noqa: NPY002


def scramble_listings(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Let every directory be listed in a random order, as file systems do."""
    shuffle = random.Random(seed)
    plain = Path.iterdir

    def iterdir(folder: Path) -> Iterable[Path]:
        found = list(plain(folder))
        shuffle.shuffle(found)
        return iter(found)

    patch.setattr(Path, "iterdir", iterdir)


def log_stft_by_hand(wave: np.ndarray, n_fft: int, hop: int) -> np.ndarray:
    """log(|S| + 1e-7) with numpy alone, [frequencies, frames], in double precision."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    padded = np.pad(wave.astype(np.float64), n_fft // 2, mode="reflect")
    starts = range(0, len(wave) + 1, hop)
    return np.log(np.abs(np.stack([np.fft.rfft(padded[s : s + n_fft] * window) for s in starts])) + 1e-7).T


def write_list(path: Path, rows: Sequence[str], *, mark: bool = False) -> Path:
    """A publisher's list, with or without a byte order mark."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8-sig" if mark else "utf-8")
    return path


def check_prepared(original: Original, source: Path, out: Path, protocol: str, unread: Sequence[str] = ()) -> Splits:
    """Prepare a source, and find every clip in its part with the arrays that reading it gives; give its parts."""
    clips = original.open(source)
    prepared = prepare(original, source, out, workers=1)
    assert [name for name, _ in prepared.skipped] == list(unread)
    assert prepared.classes == original.classes(clips)
    splits = prepared.splits(protocol)
    for name, part in splits.parts.items():
        numbers = [
            number
            for number, clip in enumerate(clips.listed)
            if clip.parts.get(protocol) == name and clip.id not in unread
        ]
        assert part.label.tolist() == [clips.listed[number].label for number in numbers]
        for row, number in enumerate(numbers):
            stored = part.take(torch.tensor([row])).inputs
            for modality, array in clips.read(number).items():
                kept = stored[modality][0].numpy()
                if original.fields[modality].ragged:
                    assert stored[f"{modality}_length"].tolist() == [len(array)]
                    assert not kept[len(array) :].any()
                    kept = kept[: len(array)]
                assert np.array_equal(kept, array)
    return splits


def check_trains(splits: Splits, preset: str | None = None, **changes: Any) -> None:
    """Two epochs with the model of the data set's preset, every part of it finite at the end."""
    short = {"epochs": 2, "batch": 8, "device": "cpu", **changes}
    settings = all_presets()[preset or splits.name].settings.changed(short)
    trained = train(splits, MIMO(), settings)
    assert len(trained.curves) == 2
    for record in trained.curves:
        assert set(record["validation"]) == {"fused", *splits.modalities}
    assert all(parameter.isfinite().all() for parameter in trained.model.parameters())


def check_it_trains(model: LateFusion, part: Part) -> None:
    """Two epochs of plain training change the model, and leave it finite."""
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        ready = part.in_memory().ready(torch.Generator().manual_seed(epoch))
        outputs = model(ready.inputs)
        loss = torch.stack([F.cross_entropy(logits, ready.label) for logits in outputs.values()]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.isfinite().all()
        assert parameter.dim() == 1 or not torch.equal(parameter, old)  # a bias may have no say
