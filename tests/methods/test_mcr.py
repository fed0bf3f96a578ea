"""MCR: its table by hand, gradients beside plain torch, and the losses of permuted features."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import MCR, LateFusion
from equipoise.data.splits import Part
from equipoise.models import permutation_losses
from equipoise.models.permuted import permuted_outputs
from equipoise.models.task import MultiLabel, Regression, Task
from equipoise.testing import SmallModel, balanced, batch, gradients_of, losses_of, names
from equipoise.training.settings import Settings
from equipoise.training.step import losses_of as training_loss
from equipoise.training.step import problems_of

GAMES = {"greedy": -1.0, "independent": 0.0, "collaborative": 1.0}


def fusion_model(count: int, fusion: str = "concat", task: Task | None = None) -> LateFusion:
    torch.manual_seed(0)
    encoders = {name: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)) for name in names(count)}
    classes = 3 if task is None else None
    return LateFusion(encoders, classes, task=task, fusion=fusion).double()


@pytest.mark.parametrize("game", GAMES)
def test_the_table_by_hand(game: str) -> None:
    model = SmallModel(names(2))
    balancer = MCR(0.2, game, weight=0.5).attach(model)  # ty: ignore[invalid-argument-type]
    balanced(balancer, losses_of(model, batch(names(2)))).backward()
    table, cross = balancer.table, 0.2 * GAMES[game]
    assert table.objectives == ("fused", "audio", "video", "permuted audio", "permuted video")
    assert table.values[3:, :2].flatten().tolist() == pytest.approx([0.2, cross, cross, 0.2])
    of_head = pytest.approx(0.0 if game == "greedy" else 0.2)
    assert table.numbers()["fused"] == {"audio": 1.0, "video": 1.0, "fused head": 1.0}
    for name in names(2):
        assert table.numbers()[name] == {name: 0.5, "own heads": 0.5}
        assert table.numbers()[f"permuted {name}"]["fused head"] == of_head


def test_a_modality_alone_has_no_competitor() -> None:
    model = SmallModel(names(1))
    balancer = MCR(3.0).attach(model)
    balanced(balancer, losses_of(model, batch(names(1)))).backward()
    assert balancer.table.numbers() == {
        "fused": {"audio": 1.0, "fused head": 1.0},
        "audio": {"audio": 1.0, "own heads": 1.0},
        "permuted audio": {"audio": 0.0, "fused head": 0.0},
    }


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """Half the divergences of two distributions from their mean."""
    middle = (one + other) / 2
    return 0.5 * ((one * (one / middle).log()).sum(-1) + (other * (other / middle).log()).sum(-1))


@pytest.mark.parametrize("fusion", ["concat", "gated"])
@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("count", [2, 3])
def test_gradients_are_those_of_plain_torch(count: int, game: str, fusion: str) -> None:
    model, part = fusion_model(count, fusion), Part(*batch(names(count)))
    balancer = MCR(0.7, game, weight=0.3, permutations=2).attach(model)  # ty: ignore[invalid-argument-type]
    torch.manual_seed(5)
    training_loss(model, balancer, part)[0].backward()
    found = gradients_of(model)
    torch.manual_seed(5)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    features = {name: encoder(part.inputs[name]) for name, encoder in model.encoders.items()}
    whole = model.fusion(features)
    objectives = {"fused": F.cross_entropy(whole, part.label)}
    objectives |= {name: F.cross_entropy(model.heads[name](x), part.label) for name, x in features.items()}
    for name in features:
        rows = torch.rand(2, 12).argsort(dim=1)
        others = torch.stack([model.fusion({**features, name: features[name][row]}) for row in rows])
        distance = divergence(whole.detach().softmax(-1).expand_as(others), others.softmax(-1))
        objectives[f"permuted {name}"] = -distance.mean()
    for objective, loss in objectives.items():
        model.zero_grad()
        loss.backward(retain_graph=True)
        for name, gradient in gradients_of(model).items():
            block = name.split(".")[1] if name.startswith("encoders.") else None
            if objective == "fused":
                weight = 1.0
            elif not objective.startswith("permuted"):
                weight = 0.3
            elif block is None:
                weight = {"greedy": 0.0, "independent": 0.7, "collaborative": 0.7}[game]
            else:
                weight = 0.7 * (1.0 if objective.endswith(f" {block}") else GAMES[game])
            expected[name] += weight * gradient
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("count", [2, 4])
def test_greedy_encoders_make_the_output_depend_on_them(count: int) -> None:
    """Steps along the permuted losses alone raise the distances; those of an independent game all of them."""
    model, (inputs, _) = fusion_model(count), batch(names(count), size=64)
    optimizer = torch.optim.SGD(model.encoders.parameters(), lr=0.5)
    losses = []
    for _ in range(15):
        features = model.features(inputs)
        torch.manual_seed(0)
        found = permutation_losses(model, features, model.fusion(features), permutations=4)
        losses.append({name: float(loss.detach().mean()) for name, loss in found.items()})
        zero = torch.stack(list(found.values())).sum() * 0
        balancer = MCR(1.0, "independent", weight=0.0).attach(model)
        optimizer.zero_grad()
        own = {name: (features[name] * 0).sum() for name in names(count)}
        balancer({"fused": zero, **own}, further=found).backward()
        optimizer.step()
    assert all(losses[-1][name] < losses[0][name] < 0 for name in names(count))


@pytest.mark.parametrize("kind", ["classes", "labels", "regression"])
def test_distances_lie_between_zero_and_one_and_are_zero_without_dependence(kind: str) -> None:
    task = {"labels": MultiLabel(["a", "b"]), "regression": Regression(["x", "y"])}.get(kind)
    model, (inputs, _) = fusion_model(2, task=task), batch(names(2), size=32)
    features = model.features({name: 20 * x for name, x in inputs.items()})
    found = permutation_losses(model, features, model.fusion(features))
    for loss in found.values():
        assert loss.shape == (32,)
        assert bool(((loss <= 1e-12) & (loss >= -1)).all())
        assert float(loss.detach().mean()) < -1e-3
    still = {**features, "audio": features["audio"][:1].expand(32, -1)}
    same = permutation_losses(model, still, model.fusion(still))
    torch.testing.assert_close(same["audio"], torch.zeros(32, dtype=torch.float64), rtol=0, atol=1e-9)
    assert float(same["video"].detach().mean()) < -1e-3


def test_distances_by_hand() -> None:
    # two samples, certain of different classes, by the first modality alone: permuted, they are ln 2 apart, or at home
    model = fusion_model(2)
    with torch.no_grad():
        for parameter in model.fusion.parameters():
            parameter.zero_()
        model.fusion.get_parameter("head.weight")[:, :3] = torch.eye(3)
    features = {"audio": 90.0 * torch.eye(4, dtype=torch.float64)[:2], "video": torch.zeros(2, 4, dtype=torch.float64)}
    torch.manual_seed(0)
    rows = torch.rand(8, 2).argsort(dim=1)
    swapped = float((rows[:, 0] == 1).double().mean())
    torch.manual_seed(0)
    found = permutation_losses(model, features, model.fusion(features), permutations=8)
    assert found["audio"].tolist() == pytest.approx([-math.log(2) * swapped] * 2)
    assert found["video"].tolist() == pytest.approx([0.0, 0.0])


def test_every_permutation_uses_each_sample_once_and_those_without_the_sensor_stay_out() -> None:
    model = fusion_model(2, "sum")
    with torch.no_grad():
        for parameter in model.fusion.parameters():
            parameter.zero_()
        model.fusion.get_submodule("heads").get_submodule("audio").get_parameter("weight")[0, 0] = 1.0
    audio = torch.arange(10.0, dtype=torch.float64)[:, None].repeat(1, 4)
    features = {"audio": audio, "video": torch.zeros(10, 4, dtype=torch.float64)}
    drawn = permuted_outputs(model, features, "audio", 50)[..., 0]
    assert all(sorted(one.tolist()) == list(range(10)) for one in drawn)
    assert len({tuple(one.tolist()) for one in drawn}) > 40
    mask = torch.tensor([True, False] * 5)
    drawn = permuted_outputs(model, features, "audio", 50, mask)[..., 0]
    assert all(sorted(one[mask].tolist()) == [0, 2, 4, 6, 8] for one in drawn)
    assert len({tuple(one[mask].tolist()) for one in drawn}) > 20


def test_samples_without_the_sensor_are_left_out() -> None:
    model, (inputs, _) = fusion_model(2), batch(names(2))
    mask = torch.arange(12) < 5
    features = model.features(inputs)
    found = permutation_losses(model, features, model.fusion(features), 4, {"audio": mask})
    assert not found["audio"][~mask].any()
    few = {name: x[mask] for name, x in features.items()}
    scale = float(permutation_losses(model, few, model.fusion(few), 200)["audio"].detach().mean())
    many = permutation_losses(model, features, model.fusion(features), 200, {"audio": mask})["audio"]
    assert float(many.detach().mean()) == pytest.approx(scale, rel=0.1)
    none = permutation_losses(model, features, model.fusion(features), 2, {"audio": torch.zeros(12).bool()})
    assert not none["audio"].any()


def test_a_model_of_ones_own_and_a_loop_without_permuted_losses_get_a_message() -> None:
    (problem,) = problems_of(MCR(), Settings(model="own_models.Same"), "classes")
    assert problem.startswith(
        "MCR needs the objectives 'permuted …' of each modality, which are not known of this model"
    )
    assert problem.endswith("choose msl, ew or mimo, which need no more than losses")
    assert problems_of(MCR(), Settings(), "classes") == []
    model = SmallModel(names(2))
    with pytest.raises(ValueError, match=r"one more objective per modality: pass further=\{name: loss\}"):
        MCR().attach(model)(losses_of(model, batch(names(2))))
    with pytest.raises(ValueError, match=r"penalty should be zero or more.*game should be 'greedy', 'independent' or"):
        MCR(-1.0, "selfish")  # ty: ignore[invalid-argument-type]
