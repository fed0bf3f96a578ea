"""The card of an exported model: what it takes and says, how good it is, what it was made of and what it is not for."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from equipoise.deploy.deployable import COMMITTEE, FUSED, HEAD, HIGH, LENGTH, LOW, USED, VALID, InputSpec
from equipoise.deploy.exporting import TOLERANCE, ExportedModel
from equipoise.deploy.saved_model import SavedModel
from equipoise.measure.bootstrap import FEW_GROUPS
from equipoise.measure.faults import LEGEND
from equipoise.models.hybrid_fusion import MASKED, HybridFusion
from equipoise.models.intervals import COVERAGE
from equipoise.models.metrics import Metric, metric_of_row
from equipoise.models.task import TaskKind
from equipoise.util.errors import printable
from equipoise.util.files import write_atomic

_POOLS: dict[TaskKind, str] = {
    "classes": "all heads vote, p(c) ∝ exp(Σ_j w_j · log p_j(c)), with the weights below",
    "labels": "all heads vote, the log-odds of each label being Σ_j w_j · log-odds_j, with the weights below",
    "regression": "the answer is the mean of all heads' numbers, Σ_j w_j · y_j, with the weights below",
}
_NOTHING: dict[TaskKind, str] = {
    "classes": "every class is equally probable",
    "labels": "every label has even odds",
    "regression": "the answer is the mean of the training part",
}
RULE = (
    "Every sensor valid: {pool}. A sensor not valid: its head and the fused head go, and those left vote with their "
    "weights, none less than a tenth of an equal share, scaled to the same total. The output `fused` is the fused "
    "head's own, with zero features for a sensor that is not valid. No sensor valid: {nothing}."
)
FUSED_RULE = "The fused head decides; zero features for a missing sensor."
_ZEROS, _LEARNED = "zero features", "learned features"
INTERVALS = (
    f"Intervals are split conformal, calibrated on the validation part for every subset of the sensors: of new samples "
    f"like those, {COVERAGE:.0%} lie within; of other people, places and devices it may be fewer. The share within "
    "on the test part is in the table above."
)
_LIMITS = (
    "Figures are those of the test part described above: people, rooms and devices unlike them may give others.",
    "Faults were made by computation, one sensor at a time; two failing together were not measured.",
    "A sensor counts as missing only where its flag says so, or its numbers are too large to compute with. One that "
    "fails silently is read like any other: see the rows of faults, and `equipoise monitor`, which watches for it.",
)
_LIMITS_OF: dict[TaskKind, str] = {
    "classes": "Probabilities were not calibrated beyond the committee's weights; `ece` is their expected calibration "
    "error.",
    "labels": "Probabilities were not calibrated beyond the committee's weights; a label is said above one half.",
    "regression": INTERVALS,
}
_LAST_LIMIT = "Not for decisions about people without a human check, nor where a wrong answer can hurt somebody."
_ANSWERS: dict[TaskKind, tuple[str, str]] = {
    "classes": ("probabilities", "log-probabilities"),
    "labels": ("the probability of each label", "log-odds"),
    "regression": ("numbers in the units of the training data", "numbers"),
}
_TITLES: dict[TaskKind, str] = {
    "classes": "Classes",
    "labels": "Labels, any number of them at once",
    "regression": "Numbers",
}
_PURPOSES: dict[TaskKind, str] = {
    "classes": "telling {} classes",
    "labels": "saying {} labels",
    "regression": "estimating {}",
}
_AS_TEXT = {"<": "&lt;", "&": "&amp;", "[": "\\[", "|": "\\|"}
_MARKUP = re.compile("[<&[|]")


def write_card(saved: SavedModel, exported: ExportedModel, folder: Path) -> tuple[Path, Path]:
    """Write card.json and card.md.

    Args:
        saved: The model that was exported.
        exported: Its exported graph.
        folder: The folder to write to.
    """
    content = card(saved, exported)
    plain = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    return write_atomic(folder, "card.json", plain), write_atomic(folder, "card.md", _markdown(content))


def card(saved: SavedModel, exported: ExportedModel) -> dict[str, Any]:
    """Return the card in plain values."""
    row, test, kind = saved.row, saved.row.get("test", {}), saved.task.kind
    view = test.get("view")
    rule = RULE.format(pool=_POOLS[kind], nothing=_NOTHING[kind])
    missing = _LEARNED if isinstance(saved.model, HybridFusion) else _ZEROS
    masked = saved.model.unimodal in MASKED
    runtime, package = ("onnxruntime",) * 2 if exported.form == "onnx" else ("torch.export", "torch")
    return {
        "model": f"{row['label']} on {row['data']}{_at(row, 'fold')}{_at(row, 'seed')}",
        "file": exported.file.name,
        "form": exported.form,
        "task": saved.task.as_dict(),
        "classes": list(saved.classes),
        "inputs": [entry for name, spec in saved.input_specs.items() for entry in _inputs(name, spec)],
        "outputs": [_output(name, kind, len(saved.classes), masked=masked) for name in exported.outputs],
        "decision": {
            "rule": (rule if COMMITTEE in exported.outputs else FUSED_RULE).replace(_ZEROS, missing),
            "weights": dict(zip([FUSED, *saved.model.encoders], saved.model.committee.tolist(), strict=True)),
            "fit": row.get("validation", {}).get("committee_fit"),
        },
        "verified": {
            "difference": exported.difference,
            "tolerance": TOLERANCE,
            "against": f"PyTorch {_version('torch')}",
            "with": None if exported.difference is None else f"{runtime} {_version(package)}",
            "on": exported.checked,
        },
        "data": {
            "name": row["data"],
            "fingerprint": row["split"],
            "parts": saved.parts,
            "drawn": row.get("about", ""),
            "protocol": row.get("protocol", ""),
            "fold": row["fold"],
        },
        "accuracy": {
            "part": "test",
            "metric": row.get("metric", "accuracy"),
            "baseline": test.get("baseline"),
            **{f"{name}{of}": test.get(f"{name}{of}") for of in ("", *_COLUMNS[kind]) for name in (FUSED, COMMITTEE)},
            **{f"{name}_interval": test.get(f"{name}_interval") for name in (FUSED, COMMITTEE)},
            **{of: test.get(of) for of in ("interval_groups", "samples", "events")},
            "protocol": view,
            "sensors": test.get(view) if view else None,
        },
        **({"portfolio": row["portfolio"]} if "portfolio" in row else {}),
        "faults": test.get("faults"),
        "fault_legend": LEGEND,
        "warnings": warnings if isinstance(warnings := row.get("warnings"), list) else [],
        "training": {
            **{key: row.get(key) for key in ("method", "params", "seed", "selected", "run", "config")},
            "versions": row.get("versions", {}),
        },
        "limits": [*_LIMITS, _LIMITS_OF[kind], _LAST_LIMIT],
    }


def _at(row: Mapping[str, Any], key: str) -> str:
    return "" if row[key] is None else f", {key} {row[key]}"


def _entry(name: str, shape: Sequence[int], kind: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "shape": ["batch", *shape], "type": kind, "meaning": meaning}


def _output(name: str, kind: TaskKind, size: int, *, masked: bool) -> dict[str, Any]:
    if name.endswith(USED):
        of = name.removesuffix(USED)
        return _entry(name, [], "bool", f"whether {of} was used: it was there, and its numbers could be computed with")
    answer, member = _ANSWERS[kind]
    meanings = {
        COMMITTEE: f"{answer}: the vote of all heads at hand; the decision to use where a sensor may be missing",
        FUSED: f"{answer}: the fused head's own",
    }
    for end, side in ((LOW, "lower"), (HIGH, "upper")):
        meanings |= {
            f"{of}{end}": f"the {side} end of the {COVERAGE:.0%} interval of `{of}`" for of in (COMMITTEE, FUSED)
        }
    own = f"{member} of {name.removesuffix(HEAD)}'s own head, for the monitor"
    if masked:
        own = f"{member} of {name.removesuffix(HEAD)} alone, all other sensors masked, for the monitor"
    return _entry(name, [size], "float32", meanings.get(name, own))


def _inputs(name: str, spec: InputSpec) -> Iterable[dict[str, Any]]:
    meaning = "as the encoder reads it"
    if spec.before is not None:
        meaning = f"what the encoder reads: apply {spec.before} to stored data first, as the package does; float32"
    elif spec.view is not None:
        meaning = f"as stored; the graph applies {spec.view}"
    elif spec.mean is not None:
        meaning = "raw, in the units of the training data; the graph standardises each channel as training did"
    yield _entry(name, spec.shape, str(spec.dtype).removeprefix("torch."), meaning)
    if spec.ragged:
        yield _entry(name + LENGTH, [], "int64", f"how many of the {spec.steps} steps are no padding")
    yield _entry(name + VALID, [], "bool", f"whether {name} is there; where not, its numbers are not read")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _quoted(value: Any) -> Any:
    """Return the same value whose texts are text in Markdown too: a folder may be from anybody."""
    if isinstance(value, str):
        return _MARKUP.sub(lambda sign: _AS_TEXT[sign[0]], printable(value, ""))
    if isinstance(value, dict):
        return {_quoted(key): _quoted(item) for key, item in value.items()}
    return [_quoted(item) for item in value] if isinstance(value, list) else value


def _markdown(card: Mapping[str, Any]) -> str:
    card = _quoted(card)
    verified = "Not run: onnxruntime is not installed. Install it and export again."
    if card["verified"]["difference"] is not None:
        compared = "Run in {with} and compared with {against} on {on}: largest difference {difference:.1e}, allowed "
        verified = (compared + "{tolerance:g}.").format_map(card["verified"])
    kind, metric = card["task"]["kind"], metric_of_row({**card["task"], **card["accuracy"]})
    count = len(card["classes"])
    parts = card["data"]["parts"].items()
    counts = [f"{part}: " + ", ".join(f"{n:,} {key}" for key, n in sizes.items()) for part, sizes in parts]
    filled = {
        "answers": f"{_TITLES[kind]}, in order: {', '.join(card['classes'])}",
        "purpose": _PURPOSES[kind].format(" and ".join(card["classes"]) if kind == "regression" else count),
        "metric": f"{metric.label[0].upper()}{metric.label[1:]}{' in %' if metric.percent else ''}",
        "inputs": _signatures("input", card["inputs"]),
        "outputs": _signatures("output", card["outputs"]),
        "weights": ", ".join(f"{name} {weight:.3f}" for name, weight in card["decision"]["weights"].items()),
        "fit": f" ({card['decision']['fit']})" if card["decision"]["fit"] else "",
        "warnings": "".join(f"**Warning:** {warning}.\n\n" for warning in card["warnings"]),
        "accuracies": _accuracies(card["accuracy"], kind, metric),
        "faults": _faults(card["faults"], metric),
        "parts": "; ".join(counts),
        "drawn": card["data"]["drawn"] or "not said",
        "verified": verified,
        "params": json.dumps(card["training"]["params"]),
        "portfolio": _portfolio(card.get("portfolio"), metric),
        "versions": ", ".join(f"{name} {number}" for name, number in card["training"]["versions"].items()),
        "limits": "\n".join(f"- {limit}" for limit in card["limits"]),
    }
    return files("equipoise.deploy").joinpath("card_template.md").read_text("utf-8").format_map({**card, **filled})


def _signatures(title: str, entries: Sequence[Mapping[str, Any]]) -> str:
    rows = (
        [f"`{entry['name']}`", " × ".join(map(str, entry["shape"])), entry["type"], entry["meaning"]]
        for entry in entries
    )
    return _table([title, "shape", "type", "what it is"], rows)


_COLUMNS: dict[TaskKind, dict[str, str]] = {
    "classes": {"_ece": "ece"},
    "labels": {},
    "regression": {"_coverage": f"within the {COVERAGE:.0%} interval", "_width": "mean width of the interval"},
}
"""Columns beside the metric, by the ending of their keys."""


def _accuracies(accuracy: Mapping[str, Any], kind: TaskKind, metric: Metric) -> str:
    columns, rows = _COLUMNS[kind], []
    for name in (FUSED, COMMITTEE):
        more = [_number(accuracy[f"{name}{key}"], "%" if key == "_coverage" else ".3g") for key in columns]
        known = accuracy[f"{name}_interval"]
        ends = [_shown(end, metric) for end in known if isinstance(end, float)] if isinstance(known, list) else []
        interval = f" [{', '.join(ends)}]" if ends else ""
        rows.append([name, _shown(accuracy[name], metric) + interval, *more])
    blank = [""] * len(columns)
    rows += [[f"{name} alone", _shown(value, metric), *blank] for name, value in (accuracy["sensors"] or {}).items()]
    if accuracy["baseline"] is not None:
        constant = "median" if metric.name == "mae" else "mean" if kind == "regression" else "majority"
        nothing = "chance" if metric.ranks else f"the {constant} of the training part"
        rows.append([f"no sensor: {nothing}", _shown(accuracy["baseline"], metric), *blank])
    table, groups = _table(["decision", metric.label, *columns.values()], rows), accuracy["interval_groups"]
    if not accuracy[f"{FUSED}_interval"] and not accuracy[f"{COMMITTEE}_interval"]:
        return table
    few = f", of {groups} groups: too few to tell" if isinstance(groups, int) and groups < FEW_GROUPS else ""
    of = "" if accuracy["events"] is None else f", {accuracy['events']} events in {accuracy['samples']} samples"
    return f"{table}\n\n[low, high]: the 95 % interval by bootstrap over the groups of the test part{few}{of}."


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if form == "%" else f"{value:{form}}"


def _faults(faults: Mapping[str, Any] | None, metric: Metric) -> str:
    if not faults:
        return "Sensor faults were not measured for this run."
    means = {name: faults[name] for name in ("mean", "worst")}
    answers = {
        (sensor, fault, level): answer
        for sensor, by_fault in faults.items()
        if sensor not in means
        for fault, levels in by_fault.items()
        for level, answer in levels.items()
    } | {(name, "", ""): answer for name, answer in means.items()}
    rows = (
        [*place, _shown(answer["fused"], metric), _shown(answer["committee"], metric)]
        for place, answer in answers.items()
    )
    table = _table(["sensor", "fault", "level", "fused", "committee"], rows)
    legend = "\n".join(f"- {fault}: {words}." for fault, words in LEGEND.items())
    return f"{metric.label[0].upper()}{metric.label[1:]} with a sensor at fault:\n\n{table}\n\n{legend}"


def _portfolio(told: Mapping[str, Any] | None, metric: Metric) -> str:
    """Tell how an automatic model was chosen, with the losses on the validation part."""
    if not told:
        return ""
    heard = "; ".join(
        f"{name}: " + ", ".join(f"{output} {weight:.3f}" for output, weight in told["weights"].get(name, {}).items())
        for name in told["chosen"]
    )
    weights = f"Members and the weights of their heads: {heard}."
    if not told["rungs"]:
        return f"\n## How it was chosen\n\nHeads were solved in closed form, and nothing was trained. {weights}\n"
    rows = []
    for rung in told["rungs"]:
        for one in rung["candidates"]:
            known = one.get(metric.name)
            value = _shown(known, metric) if isinstance(known, (int, float)) else "–"
            loss = _number(one.get("loss"), ".4g") if "diverged" not in one else "diverged"
            rows.append([one["candidate"], f"{one.get('steps', 0):,} ({rung['steps']})", loss, value])
    left_out = told["closed_form"].get("left_out")
    first = (
        "Closed-form heads first, then methods" if left_out is None else f"No closed-form heads: {left_out}. Methods"
    )
    table = _table(["candidate", "steps", "loss on validation", metric.label], rows)
    again = f" The members were {told['refit']}." if "refit" in told else ""
    return (
        f"\n## How it was chosen\n\n{first} by successive halving, each judged by the loss of the answer that it gives "
        "together with those heads, on the validation part. The test part was read "
        f"afterwards.\n\n{table}\n\n{weights}{again}\n"
    )


def _shown(value: float | None, metric: Metric) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.1f}" if metric.percent else f"{value:.4g}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))
