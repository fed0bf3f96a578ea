"""The card of an exported model: its inputs and outputs, its accuracy, its training, and its limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from string import Template
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
    runtime = "onnxruntime" if exported.form == "onnx" else "torch"
    name = "onnxruntime" if exported.form == "onnx" else "torch.export"
    return {
        "model": f"{row['label']} on {row['data']}, seed {row['seed']}",
        "file": exported.file.name,
        "form": exported.form,
        "classes": list(saved.classes),
        "inputs": [entry for name, spec in saved.input_specs.items() for entry in _inputs(name, spec)],
        "outputs": [
            {
                "name": name,
                "shape": ["batch", len(saved.classes)],
                "type": "float32",
                "meaning": _OUTPUTS.get(
                    name, f"log-probabilities of {name.removesuffix(HEAD)}'s own head, for the monitor"
                ),
            }
            for name in exported.outputs
        ],
        "decision": {
            "rule": RULE if COMMITTEE in exported.outputs else FUSED_RULE,
            "weights": dict(zip([FUSED, *saved.model.encoders], saved.model.committee.tolist(), strict=True)),
        },
        "verified": {
            "difference": exported.difference,
            "tolerance": TOLERANCE,
            "against": f"PyTorch {_version('torch')}",
            "with": None if exported.difference is None else f"{name} {_version(runtime)}",
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


def _inputs(name: str, spec: InputSpec) -> Iterable[dict[str, Any]]:
    meaning = "as the encoder reads it"
    if spec.before is not None:
        meaning = f"what the encoder reads: apply {spec.before} to stored data first, as the package does; float32"
    elif spec.view is not None:
        meaning = f"as stored; the graph applies {spec.view}"
    elif spec.mean is not None:
        meaning = "raw, in the units of the training data; the graph standardises each channel as training did"
    kind = str(spec.dtype).removeprefix("torch.")
    yield {"name": name, "shape": ["batch", *spec.shape], "type": kind, "meaning": meaning}
    if spec.ragged:
        meaning = f"how many of the {spec.steps} steps are no padding"
        yield {"name": name + LENGTH, "shape": ["batch"], "type": "int64", "meaning": meaning}
    meaning = f"whether {name} is there; where not, its numbers are not read"
    yield {"name": name + VALID, "shape": ["batch"], "type": "bool", "meaning": meaning}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _markdown(card: Mapping[str, Any]) -> str:
    data, training, accuracy, weights = card["data"], card["training"], card["accuracy"], card["decision"]["weights"]
    counts = {part: ", ".join(f"{n:,} {key}" for key, n in sizes.items()) for part, sizes in data["parts"].items()}
    verified = "Not run: onnxruntime is not installed. Install it and export again."
    if card["verified"]["difference"] is not None:
        verified = (
            "Run in {with} and compared with {against} on {on}: largest difference {difference:.1e}, allowed "
            "{tolerance:g}.".format(**card["verified"])
        )
    return Template(files("equipoise.deploy").joinpath("card_template.md").read_text("utf-8")).substitute(
        {key: card[key] for key in ("model", "file", "form")},
        classes=", ".join(card["classes"]),
        inputs=_signatures("input", card["inputs"]),
        outputs=_signatures("output", card["outputs"]),
        rule=card["decision"]["rule"],
        weights=", ".join(f"{name} {weight:.3f}" for name, weight in weights.items()),
        protocol=accuracy["protocol"],
        accuracies=_accuracies(accuracy),
        faults=_faults(card["faults"]),
        data=data["name"],
        parts="; ".join(f"{part}: {count}" for part, count in counts.items()),
        drawn=data["drawn"] or "not said",
        fingerprint=data["fingerprint"],
        verified=verified,
        method=training["method"],
        params=json.dumps(training["params"]),
        seed=training["seed"],
        versions=", ".join(f"{name} {number}" for name, number in training["versions"].items()),
        config=training["config"],
        count=len(card["classes"]),
        limits="\n".join(f"- {limit}" for limit in card["limits"]),
    )


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
