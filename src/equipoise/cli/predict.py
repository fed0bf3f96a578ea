"""`equipoise predict`: the answers of a finished run to new samples, as they were recorded."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli import options

if TYPE_CHECKING:
    from equipoise.deploy.answers import Score
    from equipoise.deploy.prediction import Prediction

EXAMPLE = "Example: equipoise predict runs/one --data new.npz --out answers.csv"
SHOWN = 10


def predict(
    run: options.RunFolder,
    data: Annotated[
        str, typer.Option("--data", help="An .npz, .csv or .parquet of samples, labels or not; or a data set's name.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="File for the answers: .csv, .parquet or .npz; a row per sample.")
    ] = None,
    decision: Annotated[
        str, typer.Option("--decision", help="committee: all heads at hand vote; fused: the fused head.")
    ] = "committee",
    encoder: options.Encoder = None,
    model: options.OwnModelPath = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Answer to new samples: classes with probabilities, labels, or numbers with intervals, and the sensors used.

    Samples may lack sensors: leave the array out, or write NaN over a whole sample. Where the file holds labels, the
    answers are scored too. Of a data set by name, the test part is answered.
    """
    import torch

    torch.set_num_threads(1)
    from equipoise.deploy import load
    from equipoise.deploy.answers import answer_columns, check_out, read_new_data, score, write_answers
    from equipoise.deploy.seen import PARTS
    from equipoise.util.errors import BadInput, collect, look_up
    from equipoise.util.extras import NotInstalled
    from equipoise.util.progress import Progress

    choices = {"committee": "committee", "fused": "fused"}
    _, chosen = collect(lambda: check_out(out), lambda: look_up("decision", decision, choices))
    predictor = load(run, encoder=encoder, model=model, trust=trust)
    new = read_new_data(data, predictor.saved)
    with Progress(quiet=as_json) as progress:
        try:
            found = predictor.predict(
                new.inputs, chosen, many=True, on_batch=lambda done, all_: progress.bar("", "answering", done, all_)
            )
        except BadInput as problem:
            raise BadInput(f"data {new.name!r} cannot be answered:\n{problem}") from None
    scored, unscored = (
        None,
        "The labels in the data are not those the model was trained on, so that the answers are not scored.",
    )
    try:
        scored = None if new.label is None else score(predictor.saved, found, new.label)
    except NotInstalled as missing:  # of what is only for scores: the answers are there
        unscored = f"The answers are not scored: {missing}"
    if out is not None:
        write_answers(found, out, new.places)
    used = Counter(name for sensors in found.sensors for name in sensors)
    counts = {name: used[name] for name in predictor.sensors}
    seen = {part: (found.seen or []).count(part) for part in PARTS}
    if as_json:
        told = {"data": new.name, "samples": len(found.sensors), "decision": chosen, "sensors": counts}
        told |= {} if found.seen is None else {"seen": seen}
        told |= {} if scored is None else _score_as_dict(predictor.saved.task.positive, scored)
        print(json.dumps({**told, **({"file": str(out)} if out else {"answers": {**new.places, **found.as_dict()}})}))
        return
    columns = answer_columns(found, new.places)
    idle = [name for name in ("unusable", "outside") if not any(columns.get(name, ()))]
    idle += ["id"] if new.places else []
    _print_rows({name: values for name, values in columns.items() if name not in idle}, whole=out is None)
    listed = ", ".join(f"{name} in {count:,}" for name, count in counts.items())
    print(f"{new.name}: {len(found.sensors):,} samples answered, by the {chosen} decision. Sensors used: {listed}.")
    if nothing := sum(not sensors for sensors in found.sensors):
        which = "1 sample has" if nothing == 1 else f"{nothing:,} samples have"
        print(f"{which} no sensor at all: the answer there is what the model says without looking.")
    for sentence in _remarks(found):
        print(sentence)
    if any(seen.values()):
        names = {"train": "training"}
        parts = " and ".join(f"{count:,} in its {names.get(part, part)} part" for part, count in seen.items() if count)
        print(f"The model has seen {sum(seen.values()):,} of these samples: {parts}.")
    if scored is not None:
        print(f"By the labels in the data: {_score_in_words(scored, sum(seen.values()))}")
        if found.seen is None:
            print("Whether the model was trained on these samples is not known: its run kept no digests of them.")
    elif new.label is not None:
        print(unscored)
    if out is not None:
        print(f"The answers: {out}")


def _remarks(found: Prediction) -> Iterable[str]:
    """Say what may be wrong with the answers."""
    for name, count in Counter(name for names in found.unusable for name in names).items():
        yield f"{name} counts as missing in {count:,}: its numbers are too large to compute with, or not finite."
    for name, count in Counter(name for names in found.outside or () for name in names).items():
        yield f"{name}: {count:,} answers are far outside of the labels of the training part; do not trust them."


def _score_as_dict(positive: str | None, scored: Score) -> dict[str, Any]:
    """Return a score in plain values; None for what cannot be told."""
    value, of_seen = (None if math.isnan(one) else one for one in (scored.value, scored.of_seen))
    of = {} if positive is None else {"positive": positive, "events": scored.events}
    return {"metric": scored.metric.name, **of, "value": value, "scored": scored.samples, "value_of_seen": of_seen}


def _score_in_words(scored: Score, seen: int) -> str:
    """Write the score of new samples, and apart from it that of those that the model has seen."""
    from equipoise.deploy.saved_model import shown

    def written(value: float) -> str:
        if math.isnan(value):
            return f"{scored.metric.label} cannot be told"
        return ("accuracy " if scored.metric.name == "accuracy" else "") + shown(scored.metric, value)

    events = "" if scored.events is None else f", {scored.events:,} {'event' if scored.events == 1 else 'events'}"
    flatters = f"over the {seen:,} that it has seen, {written(scored.of_seen)}, which says nothing about new ones."
    if not scored.samples:
        return flatters
    if not seen:
        return f"{written(scored.value)}{events and f' ({scored.samples:,} samples{events})'}."
    new = f"over the {scored.samples:,} that the model has not seen{events}, {written(scored.value)}"
    return f"{new}; {flatters}"


def _print_rows(columns: dict[str, list[Any]], *, whole: bool) -> None:
    """Print the first rows."""
    from equipoise.report.formats import text_table

    rows = [
        [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row]
        for row in list(zip(*columns.values(), strict=True))[:SHOWN]
    ]
    print(*(line.removeprefix("  ") for line in text_table(list(columns), rows)), sep="\n")
    left = len(columns["row"]) - len(rows)
    if left > 0:
        print(f"… {left:,} more{'; --out answers.csv writes all' if whole else ''}")
    print()
