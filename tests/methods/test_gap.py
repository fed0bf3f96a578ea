"""GAP: its gradient sample by sample, its two extremes, epochs, gaps, windows, models, ranks, and scores from data."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, final

import pytest
import torch
from torch import Tensor, nn

from equipoise import GAP, MSL, Balancer, HybridFusion, LateFusion, Window
from equipoise.data.bundled import two_sensors
from equipoise.data.feed import Feed
from equipoise.data.part import Part, joined
from equipoise.data.source import all_data
from equipoise.data.splits import Splits
from equipoise.study.registry import all_methods, entries
from equipoise.study.study import plan
from equipoise.testing import SmallModel, attached, batch, gradients_of, losses_of, names
from equipoise.testing.contract import Batch
from equipoise.training.settings import Settings
from equipoise.training.train import train
from equipoise.util.errors import BadInput
from everything import batches, part

SHORT = Settings(epochs=2, batch=20, lr=0.05, features=6, device="cpu")
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "published": lambda rho: 0.4 * (1 - rho),
    "released": lambda rho: 1 - 0.4 * rho,
}


def scores_for(size: int, seed: int = 0) -> Tensor:
    """A score per sample; the first two are zero and one."""
    scores = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores[:2] = torch.tensor([0.0, 1.0])
    return scores


def sample_by_sample(model: nn.Module, data: Batch, factors: Tensor, owner: str) -> dict[str, Tensor]:
    """The gradient of the mean fused loss, from a pass for each sample, whose part in one encoder counts its factor."""
    inputs, label = data
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for number, factor in enumerate(factors):
        model.zero_grad()
        rows = slice(number, number + 1)
        losses = losses_of(model, ({name: x[rows] for name, x in inputs.items()}, label[rows]))
        losses["fused"].sum().backward()
        for name, gradient in gradients_of(model).items():
            share = factor if name.startswith(f"encoders.{owner}.") else 1.0
            total[name] += share * gradient / len(factors)
    model.zero_grad()
    return total


def fused_only(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"fused": losses["fused"]}


def step(balancer: Balancer, model: nn.Module, data: Batch, scores: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    balancer(fused_only(losses_of(model, data)), scores={balancer.scored_samples[0]: scores}).backward()
    return gradients_of(model)


def late() -> nn.Module:
    torch.manual_seed(0)
    return LateFusion({name: nn.Sequential(nn.Linear(3, 4), nn.Tanh()) for name in names(2)}, 3).double()


def hybrid() -> nn.Module:
    torch.manual_seed(0)
    encoders = {name: nn.Sequential(nn.Linear(3, 8), nn.Tanh()) for name in names(2)}
    return HybridFusion(encoders, 3, unimodal="masked_detached", width=8, depth=1).double()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "one sensor": lambda: SmallModel(names(1)),
    "two": lambda: SmallModel(names(2)),
    "four": lambda: SmallModel(names(4)),
    "late": late,
    "hybrid": hybrid,
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_is_that_of_every_sample_times_its_factor(kind: str, form: Literal["published"]) -> None:
    model, scores = MODELS[kind](), scores_for(12)
    modalities = [name for name, _ in model.get_submodule("encoders").named_children()]
    owner, data = modalities[-1], batch(modalities)
    factors = FORMS[form](scores)
    expected = sample_by_sample(model, data, factors, owner)
    balancer = attached(GAP(0.4, owner, form), model)
    torch.testing.assert_close(step(balancer, model, data, scores), expected, rtol=1e-9, atol=1e-12)
    assert float(balancer.table.at("fused", owner)) == pytest.approx(float(factors.mean()))
    assert all(float(balancer.table.at("fused", name)) == 1 for name in [*modalities[:-1], "heads"])


def test_without_motion_it_is_joint_training_and_with_nothing_else_the_encoder_rests() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    losses_of(model, data)["fused"].mean().backward()
    joint = gradients_of(model)
    torch.testing.assert_close(step(attached(GAP(1.0, "audio"), model), model, data, torch.zeros(12)), joint)
    found = step(attached(GAP(1.0, "audio"), model), model, data, torch.ones(12))
    assert not any(gradient.any() for name, gradient in found.items() if name.startswith("encoders.audio"))
    others = {name: gradient for name, gradient in joint.items() if not name.startswith("encoders.audio")}
    torch.testing.assert_close({name: found[name] for name in others}, others)


def test_it_acts_from_its_first_epoch_to_its_last() -> None:
    model, data, scores = SmallModel(names(2)), batch(names(2)), scores_for(12)
    balancer = attached(GAP(1.0, "video", start=1, stop=3), model)
    means = []
    for _ in range(4):
        step(balancer, model, data, scores)
        means.append(float(balancer.table.at("fused", "video")))
        balancer.end_epoch()
    assert means == [1.0, pytest.approx(float(1 - scores.mean())), means[1], 1.0]
    losses_of(model, data)["fused"].mean().backward()
    joint = {name: gradient / 2 for name, gradient in gradients_of(model).items()}  # on top of the last step's
    torch.testing.assert_close(step(balancer, model, data, scores), joint)


@pytest.mark.parametrize("filling", [0.0, 1.0, torch.nan])
def test_the_scores_of_samples_without_the_sensor_change_nothing(filling: float) -> None:
    data, scores = batch(names(2)), scores_for(12)
    there = torch.arange(12) % 3 > 0
    found = []
    for given in (scores, scores.where(there, filling)):
        model = SmallModel(names(2))
        balancer = attached(GAP(1.0, "audio"), model)
        balancer(losses_of(model, data), scores={"audio": given}, present={"audio": there}).backward()
        found.append(gradients_of(model))
        mean = float(1 - scores[there].mean())
        assert float(balancer.table.at("fused", "audio")) == pytest.approx(mean)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("lag", [False, True])
def test_the_micro_batches_of_a_window_make_the_gradient_of_the_batch(lag: bool) -> None:
    whole, scores, model = batch(names(2)), scores_for(12), SmallModel(names(2))
    expected = step(attached(GAP(0.4, "audio"), model), model, whole, scores)
    model.zero_grad()
    balancer = attached(GAP(0.4, "audio"), model)
    pieces = [(part(whole, start, start + 4), scores[start : start + 4]) for start in (0, 4, 8)]
    given = [{"audio": score} for _, score in pieces]
    with torch.no_grad():
        losses = [losses_of(model, data) for data, _ in pieces]
    with Window(balancer, lag=lag).open(None if lag else losses, scores=None if lag else given):
        for (data, _), score in zip(pieces, given, strict=True):
            (balancer(losses_of(model, data), scores=score) / 3).backward()
    found = {name: gradient for name, gradient in gradients_of(model).items() if not name.startswith("heads")}
    torch.testing.assert_close(found, {name: expected[name] for name in found}, rtol=1e-9, atol=1e-12)


def test_a_loss_beside_counts_at_one_for_every_sample() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    plain = step(attached(GAP(1.0, "audio"), model), model, data, torch.ones(12))
    beside = losses_of(model, data)["fused"].mean()
    beside.backward()  # on top
    expected = gradients_of(model)
    model.zero_grad()
    balancer, losses = attached(GAP(1.0, "audio"), model), losses_of(model, data)
    extra = {"again": losses["fused"].mean()}
    balancer(fused_only(losses), scores={"audio": torch.ones(12)}, extra=extra).backward()
    torch.testing.assert_close(gradients_of(model), expected)
    assert not torch.equal(plain["encoders.audio.0.weight"], expected["encoders.audio.0.weight"])


def test_half_precision_features_keep_their_type_and_the_scale_from_above_protects_them() -> None:
    torch.manual_seed(0)
    model, scores = LateFusion({name: nn.Linear(3, 4) for name in names(2)}, 3, unimodal="detached"), scores_for(12)
    data = ({name: x.float() for name, x in batch(names(2))[0].items()}, batch(names(2))[1])
    expected = sample_by_sample(model, data, FORMS["published"](scores), "audio")
    balancer = GAP(0.4, "audio").attach(model)
    with torch.autocast("cpu", torch.bfloat16):
        losses = losses_of(model, data)
    (1024 * balancer(fused_only(losses), scores={"audio": scores})).backward()
    found = {name: gradient / 1024 for name, gradient in gradients_of(model).items()}
    torch.testing.assert_close(found, expected, rtol=0.05, atol=5e-3)


def test_under_adam_what_differs_between_samples_stays_and_the_strength_alone_cancels() -> None:
    def moved(strength: float, scores: Tensor) -> Tensor:
        model = SmallModel(names(2))
        weight = model.get_parameter("encoders.audio.0.weight")
        before = weight.detach().clone()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-30)
        balancer = GAP(strength, "audio").attach(model, optimizer=optimizer)
        for data in batches(names(2), 3):
            step(balancer, model, data, scores)
            optimizer.step()
        return weight.detach() - before

    varied, even = scores_for(12) * 0.9, torch.full((12,), 0.5)
    torch.testing.assert_close(moved(0.3, even), moved(1.0, torch.zeros(12)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(moved(0.3, varied), moved(0.6, varied), rtol=1e-4, atol=1e-6)
    assert (moved(0.3, varied) - moved(0.3, even)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, r"pass scores=\{'audio': …\}, one number from 0 to 1 per sample"),
        ({"video": torch.zeros(12)}, r"pass scores=\{'audio': …\}"),
        ({"audio": torch.zeros(12) + 1.5}, "score of 'audio': expected finite numbers from 0 to 1, found others"),
        ({"audio": torch.zeros(12) - 0.1}, "from 0 to 1"),
        ({"audio": torch.zeros(12) * torch.nan}, "from 0 to 1"),
        ({"audio": torch.zeros(11)}, r"first axis is that of the 11 samples that have a score, found .* \[12, 4\]"),
    ],
)
def test_wrong_scores_get_a_message(scores: dict[str, Tensor] | None, message: str) -> None:
    model = SmallModel(names(2))
    balancer = attached(GAP(modality="audio"), model)
    with pytest.raises(ValueError, match=message):
        balancer(losses_of(model, batch(names(2))), scores=scores).backward()


def test_wrong_arguments_and_models_get_a_message() -> None:
    with pytest.raises(ValueError, match="strength should be between zero and one"):
        GAP(1.5)
    with pytest.raises(BadInput, match=r"unknown modality='vidoe' .* Did you mean 'video'"):
        GAP(modality="vidoe").attach(SmallModel(names(2)))
    model, pieces = SmallModel(names(2)), {n: [f"encoders.{n}.0", f"encoders.{n}.2"] for n in names(2)}
    with pytest.raises(ValueError, match="GAP reads what each encoder gives, and expected one module for each"):
        GAP(modality="audio").attach(model, encoders={**pieces, "video": "encoders.video"})
    GAP(modality="audio").attach(model, encoders={**pieces, "audio": "encoders.audio"})


@final
class Chained(nn.Module):
    """An encoder that reads what another gives, or is called twice."""

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.encoders["a"], self.encoders["b"](x)
        return a(x) + a(2 * x) + b if self.twice else a(b) + b


@pytest.mark.parametrize(("twice", "message"), [(True, "was it called twice"), (False, "reads what other parameters")])
def test_an_encoder_whose_output_does_not_tell_its_samples_is_refused(twice: bool, message: str) -> None:
    model = Chained(twice=twice)
    balancer = GAP(modality="a").attach(model)
    with pytest.raises(ValueError, match=message):
        balancer({"fused": model(torch.randn(4, 3)).square().mean(1)}, scores={"a": torch.zeros(4)}).backward()


def test_another_encoder_may_read_what_this_one_gives() -> None:
    model, x, scores = Chained(twice=False), torch.randn(6, 3), torch.rand(6)
    GAP(1.0, "b").attach(model)({"fused": model(x).square().mean(1)}, scores={"b": scores}).backward()
    found = gradients_of(model)
    model.zero_grad()
    b = model.encoders["b"](x)
    held = b.detach().requires_grad_()
    (model.encoders["a"](held) + held).square().mean(1).mean().backward()
    assert held.grad is not None
    expected = torch.autograd.grad(b, [*model.encoders["b"].parameters()], (1 - scores)[:, None] * held.grad)
    torch.testing.assert_close([found["encoders.b.weight"], found["encoders.b.bias"]], list(expected))


def test_nothing_holds_on_to_the_graph_of_a_step() -> None:
    model = SmallModel(names(2))
    kept: list[weakref.ref[Any]] = []
    model.encoders["audio"].register_forward_hook(lambda *call: kept.append(weakref.ref(call[-1])))
    step(attached(GAP(modality="audio"), model), model, batch(names(2)), scores_for(12))
    gc.collect()
    assert [one() for one in kept] == [None]


# -- scores that come with the data --


def scored(count: int = 80) -> Splits:
    splits = two_sensors(samples=count)
    random = torch.Generator().manual_seed(1)
    drawn = {name: torch.rand(len(one), generator=random) for name, one in splits.parts.items()}
    return replace(splits, **{name: replace(one, scores={"easy": drawn[name]}) for name, one in splits.parts.items()})


def test_scores_go_with_their_samples() -> None:
    splits = scored()
    part = replace(splits.train, scores={"easy": splits.train.label.float() / 10})
    rows = torch.randperm(len(part), generator=torch.Generator().manual_seed(2))[:9]
    feed = Feed(part, "cpu")
    ways = [part.take(rows), part.ready(), part.to("cpu"), part.in_memory(), joined(part, part), feed.make(rows)]
    for one in (*ways, *Feed(part, "cpu", "streamed").batches([rows])):
        assert isinstance(one, Part)
        torch.testing.assert_close(one.scores["easy"], one.label.float() / 10)
    assert replace(splits, train=part).fingerprint() != splits.fingerprint()
    assert two_sensors(samples=80).fingerprint() == two_sensors(samples=80).fingerprint() != splits.fingerprint()


def test_training_gives_the_method_the_scores_of_the_data() -> None:
    splits = scored()
    settings = SHORT.changed({"accumulate": 3})
    found = train(splits, GAP(1.0, "easy", stop=1), settings)
    shares = [record["table"]["fused"]["easy"] for record in found.curves]
    assert 0.2 < shares[0] < 0.8
    assert shares[1] == 1
    ones = replace(splits, train=replace(splits.train, scores={"easy": torch.zeros(len(splits.train))}))
    joint, same = train(splits, MSL(), settings), train(ones, GAP(1.0, "easy"), settings)
    torch.testing.assert_close(same.model.state_dict(), joint.model.state_dict(), rtol=1e-5, atol=1e-6)
    assert found.curves[0]["train"] != joint.curves[0]["train"]


def test_data_without_scores_is_refused_with_the_reason_and_left_out_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match=r"holds back 'proprioception', and the data has easy, hard.*gap\.modality=easy"):
        train(scored(), GAP(), SHORT)
    with pytest.raises(BadInput, match=r"the data has none; give them with it, Part\(…, scores=\{'easy': …\}\)"):
        train(two_sensors(), GAP(modality="easy"), SHORT)
    words, data = ["epochs=1", "device=cpu"], all_data()["generated"]
    with pytest.raises(BadInput, match="holds back 'proprioception'"):
        plan(entries(["gap"], words), data, [0], [None])
    jobs, _ = plan(entries(["all"], words), data, [0], [None])
    assert {job.entry.label for job in jobs} == set(all_methods()) - {"gap"}
    assert "gap is left out: GAP holds back 'proprioception'" in capsys.readouterr().err


def test_scores_of_the_wrong_shape_or_name_are_told_with_the_data() -> None:
    splits = scored()
    wrong = replace(splits.train, scores={"easy": torch.zeros(3), "soft": torch.zeros(len(splits.train))})
    with pytest.raises(BadInput, match=r"found some of 'easy', of shape \[3\](.|\n)*found some of 'soft'"):
        replace(splits, train=wrong).check()
