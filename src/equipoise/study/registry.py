"""Methods by name, lines of a comparison, and how words on a command line set their parameters and settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, final, get_args, get_origin, get_type_hints

from equipoise import methods
from equipoise.balance.balancer import Balancer
from equipoise.data.source import all_data
from equipoise.models import LateFusion
from equipoise.models.committee import as_ensemble
from equipoise.training import settings
from equipoise.training.optimisers import check_step
from equipoise.training.settings import Preset, Settings
from equipoise.util.errors import BadInput, look_up, raise_all

WITH_COMMAS = ("encoder", "class_weight")
"""Settings whose one value may hold commas."""


@final
@dataclass(frozen=True)
class Method:
    """A way to train, under the name users type.

    Args:
        name: Lower-case and plain.
        make: The balancer's class.
        summary: One line on it.
        parameters: Its parameters that a command line can set, with their defaults.
        finish: Applied to the model after training.
        fused: Whether the fused decision of the model is trained.
    """

    name: str
    make: type[Balancer]
    summary: str
    parameters: dict[str, Any]
    finish: Callable[[LateFusion], LateFusion] | None = None
    fused: bool = True

    def convert(self, name: str, text: str) -> Any:
        """Read a parameter's value from the text of ``name=value``."""
        return settings.convert(f"{self.name}.{name}", text, get_type_hints(self.make.__init__)[name])


def _fits_a_word(kind: Any) -> bool:
    """Tell whether a word can express a value of this type: a number, text, a literal, or one of these or None."""
    kinds = (kind,) if isinstance(kind, type) or get_origin(kind) is Literal else get_args(kind)
    return all(one in (bool, int, float, str, NoneType) or get_origin(one) is Literal for one in kinds)


def _method(name: str, make: type[Balancer]) -> Method:
    hints, arguments = get_type_hints(make.__init__), inspect.signature(make.__init__).parameters
    parameters = {key: value.default for key, value in arguments.items() if key != "self" and _fits_a_word(hints[key])}
    return Method(name, make, (inspect.getdoc(make) or "").splitlines()[0], parameters, fused=make.needs_fused)


def all_methods() -> dict[str, Method]:
    """List every method by name: each balancer of the package, and the ensemble of uni-modal models."""
    classes = [one for one in vars(methods).values() if inspect.isclass(one) and issubclass(one, Balancer)]
    known = {make.__name__.lower(): _method(make.__name__.lower(), make) for make in classes}
    summary = "Separately trained uni-modal models whose log-probabilities are averaged."
    # All modalities vote, so all are trained: none can be chosen.
    known["ensemble"] = Method("ensemble", methods.Unimodal, summary, {}, finish=as_ensemble)
    return dict(sorted(known.items()))


def own_name(key: str) -> str:
    """Return the last word of a key as it is typed: ``penalty``, ``mimo.penalty`` or ``run.lr``."""
    return key.rpartition(".")[2]


@final
@dataclass(frozen=True)
class Entry:
    """One line of a comparison: a method with its parameters, under a label.

    Args:
        label: Its name in tables.
        method: How it trains.
        params: Every parameter of the method.
        settings: How the model is built and trained.
        fixed: Parameters that tuning leaves alone, because the label promises them.
    """

    label: str
    method: Method
    params: dict[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    fixed: tuple[str, ...] = ()

    def balancer(self) -> Balancer:
        """Make a fresh balancer."""
        return self.method.make(**self.params)

    def changed(self, params: Mapping[str, Any], run: Mapping[str, Any], label: str | None = None) -> Entry:
        """Return the same with some parameters and settings replaced."""
        params = {**self.params, **params}
        return replace(self, label=label or self.label, params=params, settings=self.settings.changed(run))

    def has_parameter(self, key: str) -> bool:
        """Tell whether a key names a parameter of the method; otherwise it names a setting of the run."""
        return not key.startswith("run.") and own_name(key) in self.params

    def value_at(self, key: str) -> Any:
        """Return the parameter or setting that a key names."""
        return self.params[own_name(key)] if self.has_parameter(key) else getattr(self.settings, own_name(key))

    def with_value(self, key: str, value: Any) -> Entry:
        """Return the same with the parameter or setting that a key names replaced."""
        change = {own_name(key): value}
        return self.changed(change, {}) if self.has_parameter(key) else self.changed({}, change)


def entries(names: Iterable[str], words: Iterable[str] = (), preset: Preset | None = None) -> list[Entry]:
    """Make lines of a comparison from method names and ``key=value`` words, or raise one message with all problems.

    Args:
        names: Methods by name; "all" for every one.
        words: Settings (``epochs=30``), a parameter that one chosen method has (``penalty=10``), or one of a named
            method (``mimo.penalty=10``). Where a setting and a parameter share a name, ``run.`` names the setting.
        preset: Settings and parameters where no word sets them.
    """
    known, problems = all_methods(), []

    def attempt(read: Callable[..., Any], *args: Any) -> Any:
        try:
            return read(*args)
        except BadInput as error:
            problems.append(str(error))

    asked = dict.fromkeys(one for name in names for one in (known if name.strip() == "all" else [name.strip()]))
    chosen = [method for name in asked if (method := attempt(look_up, "method", name, known)) is not None]
    run: dict[str, Any] = {}
    params: dict[str, dict[str, Any]] = {method.name: {} for method in chosen}
    for word in words:
        attempt(_read_word, word, chosen, run, params)
    base, preset_params = (Settings(), {}) if preset is None else (preset.settings, preset.params)
    base = attempt(base.changed, run) or base
    lines = [
        Entry(one.name, one, {**one.parameters, **preset_params.get(one.name, {}), **params[one.name]}, base)
        for one in chosen
    ]
    for line in lines:
        attempt(lambda line=line: check_step(base, line.balancer()))
    if not lines and not problems:
        problems.append(f"no method was named; choose from {', '.join(known)}, or all")
    raise_all(problems)
    return lines


def _meant(word: str) -> str:
    """Say where a word belongs that is a method, or data."""
    if word.strip(",") in all_methods():
        return f"; methods are named by --methods, with commas between: --methods msl,{word.strip(',')}"
    return f"; data is named by --data {word}" if word in all_data() or Path(word).exists() else ""


def _read_word(word: str, chosen: list[Method], run: dict[str, Any], params: dict[str, dict[str, Any]]) -> None:
    key, sign, text = word.partition("=")
    if not sign or not key:
        raise BadInput(f"{word!r} should read name=value, such as epochs=30 or mimo.penalty=10{_meant(word)}")
    owner, dot, name = key.partition(".")
    owners = [method for method in chosen if key in method.parameters]
    if owner == "run" or (key in settings.names() and not owners):
        look_up("setting", name or key, dict.fromkeys(settings.names()))
        run[name or key] = settings.parse(name or key, text)
        return
    if dot:
        method = next((one for one in chosen if one.name == owner), None)
        if method is None:
            raise BadInput(f"{key}: {owner!r} is not among the chosen methods {[one.name for one in chosen]}")
        look_up(f"parameter of {owner}", name, method.parameters)
        params[owner][name] = method.convert(name, text)
        return
    if len(owners) == 1 and key not in settings.names():
        params[owners[0].name][key] = owners[0].convert(key, text)
    elif owners:
        places = [*(["run"] if key in settings.names() else []), *(method.name for method in owners)]
        examples = " or ".join(f"{place}.{key}={text}" for place in places)
        raise BadInput(f"{key} stands for several things here; type {examples}")
    else:
        known = [*settings.names(), *(f"{one.name}.{name}" for one in chosen for name in one.parameters)]
        look_up("setting", key, dict.fromkeys(known))
