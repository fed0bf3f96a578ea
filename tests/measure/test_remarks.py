"""Sentences about runs that look finished and are none."""

import pytest
import torch

from equipoise.measure.remarks import says_only, warnings_of
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
    assert warnings_of(nothing, 200, weighted=False) == []
    assert warnings_of({}, 0, weighted=False) == []  # nothing was trained, as was asked for
    assert warnings_of(nothing, 150, weighted=False) == [
        "training took 150 steps, fewer than 200: raise epochs, or lower batch"
    ]
    assert warnings_of({"fused_says": "'walk'", "committee_says": None}, 900, weighted=False) == [
        "the fused decision says 'walk' for every validation sample, whatever the sensors say; "
        "try class_weight=balanced, or more epochs"
    ]
    both = {"fused_says": "'walk'", "committee_says": "'walk'"}
    assert warnings_of(both, 900, weighted=True) == [
        "the fused and the committee decisions say 'walk' for every validation sample, whatever the sensors say; "
        "try more epochs or another lr"
    ]
    differing = warnings_of({"fused_says": "'walk'", "committee_says": "'run'"}, 10, weighted=True)
    assert [text.split(" for every")[0] for text in differing[:2]] == [
        "the fused decision says 'walk'",
        "the committee decision says 'run'",
    ]
    assert len(differing) == 3
    (sentence,) = warnings_of({"fused_says": "about 3"}, 900, weighted=False)
    assert "class_weight" not in sentence
