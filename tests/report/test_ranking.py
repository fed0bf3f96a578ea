"""Which model is shipped: ranked by its own decision on validation data, per data set, over all its runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.report import Results, ranking, ranking_text
from equipoise.util.errors import BadInput
from report.example import make_row


def results(*rows: dict[str, Any]) -> Results:
    return Results(Path("runs/x"), list(rows), {})


def run(
    label: str, seed: int, fused: float | None, committee: float | None = None, data: str = "watch", **more: Any
) -> dict[str, Any]:
    row = make_row(label, seed, data=data)
    numbers = {"fused": fused, "committee": committee}
    return {**row, "validation": numbers, "test": {**row["test"], **numbers}, **more}


def test_the_committee_counts_where_there_is_one() -> None:
    rows = [run("ew", seed, 0.575, 0.90 + 0.01 * seed) for seed in range(2)]
    rows += [run("msl", seed, 0.70) for seed in range(2)]
    rows += [run("unimodal", 0, None)]
    order = ranking(results(*rows))
    assert [(one.label, one.decision, one.row["seed"]) for one in order] == [
        ("ew", "committee", 1),
        ("msl", "fused", 0),
    ]
    text = ranking_text(order, results(*rows))
    assert "ew      committee  90.5 ± 0.7" in text
    assert "Chosen: ew, since its committee has the highest accuracy on validation data, on average over 2 runs" in text


def test_means_over_seeds_decide_not_the_luckiest_run() -> None:
    rows = [run("msl", seed, value) for seed, value in enumerate((0.99, 0.1, 0.2))]
    rows += [run("mimo", seed, value) for seed, value in enumerate((0.6, 0.7, 0.65))]
    (first, second) = ranking(results(*rows))
    assert (first.label, first.row["seed"], first.validation.count) == ("mimo", 1, 3)
    assert second.row["seed"] == 0


def test_an_error_is_best_where_it_is_lowest() -> None:
    numbers: dict[str, Any] = {"task": "regression", "metric": "mae"}
    rows = [run("msl", seed, 4.0 + seed, **numbers) for seed in range(2)]
    rows += [run("mimo", seed, 9.0, 3.0 - seed, **numbers) for seed in range(2)]
    order = ranking(results(*rows))
    assert [(one.label, one.row["seed"]) for one in order] == [("mimo", 1), ("msl", 0)]
    assert "the lowest mean absolute error" in ranking_text(order, results(*rows))


def test_data_sets_are_ranked_apart() -> None:
    rows = [run("msl", 0, 0.9, data="easy"), run("mimo", 0, 0.8, data="easy"), run("msl", 0, 0.3, data="hard")]
    study = results(*rows, run("mimo", 0, 0.4, data="hard"))
    assert [ranking(study, data)[0].label for data in ("easy", "hard")] == ["msl", "mimo"]
    with pytest.raises(
        BadInput,
        match=r"expected the name of one data set, found easy, hard; give one: ranking\(results, data='easy'\)",
    ):
        ranking(study)
    with pytest.raises(BadInput, match="data 'none': expected one of easy, hard"):
        ranking(study, "none")
    with pytest.raises(BadInput, match="expected a method with one decision to ship"):
        ranking(results(run("unimodal", 0, None)))


def test_from_a_study_to_the_best_model(equipoise: Any, tmp_path: Path) -> None:
    words = ["--methods", "unimodal,msl,ew", "--seeds", "2", "--quick", "epochs=2", "features=8"]
    assert equipoise("compare", "--data", "generated", "--out", tmp_path, *words).code == 0
    code, printed, complaint = equipoise("export", tmp_path, "--to", "torch-export")
    assert (code, printed) == (2, "")
    assert "export " in complaint
    assert "--best" in complaint
    code, printed, _ = equipoise("export", tmp_path, "--best", "--to", "torch-export")
    assert code == 0
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    means = {
        label: sum(row["validation"]["committee"] for row in rows if row["label"] == label) / 2
        for label in ("msl", "ew")
    }
    best = max(means, key=lambda label: means[label])
    assert f"Chosen: {best}" in printed
    card = json.loads((tmp_path / "export" / "card.json").read_text())
    assert best in json.dumps(card)
