"""The card beside an exported model: what it is, what it takes and gives, how good it is, and what it is not for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from equipoise.deploy.deployable import COMMITTEE, FUSED, HEAD, LENGTH, VALID, InputSpec
from equipoise.deploy.exporting import TOLERANCE, ExportedModel
from equipoise.deploy.kept import SavedModel
from equipoise.util.files import write_atomic

RULE = (
    "Every sensor valid: all heads vote, p(c) ∝ exp(Σ_j w_j · log p_j(c)), with the weights below. A sensor not valid: "
    "its head and the fused head go, and those left vote with their weights, none less than a tenth of an equal share, "
    "scaled to the same total. The output `fused` is the fused head's own, with zero features for a sensor that is "
    "not valid. No sensor valid: every class is equally probable."
)
LIMITS = (
    "Accuracies are those of the test part described above: people, rooms and devices unlike them may give others.",
    "Faults were made by computation, one sensor at a time; two failing together were not measured.",
    "A sensor counts as missing only where its flag says so. One that fails silently is read like any other: see the "
    "rows of faults, and `equipoise monitor`, which watches for it.",
    "Probabilities were not calibrated beyond the committee's weights; `ece` is their expected calibration error.",
    "Not for decisions about people without a human check, nor where a wrong answer can hurt somebody.",
)


def write_card(run: SavedModel, exported: ExportedModel, folder: Path) -> tuple[Path, Path]:
    """Write card.json and card.md.

    Args:
        run: The run whose model was exported.
        exported: What was exported.
        folder: Where to.
    """
    content = card(run, exported)
    plain = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    return write_atomic(folder, "card.json", plain), write_atomic(folder, "card.md", _markdown(content))


def card(run: SavedModel, exported: ExportedModel) -> dict[str, Any]:
    """The card in plain values."""
    row, test = run.row, run.row.get("test", {})
    view = test.get("view")
    members = [FUSED, *run.model.encoders]
    return {
        "model": f"{row['label']} on {row['data']}, seed {row['seed']}",
        "file": exported.file.name,
        "form": exported.form,
        "classes": list(run.classes),
        "inputs": [each for name, spec in run.input_specs.items() for each in _inputs(name, spec)],
        "outputs": [_output(name, len(run.classes)) for name in exported.outputs],
        "decision": {
            "rule": RULE
            if COMMITTEE in exported.outputs
            else "The fused head decides; zero features for a missing sensor.",
            "weights": dict(zip(members, run.model.committee.tolist(), strict=True)),
        },
        "verified": {
            "difference": exported.difference,
            "tolerance": TOLERANCE,
            "against": f"PyTorch {_version('torch')}",
            "with": _runtime(exported),
            "on": exported.checked,
        },
        "data": {
            "name": row["data"],
            "fingerprint": row["split"],
            "parts": run.parts,
            "drawn": row.get("about", ""),
            "protocol": row.get("protocol", ""),
            "fold": row["fold"],
        },
        "accuracy": {
            "part": "test",
            "fused": test.get("fused"),
            "committee": test.get("committee"),
            "fused_ece": test.get("fused_ece"),
            "committee_ece": test.get("committee_ece"),
            "protocol": view,
            "sensors": test.get(view) if view else None,
        },
        "faults": test.get("faults"),
        "training": {
            "method": row["method"],
            "params": row["params"],
            "seed": row["seed"],
            "selected": row.get("selected"),
            "run": row["run"],
            "config": row["config"],
            "versions": row.get("versions", {}),
        },
        "limits": list(LIMITS),
    }


def _inputs(name: str, spec: InputSpec) -> Iterable[dict[str, Any]]:
    kind = str(spec.dtype).removeprefix("torch.")
    yield {"name": name, "shape": ["batch", *spec.shape], "type": kind, "meaning": _meaning(spec)}
    if spec.ragged:
        yield {
            "name": name + LENGTH,
            "shape": ["batch"],
            "type": "int64",
            "meaning": f"how many of the {spec.steps} steps are no padding",
        }
    yield {
        "name": name + VALID,
        "shape": ["batch"],
        "type": "bool",
        "meaning": f"whether {name} is there; where not, its numbers are not read",
    }


def _meaning(spec: InputSpec) -> str:
    if spec.before is not None:
        return f"what the encoder reads: apply {spec.before} to stored data first, as the package does; float32"
    if spec.view is not None:
        return f"as stored; the graph applies {spec.view}"
    if spec.mean is not None:
        return "raw, in the units of the training data; the graph standardises each channel as training did"
    return "as the encoder reads it"


def _output(name: str, classes: int) -> dict[str, Any]:
    meanings = {
        COMMITTEE: "probabilities: the vote of all heads at hand; the decision to use where a sensor may be missing",
        FUSED: "probabilities: the fused head's own",
    }
    own = f"log-probabilities of {name.removesuffix(HEAD)}'s own head, for the monitor"
    return {"name": name, "shape": ["batch", classes], "type": "float32", "meaning": meanings.get(name, own)}


def _runtime(exported: ExportedModel) -> str | None:
    if exported.difference is None:
        return None
    return f"onnxruntime {_version('onnxruntime')}" if exported.form == "onnx" else f"torch.export {_version('torch')}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _markdown(card: Mapping[str, Any]) -> str:
    data, verified, accuracy = card["data"], card["verified"], card["accuracy"]
    parts = "; ".join(
        f"{name}: " + ", ".join(f"{n:,} {k}" for k, n in each.items()) for name, each in data["parts"].items()
    )
    lines = [
        f"# {card['model']}",
        "",
        f"`{card['file']}`, {card['form']}. Classes, in order: {', '.join(card['classes'])}.",
        "",
        "## Inputs and outputs",
        "",
        *_table(["input", "shape", "type", "what it is"], [_signature(each) for each in card["inputs"]]),
        "",
        *_table(["output", "shape", "type", "what it is"], [_signature(each) for each in card["outputs"]]),
        "",
        "## How it decides",
        "",
        card["decision"]["rule"],
        "",
        "Weights: " + ", ".join(f"{name} {weight:.3f}" for name, weight in card["decision"]["weights"].items()) + ".",
        "",
        "## How good it is",
        "",
        f"Accuracy in % on the test part; sensors alone by the protocol `{accuracy['protocol']}`.",
        "",
        *_table(["decision", "accuracy", "ece"], _accuracies(accuracy)),
        *_faults(card["faults"]),
        "",
        "## Data",
        "",
        f"{data['name']}: {parts}. Drawn: {data['drawn'] or 'not said'}. Fingerprint `{data['fingerprint']}`.",
        "",
        "## Verified",
        "",
        _verified(verified),
        "",
        "## Made with",
        "",
        f"Method {card['training']['method']}, parameters {json.dumps(card['training']['params'])}, seed "
        f"{card['training']['seed']}; versions: "
        + ", ".join(f"{name} {each}" for name, each in card["training"]["versions"].items())
        + f". Every setting is in card.json; the row of results is `{card['training']['config']}`.",
        "",
        "## Intended use and limits",
        "",
        f"For telling {len(card['classes'])} classes from sensors like those of {data['name']}, also while one is "
        "known to be missing.",
        "",
        *(f"- {each}" for each in card["limits"]),
    ]
    return "\n".join(lines) + "\n"


def _signature(each: Mapping[str, Any]) -> list[str]:
    shape = " × ".join(map(str, each["shape"]))
    return [f"`{each['name']}`", shape, each["type"], each["meaning"]]


def _accuracies(accuracy: Mapping[str, Any]) -> list[list[str]]:
    rows = [[name, _percent(accuracy[name]), _number(accuracy[f"{name}_ece"])] for name in ("fused", "committee")]
    return rows + [[f"{name} alone", _percent(value), ""] for name, value in (accuracy["sensors"] or {}).items()]


def _faults(faults: Mapping[str, Any] | None) -> list[str]:
    if not faults:
        return ["", "Sensor faults were not measured for this run."]
    rows = [
        [sensor, fault, level, _percent(answers["fused"]), _percent(answers["committee"])]
        for sensor, by_fault in faults.items()
        if sensor not in ("mean", "worst")
        for fault, levels in by_fault.items()
        for level, answers in levels.items()
    ]
    rows += [
        [name, "", "", _percent(faults[name]["fused"]), _percent(faults[name]["committee"])]
        for name in ("mean", "worst")
    ]
    return ["", "With a sensor at fault:", "", *_table(["sensor", "fault", "level", "fused", "committee"], rows)]


def _verified(verified: Mapping[str, Any]) -> str:
    if verified["difference"] is None:
        return "Not run: onnxruntime is not installed. Install it and export again."
    return (
        f"Run in {verified['with']} and compared with {verified['against']} on {verified['on']}: largest difference "
        f"{verified['difference']:.1e}, allowed {verified['tolerance']:g}."
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(each)} |" for each in (titles, ["---"] * len(titles), *rows)]
