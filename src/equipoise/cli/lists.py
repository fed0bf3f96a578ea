"""`equipoise methods`, `datasets`, `presets` and `version`: what there is, with one line each."""

import json
from typing import Any

from equipoise.cli import options
from equipoise.data.sets import PUBLISHED
from equipoise.data.source import all_data
from equipoise.study.registry import all_methods, automatic_methods
from equipoise.training.presets import all_presets
from equipoise.training.settings import Settings
from equipoise.util import VERSION

EXAMPLES = {name: f"Example: equipoise {name}" for name in ("datasets", "presets", "version")}
EXAMPLES["methods"] = "Example: equipoise methods --json"


def methods(as_json: options.Json = False) -> None:
    """Every method, with one line and its parameters."""
    every = {**automatic_methods(), **all_methods()}
    if as_json:
        print(json.dumps({name: {"summary": m.summary, "parameters": m.parameters} for name, m in every.items()}))
        return
    for name, method in every.items():
        words = " ".join(f"{key}={value}" for key, value in method.parameters.items())
        print(f"{name:<10} {method.summary}" + (f"\n{'':<10} {words}" if words else ""))


def datasets(as_json: options.Json = False) -> None:
    """Every data set, with one line. Those that have to be prepared first say what from."""
    ready = all_data()
    if as_json:
        content: dict[str, Any] = {name: {"summary": data.summary, "folds": data.folds} for name, data in ready.items()}
        for name, original in PUBLISHED.items():
            protocols = list(original.protocols)
            content[name] = {"summary": original.summary, "splits": protocols, "prepare": original.layout}
        print(json.dumps(content))
        return
    for name, data in ready.items():
        print(f"{name:<16} {data.summary} {data.folds} folds by group.")
    for name, original in PUBLISHED.items():
        summary = original.summary[0].upper() + original.summary[1:]
        print(f"{name:<16} {summary}. Splits: {', '.join(original.protocols)}.")
    print("\nFrom cremad on, from the publisher's files: equipoise prepare NAME --source DIR --out data/NAME")


def presets(as_json: options.Json = False) -> None:
    """Settings by name: the recipe for data of your own, and published ones with where each number comes from."""
    every = all_presets()
    if as_json:
        content = {
            name: {
                "data": preset.data,
                "run": preset.settings.as_dict(),
                "params": preset.params,
                "source": preset.source,
            }
            for name, preset in every.items()
        }
        print(json.dumps(content))
        return
    plain = Settings().as_dict()
    for name, preset in every.items():
        changed = [f"{key}={value}" for key, value in preset.settings.as_dict().items() if value != plain[key]]
        changed += [f"{method}.{key}={value}" for method, own in preset.params.items() for key, value in own.items()]
        print(f"{name:<16} for {preset.data or 'data of your own'}: {' '.join(changed)}\n{'':<16} {preset.source}")


def version() -> None:
    """The version."""
    print(VERSION)
