"""Keys as they are typed, `penalty`, `mimo.penalty` or `run.lr`: whose value each of them names."""

from __future__ import annotations

from typing import Any

from equipoise.study.catalogue import Entry


def own_name(key: str) -> str:
    """The last word of a key."""
    return key.rpartition(".")[2]


def is_parameter(entry: Entry, key: str) -> bool:
    """Whether a key names a parameter of the method; otherwise it names a setting of the run."""
    return not key.startswith("run.") and own_name(key) in entry.params


def value_at(entry: Entry, key: str) -> Any:
    """What a key stands at."""
    return entry.params[own_name(key)] if is_parameter(entry, key) else getattr(entry.settings, own_name(key))


def put(entry: Entry, key: str, value: Any) -> Entry:
    """The same entry with one value replaced."""
    change = {own_name(key): value}
    return entry.changed(change, {}) if is_parameter(entry, key) else entry.changed({}, change)
