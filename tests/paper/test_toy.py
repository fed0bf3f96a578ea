"""The paper's toy problem: its data, its gradients, and who learns what first."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from equipoise.paper.toy import (
    VARIANTS,
    ToyData,
    ToySettings,
    Trace,
    TwoLayer,
    generate,
    losses,
    manifolds,
    preference,
    preference_by_samples,
    run,
    samples_where_noise_ends,
    steps_to_level,
)
from equipoise.paper.toy_results import closed_form, delivered_gradients, fastest, measure_seed, printed_form

SMALL = ToySettings(samples=60, inputs=4, hidden=6, level=0.5)
THREE = dataclasses.replace(SMALL, scales=(5.0, 0.5, 1.0), coefficients=(0.001, 1.0, 0.3))
BRISK = {"lr": 0.05, "start": 0.05, "steps": 60}  # small losses are learnt slowly otherwise


def random_parameters(settings: ToySettings, seed: int) -> dict[str, torch.Tensor]:
    far = TwoLayer(dataclasses.replace(settings, start=0.5), seed)
    return {name: each.detach() for name, each in far.named_parameters()}


# -- the data --


def test_the_condition_by_hand() -> None:
    first, second = torch.tensor([[2.0], [0.0]]).double(), torch.tensor([[0.0], [1.0]]).double()
    found = preference(ToyData({"m1": first, "m2": second}, torch.tensor([1.0, 3.0]).double()))
    assert found.pull == pytest.approx({"m1": 1.0, "m2": 1.5})  # means of y·x
    assert found.explained == pytest.approx({"m1": 0.5, "m2": 4.5})  # 1²/2 and 1.5²/0.5
    assert (found.first, found.most_useful, found.superficial) == ("m2", "m2", False)


def test_data_is_what_the_appendix_says() -> None:
    toy = generate(dataclasses.replace(ToySettings(), samples=20_000), seed=3)
    assert {name: x.shape[1] for name, x in toy.inputs.items()} == {"m1": 50, "m2": 50}
    assert float(toy.inputs["m1"].var()) == pytest.approx(25, rel=0.01)
    assert float(toy.inputs["m2"].var()) == pytest.approx(0.25, rel=0.01)
    assert torch.allclose(toy.target, 0.001 * toy.inputs["m1"].sum(dim=1) + toy.inputs["m2"].sum(dim=1))


def test_the_label_by_other_names() -> None:
    targets = {}
    for label in ("sum", "mean", "first"):
        settings = dataclasses.replace(SMALL, samples=5000, label=label, level=0.01)
        toy = generate(settings, seed=0)
        targets[label] = toy.target
        assert float(toy.target.square().mean()) == pytest.approx(settings.expected_square, rel=0.1)
    assert torch.allclose(targets["sum"], SMALL.inputs * targets["mean"])
    assert torch.allclose(targets["first"], 0.001 * toy.inputs["m1"][:, 0] + toy.inputs["m2"][:, 0])


@pytest.mark.parametrize("seed", range(10))
def test_the_condition_holds_on_the_data_of_the_paper(seed: int) -> None:
    found = preference(generate(ToySettings(), seed))
    assert found.pull["m1"] > found.pull["m2"]
    assert found.explained["m1"] < found.explained["m2"]
    assert (found.first, found.most_useful) == ("m1", "m2")


def test_the_condition_is_sampling_noise_and_ends_as_samples_grow() -> None:
    few, many = preference_by_samples(ToySettings(), (700, 20_000), range(5))
    assert (few.holds, many.holds) == (1.0, 0.0)
    # Modality 2 hardly moves; that of modality 1 is a noise that falls as 1/√N.
    assert many.pull["m2"] == pytest.approx(few.pull["m2"], rel=0.05)
    assert few.pull["m1"] / many.pull["m1"] == pytest.approx((20_000 / 700) ** 0.5, rel=0.15)


def test_where_the_noise_ends_both_pulls_are_equal_on_average() -> None:
    count = round(samples_where_noise_ends(ToySettings()))
    settings = dataclasses.replace(ToySettings(), samples=count)
    found = [preference(generate(settings, seed)).pull for seed in range(12)]
    squares = {name: sum(pull[name] ** 2 for pull in found) / len(found) for name in settings.names}
    assert squares["m1"] == pytest.approx(squares["m2"], rel=0.1)


def test_a_bad_recipe_gets_one_message() -> None:
    with pytest.raises(ValueError, match="samples should be more than inputs") as found:
        ToySettings(samples=3, scales=(1.0,), label="median", penalty=-1.0, lr=float("inf"))  # ty: ignore[invalid-argument-type]
    for part in ("scales should name at least two", "coefficients", "label should be one of sum", "penalty", "lr"):
        assert part in str(found.value)
    with pytest.raises(
        ValueError, match=r"level should be below the loss at the start, about 0.25, such as level=0.02"
    ):
        ToySettings(label="first")


# -- the model and its gradients --


def test_losses_by_hand() -> None:
    toy = ToyData({"m1": torch.tensor([[1.0], [2.0]]).double(), "m2": torch.tensor([[1.0], [0.0]]).double()},
              torch.tensor([1.0, 1.0]).double())  # fmt: skip
    weights = {
        "encoders.m1": 2.0,
        "fused.m1": 0.5,
        "heads.m1": 1.0,
        "encoders.m2": 3.0,
        "fused.m2": 1.0,
        "heads.m2": 0.0,
    }
    parameters = {
        name: torch.full((1, 1) if "encoders" in name else (1,), value).double() for name, value in weights.items()
    }
    # Fused outputs 1·1 + 3·1 and 1·2; m1 alone 2 and 4; m2 alone nothing.
    found = {name: float(loss) for name, loss in losses(parameters, toy).items()}
    assert found == pytest.approx({"fused": (9 + 1) / 2, "m1": (1 + 9) / 2, "m2": 1.0})


@pytest.mark.parametrize("settings", [SMALL, THREE, ToySettings()], ids=["two", "three", "paper"])
@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_is_the_gradient(settings: ToySettings, seed: int) -> None:
    toy, parameters = generate(settings, seed), random_parameters(settings, seed)
    weights = dict(zip(settings.names, (3.0, 0.5, 7.0), strict=False))
    leaves = {name: each.clone().requires_grad_() for name, each in parameters.items()}
    found = losses(leaves, toy)
    total = found["fused"] + torch.stack([weight * found[name] for name, weight in weights.items()]).sum()
    expected = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
    gradients = closed_form(parameters, toy, weights)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, expected[name], rtol=1e-9, atol=1e-9)
        # The table of the appendix, to the letter, is minus a half of it once it is turned over.
        assert torch.allclose(-2 * printed_form(parameters, toy, weights)[name], expected[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_what_the_balancer_delivers_agrees_with_the_corrected_table(seed: int) -> None:
    toy = generate(ToySettings(), seed)
    for variant in ("mimo-exact", "mimo-zero", "hard-exact"):
        rows = delivered_gradients(toy, ToySettings(), variant, seed, after=5)
        assert max(row.corrected for row in rows) <= 1e-5
        for row in rows:
            moved = variant != "hard-exact" or row.factor != 0
            assert row.as_printed >= 0.9 or not moved, "as printed, it is not the gradient"
            if variant == "hard-exact" and moved:
                assert row.factor == pytest.approx(-2, rel=1e-9)


# -- training --


def by_hand(toy: ToyData, settings: ToySettings, steps: int, seed: int) -> list[float]:
    """The appendix's updates of MIMO in numpy, with exact f*: nothing of it is shared with the package."""
    x1, x2, y = (each.numpy() for each in (*toy.inputs.values(), toy.target))
    model = TwoLayer(settings, seed)
    (t1, t2), (m1, m2), (u1, u2) = (
        [each.detach().numpy().copy() for each in part.values()] for part in (model.encoders, model.fused, model.heads)
    )
    best = [np.mean((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2) for x in (x1, x2)]
    found = []
    for _ in range(steps):
        fused, own1, own2 = y - x1 @ t1 @ m1 - x2 @ t2 @ m2, y - x1 @ t1 @ u1, y - x2 @ t2 @ u2
        found.append(float(np.mean(fused**2)))
        gaps = np.array([np.mean(own1**2) - best[0], np.mean(own2**2) - best[1]])
        share = np.exp((gaps - gaps.max()) / settings.smoothing)
        a1, a2 = settings.penalty * share / share.sum()
        scale = -2 / len(y)
        d1, d2, e1, e2 = (scale * x.T @ r for x, r in ((x1, fused), (x2, fused), (x1, own1), (x2, own2)))
        steps_of = (np.outer(d1, m1) + a1 * np.outer(e1, u1), np.outer(d2, m2) + a2 * np.outer(e2, u2),
                    t1.T @ d1, t2.T @ d2, a1 * t1.T @ e1, a2 * t2.T @ e2)  # fmt: skip
        for each, step in zip((t1, t2, m1, m2, u1, u2), steps_of, strict=True):
            each -= settings.lr * step
    return found


def test_a_run_is_that_of_an_independent_implementation() -> None:
    toy = generate(ToySettings(), seed=1)
    expected = by_hand(toy, ToySettings(), 60, seed=1)
    assert run(toy, ToySettings(), "mimo-exact", seed=1, steps=59).fused.tolist() == pytest.approx(expected, rel=1e-6)


def test_a_trace_says_when_by_hand() -> None:
    norms = {"m1": torch.tensor([0.0, 1.0, 4.0, 3.0]), "m2": torch.tensor([1.0, 1.0, 1.5, 3.0])}
    trace = Trace(torch.tensor([9.0, 5.0, 1.0, 0.5]), norms, {})
    assert [trace.reached(level) for level in (10, 5, 1, 0.1)] == [0, 1, 2, None]
    assert (trace.learnt("m1"), trace.learnt("m2"), trace.diverged) == (2, 3, False)
    assert Trace(torch.tensor([1.0, float("nan")]), norms, {}).diverged


def test_every_way_of_training_trains_and_starts_alike() -> None:
    settings = dataclasses.replace(THREE, **BRISK)
    toy = generate(settings, seed=0)
    starts = set()
    for variant in VARIANTS:
        trace = run(toy, settings, variant)
        assert trace.fused[-1] < 0.8 * trace.fused[0]
        assert set(trace.norms) == set(trace.weights) == {"m1", "m2", "m3"}
        starts.add(float(trace.fused[0]))
    assert len(starts) == 1


def test_weights_are_what_each_method_promises() -> None:
    toy = generate(SMALL, seed=0)
    found = {variant: torch.stack(list(run(toy, SMALL, variant, steps=15).weights.values())) for variant in VARIANTS}
    assert not found["joint"].any()
    assert (found["ew"] == 5.0).all()
    assert (found["ew-full"] == 10.0).all()
    for variant in ("mimo-exact", "mimo-zero", "hard-exact", "hard-zero"):
        assert torch.allclose(found[variant].sum(dim=0), torch.full((16,), 10.0).double())
    assert set(found["hard-exact"].unique().tolist()) <= {0.0, 5.0, 10.0}


def test_a_run_that_diverges_ends_and_says_so() -> None:
    wild = dataclasses.replace(SMALL, lr=5.0, start=0.5)
    trace = run(generate(wild, 0), wild, "mimo-exact", steps=200)
    assert trace.diverged
    assert len(trace.fused) < 201
    assert fastest(generate(wild, 0), wild, 0, [5.0], ["mimo-exact"]) == {}


def test_on_a_manifold_only_one_modality_is_learnt() -> None:
    toy, settings = generate(ToySettings(), seed=0), ToySettings()
    for name in settings.names:
        parameters = {key: torch.zeros_like(each) for key, each in TwoLayer(settings, 0).state_dict().items()}
        found = toy.correlations
        parameters[f"encoders.{name}"][:, 0] = torch.linalg.solve(found.inputs[name, name], found.target[name])
        parameters[f"fused.{name}"][0] = 1.0
        assert float(losses(parameters, toy)["fused"]) == pytest.approx(toy.optimum[name], rel=1e-9)
        # A stationary point of joint training: the fused heads and encoders of both modalities rest.
        gradients = closed_form(parameters, toy, dict.fromkeys(settings.names, 0.0))
        assert max(float(each.abs().max()) for each in gradients.values()) < 1e-9


def test_time_to_a_manifold_is_that_of_exponential_growth() -> None:
    toy = generate(ToySettings(), seed=0)
    found = manifolds(toy, ToySettings(), seed=0)
    for place in found.values():
        assert place.measured is not None
        assert 0.8 * place.measured <= place.predicted <= place.measured
    assert found["m1"].measured < found["m2"].measured  # ty: ignore[unsupported-operator]
    assert found["m1"].loss > found["m2"].loss


def learns_the_wrong_one_first(settings: ToySettings, seed: int) -> None:
    toy = generate(settings, seed)
    trace = run(toy, settings, "joint", seed)
    assert trace.learnt("m1") < trace.learnt("m2")
    first, second = toy.optimum["m1"], toy.optimum["m2"]
    assert toy.correlations.square - first < toy.correlations.square - second, "m2 lowers the loss more"
    plateau = float(trace.fused[(trace.learnt("m1") + trace.learnt("m2")) // 2])
    assert plateau == pytest.approx(first, rel=0.15), "in between, the loss is that of m1 alone"
    assert trace.fused[-1] < 0.1 * first


def is_faster_with_mimo(settings: ToySettings, seed: int) -> None:
    found = steps_to_level(
        generate(settings, seed), settings, seed, ("joint", "mimo-zero", "mimo-exact", "ew", "ew-full")
    )
    steps = {variant: count for variant, count in found.items() if count is not None}
    assert steps.keys() == found.keys(), "all get there"
    ratio = {variant: count / steps["joint"] for variant, count in steps.items()}
    assert ratio["mimo-zero"] <= 0.75
    assert ratio["mimo-exact"] <= 0.4
    # What the maximum adds: all of λ for the modality that is behind, instead of λ/K each.
    assert ratio["mimo-exact"] < ratio["ew"] < ratio["mimo-zero"]
    # And nothing in speed over λ for both.
    assert abs(steps["ew-full"] - steps["mimo-exact"]) <= 3


def test_joint_training_learns_the_wrong_one_first() -> None:
    learns_the_wrong_one_first(ToySettings(steps=240), seed=0)


def test_mimo_is_faster_at_the_same_learning_rate() -> None:
    is_faster_with_mimo(ToySettings(), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.01, 0.001])
@pytest.mark.parametrize("seed", range(10))
def test_both_over_ten_seeds(start: float, seed: int) -> None:
    settings = dataclasses.replace(ToySettings(), start=start)
    learns_the_wrong_one_first(settings, seed)
    is_faster_with_mimo(settings, seed)


@pytest.mark.slow
def test_joint_training_at_a_larger_learning_rate_is_faster_still() -> None:
    settings, toy = ToySettings(), generate(ToySettings(), seed=0)
    found = fastest(toy, settings, 0, [0.01, 0.02, 0.04, 0.08, 0.16], ("joint", "mimo-exact"))
    assert found["joint"][1] < found["mimo-exact"][1]
    assert found["joint"][0] > found["mimo-exact"][0]


def test_one_seed_holds_everything() -> None:
    found = measure_seed(dataclasses.replace(SMALL, **BRISK), seed=2)
    assert set(found.steps) == set(VARIANTS)
    assert set(found.places) == set(found.learnt) == {"m1", "m2"}
    assert found.ratio("joint") == 1.0
    assert found._replace(steps=dict.fromkeys(VARIANTS, None)).ratio("ew") is None


@pytest.mark.slow
def test_more_modalities_are_learnt_by_their_pull() -> None:
    settings = dataclasses.replace(
        ToySettings(), samples=300, inputs=20, scales=(5.0, 0.5, 1.0), coefficients=(0.001, 1.0, 0.3)
    )
    toy = generate(settings, seed=0)
    pull, trace = preference(toy).pull, run(toy, settings, "joint", steps=300)
    order = sorted(settings.names, key=trace.learnt)
    assert all(pull[sooner] > pull[later] for sooner, later in itertools.pairwise(order))
