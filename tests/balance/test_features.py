"""MGDA and MMPareto decided at features: where that is the same as at parameters, what it is elsewhere, its cost."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import MGDA, Balancer, MMPareto
from equipoise.balance.features import OutputHook
from equipoise.testing import SmallModel, attached, batch, gradients_of, losses_of, names
from equipoise.testing.models import told_by

SAMPLES, WIDTH, SIZE = 8, 10, 4


class Rotated(nn.Module):
    """A linear encoder z = QWx with a fixed rotation Q: JJᵀ = XXᵀ ⊗ I, for the samples X."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(WIDTH, SIZE, bias=False).double()
        self.register_buffer("turn", torch.linalg.qr(torch.randn(SIZE, SIZE, dtype=torch.float64))[0])

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weights(inputs) @ self.turn.T


class Linear(nn.Module):
    """Rotated encoders, and heads with targets of their own, so that losses agree here and conflict there."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoders = nn.ModuleDict({name: Rotated() for name in names(count)})
        self.heads = nn.ModuleDict({name: nn.Linear(SIZE, 3).double() for name in ["fused", *names(count)]})
        self.targets = {name: torch.randn(SAMPLES, 3, dtype=torch.float64) for name in self.heads}

    def losses(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        features = {name: encoder(inputs[name]) for name, encoder in self.encoders.items()}
        features["fused"] = torch.stack(list(features.values())).sum(0)
        return {name: F.mse_loss(self.heads[name](features[name]), self.targets[name]) for name in self.heads}


def inputs_for(count: int, seed: int, *, white: bool) -> dict[str, Tensor]:
    """Samples that are orthogonal and of one length, or any."""
    random = torch.Generator().manual_seed(seed)
    found = {}
    for name in names(count):
        drawn = torch.randn(WIDTH, SAMPLES, generator=random, dtype=torch.float64)
        found[name] = (3.0 * torch.linalg.qr(drawn)[0] if white else drawn).T
    return found


def step_of(balancer: Balancer, count: int, seed: int, *, white: bool) -> tuple[dict[str, Tensor], Tensor]:
    model = Linear(count, seed)
    attached(balancer, model)(model.losses(inputs_for(count, seed, white=white))).backward()
    return gradients_of(model), balancer.table.values


PAIRS: dict[str, tuple[Callable[[], Balancer], Callable[[], Balancer]]] = {
    "mgda": (lambda: MGDA(at="features"), MGDA),
    "mmpareto": (lambda: MMPareto(at="features"), lambda: MMPareto(rescale="encoder")),
}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", PAIRS)
def test_both_agree_where_the_kernel_of_the_encoder_is_a_multiple_of_the_identity(method: str, count: int) -> None:
    at_features, at_parameters = PAIRS[method]
    shares = set()
    for seed in range(6):
        found, table = step_of(at_features(), count, seed, white=True)
        expected, other = step_of(at_parameters(), count, seed, white=True)
        if method == "mgda":
            torch.testing.assert_close(table, other, rtol=1e-9, atol=1e-12, equal_nan=True)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)
        shares |= {round(float(share), 6) for share in other[0, :count]}
    assert len(shares) > 2  # what was decided differs from draw to draw


@pytest.mark.parametrize("method", PAIRS)
def test_elsewhere_they_do_not(method: str) -> None:
    apart = []
    for seed in range(6):
        (found, _), (expected, _) = (step_of(make(), 2, seed, white=False) for make in PAIRS[method])
        apart.append(max(float((found[name] - expected[name]).abs().max()) for name in found))
    assert max(apart) > 1e-3


def by_hand(method: str, fused: Tensor, own: Tensor) -> Tensor:
    """The two rules for a pair of gradients, written out."""
    apart = (fused - own).square().sum()
    share = float(((own * (own - fused)).sum() / apart).clamp(0, 1))
    if method == "mgda":
        return share * fused + (1 - share) * own
    if float((fused * own).sum()) > 0:
        return 1.5 * (fused + own)
    mixed = 2 * share * fused + 2 * (1 - share) * own
    stretch = max(1.0, float((fused + own).norm() / mixed.norm()))
    return 1.5 * stretch * mixed


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("method", PAIRS)
def test_every_gradient_is_the_one_worked_out_step_by_step(method: str, count: int) -> None:
    conflicts = 0
    for seed in range(4):
        model = Linear(count, seed)
        inputs = inputs_for(count, seed, white=False)
        attached(PAIRS[method][0](), model)(model.losses(inputs)).backward()
        delivered = gradients_of(model)
        features = {name: encoder(inputs[name]) for name, encoder in model.encoders.items()}
        cut = {name: feature.detach().requires_grad_() for name, feature in features.items()}
        whole = F.mse_loss(model.heads["fused"](torch.stack(list(cut.values())).sum(0)), model.targets["fused"])
        for name, feature in cut.items():
            alone = F.mse_loss(model.heads[name](feature), model.targets[name])
            (fused,), (own,) = (
                torch.autograd.grad(whole, feature, retain_graph=True),
                torch.autograd.grad(alone, feature),
            )
            conflicts += int((fused * own).sum() < 0)
            wanted = torch.autograd.grad(
                features[name], model.get_parameter(f"encoders.{name}.weights.weight"), by_hand(method, fused, own)
            )[0]
            torch.testing.assert_close(delivered[f"encoders.{name}.weights.weight"], wanted, rtol=1e-9, atol=1e-12)
        plain = copy.deepcopy(model)
        torch.stack(list(plain.losses(inputs).values())).sum().backward()
        for name, gradient in gradients_of(plain).items():
            if name.startswith("heads."):
                torch.testing.assert_close(delivered[name], gradient, rtol=1e-9, atol=1e-12)
    assert conflicts > 0


class Chosen(nn.Module):
    """z = Aθ, so that JJᵀ = AAᵀ can be chosen."""

    def __init__(self, matrix: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones(len(matrix[0]), dtype=torch.float64))
        self.matrix = torch.tensor(matrix, dtype=torch.float64)

    def forward(self) -> Tensor:
        return self.matrix @ self.theta


def run(balancer: Balancer, matrix: Sequence[Sequence[float]], fused: Sequence[float], own: Sequence[float]) -> Tensor:
    """What θ gets where the losses have these gradients at z."""
    encoder = Chosen(matrix)
    balancer.attach(encoders={"only": encoder})
    feature = encoder()
    losses = {name: feature @ torch.tensor(v, dtype=torch.float64) for name, v in (("fused", fused), ("only", own))}
    balancer(losses).backward()
    assert encoder.theta.grad is not None
    return encoder.theta.grad


def test_by_hand() -> None:
    # v₁ = (2, 0), v₂ = (0, 1): γ = 1 / 5 at z, the mixture there is (0.4, 0.8), and A = diag(1, 3) makes it (0.4, 2.4).
    stretched = [[1.0, 0.0], [0.0, 3.0]]
    assert run(MGDA(at="features"), stretched, [2.0, 0.0], [0.0, 1.0]).tolist() == pytest.approx([0.4, 2.4])
    # At θ the gradients are (2, 0) and (0, 3): γ = 9 / 13.
    assert run(MGDA(), stretched, [2.0, 0.0], [0.0, 1.0]).tolist() == pytest.approx([18 / 13, 12 / 13])
    # v₁ = (2, 0), v₂ = (−1, 1): α = 0.4, mixture (0.4, 1.2), stretched by √2 / √1.6 to the length of (1, 1), times 1.5.
    found = run(MMPareto(at="features"), stretched, [2.0, 0.0], [-1.0, 1.0]).tolist()
    assert found == pytest.approx([1.5 * 0.4 * 1.118034, 3 * 1.5 * 1.2 * 1.118034], rel=1e-6)
    # What cancels stays nothing, and finite.
    assert run(MMPareto(at="features"), stretched, [1.0, 0.0], [-1.0, 0.0]).tolist() == [0.0, 0.0]


def test_a_direction_decided_at_features_may_raise_a_loss() -> None:
    """AAᵀ = [[1, −1], [−1, 2]], v = (1, 2) and (1, −2): the mixture (1, 0) raises f₁, for (1, 2) AAᵀ (1, 0)ᵀ = −1."""
    matrix, first, second = [[1.0, 0.0], [-1.0, 1.0]], [1.0, 2.0], [1.0, -2.0]
    tall = torch.tensor(matrix, dtype=torch.float64)
    at_theta = [tall.T @ torch.tensor(v, dtype=torch.float64) for v in (first, second)]
    moved = run(MGDA(at="features"), matrix, first, second)
    assert [float(gradient @ moved) for gradient in at_theta] == pytest.approx([-1.0, 3.0])
    exact = run(MGDA(), matrix, first, second)
    assert all(float(gradient @ exact) >= float(exact @ exact) - 1e-12 for gradient in at_theta)


class _Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, counter: list[int]) -> Tensor:
        ctx.counter = counter
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # ty: ignore[incompatible-method-override]
        ctx.counter[0] += 1
        return gradient, None


class Counting(nn.Module):
    """An encoder that counts the backward passes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.counter = nn.Linear(3, 5).double(), nn.Linear(5, 4).double(), [0]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(_Counted.apply(torch.tanh(self.first(inputs)), self.counter))


class Entangled(nn.Module):
    """Every loss reads every feature; with ``shared`` the encoders also have a layer in common."""

    def __init__(self, count: int, *, shared: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoders = nn.ModuleDict({name: Counting() for name in names(count)})
        if shared:
            for encoder in self.encoders.values():
                encoder.second = self.encoders[names(count)[0]].second
        self.heads = nn.ModuleDict({name: nn.Linear(4, 3).double() for name in ["fused", *names(count)]})

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        features = {name: encoder(inputs[name]) for name, encoder in self.encoders.items()}
        total = torch.stack(list(features.values())).sum(0)
        mixed = {"fused": total, **{name: feature + 0.3 * total for name, feature in features.items()}}
        return {name: self.heads[name](feature) for name, feature in mixed.items()}


def warned_of(entangled: bool) -> AbstractContextManager[object]:
    """Where heads stand behind a part in which encoders meet, that is said; see test_attach.py."""
    return pytest.warns(UserWarning, match="reach the encoders of other modalities") if entangled else nullcontext()


@pytest.mark.parametrize("method", [MGDA, MMPareto])
def test_one_backward_pass_goes_through_the_encoders(method: Callable[..., Balancer]) -> None:
    for kind, at, passes in (
        ("separate", "parameters", 2),
        ("separate", "features", 1),
        ("entangled", "parameters", 4),
        ("entangled", "features", 1),
    ):
        model = SmallModel(names(3)) if kind == "separate" else Entangled(3)
        if kind == "separate":
            model.encoders = nn.ModuleDict({name: Counting() for name in names(3)})
        balancer = attached(method(at=at), model)
        with warned_of(kind == "entangled"):
            balancer(losses_of(model, batch(names(3)))).backward()  # the first looks for what each loss depends on
        counting = [encoder for encoder in model.encoders.values() if isinstance(encoder, Counting)]
        before = [encoder.counter[0] for encoder in counting]
        balancer(losses_of(model, batch(names(3)))).backward()
        counts = [encoder.counter[0] - earlier for encoder, earlier in zip(counting, before, strict=True)]
        assert counts == [passes] * 3, (kind, at)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("make", [lambda: MGDA(at="features"), lambda: MMPareto(at="features")])
def test_entangled_encoders_get_what_the_table_says(make: Callable[[], Balancer], shared: bool) -> None:
    model, data = Entangled(3, shared=shared), batch(names(3))
    balancer, losses = attached(make(), model), losses_of(model, data)
    with warned_of(True):
        balancer(losses).backward(retain_graph=True)
    torch.testing.assert_close(gradients_of(model), told_by(balancer, model, losses), rtol=1e-9, atol=1e-12)
    if shared:
        assert balancer.table.values[:, :3].std(dim=1).max() < 1e-12  # one block, one mixture


class Several(nn.Module):
    """Gives its feature among other things."""

    def __init__(self, inner: nn.Module, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.wrap = inner, wrap

    def forward(self, inputs: Tensor) -> Any:
        return self.wrap(self.inner(inputs))


WRAPS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda z: (z * 2, z, None), lambda given: given[1]),
    "mapping": (lambda z: {"tokens": z, "feature": torch.tanh(z)}, lambda given: given["feature"]),
}


class Reading(nn.Module):
    """Reads the feature out of what the encoders give, and may have a stem that all of them start from."""

    def __init__(self, read: Callable[[Any], Tensor], wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        small = SmallModel(names(2))
        self.stem = nn.Linear(3, 3).double()
        self.encoders = nn.ModuleDict({name: Several(inner, wrap) for name, inner in small.encoders.items()})
        self.heads, self.fused, self.read = small.heads, small.fused, read

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        features = {name: self.read(encoder(self.stem(inputs[name]))) for name, encoder in self.encoders.items()}
        fused = torch.stack([self.fused[name](feature) for name, feature in features.items()]).sum(0)
        return {"fused": fused, **{name: self.heads[name](feature) for name, feature in features.items()}}


@pytest.mark.parametrize("wrap", WRAPS)
def test_the_feature_is_found_among_what_an_encoder_gives_and_what_lies_before_it_learns_too(wrap: str) -> None:
    torch.manual_seed(0)
    into, out = WRAPS[wrap]
    model, data = Reading(out, into), batch(names(2))
    balancer = attached(MGDA(at="features"), model)
    balancer(losses_of(model, data)).backward()
    delivered, table = gradients_of(model), balancer.table
    assert float(table.values[:, :2].nansum(0).sub(1).abs().max()) < 1e-12
    model.zero_grad()
    torch.stack([loss.mean() for loss in losses_of(model, data).values()]).sum().backward()
    for name, gradient in gradients_of(model).items():
        if not name.startswith("encoders."):
            torch.testing.assert_close(delivered[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("encoders", ["parameters", "parts"])
def test_an_encoder_without_one_output_is_refused_with_what_to_type(encoders: str) -> None:
    model = SmallModel(names(2))
    audio = list(
        model.encoders["audio"].parameters() if encoders == "parameters" else model.encoders["audio"].children()
    )
    for method in (MGDA, MMPareto):
        with pytest.raises(
            ValueError, match=rf"for 'audio'\. Type encoders=.* or {method.__name__}\(at='parameters'\)"
        ):
            method(at="features").attach(model, encoders={"audio": audio, "video": "encoders.video"})
        method().attach(model, encoders={"audio": audio, "video": "encoders.video"})
    one = {"audio": [model.encoders["audio"]], "video": "encoders.video"}
    MGDA(at="features").attach(model, encoders=one)(losses_of(model, batch(names(2)))).backward()


class Twice(nn.Module):
    """Runs an encoder twice, or one after the other, or uses a weight of it elsewhere."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({name: nn.Linear(3, 3).double() for name in names(2)})
        self.heads = nn.ModuleDict({name: nn.Linear(3, 3).double() for name in ["fused", *names(2)]})
        self.how = how

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        audio = self.encoders["audio"](inputs["audio"])
        if self.how == "twice":
            audio = audio + self.encoders["audio"](2 * inputs["audio"])
        video = self.encoders["video"](inputs["video"] + (audio if self.how == "chained" else 0))
        if self.how == "tied":
            video = video @ self.encoders["audio"].weight
        features = {"fused": audio + video, "audio": audio, "video": video}
        return {name: self.heads[name](feature) for name, feature in features.items()}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("twice", "encoder 'audio' acts on the losses otherwise than by what it gave last"),
        ("tied", "encoder 'audio' acts on the losses otherwise than by what it gave last"),
        ("chained", "encoder 'video' reads what another encoder gives"),
    ],
)
def test_a_model_whose_features_do_not_say_it_all_is_refused(how: str, message: str) -> None:
    model, data = Twice(how), batch(names(2))
    with warned_of(how != "twice"), pytest.raises(ValueError, match=rf"{message}.*type MGDA\(at='parameters'\)"):
        attached(MGDA(at="features"), model)(losses_of(model, data))
    with warned_of(how != "twice"):
        attached(MGDA(), model)(losses_of(model, data)).backward()


def test_an_encoder_replaced_after_attaching_is_named_until_it_is_attached_again() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = attached(MGDA(at="features"), model)
    balancer(losses_of(model, data)).backward()
    model.encoders["audio"] = nn.Sequential(nn.Linear(3, 4).double())
    with pytest.raises(ValueError, match=r"encoder 'audio' acts .* replaced after attaching \(then attach again\)"):
        balancer(losses_of(model, data))
    attached(balancer, model)(losses_of(model, data)).backward()


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_nothing_stays_behind() -> None:
    model, other, data = SmallModel(names(2)), SmallModel(names(2)), batch(names(2))
    balancer = attached(MGDA(at="features"), model)
    losses = losses_of(model, data)
    with torch.no_grad():
        model(data[0])  # a look in between takes nothing away
    loss = balancer(losses)
    again = balancer(losses_of(model, data))  # a loss that is never differentiated
    assert balancer.attachment is not None
    held = balancer.attachment.output_hooks()
    assert all(tap is not None and tap.outputs for tap in held.values())
    again.backward()
    assert all(tap is not None and not tap.outputs for tap in held.values())
    with torch.no_grad():
        model(data[0])
    assert all(tap is not None and not tap.outputs for tap in held.values())
    loss.backward()  # the graph of the first was its own
    assert set(model.state_dict()) == set(other.state_dict())
    attached(balancer, other)
    assert (hooks_on(model), hooks_on(other)) == (0, 2)
    del balancer, held
    gc.collect()
    assert hooks_on(other) == 0


def test_a_watched_model_can_be_copied_and_pickled_between_forward_and_backward() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = attached(MMPareto(at="features"), model)
    losses = losses_of(model, data)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        losses_of(twin, data)
        taps = [hook for module in twin.modules() for hook in module._forward_hooks.values()]
        assert [tap.outputs for tap in taps if isinstance(tap, OutputHook)] == [
            [],
            [],
        ]  # nobody would ever let go of it
        fresh = attached(MMPareto(at="features"), twin)
        fresh(losses_of(twin, data)).backward()
    balancer(losses).backward()
    for name, gradient in gradients_of(model).items():
        torch.testing.assert_close(gradients_of(twin)[name], gradient, rtol=0, atol=0)


def test_unknown_places_are_refused() -> None:
    with pytest.raises(ValueError, match=r"MGDA: at should be 'parameters' or 'features', found 'heads'"):
        MGDA(at="heads")  # ty: ignore[invalid-argument-type]
    with pytest.raises(ValueError, match=r"boost .* found 0; at .* found 'heads'"):
        MMPareto(boost=0, at="heads")  # ty: ignore[invalid-argument-type]
