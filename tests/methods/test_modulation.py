"""OGM, OGM-GE, AGM, MLB, MSLR, MSES, DGL: against numbers of the published rules, worked out by hand."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import AGM, DGL, MLB, MSES, MSL, MSLR, OGM, OGMGE, Balancer, LateFusion
from equipoise.balance.coefficients import ratios
from equipoise.balance.reading import GivenStep
from equipoise.models import CNN1d, ShapleyResponses, response_losses
from equipoise.testing import SmallModel, attached, batch, gradients_of, losses_of, names
from everything import factors_of, score_of


def FastAGM() -> AGM:  # noqa: N802 (stands beside classes)
    return AGM(form="fast")


def factors(balancer: Balancer, losses: dict[str, Tensor], model: SmallModel | None = None) -> dict[str, float]:
    """The factor on each encoder's fused gradient, for losses chosen by hand."""
    modalities = [name for name in losses if name != "fused"]
    if not balancer.modalities:
        attached(balancer, model or SmallModel(modalities))
    return factors_of(balancer, losses)


def probabilities(*values: float) -> Tensor:
    return -torch.tensor(values, dtype=torch.float64).log()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def test_ogm_by_hand_for_two_modalities() -> None:
    # s_a = 0.8 + 0.6 = 1.4, s_v = 0.3 + 0.4 = 0.7: ρ_a = 2, c_a = 1 − tanh(0.8 · 2), c_v = 1
    losses = {"fused": torch.tensor(1.0), "audio": probabilities(0.8, 0.6), "video": probabilities(0.3, 0.4)}
    assert factors(OGM(0.8), losses) == pytest.approx({"audio": 1 - math.tanh(1.6), "video": 1.0})
    # the factor jumps to 1 − tanh(α) as soon as a modality is ahead at all, as published
    near = {"fused": torch.tensor(1.0), "audio": probabilities(0.5001), "video": probabilities(0.5)}
    assert factors(OGM(0.8), near)["audio"] == pytest.approx(1 - math.tanh(0.8), abs=1e-3)


def test_ogm_slows_nobody_on_a_tie() -> None:
    tie = {"fused": torch.tensor(1.0), "audio": torch.tensor([0.7]), "video": torch.tensor([0.7])}
    assert factors(OGM(0.8), tie) == {"audio": 1.0, "video": 1.0}


def test_ogm_by_hand_for_three_modalities() -> None:
    # s = 0.8, 0.4, 0.2: ρ_1 = (2 + 4) / 2 = 3, ρ_2 = (0.5 + 2) / 2 = 1.25, ρ_3 = (0.25 + 0.5) / 2
    losses = {"fused": torch.tensor(1.0), "a": probabilities(0.8), "b": probabilities(0.4), "c": probabilities(0.2)}
    expected = {"a": 1 - math.tanh(0.3 * 3), "b": 1 - math.tanh(0.3 * 1.25), "c": 1.0}
    assert factors(OGM(0.3), losses, SmallModel(list("abc"))) == pytest.approx(expected)


def test_every_ratio_is_an_average_over_the_others() -> None:
    # a public implementation divides only the last modality's sum by the count
    scores = torch.tensor([0.5, 0.3, 0.9, 0.2], dtype=torch.float64)
    found = ratios(scores.log())
    for m in range(4):
        expected = sum(scores[m] / scores[j] for j in range(4) if j != m) / 3
        assert float(found[m]) == pytest.approx(float(expected))


def test_scores_are_the_mean_probability_without_a_loop_over_samples() -> None:
    random = torch.Generator().manual_seed(0)
    logits, label = torch.randn(64, 6, generator=random), torch.randint(0, 6, (64,), generator=random)
    looped = sum(float(torch.softmax(logits, 1)[i, label[i]]) for i in range(64)) / 64
    score = score_of(OGM(), F.cross_entropy(logits, label, reduction="none"))
    assert math.exp(score) == pytest.approx(looped)


def test_scores_can_be_given() -> None:
    balancer = OGM(0.8)
    attached(balancer, SmallModel(names(2)))
    losses = {"fused": torch.tensor(1.0), "audio": torch.tensor(5.0), "video": torch.tensor(5.0)}
    found = factors_of(balancer, losses, {"audio": torch.tensor(0.2), "video": torch.tensor([0.6, 0.6])})
    assert found == {"audio": 1.0, "video": pytest.approx(1 - math.tanh(0.8 * 3), rel=1e-4)}
    with pytest.raises(ValueError, match=r"scores: expected one for each of .* found none for \['video'\]"):
        balancer(losses, scores={"audio": torch.tensor(0.2)})


@pytest.mark.parametrize("method", [OGM, OGMGE, FastAGM, MLB])
def test_one_modality_alone_has_factor_one(method: Callable[[], Balancer]) -> None:
    assert factors(method(), {"fused": torch.tensor(1.0), "audio": torch.tensor([0.7])}) == {"audio": 1.0}


def test_acceptance_of_epochs_is_a_half_open_window() -> None:
    losses = {"fused": torch.tensor(1.0), "audio": probabilities(0.9), "video": probabilities(0.3)}
    balancer = OGM(0.8, start=1, stop=3)
    found = []
    for _ in range(5):
        found.append(factors(balancer, losses)["audio"])
        balancer.end_epoch()
    assert found == pytest.approx([1.0, *[1 - math.tanh(2.4)] * 2, 1.0, 1.0])


class Convolutions(nn.Module):
    """A model with kernels, biases and batch normalisation in its encoders."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoders = nn.ModuleDict({name: CNN1d(2, features=4, width=4) for name in names(2)})
        self.fused = nn.Linear(8, 3)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.fused(torch.cat([encoder(inputs[name]) for name, encoder in self.encoders.items()], 1))


def convolution_step(balancer: Balancer, scores: tuple[float, float]) -> dict[str, Tensor]:
    model = Convolutions()
    balancer.attach(model, optimizer=sgd(model))
    random = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(16, 2, 24, generator=random) for name in names(2)}
    fused = F.cross_entropy(model(inputs), torch.randint(0, 3, (16,), generator=random))
    given = dict(zip(names(2), map(torch.tensor, scores), strict=True))
    balancer({"fused": fused, "audio": torch.tensor(1.0), "video": torch.tensor(1.0)}, scores=given).backward()
    return gradients_of(model)


@pytest.mark.parametrize("parameters", ["all", "kernels"])
def test_ogm_modulates_the_parameters_it_was_told_to(parameters: str) -> None:
    plain = convolution_step(OGM(0.8), (0.5, 0.5))
    found = convolution_step(OGM(0.8, parameters=parameters), (0.8, 0.4))  # ty: ignore[invalid-argument-type]
    slowed = 1 - math.tanh(1.6)
    touched = 0
    for name, gradient in found.items():
        is_kernel = plain[name].dim() >= 3
        factor = slowed if name.startswith("encoders.audio") and (parameters == "all" or is_kernel) else 1.0
        touched += factor != 1.0
        torch.testing.assert_close(gradient, factor * plain[name], rtol=1e-5, atol=1e-7)
    assert touched > 0


def test_ogm_says_so_when_nothing_would_be_modulated() -> None:
    # a public implementation matched no parameter on one data set, and reported joint training as OGM-GE
    with pytest.raises(ValueError, match="encoder 'audio', 'video' has no tensor that this method modulates"):
        attached(OGM(parameters="kernels"), SmallModel(names(2)))


@pytest.mark.parametrize("noise", ["before", "after"])
def test_ogmge_adds_noise_of_each_gradients_own_deviation(noise: str) -> None:
    plain = convolution_step(OGM(0.8), (0.5, 0.5))
    slowed = 1 - math.tanh(1.6)
    draws: dict[str, list[Tensor]] = {}
    for seed in range(60):
        balancer = OGMGE(0.8, noise=noise, seed=seed)  # ty: ignore[invalid-argument-type]
        for name, gradient in convolution_step(balancer, (0.8, 0.4)).items():
            if name.startswith("encoders.") and plain[name].dim() == 3:
                factor = slowed if name.startswith("encoders.audio") else 1.0
                draws.setdefault(name, []).append(gradient - factor * plain[name])
    assert draws
    for name, found in draws.items():
        noises = torch.stack(found)
        factor = slowed if noise == "after" and name.startswith("encoders.audio") else 1.0
        deviation = float(plain[name].std() * factor)
        assert float(noises.std()) == pytest.approx(deviation, rel=0.1)
        assert abs(float(noises.mean())) < 0.1 * deviation  # added to both modalities, the slow one too


def test_ogmge_draws_anew_each_step_and_the_same_again_from_its_state() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = attached(OGMGE(), model)
    seen = []
    for _ in range(2):
        saved = balancer.state_dict()
        model.zero_grad()
        balancer(losses_of(model, data)).backward()
        seen.append(gradients_of(model))
    assert not torch.equal(seen[0]["encoders.audio.0.weight"], seen[1]["encoders.audio.0.weight"])
    again = attached(OGMGE(), model)
    again.load_state_dict(saved)
    model.zero_grad()
    again(losses_of(model, data)).backward()
    assert torch.equal(gradients_of(model)["encoders.audio.0.weight"], seen[1]["encoders.audio.0.weight"])


def test_agm_by_hand_over_three_steps() -> None:
    balancer = AGM(strength=1.0, cap=None, form="fast")
    model, data = SmallModel(names(2)), batch(names(2))
    attached(balancer, model)
    history = []
    for audio, video in ((0.5, 1.0), (0.4, 1.2), (0.9, 0.6)):
        mean = [sum(step[m] for step in history) / len(history) if history else 0.0 for m in (0, 1)]
        usual = math.exp(mean[1] - mean[0])
        expected = (math.exp(usual - math.exp(video - audio)), math.exp(1 / usual - math.exp(audio - video)))
        losses = losses_of(model, data)
        losses |= {"audio": torch.tensor(audio).double(), "video": torch.tensor(video).double()}
        balancer(losses).backward()
        found = [float(balancer.table.at("fused", name)) for name in names(2)]
        assert found == pytest.approx(expected, rel=1e-5)
        history.append((audio, video))
    assert balancer.seen.tolist() == [3, 3]


def test_agm_for_three_modalities_compares_with_the_mean_of_the_others() -> None:
    losses = {"fused": torch.tensor(1.0), "a": torch.tensor(0.2), "b": torch.tensor(0.8), "c": torch.tensor(1.4)}
    found = factors(AGM(strength=0.5, cap=None, form="fast"), losses, SmallModel(list("abc")))
    mean = (0.2 + 0.8 + 1.4) / 3
    for name, value in (("a", 0.2), ("b", 0.8), ("c", 1.4)):
        # the published code for three modalities writes exp((mean of all − s) · 3/2)
        assert found[name] == pytest.approx(math.exp(0.5 * (1 - math.exp((mean - value) * 1.5))), rel=1e-5)


def test_agm_caps_the_difference_and_the_probability() -> None:
    balancer = AGM(strength=2.0, cap=3.0, form="fast")
    attached(balancer, SmallModel(names(2)))
    balancer.mean_score.copy_(torch.tensor([0.0, 5.0]))  # usually far ahead: τ_audio = e⁵
    losses = {"fused": torch.tensor(1.0), "audio": torch.tensor([2.0, 1e6]), "video": torch.tensor([2.0, 2.0])}
    assert factors(balancer, losses)["audio"] == pytest.approx(math.exp(2.0 * 3.0))
    worst = -math.log(1e-8)
    assert score_of(AGM(form="fast"), losses["audio"]) == pytest.approx((2.0 + worst) / 2)


def test_agm_goes_back_to_one_after_its_window() -> None:
    # the published code keeps the last factor for the rest of training
    losses = {"fused": torch.tensor(1.0), "audio": torch.tensor(0.5), "video": torch.tensor(1.0)}
    balancer = AGM(stop=1, form="fast")
    assert factors(balancer, losses)["audio"] != 1.0
    balancer.end_epoch()
    assert factors(balancer, losses) == {"audio": 1.0, "video": 1.0}


class Product(nn.Module):
    """Not additive: the head sees a product of features."""

    def __init__(self, modalities: list[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleDict({name: nn.Linear(3, 4) for name in modalities})
        self.head = nn.Linear(4, 3)
        self.double()

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.head(torch.stack([part(inputs[name]) for name, part in self.parts.items()]).prod(0))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_shapley_responses_add_up_and_follow_the_published_formulas(count: int) -> None:
    modalities = names(count)
    model, (inputs, _) = Product(modalities), batch(modalities)
    outputs = ShapleyResponses(model, modalities)(inputs)
    assert list(outputs) == ["fused", *modalities]
    torch.testing.assert_close(outputs["fused"], torch.stack([outputs[name] for name in modalities]).sum(0))
    torch.testing.assert_close(outputs["fused"], model(inputs))

    def only(*chosen: str) -> Tensor:
        return model({name: value if name in chosen else torch.zeros_like(value) for name, value in inputs.items()})

    if count == 2:
        a, v = modalities
        torch.testing.assert_close(outputs[a], 0.5 * (only(a, v) - only(v) + only(a)))
    if count == 3:
        a, v, t = modalities
        response = (only(a, v, t) - only(v, t) + only(a)) / 3
        response = response + (only(a, v) - only(v) + only(a, t) - only(t)) / 6
        torch.testing.assert_close(outputs[a], response)


def test_exact_agm_equals_the_fast_one_for_an_additive_head() -> None:
    results = []
    for exact in (False, True):
        torch.manual_seed(0)
        encoders = {name: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh()) for name in names(2)}
        model = LateFusion(encoders, 3, unimodal="split", features=dict.fromkeys(names(2), 4)).double()
        wrapped = ShapleyResponses(model, names(2))
        balancer = AGM(form="published") if exact else attached(AGM(form="fast"), model)
        for step in range(3):
            data = batch(names(2), seed=step)
            model.zero_grad()
            outputs = wrapped(data[0]) if exact else model(data[0])
            losses = {name: F.cross_entropy(z, data[1], reduction="none") for name, z in outputs.items()}
            responses = {name: outputs[name] for name in names(2)}
            balancer(losses, further=response_losses(losses["fused"], responses) if exact else None).backward()
        assert balancer.get_buffer("seen").tolist() == [3, 3]
        assert balancer.answer is not None
        answer = balancer.answer.encoders[-2:] if exact else balancer.answer.factors
        assert answer is not None
        results.append((gradients_of(model), answer.tolist()))
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-6)
    assert results[0][1][0] != pytest.approx(1.0, abs=1e-3)
    for name, gradient in results[0][0].items():
        if name.startswith("encoders."):
            torch.testing.assert_close(results[1][0][name], gradient, rtol=1e-6, atol=1e-9)


class Added(nn.Module):
    """Batch statistics of a sum of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3).double()

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.norm(inputs["audio"] + inputs["video"])


def test_shapley_responses_of_too_many_modalities_are_refused() -> None:
    sensors = [f"sensor{k}" for k in range(200)]
    with pytest.raises(ValueError, match=r"at most 10 modalities, .* the model 1023 times a step; found 200\."):
        ShapleyResponses(torch.nn.Identity(), sensors)
    assert ShapleyResponses(torch.nn.Identity(), sensors[:10]).modalities == tuple(sensors[:10])


def test_shapley_responses_run_partial_inputs_in_evaluation_mode_and_put_the_model_back() -> None:
    model = Added()
    wrapped = ShapleyResponses(model, names(2)).train()
    wrapped(batch(names(2))[0])
    assert model.norm.state_dict()["num_batches_tracked"].tolist() == 1  # the full pass alone
    assert model.norm.training


def test_mslr_by_hand() -> None:
    balancer = MSLR(rates={"audio": 0.9, "video": 1.1}, memory=2)
    attached(balancer, SmallModel(names(2)))
    accuracies = ((0.2, 0.5), (0.4, 0.5), (0.6, 0.25), (0.5, 0.0))
    expected = (
        (0.9, 1.1),  # nothing known
        (0.9, 1.1),  # one epoch known
        (0.9 * 0.6 / 0.3, 1.1 * 0.25 / 0.5),
        (0.9 * 0.5 / 0.5, 0.0),  # compared with the mean of 0.4 and 0.6
    )
    for (audio, video), rates in zip(accuracies, expected, strict=True):
        balancer.end_epoch({"audio": {"accuracy": audio}, "video": {"accuracy": video}})
        assert balancer.rate.tolist() == pytest.approx(rates)


def test_mslr_steers_each_modality_by_its_own_accuracy() -> None:
    # a public evaluation counted hits of one modality for the other, so both rates were always the same
    balancer = MSLR(memory=1)
    attached(balancer, SmallModel(names(2)))
    for audio, video in ((0.5, 0.5), (0.5, 0.25)):
        balancer.end_epoch({"video": {"accuracy": video}, "audio": {"accuracy": audio}})
    assert balancer.rate.tolist() == pytest.approx([1.0, 0.5])


def test_mslr_survives_accuracies_of_zero() -> None:
    balancer = MSLR(memory=1)
    attached(balancer, SmallModel(names(2)))
    for audio, video in ((0.0, 0.0), (0.0, 0.5)):
        balancer.end_epoch({"audio": {"accuracy": audio}, "video": {"accuracy": video}})
    assert balancer.rate.tolist() == [1.0, 1.0]  # 0/0 is one, and so is the first hit after none


def test_missing_metrics_are_named_with_what_to_type() -> None:
    balancer = MSLR()
    attached(balancer, SmallModel(names(2)))
    with pytest.raises(
        ValueError, match=r"'video': 'accuracy'\. Type balancer\.end_epoch\({'audio': {'accuracy': 0\.5}"
    ):
        balancer.end_epoch({"audio": {"accuracy": 0.5}, "video": {"loss": 1.0}})


def test_mses_smooths_with_two_taps_of_raw_losses() -> None:
    balancer = MSES(patience=100)
    attached(balancer, SmallModel(names(2)))
    best = []
    for audio in (1.0, 0.5, 0.25):
        balancer.end_epoch({"audio": {"loss": audio}, "video": {"loss": 1.0}})
        best.append(float(balancer.best[0]))
    # S(1) = 1, S(2) = 0.6·1 + 0.4·0.5, S(3) = 0.6·0.5 + 0.4·0.25: not a recursive average
    assert best == pytest.approx([1.0, 0.8, 0.4])
    recursive = MSES(patience=100, smoothing="recursive")
    attached(recursive, SmallModel(names(2)))
    for audio in (1.0, 0.5, 0.25):
        recursive.end_epoch({"audio": {"loss": audio}, "video": {"loss": 1.0}})
    assert float(recursive.best[0]) == pytest.approx(0.6 * 0.8 + 0.4 * 0.25)


def test_mses_stops_after_more_than_patience_epochs_even_if_the_first_was_best() -> None:
    # a published implementation crashes when the best epoch is the first
    balancer = MSES(patience=2)
    attached(balancer, SmallModel(names(2)))
    stopped = []
    for epoch in range(5):
        balancer.end_epoch({"audio": {"loss": 1.0 + epoch}, "video": {"loss": 1.0 / (1 + epoch)}})
        stopped.append(list(balancer.stopped))
    assert stopped == [[], [], [], ["audio"], ["audio"]]  # epoch 4 − best epoch 1 = 3 > 2


class Normalised(nn.Module):
    """Encoders with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoders = nn.ModuleDict(
            {name: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()) for name in names(2)}
        )
        self.fused = nn.Linear(8, 3)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"fused": self.fused(torch.cat([e(inputs[n].float()) for n, e in self.encoders.items()], 1))}


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1),
    ],
)
@pytest.mark.parametrize("rollback", [False, True])
def test_mses_freezes_weights_momentum_decay_and_statistics(make: object, rollback: bool) -> None:
    model = Normalised()
    optimizer = make(model.parameters())  # ty: ignore[call-non-callable]
    balancer = MSES(patience=0, rollback=rollback).attach(model, optimizer=optimizer)
    data = batch(names(2))

    def step() -> None:
        optimizer.zero_grad()
        losses = losses_of(model, data)
        balancer({**losses, "audio": torch.tensor(1.0), "video": torch.tensor(1.0)}).backward()
        optimizer.step()

    def picture() -> dict[str, Tensor]:
        return {key: value.clone() for key, value in model.state_dict().items()}

    for _ in range(3):
        step()
    best = picture()
    balancer.end_epoch({"audio": {"loss": 1.0}, "video": {"loss": 1.0}})
    for _ in range(3):
        step()
    last = picture()
    balancer.end_epoch({"audio": {"loss": 2.0}, "video": {"loss": 0.5}})
    assert balancer.stopped == ["audio"]
    for _ in range(3):
        step()
    after, expected = picture(), best if rollback else last
    for key, value in after.items():
        if key.startswith("encoders.audio"):
            assert torch.equal(value, expected[key]), key
        else:
            assert not torch.equal(value, last[key]), key


def test_mses_without_the_optimiser_warns_and_gives_no_gradient() -> None:
    model = Normalised()
    with pytest.warns(UserWarning, match="momentum, weight decay and batch statistics go on changing it"):
        balancer = MSES(patience=0).attach(model)
    for loss in (1.0, 2.0):
        balancer.end_epoch({"audio": {"loss": loss}, "video": {"loss": 1.0 / loss}})
    losses = {**losses_of(model, batch(names(2))), "audio": torch.tensor(1.0), "video": torch.tensor(1.0)}
    balancer(losses).backward()
    found = gradients_of(model)
    assert all(not bool(found[name].any()) for name in found if name.startswith("encoders.audio"))
    assert any(bool(found[name].any()) for name in found if name.startswith("encoders.video"))


def test_mlb_by_hand() -> None:
    # s = 0.8 and 0.4: ρ_a = 0.5, ρ_v = 2
    losses = {"fused": torch.tensor(1.0), "audio": probabilities(0.8), "video": probabilities(0.4)}
    found = factors(MLB(0.8), losses)
    assert found == pytest.approx({"audio": 1 + math.tanh(0.8 * -0.5), "video": 1 + math.tanh(0.8)})
    assert factors(MLB(0.8, ceiling=1.5), losses)["video"] == pytest.approx(1 + 0.5 * math.tanh(0.8))
    quiet = attached(MLB(0.8, start=1), SmallModel(names(2)))
    answer = quiet.decide(quiet.read(GivenStep(losses)).losses)
    assert answer is not None
    assert set(answer.table(2, trunk=False).flatten().tolist()) == {1.0}  # heads too


def test_dgl_with_split_outputs_trains_the_fused_head_by_the_fused_loss_alone() -> None:
    torch.manual_seed(0)
    encoders = {name: nn.Sequential(nn.Linear(3, 4), nn.Tanh()) for name in names(3)}
    model = LateFusion(encoders, 3, unimodal="split", features=dict.fromkeys(names(3), 4)).double()
    data = batch(names(3))
    DGL(2.0).attach(model)(losses_of(model, data)).backward()
    delivered = gradients_of(model)
    losses = {name: loss.mean() for name, loss in losses_of(model, data).items()}
    for name, parameter in model.named_parameters():
        if name.startswith("encoders."):
            wanted = 2.0 * torch.autograd.grad(losses[name.split(".")[1]], parameter, retain_graph=True)[0]
        else:
            wanted = torch.autograd.grad(losses["fused"], parameter, retain_graph=True)[0]
        torch.testing.assert_close(delivered[name], wanted)


@pytest.mark.parametrize("detached", [True, False])
def test_joint_training_lets_no_unimodal_loss_into_an_encoder(detached: bool) -> None:
    model, data = SmallModel(names(2), detached=detached), batch(names(2))
    loss = MSL()(losses_of(model, data))
    loss.backward()
    found = gradients_of(model)
    losses = {name: value.mean() for name, value in losses_of(model, data).items()}
    assert float(loss.detach()) == pytest.approx(float(losses["fused"].detach()))
    for name, parameter in model.named_parameters():
        source = name.split(".")[1] if name.startswith("heads.") else "fused"
        wanted = torch.autograd.grad(losses[source], parameter, retain_graph=True)[0]
        torch.testing.assert_close(found[name], wanted)


def test_joint_training_needs_no_unimodal_losses() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    MSL()({"fused": losses_of(model, data)["fused"]}).backward()
    assert any(bool(g.any()) for g in gradients_of(model).values())


@pytest.mark.parametrize(("method", "slow"), [(OGM, "audio"), (FastAGM, "audio")])
def test_under_adam_the_update_is_scaled_since_the_gradient_cannot_be(
    method: Callable[[], Balancer], slow: str
) -> None:
    moves = {}
    for factor_on in ("plain", "method"):
        model, data = SmallModel(names(2)), batch(names(2))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        balancer = (method() if factor_on == "method" else MSL()).attach(model, optimizer=optimizer)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        losses = losses_of(model, data)
        losses |= {"audio": torch.full((12,), 0.2).double(), "video": torch.full((12,), 1.2).double()}
        balancer(losses).backward()
        optimizer.step()
        moves[factor_on] = {name: p.detach() - before[name] for name, p in model.named_parameters()}
        factor = float(balancer.table.at("fused", slow))
    assert factor < 0.7
    for name, move in moves["method"].items():
        expected = factor if name.startswith(f"encoders.{slow}") else 1.0
        if name.startswith("encoders.video"):
            expected = float(balancer.table.at("fused", "video"))
        if not name.startswith("heads."):
            torch.testing.assert_close(move, expected * moves["plain"][name], rtol=1e-6, atol=1e-12)


def test_joint_training_attached_but_given_the_fused_loss_alone_still_has_a_table() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = attached(MSL(), model)
    balancer({"fused": losses_of(model, data)["fused"]}).backward()
    assert balancer.table.numbers()["fused"] == {"audio": 1.0, "video": 1.0, "fused head": 1.0}
