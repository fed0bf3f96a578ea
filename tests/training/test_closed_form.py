"""The closed-form model on made-up data of every task: what it knows, what it does not read, and how often it reads."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from equipoise.data.splits import Splits
from equipoise.models.frozen import FrozenFeatures
from equipoise.training.closed_form import closed_form, why_not_solved
from equipoise.training.settings import Settings
from tasks_made_up import splits_of


@pytest.mark.parametrize("kind", ["classes", "labels", "regression"])
@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_it_knows_more_than_nothing(kind: str, gaps: float) -> None:
    splits = splits_of(kind, gaps=gaps)
    solved = closed_form(splits, Settings())
    part, task = splits.validation.ready(), solved.model.known_task()
    answer = solved.model.predict(part.inputs, "committee")
    nothing = task.nothing(task.member_of(answer))
    loss = task.member_loss(task.member_of(answer), part.label).mean()
    assert loss < 0.9 * task.member_loss(nothing, part.label).mean()
    assert set(solved.evidence) == {"fused", *splits.modalities}
    assert not any(parameter.isnan().any() for parameter in solved.model.parameters())


def test_the_test_part_is_not_read_and_chance_has_no_part() -> None:
    splits = splits_of("classes")
    first = closed_form(splits, Settings()).model.state_dict()
    broken = replace(splits.test, inputs={name: values * torch.nan for name, values in splits.test.inputs.items()})
    torch.manual_seed(5)
    again = closed_form(replace(splits, test=broken), Settings()).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_every_sample_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    splits, read = splits_of("classes"), []
    plain = FrozenFeatures._raw

    def counted(self: FrozenFeatures, values: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        read.append(len(values))
        return plain(self, values, lengths)

    monkeypatch.setattr(FrozenFeatures, "_raw", counted)
    closed_form(splits, Settings())
    assert sum(read) == len(splits.modalities) * (len(splits.train) + len(splits.validation))


def test_what_has_no_frozen_features_is_told() -> None:
    splits = splits_of("classes")
    assert why_not_solved(splits, Settings()) == ""
    assert "own" in why_not_solved(splits, Settings(model="my_file.Model"))
    name = splits.modalities[0]
    tokens = {**splits.train.inputs, name: torch.ones(len(splits.train), 4, dtype=torch.int64)}
    assert name in why_not_solved(replace(splits, train=replace(splits.train, inputs=tokens)), Settings())


def test_a_sensor_that_no_training_sample_has_says_nothing() -> None:
    splits = splits_of("classes", gaps=0.3)
    name = next(iter(splits.train.present))
    none = torch.zeros(len(splits.train), dtype=torch.bool)
    train = replace(splits.train, inputs={**splits.train.inputs, f"{name}_present": none})
    model = closed_form(replace(splits, train=train), Settings()).model
    answer = model(splits.validation.ready().inputs)[name]
    torch.testing.assert_close(answer, torch.zeros_like(answer))
    assert not any(tensor.isnan().any() for tensor in model.state_dict().values())


# -- class weights --


def uneven(kind: str, share: float, samples: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Samples of two sensors, of which a share is of the second class, or has the second of two labels."""
    random = torch.Generator().manual_seed(seed)
    rare = (torch.rand(samples, generator=random) < share).long()
    inputs = {
        "near": torch.randn(samples, 4, generator=random) + 0.7 * rare[:, None],
        "far": torch.randn(samples, 3, generator=random) + 0.4 * rare[:, None],
    }
    often = (torch.rand(samples, generator=random) < 0.5).float()
    return inputs, rare if kind == "classes" else torch.stack([often, rare.float()], dim=1)


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_class_weights_make_it_answer_as_where_classes_are_even(kind: str) -> None:
    splits = Splits.from_arrays(*uneven(kind, 0.08, 800, seed=0), task=kind)
    inputs, label = uneven(kind, 0.5, 4000, seed=1)
    inputs = {name: (values - splits.scales[name][0]) / splits.scales[name][1] for name, values in inputs.items()}
    rare = (label if kind == "classes" else label[:, 1]).bool().numpy()
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for weight in ("none", "balanced"):
        model = closed_form(splits, Settings(class_weight=weight)).model
        for decision in ("fused", "committee"):
            risk = model.predict(inputs, decision)[:, 1].numpy()
            found.setdefault(decision, {})[weight] = ((risk[rare] > 0.5).mean(), risk.mean(), roc_auc_score(rare, risk))
    for numbers in found.values():
        (recall, mean, area), (found_now, even, area_now) = numbers["none"], numbers["balanced"]
        assert recall < 0.3
        assert found_now > 0.65
        assert mean < 0.3
        assert 0.4 < even < 0.6  # as many of the rare class as there are in this world
        assert area_now > area - 0.03 > 0.7  # the order of the samples is no worse


def test_weights_of_one_are_no_weights() -> None:
    splits = splits_of("classes")
    plain, ones = (closed_form(splits, Settings(class_weight=weight)).model for weight in ("none", "2,2,2"))
    for name, values in plain.state_dict().items():
        torch.testing.assert_close(ones.state_dict()[name], values, atol=1e-4, rtol=1e-4)


def test_a_regression_has_no_classes_to_weigh() -> None:
    with pytest.raises(ValueError, match="class_weight=balanced: a regression has no classes to weigh; leave it out"):
        closed_form(splits_of("regression"), Settings(class_weight="balanced"))
