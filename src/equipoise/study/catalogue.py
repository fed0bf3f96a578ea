"""What there is, by name: methods with their parameters, and data sets; and how words on a command line set them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final, get_type_hints

from equipoise import methods
from equipoise.balance.balancer import Balancer
from equipoise.data.source import DataSet as DataSet
from equipoise.data.source import all_data as all_data
from equipoise.models import LateFusion
from equipoise.models.ensemble import as_ensemble
from equipoise.training import settings
from equipoise.training.presets import Preset
from equipoise.training.safe_step import check_step
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput, raise_all
from equipoise.util.errors import look_up as look_up


@final
@dataclass(frozen=True)
class Method:
    """A way to train, under the name users type.

    Args:
        name: Lower-case and plain.
        make: The balancer's class.
        finish: What becomes of the model after training.
        fused: Whether the model has a fused decision worth the name.
    """

    name: str
    make: type[Balancer]
    finish: Callable[[LateFusion], LateFusion] | None = None
    fused: bool = True

    @property
    def summary(self) -> str:
        """One line on it."""
        if self.finish is as_ensemble:
            return "Separately trained uni-modal models whose log-probabilities are averaged."
        return (inspect.getdoc(self.make) or "").splitlines()[0]

    def defaults(self) -> dict[str, Any]:
        """Its parameters that a command line can set, with their defaults."""
        if self.finish is as_ensemble:
            return {}  # all modalities vote, so all are trained
        hints = get_type_hints(self.make.__init__)
        found = inspect.signature(self.make.__init__).parameters
        return {name: each.default for name, each in found.items() if name != "self" and _simple(hints[name])}

    def convert(self, name: str, text: str) -> Any:
        """A parameter's value from the text of ``name=value``."""
        return settings.convert(f"{self.name}.{name}", text, get_type_hints(self.make.__init__)[name])


def _simple(kind: Any) -> bool:
    """Whether a word can express a value of this type."""
    text = str(kind)
    return not any(part in text for part in ("Mapping", "Trajectory", "Module", "dict"))


def all_methods() -> dict[str, Method]:
    """Every method by name: each balancer of the package, and the ensemble of uni-modal models."""
    found = {}
    for thing in vars(methods).values():
        if inspect.isclass(thing) and issubclass(thing, Balancer):
            name = thing.__name__.lower()
            found[name] = Method(name, thing, fused=thing.needs_fused)
    found["ensemble"] = Method("ensemble", methods.Unimodal, finish=as_ensemble)
    return dict(sorted(found.items()))


@final
@dataclass(frozen=True)
class Entry:
    """One line of a comparison: a method with its parameters, under a label.

    Args:
        label: What tables call it.
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
        """A fresh balancer."""
        return self.method.make(**self.params)

    def changed(self, params: Mapping[str, Any], run: Mapping[str, Any], label: str | None = None) -> Entry:
        """The same with some parameters and settings replaced."""
        changed = {**self.params, **params}
        return Entry(label or self.label, self.method, changed, self.settings.changed(run), self.fixed)


def entries(names: Iterable[str], words: Iterable[str] = (), preset: Preset | None = None) -> list[Entry]:
    """Lines of a comparison from method names and ``key=value`` words, or one message with all that is wrong.

    Args:
        names: Methods by name; "all" for every one.
        words: Settings (``epochs=30``), a parameter that one chosen method has (``penalty=10``), or one of a named
            method (``mimo.penalty=10``). Where a setting and a parameter share a name, ``run.`` names the setting.
        preset: What settings and parameters are where no word sets them.
    """
    known, problems = all_methods(), []
    chosen: list[Method] = []
    asked = [name.strip() for name in names]
    for wanted in dict.fromkeys(one for name in asked for one in (known if name == "all" else [name])):
        try:
            chosen.append(look_up("method", wanted, known))
        except BadInput as found:
            problems.append(str(found))
    run: dict[str, Any] = {}
    params: dict[str, dict[str, Any]] = {method.name: {} for method in chosen}
    for word in words:
        try:
            _read_word(word, chosen, run, params)
        except BadInput as found:
            problems.append(str(found))
    base = preset.settings if preset is not None else Settings()
    known_params = preset.params if preset is not None else {}
    try:
        base = base.changed(run)
    except BadInput as found:
        problems.append(str(found))
    made = [
        Entry(
            method.name, method, {**method.defaults(), **known_params.get(method.name, {}), **params[method.name]}, base
        )
        for method in chosen
    ]
    for entry in made:
        try:
            check_step(base, entry.balancer())
        except BadInput as found:
            problems.append(str(found))
    if not made and not problems:
        problems.append(f"no method was named; choose from {', '.join(known)}, or all")
    raise_all(problems)
    return made


def _meant(word: str) -> str:
    """Where a word belongs that is a method, or data."""
    if word.strip(",") in all_methods():
        return f"; methods are named by --methods, with commas between: --methods msl,{word.strip(',')}"
    return f"; data is named by --data {word}" if word in all_data() or Path(word).exists() else ""


def _read_word(word: str, chosen: list[Method], run: dict[str, Any], params: dict[str, dict[str, Any]]) -> None:
    key, sign, text = word.partition("=")
    if not sign or not key:
        raise BadInput(f"{word!r} should read name=value, such as epochs=30 or mimo.penalty=10{_meant(word)}")
    owner, dot, name = key.partition(".")
    owners = [method for method in chosen if key in method.defaults()]
    if owner == "run" or (key in settings.names() and not owners):
        look_up("setting", name or key, dict.fromkeys(settings.names()))
        run[name or key] = settings.parse(name or key, text)
        return
    if dot:
        method = next((one for one in chosen if one.name == owner), None)
        if method is None:
            raise BadInput(f"{key}: {owner!r} is not among the chosen methods {[one.name for one in chosen]}")
        look_up(f"parameter of {owner}", name, method.defaults())
        params[owner][name] = method.convert(name, text)
        return
    if len(owners) == 1 and key not in settings.names():
        params[owners[0].name][key] = owners[0].convert(key, text)
    elif owners:
        places = [*(["run"] if key in settings.names() else []), *(method.name for method in owners)]
        examples = " or ".join(f"{place}.{key}={text}" for place in places)
        raise BadInput(f"{key} stands for several things here; type {examples}")
    else:
        known = [*settings.names(), *(f"{one.name}.{name}" for one in chosen for name in one.defaults())]
        look_up("setting", key, dict.fromkeys(known))
