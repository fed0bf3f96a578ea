"""Sentences about runs that look finished and are none."""

import re
from typing import Any

import pytest
import torch

from equipoise.measure.remarks import sameness, says_only, warnings_of
from equipoise.models.task import Classification, MultiLabel, Regression

CLASSES, LABELS = Classification(["rest", "walk", "run"]), MultiLabel(["cough", "fever"])
NUMBERS = Regression(["angle", "speed"])


def test_one_class_only() -> None:
    label = torch.tensor([0, 1, 1, 2])
    answer = torch.tensor([[0.1, 0.8, 0.1], [0.3, 0.4, 0.3], [0.0, 1.0, 0.0], [0.2, 0.5, 0.3]])
    assert says_only(answer, label, CLASSES) == "'walk'"
    assert says_only(answer.log(), label, CLASSES) == "'walk'"
    answer[3] = torch.tensor([0.1, 0.2, 0.7])
    assert says_only(answer, label, CLASSES) is None


def test_it_may_be_right_to_say_one_thing() -> None:
    answer = torch.tensor([[0.1, 0.8, 0.1]]).expand(4, 3)
    assert says_only(answer, torch.ones(4, dtype=torch.long), CLASSES) is None
    assert says_only(answer[:1], torch.tensor([0]), CLASSES) is None


@pytest.mark.parametrize(
    ("row", "said"), [([0.1, 0.2], "no label"), ([0.9, 0.2], "'cough'"), ([0.9, 0.8], "'cough', 'fever'")]
)
def test_the_same_labels_only(row: list[float], said: str) -> None:
    label = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert says_only(torch.tensor([row, row]), label, LABELS) == said
    assert says_only(torch.tensor([row, [1 - row[0], row[1]]]), label, LABELS) is None


def test_one_number_only() -> None:
    label = torch.tensor([[0.0, 10.0], [100.0, 30.0], [50.0, 20.0]])
    still = torch.tensor([[12.0, 20.0]]) + torch.tensor([[0.05], [0.0], [-0.05]])
    assert says_only(still, label, NUMBERS) == "about 12, 20"
    assert says_only(still + torch.tensor([[0.0, 9.0], [0, 0], [0, 0]]), label, NUMBERS) is None


def test_sentences() -> None:
    nothing = {"fused": 0.9, "fused_says": None, "committee_says": None}
    assert warnings_of(nothing, 200, CLASSES, weighted=False) == []
    assert warnings_of({}, 0, CLASSES, weighted=False) == []  # nothing was trained, as was asked for
    assert warnings_of(nothing, 150, CLASSES, weighted=False) == [
        "training took 150 steps, fewer than 200: raise epochs, or lower batch"
    ]
    assert warnings_of({"fused_says": "'walk'", "committee_says": None}, 900, CLASSES, weighted=False) == [
        "the fused decision says 'walk' for every validation sample, whatever the sensors say; "
        "try class_weight=balanced, or more epochs"
    ]
    both = {"fused_says": "'walk'", "committee_says": "'walk'"}
    assert warnings_of(both, 900, CLASSES, weighted=True) == [
        "the fused and the committee decisions say 'walk' for every validation sample, whatever the sensors say; "
        "try more epochs, or another lr"
    ]
    differing = warnings_of({"fused_says": "'walk'", "committee_says": "'run'"}, 10, CLASSES, weighted=True)
    assert [text.split(" for every")[0] for text in differing[:2]] == [
        "the fused decision says 'walk'",
        "the committee decision says 'run'",
    ]
    assert len(differing) == 3
    (sentence,) = warnings_of({"fused_says": "about 3"}, 900, NUMBERS, weighted=False)
    assert "class_weight" not in sentence


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("found", [{}, {"fused_auroc": 0.55, "fused_auroc_interval": [0.4, 0.7]}])
@pytest.mark.parametrize(("task", "said"), [(CLASSES, "'walk'"), (LABELS, "no label"), (NUMBERS, "about 3")])
def test_advice_on_a_closed_form_has_neither_epochs_nor_a_learning_rate(
    task: Any, said: str, found: dict[str, Any], weighted: bool
) -> None:
    weighted = weighted and task is not NUMBERS
    (sentence,) = warnings_of({"fused_says": said, **found}, 0, task, weighted=weighted, trained=False)
    assert "epoch" not in sentence
    assert "lr" not in sentence
    assert ("class_weight=balanced" in sentence) == (task is not NUMBERS and not weighted)
    assert sentence.endswith("a method that is trained, such as mimo")


def rare(effect: float, samples: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Risks that never reach one half, and of which a share, larger with the effect, is in the right order."""
    random = torch.Generator().manual_seed(0)
    label = (torch.rand(samples, generator=random) < 0.1).long()
    risk = (effect * label + torch.randn(samples, generator=random)).sigmoid() * 0.45
    return torch.stack([1 - risk, risk], dim=1), label


def test_a_threshold_is_not_blamed_on_the_sensors() -> None:
    ill = Classification(["healthy", "ill"])
    ill.positive = "ill"
    found = sameness("fused", *rare(2.0), ill, None)
    assert found["fused_says"] == "'healthy'"
    (sentence,) = warnings_of(found, 0, ill, weighted=False, trained=False)
    area = 100 * found["fused_auroc"]
    assert 85 < area < 95  # of two normal distributions that lie two deviations apart 92.1
    assert sentence == (
        "the fused decision says 'healthy' for every validation sample, though the probabilities rank them "
        f"better than chance (AUROC of ill {area:.1f} %): the threshold fails; try class_weight=balanced, or a "
        "threshold of your own on p_ill, chosen on validation data"
    )
    (weighted,) = warnings_of(found, 900, ill, weighted=True)
    assert "class_weight" not in weighted
    assert "epochs" not in weighted
    (by_chance,) = warnings_of(sameness("fused", *rare(0.0), ill, None), 900, ill, weighted=False)
    assert re.search(r"the probabilities rank them no better than chance \(AUROC of ill [45]\d\.\d %\)", by_chance)
    answer, label = rare(2.0)
    still = sameness("fused", answer.mean(dim=0).expand_as(answer) + 1e-9 * answer, label, ill, None)
    assert (still["fused_auroc"], still["fused_auroc_interval"]) == (None, None)
    assert "whatever the sensors say" in warnings_of(still, 900, ill, weighted=False)[0]


def test_a_decision_that_varies_has_no_further_numbers() -> None:
    answer, label = rare(2.0)
    moves = torch.cat([answer, answer.flip(1)])
    nothing = dict.fromkeys(("committee_says", "committee_auroc", "committee_auroc_interval"))
    assert sameness("committee", moves, torch.cat([label, label]), CLASSES, None) == nothing
    assert sameness("committee", None, label, CLASSES, None) == nothing
