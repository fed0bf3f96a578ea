"""The settings that a command would run with, found by the command itself up to where it begins to compute."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import pytest

from equipoise.cli.main import app
from equipoise.data.source import DataSet
from equipoise.study.registry import Entry

Facts = dict[str, str]


@final
class _Settled(BaseException):
    """Ends a command where it would begin; no handler of errors takes it for one."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts


def settle(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Facts:
    """What a command would run with.

    Args:
        words: As typed, without `equipoise`.
        monkeypatch: Puts a stop in the place of what computes.

    Returns:
        Settings and parameters by name, and `data`, `seeds`, `methods` … as far as the command has them.
    """
    with monkeypatch.context() as patched:
        for place, facts_of in STOPS.items():
            module, _, name = place.rpartition(".")
            original = getattr(importlib.import_module(module), name)
            patched.setattr(place, functools.partial(_stop, inspect.signature(original), facts_of))
        patched.setattr("equipoise.control.demonstrations.generate", _generated)
        patched.setattr(sys, "argv", ["equipoise", *words])
        _demonstrations.clear()
        with pytest.raises(_Settled) as stopped:
            app(standalone_mode=False)
    return stopped.value.facts


def _stop(signature: inspect.Signature, facts_of: Callable[[dict[str, Any]], Facts], *given: Any, **named: Any) -> None:
    bound = signature.bind(*given, **named)
    bound.apply_defaults()
    raise _Settled(facts_of(bound.arguments))


def written(value: Any) -> str:
    """As a word has it: numbers alike however they are typed, several with commas between."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(written, value))
    if isinstance(value, float) or (isinstance(value, str) and value.replace(".", "", 1).isdecimal()):
        return f"{float(value):g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _as_facts(values: Mapping[str, Any]) -> Facts:
    return {name: written(value) for name, value in values.items()}


def _of_entries(entries: Iterable[Entry], data: Iterable[DataSet]) -> Facts:
    """Settings, of which all lines have the same; their parameters; and their names."""
    entries = list(entries)
    (settings,) = {entry.settings for entry in entries}
    params = {f"{entry.label}.{name}": value for entry in entries for name, value in entry.params.items()}
    named = {"data": [source.name for source in data], "methods": [entry.label for entry in entries]}
    return _as_facts({**settings.as_dict(), **params, **named})


def _of_folds(folds: bool | int, source: DataSet) -> int:
    return int(folds) if not isinstance(folds, bool) else source.folds if folds else 0


def _of_comparison(call: dict[str, Any]) -> Facts:
    sources = [source for source, _ in call["studies"]]
    first = call["studies"][0][1]
    assert all(chosen == first for _, chosen in call["studies"]), "lines differ between the data sets"
    how = {"folds": _of_folds(call["folds"], sources[0]), "tune": call["tune"], "quick": call["quick"]}
    runs = len(call["seeds"]) * len(first) * max(how["folds"], 1) * len(sources)
    return _of_entries(first, sources) | _as_facts({"seeds": len(call["seeds"]), "runs": runs, **how})


def _of_robustness(call: dict[str, Any]) -> Facts:
    (source, lines), *others = call["studies"]
    places = len(call["rates"]) + len([size for size in call["sizes"] if size != 1])
    runs = len(call["seeds"]) * len(lines) * places * (1 + len(others))
    how = {name: call[name] for name in ("rates", "sizes", "quick")}
    return _of_entries(lines, [source]) | _as_facts({"seeds": len(call["seeds"]), "runs": runs, **how})


def _of_ablation(call: dict[str, Any]) -> Facts:
    sweep, folds = call["sweep"], _of_folds(call["folds"], call["source"])
    along = {curve.axis: list(curve.labels) for curve in sweep.curves if not curve.divided}
    runs = call["seeds"] * len(sweep.points) * max(folds, 1)
    divided = any(curve.divided for curve in sweep.curves)
    how = {"seeds": call["seeds"], "folds": folds, "runs": runs, "divided": divided}
    return _of_entries([sweep.base], [call["source"]]) | _as_facts({**how, **along})


def _of_search(call: dict[str, Any]) -> Facts:
    limits = {name: str(space) for name, space in call["search"].space.items()}
    base = _of_entries([call["search"].base], [call["source"]])
    start = {f"start.{name}": written(value) for name, value in call["search"].start().items()}
    return {**base, **start, **_as_facts({"seed": call["seed"], "trials": call["trials"], **limits})}


def _of_reproduction(call: dict[str, Any]) -> Facts:
    asked = call["asked"]
    runs = len(asked.trials) * call["grid_seeds"] + len(asked.entries) * call["seeds"]
    how = {"seeds": call["seeds"], "runs": runs, "scale": asked.scale, "choice": asked.choice}
    return _of_entries(asked.entries, [asked.source]) | _as_facts(how)


def _of_landscape(call: dict[str, Any]) -> Facts:
    facts = _of_entries(call["entries"], [])
    return facts | {"data": call["splits"].name} | _as_facts(dataclasses.asdict(call["settings"]))


def _of_toy(call: dict[str, Any]) -> Facts:
    return _as_facts({**dataclasses.asdict(call["settings"]), "seeds": len(call["seeds"]), "theory": call["theory"]})


_demonstrations: list[int] = []


def _generated(_folder: object, count: int, **_: object) -> None:
    _demonstrations.append(count)


def _of_control(call: dict[str, Any]) -> Facts:
    lines, plan = call["chosen"], call["plan"]
    entries = [dataclasses.replace(line.entry, label=line.label) for line in lines]
    # Fusion and encoders are those of the line; everything else is the same for all.
    alike = [entry.changed({}, {"fusion": "concat", "encoder": "auto"}) for entry in entries]
    seeds = len(list(call["seeds"]))
    episodes = sum(len(plan.of(line.sensors)) for line in lines) * seeds
    how = {"seeds": seeds, "policies": len(lines) * seeds, "episodes": episodes, "conditions": len(plan.conditions)}
    return _of_entries(alike, []) | _as_facts({**how, "demonstrations": _demonstrations, "rollouts": plan.episodes})


def _of_bench(call: dict[str, Any]) -> Facts:
    return _as_facts(
        {
            "rounds": call["rounds"],
            "methods": list(call["chosen"]),
            "encoder": list(dict.fromkeys(case.encoder for case in call["cases"])),
            "modalities": sorted({case.modalities for case in call["cases"]}),
            "batch": sorted({case.batch for case in call["cases"]}),
        }
    )


STOPS: dict[str, Callable[[dict[str, Any]], Facts]] = {
    "equipoise.study.compare.compare_each": _of_comparison,
    "equipoise.cli.robustness.run_robustness": _of_robustness,
    "equipoise.paper.ablation.run": _of_ablation,
    "equipoise.study.search.run_search": _of_search,
    "equipoise.paper.reproduce.run": _of_reproduction,
    "equipoise.paper.landscape.gather": _of_landscape,
    "equipoise.paper.toy_results.gather": _of_toy,
    "equipoise.control.study.run_study": _of_control,
    "equipoise.paper.bench.measure": _of_bench,
}
"""Where each command begins to compute, and what it does so with."""
