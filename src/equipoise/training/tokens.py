"""Which numbers of a user's own data are token numbers: those whose encoder reads tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import nn

from equipoise.data.own.samples import Samples
from equipoise.data.source import DataSet, OwnFile, samples_of
from equipoise.data.splits import Splits, is_length
from equipoise.models.choose import kinds_of, reads_tokens
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput, raise_all


def as_read(data: DataSet, settings: Iterable[Settings]) -> DataSet:
    """The data as the encoders of some runs read it: token numbers stay the whole numbers they are.

    Prepared data says itself what it holds. A file of a user's own cannot: whole numbers may be counts as well, and are
    standardised like all others, unless the encoder that was chosen for them reads tokens.

    Args:
        data: Whose numbers.
        settings: Of the runs, which all read one and the same.

    Raises:
        BadInput: If one run reads tokens where another reads numbers, or the file as a whole cannot be read.
    """
    if not isinstance(data.load, OwnFile):
        return data
    samples = samples_of(data.load.path)
    found = {each: tokens_of(samples, *each) for each in {(one.encoder, one.features) for one in settings}}
    if len(set(found.values())) > 1:
        told = "; ".join(f"encoder={each[0]} reads {' and '.join(names) or 'none'}" for each, names in found.items())
        raise BadInput(
            f"{data.name}: expected runs that read the same sensors as token numbers, found {told}; run them apart"
        )
    return replace(data, load=replace(data.load, tokens=next(iter(found.values()), ())))


def check_words(encoders: Mapping[str, nn.Module], splits: Splits) -> None:
    """Refuse token numbers that an encoder has no vector for: on a GPU they would be an error without a place.

    Args:
        encoders: By modality. One that says how many numbers it knows, by an attribute ``words``, is checked.
        splits: What they are to read: the parts that training sees.

    Raises:
        BadInput: With the modality, how many its encoder knows, and the largest there is.
    """
    problems = []
    known = {name: getattr(encoder, "words", None) for name, encoder in encoders.items()}
    for name, words in known.items():
        if not isinstance(words, int):  # whose numbers may be many, and are not looked at
            continue
        stored = ((part.inputs[name], part.rows) for part in (splits.train, splits.validation))
        read = (array if rows is None else array[rows] for array, rows in stored)
        largest = max((int(array.max()) for array in read if array.numel()), default=-1)
        if largest >= words:
            problems.append(
                f"{name}: expected token numbers below {words}, which its encoder knows, found {largest}; "
                "give it an encoder with more words, or number the tokens as that encoder does"
            )
    raise_all(problems)


def tokens_of(samples: Samples, encoder: str, features: int) -> tuple[str, ...]:
    """The modalities whose encoder reads token numbers.

    Args:
        samples: Of a user's own file.
        encoder: The setting: a kind or a dotted path for all, or "NAME:KIND,NAME:KIND".
        features: The setting.
    """
    shapes = {name: array.shape[1:] for name, array in samples.inputs.items() if not is_length(name, samples.inputs)}
    kinds, _ = kinds_of(encoder, shapes)
    # Whoever reads pictures or series is not asked: to be asked, some have to be made.
    asked = [
        name for name, kind in kinds.items() if kind != "auto" and (name in samples.whole or len(shapes[name]) == 1)
    ]
    return tuple(name for name in asked if reads_tokens(kinds[name], tuple(shapes[name]), features))
