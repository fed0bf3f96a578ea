"""Methods by name or dotted path, lines of a comparison, and how typed words set parameters and settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast, final, get_args, get_origin, get_type_hints

from equipoise import methods
from equipoise.balance.balancer import Balancer
from equipoise.data.source import all_data
from equipoise.models.ensemble import as_ensemble
from equipoise.models.fusion_model import FusionModel
from equipoise.training import settings
from equipoise.training.optimisers import check_step
from equipoise.training.presets import Preset
from equipoise.training.settings import Settings
from equipoise.util.annotated import ReadBy, Tried, annotations_of
from equipoise.util.errors import BadInput, look_up, raise_all
from equipoise.util.named import imported, is_path, told

WITH_COMMAS = ("encoder", "class_weight", "positive")
"""Settings whose one value may hold commas."""
OR_YOUR_OWN = "or a class of your own by dotted path: my_file.Gap"


@final
@dataclass(frozen=True)
class Method:
    """A way to train, under the name users type.

    Args:
        name: Lower-case and plain; or the dotted path of a class of the user's own.
        make: The balancer's class.
        summary: One line on it.
        parameters: Its parameters that a command line can set, with their defaults.
        finish: Applied to the model after training.
        fused: Whether the fused decision of the model is trained.
        way: The way to a model: "trained" by the balancer; "instant", solved in closed form; or "auto", a portfolio of
            methods beside closed-form heads.
    """

    name: str
    make: type[Balancer]
    summary: str
    parameters: dict[str, Any]
    finish: Callable[[FusionModel], FusionModel] | None = None
    fused: bool = True
    way: Literal["trained", "instant", "auto"] = "trained"

    def convert(self, name: str, text: str) -> Any:
        """Read a parameter's value from the text of ``name=value``."""
        if self.way == "trained" and name in (readers := annotations_of(self.make.__init__, ReadBy)):
            return readers[name].read(text)
        kind = _kinds(self.make)[name] if self.way == "trained" else type(self.parameters[name])
        return settings.convert(f"{self.name}.{name}", text, kind)

    @property
    def tried(self) -> dict[str, tuple[Any, ...]]:
        """The values of its parameters that are usually tried, by parameter."""
        return {name: one.values for name, one in annotations_of(self.make.__init__, Tried).items()}

    @property
    def own(self) -> bool:
        """True if it is a class of the user's own, by its dotted path."""
        return is_path(self.name)

    def has_name(self, owner: str) -> bool:
        """Tell whether the word before a parameter means this method: its name, or the class of a dotted path."""
        return owner == self.name or (self.own and owner.lower() == own_name(self.name).lower())

    def __reduce__(self) -> tuple[Any, ...]:
        """Send a class of the user's own by its path: where that cannot be imported, the run says so."""
        if self.own:
            return _own_elsewhere, (self.name,)
        return Method, (self.name, self.make, self.summary, self.parameters, self.finish, self.fused, self.way)


def _fits_a_word(kind: Any) -> bool:
    """Tell whether a word can express a value of this type: a number, text, a literal, or one of these or None."""
    kinds = (kind,) if isinstance(kind, type) or get_origin(kind) is Literal else get_args(kind)
    return all(one in (bool, int, float, str, NoneType) or get_origin(one) is Literal for one in kinds)


def _arguments(make: type[Balancer]) -> list[Parameter]:
    return [*inspect.signature(make.__init__).parameters.values()][1:]


def _kinds(make: type[Balancer]) -> dict[str, Any]:
    """Return the types of a method's parameters that a word can express; without an annotation, the default's."""
    try:
        hints = get_type_hints(make.__init__)
    except Exception:  # annotations of the user's own may not resolve
        hints = {}
    named = {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
    arguments = [one for one in _arguments(make) if one.kind in named]
    kinds = {one.name: hints.get(one.name, type(one.default)) for one in arguments}
    return {name: kind for name, kind in kinds.items() if _fits_a_word(kind)}


@cache
def _method(name: str, make: type[Balancer]) -> Method:
    defaults = {one.name: one.default for one in _arguments(make)}
    readable = {*_kinds(make), *annotations_of(make.__init__, ReadBy)}
    parameters = {key: default for key, default in defaults.items() if key in readable}
    summary = (inspect.getdoc(make) or "").partition("\n")[0]
    return Method(name, make, summary, parameters, fused=make.needs.fused)


def all_methods() -> dict[str, Method]:
    """List every method by name: each balancer of the package, and the ensemble of uni-modal models."""
    classes = [one for one in vars(methods).values() if inspect.isclass(one) and issubclass(one, Balancer)]
    known = {make.__name__.lower(): _method(make.__name__.lower(), make) for make in classes}
    summary = "Separately trained uni-modal models whose log-probabilities are averaged."
    # All modalities vote, so all are trained: none can be chosen.
    known["ensemble"] = Method("ensemble", methods.Unimodal, summary, {}, finish=as_ensemble)
    return dict(sorted(known.items()))


def automatic_methods() -> dict[str, Method]:
    """List the ways to a model that are no single training; "all" does not mean them."""
    portfolio = (
        "Closed-form heads, then a few methods by successive halving on validation data, combined where that is better."
    )
    instant = "Heads solved in closed form on features of fixed kernels, without any training: a model in seconds."
    return {
        "auto": Method("auto", methods.MSL, portfolio, {"refit": False}, way="auto"),
        "instant": Method("instant", methods.MSL, instant, {}, way="instant"),
    }


def method_of(name: str, *, automatic: bool = False) -> Method:
    """Return a method by name, or a class of the user's own by its dotted path.

    Args:
        name: As typed.
        automatic: Take what is no single training, too.

    Raises:
        BadInput: If there is no such method, or the class is no `Balancer` that can be made from words.
    """
    known = {**all_methods(), **(automatic_methods() if automatic else {})}
    if name in automatic_methods() and not automatic:
        raise BadInput(_not_trained(name))
    if name in known or not is_path(name):
        return look_up("method", name, known, OR_YOUR_OWN)
    try:
        make = imported(name)
    except BadInput as error:
        raise BadInput(f"method {name!r}: {error}") from error
    if not (inspect.isclass(make) and issubclass(make, Balancer)):
        found = f"the class {make.__name__}" if inspect.isclass(make) else f"something of type {type(make).__name__}"
        raise BadInput(f"method {name!r}: expected a subclass of equipoise.Balancer, found {found}")
    if make is Balancer or inspect.isabstract(make):
        raise BadInput(f"method {name!r}: expected a class that answers `weigh` or `mix`, found an abstract one")
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    bare = [one.name for one in _arguments(make) if one.default is Parameter.empty and one.kind not in several]
    if bare:
        expected = f"expected parameters with defaults, such as {bare[0]}: float = 1.0"
        raise BadInput(f"method {name!r}: {expected}, found none for {', '.join(bare)}")
    return _method(name, make)


def _own_elsewhere(name: str) -> Method:
    """Make a method of the user's own in another process; one that cannot be imported there fails when it is used."""
    try:
        return method_of(name)
    except BadInput as error:
        needed = "; the file has to be where every machine of the study finds it: set PYTHONPATH there"
        return Method(name, cast("type[Balancer]", partial(_refuse, f"{error}{needed}")), "", {})


def _refuse(message: str, **_: Any) -> Balancer:
    raise BadInput(message)


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
        by_all: Whether "all" named it, so that it is left out where it is not for the task of the data or the model.
    """

    label: str
    method: Method
    params: dict[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    fixed: tuple[str, ...] = ()
    by_all: bool = False

    def balancer(self) -> Balancer:
        """Make a fresh balancer."""
        try:
            made = self.method.make(**(self.params if self.method.way == "trained" else {}))
        except BadInput:
            raise
        except Exception as error:  # code of the user's own may raise anything
            if not self.method.own:
                raise
            raise BadInput(f"method {self.method.name!r} cannot be made: {told(error)}") from error
        if "_finite" not in vars(made):
            raise BadInput(
                f"method {self.method.name!r}: its __init__ should begin with super().__init__(), found none"
            )
        return made

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
        names: Methods by name, "all" for every one of the package, or classes of one's own by dotted path.
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

    typed = [name.strip() for name in names]
    asked = dict.fromkeys(one for name in typed for one in (known if name == "all" else [name]))
    chosen = [method for name in asked if (method := attempt(partial(method_of, automatic=True), name)) is not None]
    run: dict[str, Any] = {}
    params: dict[str, dict[str, Any]] = {method.name: {} for method in chosen}
    for word in words:
        attempt(_read_word, word, chosen, run, params)
    base, preset_params = (Settings(), {}) if preset is None else (preset.settings, preset.params)
    base = attempt(base.changed, run) or base
    own = {one.name: {**one.parameters, **preset_params.get(one.name, {}), **params[one.name]} for one in chosen}
    lines = [Entry(one.name, one, own[one.name], base, by_all=one.name not in typed) for one in chosen]
    for line in lines:
        attempt(lambda line=line: check_step(base, line.balancer()))
    if base.step == "safe":
        attempt(check_trained, lines, "step=safe")
    if not lines and not problems:
        problems.append(f"no method was named; choose from {', '.join(known)}, or all, {OR_YOUR_OWN}")
    raise_all(problems)
    return lines


def check_trained(chosen: Iterable[Entry], what: str) -> None:
    """Raise a BadInput for lines that are no single training, where one is needed.

    Args:
        chosen: The lines.
        what: The one that needs it, as it is typed.
    """
    names = [entry.method.name for entry in chosen if entry.method.way != "trained"]
    raise_all(f"{what}: {_not_trained(name)}" for name in names)


def _not_trained(name: str) -> str:
    return f"expected one method that is trained, such as mimo, found {name}, which is no single training"


def _meant(word: str) -> str:
    """Say where a word belongs that is a method, or data."""
    if word.strip(",") in all_methods():
        return f"; methods are named by --methods, with commas between: --methods msl,{word.strip(',')}"
    return f"; data is named by --data {word}" if word in all_data() or Path(word).exists() else ""


def _read_word(word: str, chosen: list[Method], run: dict[str, Any], params: dict[str, dict[str, Any]]) -> None:
    key, sign, text = word.partition("=")
    if not sign or not key:
        raise BadInput(f"{word!r} should read name=value, such as epochs=30 or mimo.penalty=10{_meant(word)}")
    owner, dot, name = key.rpartition(".")
    owners = [method for method in chosen if key in method.parameters]
    if owner == "run" or (key in settings.names() and not owners):
        look_up("setting", name, dict.fromkeys(settings.names()))
        run[name] = settings.parse(name, text)
        return
    if dot:
        meant = [one for one in chosen if one.name == owner] or [one for one in chosen if one.has_name(owner)]
        if not meant:
            raise BadInput(f"{key}: {owner!r} is not among the chosen methods {[one.name for one in chosen]}")
        if len(meant) > 1:
            examples = " or ".join(f"{one.name}.{name}={text}" for one in meant)
            raise BadInput(f"{owner} stands for several methods here; type {examples}")
        look_up(f"parameter of {owner}", name, meant[0].parameters)
        params[meant[0].name][name] = meant[0].convert(name, text)
        return
    if len(owners) == 1 and key not in settings.names():
        params[owners[0].name][key] = owners[0].convert(key, text)
    elif owners:
        places = [*(["run"] if key in settings.names() else []), *(method.name for method in owners)]
        examples = " or ".join(f"{place}.{key}={text}" for place in places)
        raise BadInput(f"{key} stands for several things here; type {examples}")
    else:
        known = [
            *settings.names(),
            *(f"{own_name(one.name).lower()}.{name}" for one in chosen for name in one.parameters),
        ]
        look_up("setting", key, dict.fromkeys(known))
