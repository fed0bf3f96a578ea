"""Which runs a table of the paper takes: its methods, the settings they share, and the grid for λ and μ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

from equipoise.data.sets import PUBLISHED
from equipoise.data.source import DataSet, PreparedFolder, data_set
from equipoise.paper.ablation import in_words
from equipoise.paper.published import GRID, TABLES, PaperTable
from equipoise.paper.reproduce_small import SMALL_GRID, small_preset, stand_in
from equipoise.study.registry import Entry, all_methods, entries
from equipoise.training.presets import Preset, all_presets, preset_for
from equipoise.util.errors import BadInput, collect, look_up

Scale = Literal["full", "small"]
Choice = Literal["grid", "paper", "words"]

NO_DEPARTURE = ("device", "feed", "deterministic", "compile", "capture")
"""Settings that decide where and how fast, not what is computed."""

MIMO, CONTROL = "mimo", "EW at λ/K"


@final
@dataclass(frozen=True)
class Recipe:
    """All that is run for a table.

    Args:
        table: Of the paper.
        scale: "full" on the data itself, "small" on a stand-in.
        source: The data.
        entries: One per method, in the paper's order; MIMO's λ and μ are replaced where a grid is searched.
        trials: MIMO at each point of the grid; none where nothing is searched.
        choice: Where λ and μ come from.
        departures: What differs from the settings of the paper, in words.
        control: Whether EW at MIMO's λ/K is run beside it: λ also enlarges the step, and this tells the two apart.
    """

    table: PaperTable
    scale: Scale
    source: DataSet
    entries: list[Entry]
    trials: list[Entry]
    choice: Choice
    departures: list[str]
    control: bool = False

    def control_at(self, penalty: float) -> Entry:
        """Equal weights that are as large together as MIMO's."""
        params = {"weight": penalty / len(self.table.modalities)}
        return Entry(CONTROL, all_methods()["ew"], params, self.entries[0].settings, fixed=("weight",))


def full_recipe(
    table: PaperTable, words: Sequence[str], data: str | None, split: str | None, preset: str, *, grid: bool
) -> Recipe:
    """The runs on the data itself, or one message with everything that is wrong.

    Args:
        table: Of the paper.
        words: ``epochs=10`` changes the settings of the preset, and is shown as a departure from the paper.
        data: What ``--data`` says; None for the data set of the table.
        split: How prepared data is cut; None for the paper's way, where the data has it.
        preset: By name; "auto" is that of the table.
        grid: Search λ and μ, instead of taking the paper's.

    Raises:
        BadInput: With what to get and to type, where the data is not there.
    """
    source, lines = collect(
        lambda: _data(table, data, split),
        lambda: entries(table.methods, words, _as_published(preset_for(_name(preset, table), table.name), table)),
    )
    published = entries(table.methods, (), _as_published(all_presets()[table.name], table))
    trials, choice = _trials(lines, words, GRID if grid else {})
    return Recipe(table, "full", source, lines, trials, choice, _departures(lines, published, trials))


def small_recipe(table: PaperTable, words: Sequence[str], *, grid: bool) -> Recipe:
    """The same runs on a made-up stand-in for the data, with tiny encoders and a small grid.

    Args:
        table: Of the paper.
        words: As for the full ones.
        grid: Search λ and μ.
    """
    (lines,) = collect(lambda: entries(table.methods, words, _as_published(small_preset(table), table)))
    trials, choice = _trials(lines, words, SMALL_GRID if grid else {})
    return Recipe(table, "small", stand_in(table), lines, trials, choice, [])


def table_of(name: str) -> PaperTable:
    """A table by the name of its data set."""
    return look_up("table", name, TABLES)


def _name(preset: str, table: PaperTable) -> str:
    return table.name if preset == "auto" else preset


def _as_published(preset: Preset | None, table: PaperTable) -> Preset | None:
    """The preset with what the paper took from AGM's code, and with its rule that μ doubles until exponents fit.

    That code is in single precision throughout.
    """
    if preset is None:
        return None
    added = {**table.borrowed, MIMO: {"overflow": "double"}}
    both = {name: {**added.get(name, {}), **preset.params.get(name, {})} for name in {**added, **preset.params}}
    return replace(preset, settings=preset.settings.changed({"precision": "fp32"}), params=both)


def _data(table: PaperTable, data: str | None, split: str | None) -> DataSet:
    """The data, cut as in the paper where nobody says otherwise and it can be."""
    try:
        source = data_set(data or table.name, split)
    except BadInput as found:
        if data is not None and (Path(data).exists() or Path(data).suffix):
            raise
        how = "" if data is None else f"\nTo prepare it there: equipoise prepare {table.name} --source DIR --out {data}"
        raise BadInput(f"{found}{how}\n{what_to_get(table)}") from None
    if split is None and isinstance(source.load, PreparedFolder):
        from equipoise.data.prepare.prepared import Prepared

        if table.split in Prepared.open(source.load.folder).protocols:
            return data_set(data or table.name, table.split)
    return source


def what_to_get(table: PaperTable) -> str:
    """What the folder of originals has to hold, and how to see the command at work without it."""
    return (
        f"DIR is the folder of the originals. {PUBLISHED[table.name].layout}\n"
        f"Without them, the same runs on a made-up stand-in: equipoise reproduce {table.name} --scale small"
    )


def _trials(
    lines: Sequence[Entry], words: Sequence[str], grid: Mapping[str, Sequence[float]]
) -> tuple[list[Entry], Choice]:
    """MIMO at each point of the grid; what a word sets is not searched."""
    is_set = {word.partition("=")[0].removeprefix(f"{MIMO}.") for word in words}
    free = {name: values for name, values in grid.items() if name not in is_set}
    if not free:
        return [], "words" if is_set & set(GRID) else "paper"
    base = next(entry for entry in lines if entry.label == MIMO)
    points = (dict(zip(free, values, strict=True)) for values in itertools.product(*free.values()))
    return [base.changed(point, {}, _label(point)) for point in points], "grid"


def _label(point: Mapping[str, Any]) -> str:
    return f"{MIMO} " + " ".join(f"{name}={in_words(value)}" for name, value in point.items())


def _departures(lines: Sequence[Entry], published: Sequence[Entry], trials: Sequence[Entry]) -> list[str]:
    """Every setting and parameter that is not that of the paper's preset."""
    before, after = published[0].settings.as_dict(), lines[0].settings.as_dict()
    found = [
        f"{name}={in_words(after[name])} instead of {in_words(value)}"
        for name, value in before.items()
        if after[name] != value and name not in NO_DEPARTURE
    ]
    for own, paper in zip(lines, published, strict=True):
        searched = {name for name in GRID if own.label == MIMO and len({trial.params[name] for trial in trials}) > 1}
        found += [
            f"{own.label}.{name}={in_words(own.params[name])} instead of {in_words(value)}"
            for name, value in paper.params.items()
            if own.params[name] != value and name not in searched
        ]
    return found
