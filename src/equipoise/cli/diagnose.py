"""`equipoise diagnose`: is there an imbalance worth treating?"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.cli import options
from equipoise.cli.config import Config
from equipoise.study import compare as comparison
from equipoise.study.registry import entries
from equipoise.util.errors import BadInput

EXAMPLE = "Example: equipoise diagnose --data watch --seeds 3 epochs=20"


def diagnose(
    words: options.Words = None,
    *,
    _config: Config = None,
    data: options.Data = "watch",
    split: options.Split = None,
    preset: options.PresetName = "auto",
    seeds: options.Seeds = 3,
    folds: options.Folds = False,
    out: options.StudyFolder = Path("runs/diagnose"),
    workers: options.Workers = None,
    as_json: options.Json = False,
) -> None:
    """Is there an imbalance worth treating? Joint training against uni-modal training, measured alike."""
    from equipoise.report.headline import headline_of
    from equipoise.study.compare import diagnose as judge

    both = ["msl", "unimodal"]
    source, chosen = options.data_and(data, split, preset, partial(entries, both, words or ()))
    if (model := chosen[0].settings.model) != "auto":
        raise BadInput(
            f"model={model}: a diagnosis puts fresh linear layers on the features of encoders, which a model of your "
            f"own does not show; type: equipoise compare --data {data} --methods msl,unimodal model={model}"
        )
    how: dict[str, Any] = {"folds": folds, "workers": workers, "quiet": as_json, "command": options.typed_command()}
    rows = comparison.compare(chosen, source, range(seeds), out, **how)
    joint, alone = ([row for row in rows if row["method"] == name] for name in both)
    diagnosis = judge(joint, alone)
    if as_json:
        gaps = [gap.as_dict() for gap in diagnosis.gaps]
        print(json.dumps({"answer": diagnosis.answer, "advice": diagnosis.advice, "gaps": gaps}))
        return
    print(f"An imbalance worth treating? {diagnosis.answer.upper()}: {diagnosis.advice}.")
    head = headline_of(joint[0], [gap.alone for gap in diagnosis.gaps])
    label = head.label[:1].upper() + head.label[1:]
    print(f"{label} of a fresh linear layer on each encoder's features (protocol: probe), mean over runs{head.about}:")
    for gap in diagnosis.gaps:
        interval = f"95 % interval {head.written(gap.low, '+')} to {head.written(gap.high, '+')}"
        alone, together = head.in_words(gap.alone), head.in_words(gap.joint)
        lost = f"{head.written(gap.difference, '+')} {head.points} {'lost' if gap.higher else 'more in joint training'}"
        about = interval if len(joint) > 1 else "one run, no interval"
        print(f"  {gap.modality}: {alone} trained alone, {together} in joint training; {lost} ({about})")
