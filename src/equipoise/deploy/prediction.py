"""The answer of a model to one sample or many, in names and numbers."""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from equipoise.util.extras import needs

THRESHOLD = 0.5
"""The probability above which a label is said."""
FAR = 0.5
"""The share of the width of the range of the training labels beyond which, on either side, a number is far outside."""


@final
@dataclass(frozen=True, eq=False)
class Prediction:
    """Answers to N samples; of a single sample every array lacks its first axis, and every list is its one item.

    Args:
        kind: "classes", "labels" or "regression".
        names: The classes, the labels, or the columns of numbers, in the order of the last axis below.
        sensors: The sensors that were used, per sample; empty where it has none, and then the answer is that of no
            sensor: even odds, or the training mean.
        decision: "committee" or "fused".
        single: Whether it is about one sample.
        probabilities: Of each class, or of each label, [N, C]; None for numbers.
        values: The numbers, [N, D]; None for classes and labels.
        low: The lower end of each number's interval, [N, D]; None for classes and labels. Nine of ten new samples lie
            within, where these are like those of validation; minus infinity where validation had too few samples.
        high: The upper end.
        seen: The part of the data in which the model has seen each sample, "train" or "validation", or "" for a new
            one; None where the run kept no digests of its samples. It is not among what `as_dict` and the server give.
        ids: Names of the samples, where the data gave them in a column `id` or in the index of a DataFrame; a list.
        unusable: The sensors, per sample, that were there and gave numbers with which the model cannot compute, such as
            1e25; they counted as missing.
        outside: The columns of numbers, per sample, that are far outside of the labels of the training part: by more
            than half the width of their range; None for classes and labels.
    """

    kind: str
    names: tuple[str, ...]
    sensors: Any
    decision: str
    single: bool = False
    probabilities: Any = None
    values: Any = None
    low: Any = None
    high: Any = None
    ids: list[Any] | None = None
    seen: Any = None
    unusable: Any = None
    outside: Any = None

    @property
    def answer(self) -> Any:
        """The class by name, the labels that are likelier than not, or the number; a list of N of them.

        Of several columns of numbers it is the array [N, D].
        """
        rows = [self._answer(row) for row in np.atleast_2d(self._array)]
        return rows[0] if self.single else rows

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; an end that is not finite is None."""
        plain: dict[str, Any] = {"answer": _plain(self.answer), "sensors": _plain(self.sensors)}
        if self.ids is not None:
            plain = {"id": self.ids[0] if self.single else self.ids, **plain}
        arrays = {"probabilities": self.probabilities, "values": self.values, "low": self.low, "high": self.high}
        for key, array in arrays.items():
            if array is not None:
                plain[key] = {name: _plain(array[..., place].tolist()) for place, name in enumerate(self.names)}
        plain |= {key: _plain(names) for key, names in self._flags.items()}
        return {**plain, "decision": self.decision}

    def columns(self) -> dict[str, list[Any]]:
        """Return a table with a row per sample, column by column.

        "row", and "id" where the samples have names; "answer" and "p_NAME" for each class or label; "answer", "low" and
        "high" for numbers, with "_NAME" behind them where there are several columns; "sensors", "unusable" and, of
        numbers, "outside", joined by a plus. Labels are joined by a semicolon, and where none is likelier than not the
        answer is empty text.
        """
        rows = np.atleast_2d(self._array)
        table: dict[str, list[Any]] = {"row": list(range(len(rows)))}
        table |= {} if self.ids is None else {"id": self.ids}
        if self.kind == "regression":
            for title, array in (("answer", self.values), ("low", self.low), ("high", self.high)):
                if array is None:
                    continue
                for place, name in enumerate(self.names):
                    key = title if len(self.names) == 1 else f"{title}_{name}"
                    table[key] = np.atleast_2d(array)[:, place].tolist()
        else:
            answers = [self._answer(row) for row in rows]
            table["answer"] = [each if isinstance(each, str) else ";".join(each) for each in answers]
            table |= {f"p_{name}": rows[:, place].tolist() for place, name in enumerate(self.names)}
        for key, names in {"sensors": self.sensors, **self._flags}.items():
            table[key] = ["+".join(each) for each in ([names] if self.single else names)]
        return table

    def to_frame(self) -> Any:
        """Return `columns` as a pandas DataFrame."""
        with needs("a table of pandas"):
            import pandas as pd

        return pd.DataFrame(self.columns())

    @property
    def _flags(self) -> dict[str, Any]:
        """The sensors and columns per sample that say what may be wrong with the answers."""
        flags = {"unusable": self.unusable, "outside": self.outside}
        return {key: names for key, names in flags.items() if names is not None}

    @property
    def _array(self) -> np.ndarray:
        return self.values if self.probabilities is None else self.probabilities

    def _answer(self, row: np.ndarray) -> Any:
        if self.kind == "classes":
            return self.names[int(row.argmax())]
        if self.kind == "labels":
            return [name for name, value in zip(self.names, row.tolist(), strict=True) if value > THRESHOLD]
        return float(row[0]) if len(row) == 1 else row


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
