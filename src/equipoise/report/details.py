"""What a reader needs to do it again: the command, every setting, versions and devices."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from equipoise.report.aggregate import Row, RunGroup, as_text, dig
from equipoise.report.markup import data_table, paragraph, section
from equipoise.report.results import Results
from equipoise.report.table import MISSING


def repeat(results: Results, command: str | None) -> str:
    """How to make the same results, and this page, again."""
    folder = shlex.quote(str(results.folder))
    shown = [_command(command)] if command else [paragraph("The command that made these results was not passed on.")]
    again = [paragraph("This page again, from the results in that folder:"), _command(f"equipoise report {folder}")]
    return section("repeat", "How to repeat it", *shown, *again)


def settings_of(rows: Sequence[Row], lines: Sequence[RunGroup]) -> str:
    """The settings all runs share, then those of each line."""
    common = _settings(rows, "run")
    shared = data_table("Settings of all runs", ["setting", "value"], _shown(common, only_one=True))
    own = []
    for line in lines:
        chosen = _settings(line.rows, "params")
        chosen |= {name: values for name, values in _settings(line.rows, "run").items() if len(common[name]) > 1}
        own += [(line.label, name, value) for name, value in _shown(chosen)] or [(line.label, MISSING, MISSING)]
    return shared + data_table("Settings of each method", ["method", "setting", "value"], own)


def versions_of(rows: Sequence[Row]) -> str:
    """Versions, devices, threads: where the numbers come from."""
    found = _settings(rows, "versions")
    for name in ("device", "threads"):
        found[name] = _distinct(row.get(name) for row in rows)
    found["runs side by side"] = _distinct(dig(row, "timing", "workers") for row in rows)
    return data_table("Where the runs ran", ["what", "value"], _shown(found))


def _settings(rows: Iterable[Row], part: str) -> dict[str, list[str]]:
    """Each setting with the values it had."""
    parts = [row.get(part) or {} for row in rows]
    different = list({id(each): each for each in parts}.values())  # rows that were read together share what is equal
    names = dict.fromkeys(name for each in different for name in each)
    return {name: _distinct(each.get(name) for each in different) for name in names}


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(MISSING if value is None else as_text(value) for value in values))


def _shown(found: dict[str, list[str]], *, only_one: bool = False) -> list[tuple[str, str]]:
    return [(name, ", ".join(values)) for name, values in found.items() if len(values) == 1 or not only_one]


def _command(text: str) -> str:
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'
