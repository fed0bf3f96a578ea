"""An ablation: which runs it takes to see how accuracy depends on a method's parameters, one at a time or as a grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

from equipoise.study.registry import WITH_COMMAS, Entry, all_methods, entries, own_name
from equipoise.training.presets import Preset
from equipoise.util.errors import BadInput, collect, look_up

PAPER = {"penalty": ("1", "10", "100"), "smoothing": ("0.001", "0.01", "0.1", "1")}
"""The grid in the paper's appendix."""

ENLARGING = ("penalty", "weight")
"""Parameters that enlarge the step of the encoders, so that a learning rate divided by 1 + λ is the fair control."""


class Curve(NamedTuple):
    """Runs that differ in one parameter.

    Args:
        axis: The parameter.
        labels: Its values in order, each with the label of its runs.
        others: In a grid, where the other parameters stand.
        divided: Whether the learning rate was divided by 1 + λ.
        around: Whether all other parameters stand at the method's base values.
    """

    axis: str
    labels: dict[Any, str]
    others: dict[str, Any]
    divided: bool
    around: bool

    @property
    def title(self) -> str:
        """What varies, and what does not."""
        rate = ", learning rate / (1 + λ)" if self.divided else ""
        fixed = ", ".join(f"{name}={in_words(value)}" for name, value in self.others.items())
        return f"{self.axis}{f' at {fixed}' if fixed else ''}{rate}"


@final
@dataclass(frozen=True)
class Sweep:
    """All runs of an ablation.

    Args:
        base: The method at its base values.
        points: One entry for each setting that is run, none twice.
        curves: How they are read.
        grid: Whether all combinations are run, or one parameter moves at a time.
    """

    base: Entry
    points: list[Entry]
    curves: list[Curve]
    grid: bool


def sweep_of(
    method: str, words: Sequence[str], preset: Preset | None = None, *, grid: bool = False, divided: bool = False
) -> Sweep:
    """The ablation that words ask for, or one message with everything that is wrong with them.

    Args:
        method: Whose parameters.
        words: ``penalty=1,10,100`` varies a parameter or a setting, ``epochs=20`` sets one. Where no word varies
            anything, the paper's grid is taken for MIMO, and the method's own search space for others.
        preset: What settings and parameters are where no word sets them.
        grid: All combinations, instead of one parameter at a time around the base values.
        divided: Run each λ with the learning rate divided by 1 + λ, too.
    """
    fixed = [word for word in words if not _varies(word)]
    varied = [word for word in words if _varies(word)] or collect(partial(_usual, method, fixed))[0]
    texts = {key: value.split(",") for key, _, value in (word.partition("=") for word in varied)}
    single = [f"{key}={text}" for key, some in texts.items() for text in some]
    (base,), *_ = collect(
        partial(entries, [method], fixed, preset), *(partial(entries, [method], [word], preset) for word in single)
    )
    axes = {key: _ordered(base, key, some) for key, some in texts.items()}
    enlarging = next((key for key in axes if own_name(key) in ENLARGING and base.has_parameter(key)), None)
    if divided and enlarging is None:
        raise BadInput(
            "--scaled-rate divides the learning rate by 1 + λ for every λ that is tried; expected several values of "
            f"{' or '.join(ENLARGING)}, such as penalty=1,10,100, found {', '.join(axes)} varied"
        )
    grid = grid and len(axes) > 1
    lines = list(_grid_lines(axes)) if grid else [(key, {}) for key in axes]
    points: dict[str, Entry] = {}
    curves = []
    for key, others in lines:
        curves.append(_curve(base, key, axes[key], others, None, points))
        if divided and enlarging is not None and (grid or key == enlarging):
            curves.append(_curve(base, key, axes[key], others, enlarging, points))
    return Sweep(base, list(points.values()), curves, grid)


def in_words(value: Any) -> str:
    """A value as one would type it."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _varies(word: str) -> bool:
    key, _, text = word.partition("=")
    return "," in text and own_name(key) not in WITH_COMMAS


def _usual(method: str, fixed: Sequence[str]) -> list[str]:
    """What is varied where nobody says: all that is usually tried and was not set."""
    known = look_up("method", method, all_methods())
    space: Mapping[str, Iterable[Any]] = PAPER if method == "mimo" else known.make.search
    is_set = {own_name(word.partition("=")[0]) for word in fixed}
    found = [f"{method}.{name}={','.join(map(in_words, some))}" for name, some in space.items() if name not in is_set]
    if not found:
        raise BadInput(
            f"expected something to vary, such as lr=0.003,0.01,0.03, found only {' '.join(fixed) or method}"
        )
    return found


def _ordered(base: Entry, key: str, texts: Iterable[str]) -> dict[Any, Entry]:
    """The values of a parameter, numbers from small to large, each with the base moved there."""
    found = {}
    for text in texts:
        entry = _moved(base, key, text)
        found[entry.value_at(key)] = entry
    numbers = all(isinstance(value, (int, float)) for value in found)
    return dict(sorted(found.items())) if numbers else found


def _curve(
    base: Entry,
    key: str,
    values: Mapping[Any, Entry],
    others: Mapping[str, Any],
    divided_by: str | None,
    points: dict[str, Entry],
) -> Curve:
    """The runs along one line, added to the points where they are not there yet."""
    labels = {}
    for value in values:
        entry = base
        for each, at in {**others, key: value}.items():
            entry = entry.with_value(each, at)
        if divided_by is not None:
            entry = entry.changed({}, {"lr": entry.settings.lr / (1 + entry.value_at(divided_by))})
        entry = entry.changed({}, {}, _label(base, entry))
        known = points.setdefault(entry.label, entry)
        if known != entry:
            raise BadInput(f"two of the values look alike when six digits are shown ({entry.label}); leave one out")
        labels[value] = entry.label
    around = all(base.value_at(each) == at for each, at in others.items())
    return Curve(
        own_name(key), labels, {own_name(each): at for each, at in others.items()}, divided_by is not None, around
    )


def _grid_lines(axes: Mapping[str, Mapping[Any, Entry]]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Every line through the grid that is parallel to an axis."""
    for key in axes:
        rest = [each for each in axes if each != key]
        for values in itertools.product(*(axes[each] for each in rest)):
            yield key, dict(zip(rest, values, strict=True))


def _label(base: Entry, entry: Entry) -> str:
    """What differs from the base, so that a run has the same name in every ablation around it, and is done once."""
    params = {name: value for name, value in entry.params.items() if value != base.params[name]}
    before = base.settings.as_dict()
    run = {
        f"run.{name}" if name in base.params else name: value
        for name, value in entry.settings.as_dict().items()
        if value != before[name]
    }
    return " ".join(f"{name}={in_words(value)}" for name, value in {**params, **run}.items()) or base.label


def _moved(base: Entry, key: str, text: str) -> Entry:
    (one,) = entries([base.method.name], [f"{key}={text}"])
    return base.with_value(key, one.value_at(key))
