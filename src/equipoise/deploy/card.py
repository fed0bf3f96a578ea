"""The card of an exported model: its inputs and outputs, its accuracy, its training, and its limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from equipoise.deploy.deployable import COMMITTEE, FUSED, HEAD, LENGTH, VALID, InputSpec
from equipoise.deploy.exporting import TOLERANCE, ExportedModel
from equipoise.deploy.saved_model import SavedModel
from equipoise.util.files import write_atomic

RULE = (
    "Every sensor valid: all heads vote, p(c) ∝ exp(Σ_j w_j · log p_j(c)), with the weights below. A sensor not valid: "
    "its head and the fused head go, and those left vote with their weights, none less than a tenth of an equal share, "
    "scaled to the same total. The output `fused` is the fused head's own, with zero features for a sensor that is "
    "not valid. No sensor valid: every class is equally probable."
)
FUSED_RULE = "The fused head decides; zero features for a missing sensor."
LIMITS = (
    "Accuracies are those of the test part described above: people, rooms and devices unlike them may give others.",
    "Faults were made by computation, one sensor at a time; two failing together were not measured.",
    "A sensor counts as missing only where its flag says so. One that fails silently is read like any other: see the "
    "rows of faults, and `equipoise monitor`, which watches for it.",
    "Probabilities were not calibrated beyond the committee's weights; `ece` is their expected calibration error.",
    "Not for decisions about people without a human check, nor where a wrong answer can hurt somebody.",
)
_OUTPUTS = {
    COMMITTEE: "probabilities: the vote of all heads at hand; the decision to use where a sensor may be missing",
    FUSED: "probabilities: the fused head's own",
}


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
    row, test = saved.row, saved.row.get("test", {})
    view = test.get("view")
    runtime, package = ("onnxruntime",) * 2 if exported.form == "onnx" else ("torch.export", "torch")
    return {
        "model": f"{row['label']} on {row['data']}, seed {row['seed']}",
        "file": exported.file.name,
        "form": exported.form,
        "classes": list(saved.classes),
        "inputs": [entry for name, spec in saved.input_specs.items() for entry in _inputs(name, spec)],
        "outputs": [_output(name, len(saved.classes)) for name in exported.outputs],
        "decision": {
            "rule": RULE if COMMITTEE in exported.outputs else FUSED_RULE,
            "weights": dict(zip([FUSED, *saved.model.encoders], saved.model.committee.tolist(), strict=True)),
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
            **{key: test.get(key) for key in ("fused", "committee", "fused_ece", "committee_ece")},
            "protocol": view,
            "sensors": test.get(view) if view else None,
        },
        "faults": test.get("faults"),
        "training": {
            **{key: row.get(key) for key in ("method", "params", "seed", "selected", "run", "config")},
            "versions": row.get("versions", {}),
        },
        "limits": list(LIMITS),
    }


def _entry(name: str, shape: Sequence[int], kind: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "shape": ["batch", *shape], "type": kind, "meaning": meaning}


def _output(name: str, classes: int) -> dict[str, Any]:
    own = f"log-probabilities of {name.removesuffix(HEAD)}'s own head, for the monitor"
    return _entry(name, [classes], "float32", _OUTPUTS.get(name, own))


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


def _markdown(card: Mapping[str, Any]) -> str:
    verified = "Not run: onnxruntime is not installed. Install it and export again."
    if card["verified"]["difference"] is not None:
        compared = "Run in {with} and compared with {against} on {on}: largest difference {difference:.1e}, allowed "
        verified = (compared + "{tolerance:g}.").format_map(card["verified"])
    parts = card["data"]["parts"].items()
    counts = [f"{part}: " + ", ".join(f"{n:,} {key}" for key, n in sizes.items()) for part, sizes in parts]
    filled = {
        "classes": ", ".join(card["classes"]),
        "count": len(card["classes"]),
        "inputs": _signatures("input", card["inputs"]),
        "outputs": _signatures("output", card["outputs"]),
        "weights": ", ".join(f"{name} {weight:.3f}" for name, weight in card["decision"]["weights"].items()),
        "accuracies": _accuracies(card["accuracy"]),
        "faults": _faults(card["faults"]),
        "parts": "; ".join(counts),
        "drawn": card["data"]["drawn"] or "not said",
        "verified": verified,
        "params": json.dumps(card["training"]["params"]),
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


def _accuracies(accuracy: Mapping[str, Any]) -> str:
    rows = []
    for name in ("fused", "committee"):
        ece = accuracy[f"{name}_ece"]
        rows.append([name, _percent(accuracy[name]), "–" if ece is None else f"{ece:.3f}"])
    rows += [[f"{name} alone", _percent(value), ""] for name, value in (accuracy["sensors"] or {}).items()]
    return _table(["decision", "accuracy", "ece"], rows)


def _faults(faults: Mapping[str, Any] | None) -> str:
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
    rows = ([*place, _percent(answer["fused"]), _percent(answer["committee"])] for place, answer in answers.items())
    return "With a sensor at fault:\n\n" + _table(["sensor", "fault", "level", "fused", "committee"], rows)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))
