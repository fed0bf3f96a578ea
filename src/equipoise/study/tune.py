"""A search: which parameters are tried, and between which limits, as words ask for it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

from equipoise.study.registry import WITH_COMMAS, Entry, all_methods, entries, own_name
from equipoise.training.presets import Preset
from equipoise.util.errors import BadInput, collect, look_up

DIGITS = 4  # of a number that is tried, so that a person can type it
RATES = 10.0  # the learning rate is looked for between its tenth and its tenfold, where nobody says
INTERVAL = re.compile(r"(?P<low>.+?)\.\.(?P<high>.+?)(?P<log>:log)?")


class Interval(NamedTuple):
    """Numbers between two limits, both of which count.

    Args:
        low: The least.
        high: The largest.
        log: Whether each power of ten is tried as often as the next.
    """

    low: float
    high: float
    log: bool

    def suggest(self, trial: Any, name: str) -> Any:
        """A number for a trial of Optuna."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        found = trial.suggest_float(name, self.low, self.high, log=self.log)
        return min(max(float(f"{found:.{DIGITS}g}"), self.low), self.high)

    def holds(self, value: Any) -> bool:
        """Whether a value lies within."""
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{as_typed(self.low)}..{as_typed(self.high)}{':log' if self.log else ''}"


class Choice(NamedTuple):
    """Some values.

    Args:
        values: All of them.
    """

    values: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        """A value for a trial of Optuna."""
        return trial.suggest_categorical(name, self.values)

    def holds(self, value: Any) -> bool:
        """Whether a value is among them."""
        return value in self.values

    def __str__(self) -> str:
        return ",".join(map(as_typed, self.values))


@final
@dataclass(frozen=True)
class Search:
    """What is looked for.

    Args:
        base: The method with everything that is not looked for; where it stands is tried first.
        space: What is looked for, by the names one types.
    """

    base: Entry
    space: dict[str, Interval | Choice]

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Values for a trial of Optuna.

        Raises:
            BadInput: If the file of a search that is resumed has a value for this trial that was not asked for.
        """
        found = {key: each.suggest(trial, key) for key, each in self.space.items()}
        if wrong := [f"{key}={found[key]!r}" for key, each in self.space.items() if not each.holds(found[key])]:
            raise BadInput(f"a trial has {', '.join(wrong)}, which was not asked for; choose another folder with --out")
        return found

    def at(self, values: dict[str, Any]) -> Entry:
        """The method with these values."""
        entry = self.base
        for key, value in values.items():
            entry = entry.with_value(key, value)
        return entry.changed({}, {}, " ".join(f"{key}={as_typed(value)}" for key, value in values.items()))

    def start(self) -> dict[str, Any] | None:
        """Where the method stands now; None where that is outside the space."""
        found = {key: self.base.value_at(key) for key in self.space}
        return found if all(each.holds(found[key]) for key, each in self.space.items()) else None


def search_of(method: str, words: Sequence[str], preset: Preset | None = None) -> Search:
    """The search that words ask for, or one message with everything that is wrong with them.

    Args:
        method: Whose parameters.
        words: ``penalty=1..100:log`` looks between two limits, ``smoothing=0.01,0.1`` among some values, ``epochs=20``
            sets one. Where no word looks for anything, the method's own search space is taken, and the learning rate.
        preset: What settings and parameters are where no word sets them.
    """
    fixed = [word for word in words if not _looks(word)]
    (base,) = collect(lambda: entries([method], fixed, preset)[0])
    sought = [word for word in words if _looks(word)] or _usual(base, fixed)
    read = partial(_read, method, preset)
    found = collect(*(partial(read, word) for word in sought))
    return Search(base, dict(found))


def as_typed(value: Any) -> str:
    """A value as one types it, with all its digits."""
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e6 else repr(value)
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _looks(word: str) -> bool:
    key, _, text = word.partition("=")
    return (".." in text or "," in text) and own_name(key) not in WITH_COMMAS


def _usual(base: Entry, fixed: Iterable[str]) -> list[str]:
    """What is looked for where nobody says: what the method's author tries, and the learning rate."""
    is_set = {own_name(word.partition("=")[0]) for word in fixed}
    space = look_up("method", base.method.name, all_methods()).make.search
    words = [
        f"{base.method.name}.{name}={as_typed(min(some))}..{as_typed(max(some))}:log"
        for name, some in space.items()
        if name not in is_set
    ]
    if "lr" not in is_set:
        rate = base.settings.lr
        words.append(f"lr={_short(rate / RATES)}..{_short(rate * RATES)}:log")
    if not words:
        raise BadInput("expected something to look for, such as lr=0.001..0.1:log, found every usual parameter set")
    return words


def _read(method: str, preset: Preset | None, word: str) -> tuple[str, Interval | Choice]:
    key, _, text = word.partition("=")
    value: Callable[[str], Any] = lambda text: entries([method], [f"{key}={text}"], preset)[0].value_at(key)  # noqa: E731
    if ".." not in text:
        return key, Choice(tuple(dict.fromkeys(collect(*(partial(value, each) for each in text.split(","))))))
    found = INTERVAL.fullmatch(text)
    if found is None:
        raise BadInput(f"{word}: expected limits such as {key}=0.001..0.1, with :log behind them where powers count")
    low, high = collect(partial(value, found["low"]), partial(value, found["high"]))
    if any(isinstance(end, bool) or not isinstance(end, (int, float)) or not math.isfinite(end) for end in (low, high)):
        raise BadInput(f"{word}: expected numbers as limits; name the values instead, with commas between")
    if low >= high:
        raise BadInput(f"{word}: expected the smaller limit first, found {as_typed(low)} and {as_typed(high)}")
    if found["log"] and low <= 0:
        raise BadInput(f"{word}: expected limits above zero for :log, found {as_typed(low)}")
    return key, Interval(low, high, bool(found["log"]))


def _short(value: float) -> str:
    return as_typed(float(f"{value:.{DIGITS}g}"))
