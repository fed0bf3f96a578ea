"""Digests of samples, by which a model knows those that it was trained on without keeping them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch

from equipoise.data.part import LENGTH, Part

GLANCE = 4096
"""Numbers of a sensor that are read of each sample: from its middle, or from the start of a series of any length."""
NOTHING = 0
"""The digest of a sample without any sensor, which is no sample to know again."""
_CHUNK = 1024  # samples that are read at a time


def sample_digests(part: Part, modalities: Iterable[str], key: str) -> np.ndarray:
    """Return 64 bits for each sample of a part, int64 [N], of what its sensors gave; its label has no say in it.

    Args:
        part: The samples, as a model is trained on them.
        modalities: The sensors that count.
        key: Digests under one key say nothing about those under another.
    """
    rows, secret = torch.arange(len(part)) if part.rows is None else part.rows, hashlib.sha256(key.encode()).digest()
    digests = [_digests(part, sorted(modalities), some, secret) for some in rows.split(_CHUNK)]
    return np.concatenate([np.zeros(0, np.int64), *digests])


def _digests(part: Part, modalities: list[str], rows: torch.Tensor, secret: bytes) -> np.ndarray:
    found = [hashlib.blake2b(digest_size=8, key=secret) for _ in rows]
    heard = np.zeros(len(rows), bool)
    for name in modalities:
        array, lengths = part.inputs[name], part.inputs.get(f"{name}{LENGTH}")
        flat = array.reshape(len(array), -1)
        start = max(0, (flat.shape[1] - GLANCE) // 2) if lengths is None else 0
        glance = flat[:, start : start + GLANCE][rows].contiguous().view(torch.uint8).numpy()
        steps = None if lengths is None else lengths[rows].numpy().astype(np.int64)
        present = np.ones(len(rows), bool) if name not in part.present else part.present[name][rows].numpy()
        heard |= present
        for at, digest in enumerate(found):
            digest.update(f"{name} {present[at]} {'' if steps is None else steps[at]}".encode())
            digest.update(glance[at].data if present[at] else b"")
    numbers = np.frombuffer(b"".join(digest.digest() for digest in found), np.int64)
    return np.where(heard, numbers, NOTHING)
