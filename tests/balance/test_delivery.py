"""From an answer to gradients: every block learns what the table says, whatever the answer, the model and the loop."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import ARL, MSL, OGM, Balancer, Coefficients, InfoReg, LateFusion, Losses, Weighting
from equipoise.balance.needs import Needs
from equipoise.data.bundled import two_sensors
from equipoise.models.fusion_model import FusionModel
from equipoise.testing import SmallModel, attached, balanced, batch, gradients_of, losses_of, masks_for, names
from equipoise.testing.models import MODELS, objectives_of, told_by
from equipoise.training.settings import Settings
from equipoise.training.step import build_model, step_arguments
from everything import METHODS, ONE_SUM, SHAPES, Data, assert_same
from random_answers import LAYOUTS, Answers, Part, drawn_answer, name_of


def assert_exact(found: Any, expected: Any) -> None:
    """Equal but for rounding, in double precision."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# -- whatever the answer --


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_any_answer_is_delivered_as_the_table_says(layout: dict[str, Part], kind: str) -> None:
    """With masks, with a loss that counts everywhere, with a factor from above, over steps that accumulate."""
    draw = random.Random(f"{layout}{kind}")
    count = draw.randint(1, 4)
    model, balancer = MODELS[kind](names(count)), Answers(drawn_answer(layout, draw, 1 + count, count))
    attached(balancer, model)
    expected = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for step in range(2):
        losses, masks = losses_of(model, batch(names(count), seed=step)), masks_for(names(count), seed=step)
        masks = masks if draw.random() < 0.5 else None
        decay = torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()
        extra = {"decay": decay} if draw.random() < 0.5 else None
        scale = draw.choice([1.0, 64.0])
        (balancer(losses, present=masks, extra=extra) * scale).backward(retain_graph=True)
        told = told_by(balancer, model, losses, masks)
        for name, parameter in model.named_parameters():
            expected[name] += scale * (told[name] + (0 if extra is None else 2 * parameter.detach()))
    assert_exact(gradients_of(model), expected)


@final
class Sidelong(nn.Module):
    """An encoder of which the fused head reads one layer, and the modality's own head another."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.beside = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.shared(inputs), self.beside(inputs)


@pytest.mark.parametrize("alone", [True, False])
def test_what_of_an_encoder_the_fused_loss_does_not_reach_is_an_own_head_where_that_loss_teaches_alone(
    alone: bool,
) -> None:
    torch.manual_seed(0)
    encoders = nn.ModuleDict({name: Sidelong().double() for name in names(2)})
    heads = nn.ModuleDict({name: nn.Linear(4, 3).double() for name in ("fused", *names(2))})
    inputs, label = batch(names(2))
    outputs = {name: encoder(inputs[name]) for name, encoder in encoders.items()}
    logits = {name: heads[name](shared + beside) for name, (shared, beside) in outputs.items()}
    logits["fused"] = heads["fused"](torch.stack([shared for shared, _ in outputs.values()]).sum(0))
    losses = {name: F.cross_entropy(z, label, reduction="none") for name, z in logits.items()}
    rows, own = (1 if alone else 3), torch.tensor([1.0, 7.0, 7.0], dtype=torch.float64)
    column = torch.tensor([2.0, 3.0, 3.0], dtype=torch.float64)[:rows]
    factors = torch.tensor([0.5, 0.25], dtype=torch.float64)
    balancer = Answers(Coefficients(column, fused_head=own, own_heads=own, factors=factors))
    balancer.attach(nn.ModuleDict({"encoders": encoders, "heads": heads}), optimizer=_sgd(encoders))
    balancer(losses).backward(retain_graph=True)
    for place, (name, encoder) in enumerate(encoders.items()):
        assert isinstance(encoder, Sidelong)
        fused, single = losses["fused"].mean(), losses[name].mean()
        wanted = [
            factors[place] * g for g in _gradients(2.0 * fused + (0.0 if alone else 3.0) * single, encoder.shared)
        ]
        beside = 7.0 if alone else 3.0 * factors[place]
        wanted += [beside * gradient for gradient in _gradients(single, encoder.beside)]
        assert_exact([tensor.grad for tensor in encoder.parameters()], wanted)


def _gradients(loss: Tensor, module: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(module.parameters()), retain_graph=True))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


# -- a column for each encoder, and further objectives --


@final
class Crossed(Weighting):
    """Gives encoder b the further loss of modality m at one where b is m, and at `cross` elsewhere."""

    needs = Needs(further="swapped")

    def __init__(self, cross: float = -1.0) -> None:
        super().__init__()
        self.cross = cross

    def weigh(self, losses: Losses) -> Coefficients:
        count = len(losses.unimodal)
        own = torch.eye(count, dtype=losses.fused.dtype)
        table = torch.cat([torch.ones_like(own[:1]), own, own + self.cross * (1 - own)])
        return Coefficients.full(table, heads=torch.full_like(table[:, 0], 0.5))


def swapped_losses(model: SmallModel, count: int) -> dict[str, Tensor]:
    """One further loss per modality that reaches every encoder: the fused loss of other samples, times a number."""
    return {
        name: (2 + place) * losses_of(model, batch(names(count), seed=place + 1))["fused"].square()
        for place, name in enumerate(names(count))
    }


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("tied", [False, True])
def test_each_encoder_gets_the_sum_of_its_column(count: int, tied: bool) -> None:
    modalities = names(count)
    model = SmallModel(modalities)
    if tied and count > 1:  # the first two encoders share their parameters: the mean of their columns
        model.encoders[modalities[1]] = model.encoders[modalities[0]]
    balancer = attached(Crossed(), model)
    balancer(losses_of(model, batch(modalities)), further=swapped_losses(model, count)).backward()
    delivered = gradients_of(model)
    assert balancer.table.objectives == ("fused", *modalities, *(f"swapped {name}" for name in modalities))
    own = torch.eye(count, dtype=torch.float64)
    columns = torch.cat([torch.ones(1, count, dtype=torch.float64), own, 2 * own - 1])
    if tied and count > 1:
        columns[:, :2] = columns[:, :2].mean(dim=1, keepdim=True)
    objectives = [*losses_of(model, batch(modalities)).values(), *swapped_losses(model, count).values()]
    expected = {name: torch.zeros_like(gradient) for name, gradient in delivered.items()}
    for row, loss in enumerate(objectives):
        model.zero_grad()
        loss.mean().backward(retain_graph=True)
        for name, gradient in gradients_of(model).items():
            block = modalities.index(name.split(".")[1]) if name.startswith("encoders.") else None
            expected[name] += (0.5 if block is None else columns[row, block]) * gradient
    assert_exact(delivered, expected)


def test_further_objectives_are_checked() -> None:
    model = SmallModel(names(2))
    balancer, losses = attached(Crossed(), model), losses_of(model, batch(names(2)))
    with pytest.raises(ValueError, match=r"one more objective per modality: pass further="):
        balancer(losses)
    with pytest.raises(ValueError, match=r"found none for \['video'\]"):
        balancer(losses, further={"audio": losses["audio"]})
    with pytest.raises(ValueError, match=r"expected one loss for each of \['audio', 'video'\], found \['text'\]"):
        balancer(losses, further=dict.fromkeys((*names(2), "text"), losses["audio"]))
    with pytest.raises(FloatingPointError, match="loss 'swapped audio' is NaN"):
        balancer(losses, further={"audio": losses["audio"] * torch.nan, "video": losses["video"]})
    with pytest.raises(ValueError, match="no objectives beyond one per modality"):
        attached(MSL(), model)(losses, further={"audio": losses["audio"], "video": losses["video"]})


# -- a loss of the method's own, and a change of gradients --


@final
class Decayed(Weighting):
    """Joint training with a loss of the method's own: half the squared length of some parameters."""

    needs = Needs(learns_from_own=False, encoders=False)

    def __init__(self, seen: list[Tensor]) -> None:
        super().__init__()
        self.seen = seen

    def weigh(self, losses: Losses) -> Coefficients:
        return Coefficients.shared(losses.weights(1.0, 1.0))

    def regulariser(self, scalars: Mapping[str, Tensor], losses: Losses, answer: Coefficients | None) -> Tensor | None:
        assert answer is not None
        means = [losses.fused, *losses.unimodal]
        assert [float(one.detach()) for one in scalars.values()] == pytest.approx([float(one) for one in means])
        return 0.5 * torch.stack([one.square().sum() for one in self.seen]).sum() if self.seen else None


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_loss_of_its_own_counts_at_one(scale: float) -> None:
    model = SmallModel(names(2))
    found = []
    for seen in (list[Tensor](), list[Tensor](model.parameters())):
        balancer = Decayed(seen)
        attached(balancer, model)
        model.zero_grad()
        loss = balancer(losses_of(model, batch(names(2))))
        (loss * scale).backward()
        found.append((gradients_of(model), float(loss.detach())))
    (without, less), (delivered, more) = found
    expected = {name: without[name] + scale * p.detach() for name, p in model.named_parameters()}
    assert_exact(delivered, expected)
    assert more == pytest.approx(less + 0.5 * sum(float(p.detach().square().sum()) for p in model.parameters()))


@final
class Turned(Weighting):
    """Joint training, half as fast, whose encoders learn along the opposite of their number times the gradient."""

    needs = Needs(learns_from_own=False, factors=True)

    def __init__(self, start: int = 0) -> None:
        super().__init__(start=start)
        self.asked: list[str] = []

    def weigh(self, losses: Losses) -> Coefficients:
        return Coefficients.joint(losses, torch.full_like(losses.unimodal, 0.5))

    def transform(self, modality: str, gradient: list[Tensor], parts: Any) -> list[Tensor]:
        self.asked.append(modality)
        (whole,) = parts
        assert_exact(gradient, [0.5 * one if self.start == 0 else one for one in whole])
        return [-(1 + self.modalities.index(modality)) * one for one in gradient]


@pytest.mark.parametrize("start", [0, 1])
def test_a_change_of_gradients_acts_on_encoders_alone_and_in_its_epochs(start: int) -> None:
    model, data = SmallModel(names(3)), batch(names(3))
    balancer = Turned(start)
    attached(balancer, model)
    losses = losses_of(model, data)
    balancer(losses).backward(retain_graph=True)
    assert sorted(balancer.asked) == sorted(names(3))
    told = told_by(balancer, model, losses)
    for name, gradient in gradients_of(model).items():
        factor = -(1 + names(3).index(name.split(".")[1])) if name.startswith("encoders.") and start == 0 else 1
        assert_exact(gradient, factor * told[name])


# -- models whose fused head is also each modality's own --


SPLIT: dict[str, type[Balancer]] = {"ogm": OGM, "msl": MSL, "arl": ARL, "inforeg": InfoReg}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", SPLIT)
def test_the_fused_head_of_shares_learns_what_the_table_says(method: str, count: int) -> None:
    torch.manual_seed(0)
    encoders = {name: nn.Linear(8, 4) for name in names(count)}
    model = LateFusion(encoders, classes=3, unimodal="split").double()
    balancer = attached(SPLIT[method](), model)
    inputs, label = {name: torch.randn(16, 8, dtype=torch.float64) for name in names(count)}, torch.arange(16) % 3
    losses = {name: F.cross_entropy(z, label, reduction="none") for name, z in model(inputs).items()}
    balanced(balancer, losses).backward(retain_graph=True)
    table = balancer.table
    assert table.values[:, -1].isnan().all()  # no head is a modality's own
    for tensor in _fused_head(model):
        told = torch.zeros_like(tensor)
        for objective, loss in losses.items():
            told += table.at(objective, "fused head") * torch.autograd.grad(loss.mean(), tensor, retain_graph=True)[0]
        assert_exact(tensor.grad, told)
        assert float(told.abs().max()) > 1e-3
    learns = [float(table.at(name, "fused head")) for name in names(count)]
    assert learns == [SPLIT[method]().needs.learns_from_own * (4.0 if method == "arl" else 1.0)] * count


@pytest.mark.parametrize("method", SPLIT)
def test_the_fused_head_of_the_model_that_training_builds_learns_what_the_table_says(method: str) -> None:
    torch.manual_seed(0)
    splits, balancer = two_sensors(samples=60), SPLIT[method]()
    model = build_model(splits, balancer, Settings(epochs=1, batch=20)).double()
    balancer.attach(model, optimizer=_sgd(model))
    part = splits.train.take(torch.arange(20)).ready()
    part = replace(part, inputs={name: values.double() for name, values in part.inputs.items()})
    given, _ = step_arguments(model, balancer, part)
    balancer(**given).backward(retain_graph=True)
    losses = {
        **given["losses"],
        **(given["extra"] or {}),
    }  # heads that are measured learn beside: by no loss of a share
    for tensor in _fused_head(model):
        told = torch.zeros_like(tensor)
        for objective, loss in losses.items():
            (own,) = torch.autograd.grad(loss.mean(), tensor, retain_graph=True, allow_unused=True)
            if own is not None:
                told += balancer.table.at(objective, "fused head") * own
        assert_exact(tensor.grad, told)
        assert float(told.abs().max()) > 1e-3


def _fused_head(model: FusionModel) -> list[nn.Parameter]:
    head = [parameter for name, parameter in model.named_parameters() if name.startswith("fusion.")]
    assert head
    return head


# -- parameters that are no part of the model --


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", SHAPES)
def test_parameters_outside_the_model_learn_as_heads(method: str, count: int) -> None:
    model, data = SmallModel(names(count)), batch(names(count))
    warmth, own_warmth = nn.Parameter(torch.tensor(0.7).double()), nn.Parameter(torch.tensor(1.3).double())
    optimizer = torch.optim.SGD([*model.parameters(), warmth, own_warmth], lr=0.1)

    def losses() -> dict[str, Tensor]:
        inputs, label = data
        warm = {name: warmth if name == "fused" else own_warmth for name in ("fused", *names(count))}
        return {
            name: F.cross_entropy(logits / warm[name], label, reduction="none")
            for name, logits in model(inputs).items()
        }

    balancer = attached(METHODS[method](), model, optimizer)
    balancer.regulariser = lambda scalars, losses, answer: None  # noqa: ARG005
    balanced(balancer, losses()).backward()
    table = balancer.table
    for parameter, column in ((warmth, "fused head"), (own_warmth, "own heads")):
        expected = torch.zeros(()).double()
        for objective, loss in objectives_of(balancer, losses()).items():
            (gradient,) = torch.autograd.grad(loss.mean(), parameter, retain_graph=True, allow_unused=True)
            if gradient is not None:
                expected += table.at(objective, column) * gradient
        assert parameter.grad is not None
        assert_exact(parameter.grad, expected)
        assert float(expected.abs()) > 0


# -- frozen parts --


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("method", SHAPES)
def test_a_frozen_encoder_stays_and_the_rest_learns_as_before(method: str, count: int) -> None:
    results = []
    for frozen in (False, True):
        model = SmallModel(names(count))
        model.encoders["audio"].requires_grad_(not frozen)
        balancer = attached(METHODS[method](), model)
        balancer.transform = lambda modality, gradient, parts: gradient  # noqa: ARG005
        balanced(balancer, losses_of(model, batch(names(count)))).backward()
        results.append({name: g for name, g in gradients_of(model).items() if "encoders.audio" not in name})
        assert all((p.grad is None) == frozen for p in model.encoders["audio"].parameters())
    assert_same(results[1], results[0], atol=1e-12)


@pytest.mark.parametrize("method", SHAPES)
def test_with_every_encoder_frozen_the_heads_still_learn(method: str) -> None:
    results = []
    for frozen in (False, True):
        model = SmallModel(names(2))
        model.encoders.requires_grad_(not frozen)
        balancer = attached(METHODS[method](), model)
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
        results.append({name: g for name, g in gradients_of(model).items() if "encoders" not in name})
    assert_same(results[1], results[0], atol=1e-12)
    assert any(bool(gradient.any()) for gradient in results[1].values())


# -- one backward pass, and a second --


@pytest.mark.parametrize("method", [name for name in SHAPES if name not in ONE_SUM])
def test_a_second_backward_says_what_to_do(method: str) -> None:
    model = SmallModel(names(2))
    loss = balanced(attached(METHODS[method](), model), losses_of(model, batch(names(2))))
    loss.backward()
    with pytest.raises(RuntimeError, match="call the balancer again on fresh losses"):
        loss.backward()


@pytest.mark.parametrize("method", [name for name in SHAPES if name in ONE_SUM])
def test_a_second_backward_of_one_sum_is_torchs_own_affair(method: str) -> None:
    model = SmallModel(names(2))
    loss = balanced(attached(METHODS[method](), model), losses_of(model, batch(names(2))))
    loss.backward(retain_graph=True)
    once = gradients_of(model)
    loss.backward()
    assert_same(gradients_of(model), {name: 2 * gradient for name, gradient in once.items()}, atol=1e-12)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("method", SHAPES)
def test_a_graph_that_is_kept_gives_the_same_gradient_again_and_the_state_moves_on_once(method: str) -> None:
    states = []
    for passes in (1, 2):
        model = SmallModel(names(2))
        balancer = attached(METHODS[method](), model)
        balancer.transform = lambda modality, gradient, parts: gradient  # noqa: ARG005
        loss = balanced(balancer, losses_of(model, batch(names(2))))
        for _ in range(passes):
            loss.backward(retain_graph=True)
        once = {name: gradient / passes for name, gradient in gradients_of(model).items()}
        states.append((once, {name: buffer.clone() for name, buffer in balancer.named_buffers()}))
    assert_same(states[1][0], states[0][0], atol=1e-12)
    torch.testing.assert_close(states[1][1], states[0][1], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("method", ["mimo", "primaldual-scaled-heads"])
def test_a_state_that_no_optimiser_moves_moves_on_once_for_a_sum_of_losses(method: str, passes: int) -> None:
    model, balancer = SmallModel(names(2)), METHODS[method]()
    loss = balanced(balancer, losses_of(model, batch(names(2))))
    before = {name: buffer.clone() for name, buffer in balancer.named_buffers()}
    for _ in range(passes):
        loss.backward(retain_graph=True)
    assert any(not torch.equal(buffer, before[name]) for name, buffer in balancer.named_buffers())
    assert int(balancer.get_buffer("step")) == 1


# -- models that cannot teach what a method says --


@pytest.mark.parametrize("method", SHAPES)
def test_an_encoder_that_did_not_run_is_named(method: str) -> None:
    model, stranger = SmallModel(names(2)), SmallModel(names(2))
    encoders = {"audio": model.encoders["audio"], "video": stranger.encoders["video"]}
    optimizer = torch.optim.SGD([*model.parameters(), *stranger.parameters()], lr=0.1)
    balancer = METHODS[method]().attach(model, encoders=encoders, optimizer=optimizer)
    with pytest.raises(ValueError, match="no gradient to encoder 'video'"):
        balanced(balancer, losses_of(model, batch(names(2))))


@pytest.mark.parametrize("method", [name for name in SHAPES if METHODS[name]().needs.learns_from_own])
def test_detached_heads_are_refused_where_encoders_learn_from_them(method: str) -> None:
    model = SmallModel(names(2), detached=True)
    balancer = attached(METHODS[method](), model)
    view = balancer.needs.view
    assert view in ("head", "split")
    with pytest.raises(ValueError, match=rf"not on detached ones \(LateFusion\(…, unimodal='{view}'\)\)"):
        balanced(balancer, losses_of(model, batch(names(2))))


@pytest.mark.parametrize("method", [name for name in SHAPES if not METHODS[name]().needs.learns_from_own])
def test_detached_heads_are_fine_where_encoders_learn_from_the_fused_loss(method: str) -> None:
    found = []
    data: Data = batch(names(2))
    for detached in (False, True):
        model = SmallModel(names(2), detached=detached)
        balanced(attached(METHODS[method](), model), losses_of(model, data)).backward()
        found.append(gradients_of(model))
    assert_same(found[1], found[0], atol=1e-12)
