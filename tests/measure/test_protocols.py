import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from equipoise.data import Part
from equipoise.measure import Scorer, decisions, unimodal_accuracy
from equipoise.measure.protocols import Probe, fit_probe, probe_outputs, sampled_shapley, subset_accuracy
from equipoise.models import LateFusion
from equipoise.models.evaluation import shapley_values
from equipoise.models.task import MultiLabel, Regression
from measure.constructed import names, random_model, random_part, reader, told

LABEL = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize("view", ["head", "detached", "split"])
def test_only_one_modality_is_right_under_every_protocol(view: str) -> None:
    part = Part({"audio": told((LABEL + 1) % 3), "video": told(LABEL)}, LABEL)
    found = unimodal_accuracy(reader({"audio": 1.0, "video": 2.0}, unimodal=view), part, train=part)
    assert list(found) == [*dict.fromkeys([view, "split"]), "probe", "zeroed", "shapley"]
    for protocol in {view, "split", "zeroed"}:
        assert found[protocol] == {"audio": 0.0, "video": 1.0}
    # A probe reads the class off a modality that always tells the wrong one: protocols do differ.
    assert found["probe"] == {"audio": 1.0, "video": 1.0}
    # v(∅) = ½, v(audio) = 0, v(video) = v(both) = 1
    assert found["shapley"] == pytest.approx({"audio": -0.25, "video": 0.75})


def test_protocols_of_a_model_without_views() -> None:
    part = random_part(2)
    additive = unimodal_accuracy(random_model(2, unimodal=None, fusion="concat"), part)
    assert list(additive) == ["split", "zeroed", "shapley"]
    assert list(unimodal_accuracy(random_model(2, unimodal=None, fusion="gated"), part)) == ["zeroed", "shapley"]


def test_split_beside_heads_is_the_share_of_the_fused_head() -> None:
    part = Part({"audio": told(LABEL), "video": told(LABEL)}, LABEL)
    found = unimodal_accuracy(reader({"audio": 1.0, "video": -1.0}), part)  # the fused head reads video upside down
    assert found["head"] == {"audio": 1.0, "video": 1.0}
    assert found["split"] == {"audio": 1.0, "video": 0.0}


def test_zeroed_sets_inputs_to_zero_not_features() -> None:
    # The encoder of video turns a silent input into a loud vote for class 0, which drowns what audio says.
    model = reader({"audio": 1.0, "video": 1.0})
    shouting = nn.Linear(3, 3)
    with torch.no_grad():
        shouting.weight.zero_()
        shouting.bias.copy_(torch.tensor([100.0, 0.0, 0.0]))
    loud = LateFusion({"audio": nn.Identity(), "video": shouting}, 3, fusion="sum", features={"audio": 3, "video": 3})
    loud.load_state_dict({**model.state_dict(), **loud.encoders.state_dict(prefix="encoders.")})
    part = Part({"audio": told(LABEL), "video": told(LABEL)}, LABEL)
    assert unimodal_accuracy(model, part)["zeroed"]["audio"] == 1.0
    assert unimodal_accuracy(loud, part)["zeroed"]["audio"] == 0.5


@pytest.mark.parametrize("fusion", ["concat", "film", "gated"])
def test_subsets_are_what_the_model_says_to_zeroed_inputs(fusion: str) -> None:
    model, part = random_model(3, fusion=fusion, seed=4), random_part(3)
    features = model.eval().features(part.inputs)
    values = subset_accuracy(model, part, features, Scorer.of(model), batch=11)
    assert values[frozenset()] == part.label.bincount().max() / 40
    assert len(values) == 8
    for subset in values:
        if subset:
            inputs = {name: x if name in subset else torch.zeros_like(x) for name, x in part.inputs.items()}
            hits = (model.predict(inputs).argmax(1) == part.label).double().mean().item()
            assert values[subset] == pytest.approx(hits, abs=1e-12)


def test_shapley_by_hand() -> None:
    two = {frozenset(): 0.5, frozenset("a"): 0.6, frozenset("b"): 0.5, frozenset("ab"): 0.9}
    assert shapley_values(two) == pytest.approx({"a": (0.1 + 0.4) / 2, "b": (0.0 + 0.3) / 2})
    # Gloves: a left one and two right ones; only a pair has a value. Left gets 2/3, each right one 1/6.
    subsets = [frozenset(each) for size in range(4) for each in itertools.combinations("lrs", size)]
    gloves = {subset: float("l" in subset and len(subset) > 1) for subset in subsets}
    assert shapley_values(gloves) == pytest.approx({"l": 2 / 3, "r": 1 / 6, "s": 1 / 6})


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_shapley_values_add_up_to_what_fusing_gains(count: int) -> None:
    model, part = random_model(count, seed=count), random_part(count)
    found = unimodal_accuracy(model, part)["shapley"]
    fused = (decisions(model, part).fused.argmax(1) == part.label).double().mean().item()
    empty = part.label.bincount().max().item() / len(part)
    assert list(found) == names(count)
    assert sum(found.values()) == pytest.approx(fused - empty, abs=1e-12)


@pytest.mark.parametrize("fusion", ["concat", "film"])
def test_sampled_shapley_values_lie_around_the_exact_ones_as_far_as_their_error_says(fusion: str) -> None:
    deviations = []
    for seed in range(6):
        model, part = random_model(9, seed=seed, fusion=fusion), random_part(9, seed=seed)
        features = model.eval().features(part.inputs)
        values = subset_accuracy(model, part, features, Scorer.of(model))
        exact, (found, error) = shapley_values(values), sampled_shapley(model, part, features, Scorer.of(model))
        assert list(found) == list(error) == names(9)
        assert sum(found.values()) == pytest.approx(values[frozenset(names(9))] - values[frozenset()], abs=1e-12)
        assert all(abs(found[name] - exact[name]) < 0.01 for name in names(9) if error[name] == 0)
        deviations += [(found[name] - exact[name]) / error[name] for name in names(9) if error[name] > 0]
    squares = torch.tensor(deviations).square()
    assert len(squares) > 40
    assert squares.max() < 16
    assert 0.5 < squares.mean() < 2  # one, if the error is that of the estimate


def test_sampled_shapley_values_are_the_same_each_time() -> None:
    model, part = random_model(9), random_part(9)
    features = model.eval().features(part.inputs)
    first = sampled_shapley(model, part, features, Scorer.of(model))
    torch.manual_seed(5)
    assert sampled_shapley(model, part, features, Scorer.of(model)) == first


@pytest.mark.parametrize("count", [8, 9])
def test_many_modalities_are_sampled_and_say_so(count: int) -> None:
    model, part = random_model(count), random_part(count)
    features = model.eval().features(part.inputs)
    found = unimodal_accuracy(model, part)
    values = subset_accuracy(model, part, features, Scorer.of(model))
    assert found["zeroed"] == {name: values[frozenset({name})] for name in names(count)}
    if count > 8:
        assert (found["shapley"], found["shapley_error"]) == sampled_shapley(model, part, features, Scorer.of(model))
    else:
        assert "shapley_error" not in found
        assert found["shapley"] == shapley_values(values)


def test_work_grows_with_the_number_of_modalities_and_not_with_that_of_their_subsets() -> None:
    def decisions_of(count: int) -> int:
        model, part, seen = random_model(count, fusion="gated"), random_part(count, samples=4), [0]

        def add(_: Any, inputs: tuple[dict[str, torch.Tensor]], __: Any) -> None:
            seen[0] += len(inputs[0]["audio"])

        model.fusion.register_forward_hook(add)
        unimodal_accuracy(model, part)
        return seen[0]

    assert decisions_of(24) < 2.2 * decisions_of(12)


def test_a_modality_that_is_not_read_earns_nothing() -> None:
    part = Part({"audio": told(LABEL), "video": told(LABEL)}, LABEL)
    model = reader({"audio": 1.0, "video": 0.0})  # without a vote the first class wins, the most frequent one
    assert unimodal_accuracy(model, part)["shapley"] == pytest.approx({"audio": 0.5, "video": 0.0})


def test_probe_reads_separable_features_and_not_noise() -> None:
    noise = torch.Generator().manual_seed(0)
    label = torch.randint(3, (300,), generator=noise)
    inputs = {"audio": told(label, size=3.0) + 7, "video": torch.randn(300, 3, generator=noise)}
    train, test = Part(inputs, label).take(torch.arange(200)), Part(inputs, label).take(torch.arange(200, 300))
    found = unimodal_accuracy(reader({"audio": 0.0, "video": 0.0}), test, train)["probe"]
    assert found["audio"] == 1.0
    assert found["video"] < 0.5


def test_probe_learns_from_the_training_part_alone() -> None:
    train = Part({"audio": told(LABEL)}, LABEL)
    misnamed = Part(train.inputs, (LABEL + 1) % 3)
    assert unimodal_accuracy(reader({"audio": 1.0}), misnamed, train)["probe"] == {"audio": 0.0}


def test_probe_is_at_the_optimum_and_always_the_same() -> None:
    part = random_part(1, samples=80)
    features = part.inputs["audio"] * 30 + 5
    probe = fit_probe(features, part.label, classes=4)
    weight, bias = probe.weight.clone().requires_grad_(), probe.bias.clone().requires_grad_()
    standard = (features.double() - features.double().mean(0)) / features.double().std(0, correction=0)
    loss = F.cross_entropy(F.linear(standard, weight, bias), part.label) + 1e-3 / 2 * weight.square().sum()
    # A class that nobody belongs to has no optimal bias: the further down the better.
    slope = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, [weight, bias])])
    assert slope.abs().max() < 1e-5
    again = fit_probe(features, part.label, classes=4)
    assert all(torch.equal(one, other) for one, other in zip(probe, again, strict=True))


@pytest.mark.parametrize(("samples", "size", "spread"), [(30, 60, 1.0), (200, 5, 20.0), (50, 1, 0.0)])
def test_probe_is_at_the_optimum_wherever_that_lies(samples: int, size: int, spread: float) -> None:
    random = torch.Generator().manual_seed(samples)
    label = torch.randint(3, (samples,), generator=random)
    features = torch.randn(samples, size, generator=random) + spread * label[:, None]
    probe = fit_probe(features, label, classes=4)  # one of which is absent
    weight, bias = probe.weight.clone().requires_grad_(), probe.bias.clone().requires_grad_()
    logits = Probe(probe.mean, probe.deviation, weight, bias).logits(features)
    loss = torch.nn.functional.cross_entropy(logits, label) + 1e-3 / 2 * weight.square().sum()
    assert all(gradient.abs().max() < 2e-7 for gradient in torch.autograd.grad(loss, [weight, bias]))


def test_probes_of_numbers_and_labels_are_those_of_scikit_learn() -> None:
    random = torch.Generator().manual_seed(0)
    learnt, judged = (3 * torch.randn(n, 4, generator=random, dtype=torch.float64) + 7 for n in (90, 30))
    numbers = learnt[:, :2] * 2 + torch.randn(90, 2, generator=random, dtype=torch.float64) + 50
    standard = StandardScaler().fit(learnt)
    ridge = Ridge(alpha=1e-3 * 90).fit(standard.transform(learnt), numbers)
    found = probe_outputs(learnt, numbers, judged, Regression(["x", "y"]))
    np.testing.assert_allclose(found, ridge.predict(standard.transform(judged)), rtol=1e-9)
    labels = (numbers > 65).float()
    found = probe_outputs(learnt, labels, judged, MultiLabel(["x", "y"]))
    for place, label in enumerate(
        labels.unbind(dim=1)
    ):  # with two weights, ½ of each one's square is ¼ of their difference's
        model = LogisticRegression(C=2 / (1e-3 * 90), tol=1e-10, max_iter=10_000)
        wanted = model.fit(standard.transform(learnt), label).decision_function(standard.transform(judged))
        np.testing.assert_allclose(found[:, place], wanted, rtol=1e-4, atol=1e-4)


def test_probe_does_not_mind_scale_nor_features_that_stand_still() -> None:
    part = random_part(1, samples=80)
    plain = part.inputs["audio"].double()
    scaled = torch.cat([plain * torch.tensor([1e-4, 1.0, 1e4]) + 3, torch.full((80, 1), 2.0)], dim=1)
    probes = fit_probe(plain, part.label, 3), fit_probe(scaled, part.label, 3)
    torch.testing.assert_close(probes[0].logits(plain), probes[1].logits(scaled), rtol=1e-4, atol=1e-4)
    assert probes[1].logits(scaled + torch.tensor([0, 0, 0, 9.0])).isfinite().all()


def test_the_order_of_modalities_does_not_matter() -> None:
    part = random_part(3)
    order = random.Random(0).sample(names(3), 3)
    shuffled = Part({name: part.inputs[name] for name in order}, part.label)
    model = random_model(3, seed=2)
    assert unimodal_accuracy(model, shuffled, train=part) == unimodal_accuracy(model, part, train=part)


@pytest.mark.parametrize(("size", "probed"), [(20, True), (21, False)])
def test_thousands_of_features_have_no_probe(size: int, probed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.measure.protocols.PROBED", 20)
    part = Part({"audio": torch.randn(30, 4)}, torch.arange(30) % 3)
    model = LateFusion({"audio": nn.Linear(4, size)}, classes=3)
    assert ("probe" in unimodal_accuracy(model, part, train=part)) == probed
