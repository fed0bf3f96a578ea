import copy
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equipoise.models import MLP, CNN1d, Concat, LateFusion, SequenceTransformer
from equipoise.models.encoded import kept_modalities
from equipoise.models.task import MultiLabel

MANY = [1, 2, 3, 5]


def names(count: int) -> list[str]:
    return ["audio", "cam_left", "keys", "imu", "text"][:count]


def model_of(count: int, **options: Any) -> LateFusion:
    encoders = {name: MLP(3 + k, features=4 + k, hidden=(6,)) for k, name in enumerate(names(count))}
    return LateFusion(encoders, classes=3, **options)


def inputs_for(count: int, batch: int = 7) -> dict[str, Tensor]:
    return {name: torch.randn(batch, 3 + k) for k, name in enumerate(names(count))}


def gradient_reaches(module: nn.Module) -> bool:
    return any(parameter.grad is not None and parameter.grad.any() for parameter in module.parameters())


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("unimodal", ["head", "detached", "split", None])
def test_outputs_are_fused_then_the_modalities_in_order(count: int, unimodal: str | None) -> None:
    outputs = model_of(count, unimodal=unimodal)(dict(reversed(inputs_for(count).items())))
    assert list(outputs) == ["fused", *(names(count) if unimodal else [])]
    assert all(output.shape == (7, 3) for output in outputs.values())


@pytest.mark.parametrize("fusion", ["concat", "sum", "gated", "film"])
def test_the_order_of_the_inputs_does_not_matter(fusion: str) -> None:
    model, inputs = model_of(3, fusion=fusion), inputs_for(3)
    expected = model(inputs)
    for order in itertools.permutations(inputs):
        found = model({name: inputs[name] for name in order})
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("count", MANY)
def test_encoders_are_a_mapping_in_order(count: int) -> None:
    encoders = {name: MLP(2) for name in names(count)}
    model = LateFusion(encoders, classes=3)
    assert list(model.encoders.items()) == list(encoders.items())


def test_heads_train_their_encoder_and_detached_ones_do_not() -> None:
    for unimodal, expected in (("head", True), ("detached", False)):
        model = model_of(2, unimodal=unimodal)
        model(inputs_for(2))["audio"].sum().backward()
        assert gradient_reaches(model.encoders["audio"]) is expected
        assert not gradient_reaches(model.encoders["cam_left"])
        assert gradient_reaches(model.heads["audio"])
        assert not gradient_reaches(model.fusion)


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("fusion", ["concat", "sum"])
def test_split_outputs_sum_to_the_fused_one(fusion: str, count: int) -> None:
    model = model_of(count, fusion=fusion, unimodal="split").double()
    outputs = model({name: value.double() for name, value in inputs_for(count).items()})
    fused = outputs.pop("fused")
    torch.testing.assert_close(sum(outputs.values()), fused, rtol=0, atol=1e-14)


def test_a_seed_starts_the_fused_head_alike_whatever_the_uni_modal_heads() -> None:
    heads = []
    for unimodal in ("head", None):
        torch.manual_seed(0)
        fusion = model_of(2, unimodal=unimodal).fusion
        assert isinstance(fusion, Concat)
        heads.append(fusion.head.state_dict()["weight"])
    assert torch.equal(*heads)


@pytest.mark.parametrize(
    ("fusion", "unimodal"),
    [("concat", "head"), ("concat", "split"), ("sum", "split"), ("gated", "head"), ("film", "detached")],
)
def test_every_subset_of_sensors_is_answered(fusion: str, unimodal: str) -> None:
    model, inputs = model_of(3, fusion=fusion, unimodal=unimodal).eval(), inputs_for(3)
    whole = model(inputs)
    for size in (1, 2, 3):
        for present in itertools.combinations(inputs, size):
            some = {name: inputs[name] if name in present else None for name in inputs}
            outputs = model(some)
            assert list(outputs) == ["fused", *present]
            assert all(torch.equal(outputs[name], whole[name]) for name in present)
            zeroed = {name: model.encoders[name](value) * (name in present) for name, value in inputs.items()}
            torch.testing.assert_close(outputs["fused"], model.fusion(zeroed))
            for decision in ("fused", "committee"):
                torch.testing.assert_close(model.predict(some, decision).sum(dim=1), torch.ones(7))


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("probability", [0.0, 0.3, 0.7])
def test_dropout_keeps_its_rate_and_never_drops_all(count: int, probability: float) -> None:
    torch.manual_seed(count)
    samples = 40_000
    features = {str(k): torch.ones(samples, 2) for k in range(count)}
    kept = torch.stack(list(kept_modalities(features, probability).values())).float()
    assert kept.sum(dim=0).min() >= 1
    # All K would be dropped with probability p^K; then each is the one spared with probability 1/K.
    expected = probability - probability**count / count
    assert (1 - kept.mean(dim=1) - expected).abs().max() < 0.01


def test_dropout_acts_on_the_fused_path_in_training_only() -> None:
    model, inputs = model_of(3, dropout=0.6, unimodal="split"), inputs_for(3, batch=64)
    plain = copy.deepcopy(model)
    plain.dropout = 0.0
    dropped, whole = model(inputs), plain(inputs)
    assert not torch.allclose(dropped["fused"], whole["fused"])
    assert all(torch.equal(dropped[name], whole[name]) for name in inputs)
    assert torch.equal(model.eval()(inputs)["fused"], whole["fused"])


def test_dropout_with_one_sensor_left_leaves_it_alone() -> None:
    model, inputs = model_of(3, dropout=0.9), inputs_for(3)
    alone = {"keys": inputs["keys"]}
    assert torch.equal(model(alone)["fused"], model.eval()(alone)["fused"])


def test_any_module_is_an_encoder_and_any_head_a_head() -> None:
    class Convolution(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values.mean(dim=2)

    encoders = {"a": nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Tanh()), "b": Convolution()}
    model = LateFusion(encoders, head=lambda size: nn.Linear(size, 1), features={"b": 2})
    outputs = model({"a": torch.randn(3, 2, 4), "b": torch.randn(3, 2, 4)})
    assert model.sizes == {"a": 5, "b": 2}
    assert all(output.shape == (3, 1) for output in outputs.values())


def test_lengths_reach_the_encoders_that_take_them() -> None:
    encoders = {"text": SequenceTransformer(3, features=8), "imu": CNN1d(2, width=4), "tags": MLP(4)}
    model = LateFusion(encoders, classes=3).eval()
    inputs = {"text": torch.randn(5, 6, 3), "imu": torch.randn(5, 2, 6), "tags": torch.randn(5, 4)}
    lengths = {"text": torch.tensor([1, 2, 3, 4, 6]), "imu": torch.tensor([6, 5, 3, 2, 1])}
    found = model(inputs, lengths)["fused"]
    beside = {f"{name}_length": value for name, value in lengths.items()}
    assert torch.equal(model({**inputs, **beside})["fused"], found)
    torch.testing.assert_close(model.predict(inputs, lengths=lengths), found.softmax(dim=1))
    assert not torch.allclose(found, model(inputs)["fused"], atol=1e-4)
    with pytest.raises(ValueError, match="encoder of 'tags' takes no lengths"):
        model(inputs, {"tags": torch.ones(5)})


def test_predict_restores_every_training_flag() -> None:
    class Fails(nn.Module):
        features = 4

        def forward(self, values: Tensor) -> Tensor:
            if values.isnan().any():
                raise RuntimeError("broken sensor")
            assert not self.training
            return values

    encoder = CNN1d(2, width=4)
    model = LateFusion({"imu": encoder, "odd": Fails()}, classes=3).train()
    frozen = encoder.stages[0]
    frozen.eval()
    before = [module.training for module in model.modules()]
    inputs = {"imu": torch.randn(4, 2, 8), "odd": torch.randn(4, 4)}
    statistics = copy.deepcopy(model.state_dict())
    probabilities = model.predict(inputs)
    assert not probabilities.requires_grad
    assert [module.training for module in model.modules()] == before
    assert all(torch.equal(value, statistics[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match="broken sensor"):
        model.predict({**inputs, "odd": torch.full((4, 4), torch.nan)})
    assert [module.training for module in model.modules()] == before
    assert not frozen.training


def test_the_committee_votes_with_its_weights() -> None:
    model, inputs = model_of(2).eval(), inputs_for(2)
    model.committee.copy_(torch.tensor([0.2, 0.0, 1.1]))
    logs = {name: output.log_softmax(dim=1) for name, output in model(inputs).items()}
    expected = (0.2 * logs["fused"] + 1.1 * logs["cam_left"]).softmax(dim=1)
    torch.testing.assert_close(model.predict(inputs, "committee"), expected)
    # Alone, a member speaks for the whole committee, even where it had no weight of its own; no surer than by itself.
    alone = model.predict({"audio": inputs["audio"]}, "committee")
    torch.testing.assert_close(alone, logs["audio"].exp())
    model.committee.copy_(torch.tensor([0.2, 0.0, 0.5]))
    alone = model.predict({"audio": inputs["audio"]}, "committee")
    torch.testing.assert_close(alone, (0.7 * logs["audio"]).softmax(dim=1))


def test_it_survives_copying_pickling_and_saving() -> None:
    model, inputs = model_of(5, dropout=0.2).eval(), inputs_for(5)
    model.committee.copy_(torch.arange(6.0))
    expected = model.predict(inputs, "committee")
    fresh = model_of(5)
    fresh.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), fresh):
        assert torch.equal(twin.predict(inputs, "committee"), expected)
    keys = set(model.state_dict())
    assert {"committee", "encoders.audio.layers.0.0.weight", "heads.audio.weight", "fusion.head.weight"} <= keys


def test_compiling_the_encoders_changes_no_name_and_no_value() -> None:
    model, inputs = model_of(2), inputs_for(2)
    before, expected = list(model.state_dict()), model(inputs)
    modules = dict(model.encoders)
    model.compile_encoders(backend="eager")
    assert list(model.state_dict()) == before
    assert dict(model.encoders) == modules
    found = model(inputs)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    copy.deepcopy(model)(inputs)


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_it_trains_under_ddp() -> None:
    model, inputs = model_of(3), inputs_for(3)
    twin = copy.deepcopy(model)
    sum(output.square().mean() for output in DistributedDataParallel(model)(inputs).values()).backward()
    sum(output.square().mean() for output in twin(inputs).values()).backward()
    for found, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


def model_and_inputs(**options: Any) -> tuple[LateFusion, dict[str, Tensor]]:
    model = LateFusion({"audio": MLP(3, features=4), "cam_left": MLP(4, features=5)}, classes=3, **options)
    return model, {"audio": torch.randn(7, 3), "cam_left": torch.randn(7, 4)}


def test_all_problems_of_the_arguments_are_told_at_once() -> None:
    wrong: Any = "heads"
    encoders: Any = {"fused": MLP(2), "a_length": nn.ReLU(), "b": "encoder", "video": nn.ReLU()}
    with pytest.raises(ValueError, match="fused") as caught:
        LateFusion(encoders, unimodal=wrong, dropout=1.0, features={"vidoe": 4, "b": 0})
    message = str(caught.value)
    for part in (
        "called 'fused'",
        "called 'a_length'",
        "'b' must be an nn.Module, found str",
        "encoder of 'a_length', ReLU, could not be told",
        "encoder of 'video', ReLU, could not be told. Write features={'video': …}",
        "Did you mean 'video'?",
        "features['b'] must be a whole number of at least 1, found 0",
        "either classes or a task; found neither",
        "Unknown unimodal: 'heads'",
        "dropout must be at least 0 and less than 1, found 1.0",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 3, "task": MultiLabel(["a"])}, "either classes or a task; found both"),
        ({"classes": 1}, r"at least 2, found 1.*nn\.Linear\(size, 1\)"),
        ({"classes": 3, "dropout": -0.1}, "found -0.1"),
        ({"classes": 3, "fusion": "flim"}, "Did you mean 'film'"),
        ({"classes": 3, "fusion": "film"}, "FiLM expected at least two modalities"),
        ({"classes": 3, "fusion": "gated", "unimodal": "split"}, "additive fusion; Gated with this head is not"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LateFusion({"audio": MLP(2)}, **options)


def test_split_needs_a_linear_head_on_a_concatenation() -> None:
    with pytest.raises(ValueError, match="additive fusion; Concat with this head is not"):
        LateFusion({"a": MLP(2)}, head=lambda size: nn.Sequential(nn.Linear(size, 2)), unimodal="split")


def test_a_head_must_be_a_module() -> None:
    no_module: Any = torch.zeros
    with pytest.raises(TypeError, match=r"head must make an nn.Module.*found Tensor"):
        LateFusion({"a": MLP(2)}, head=no_module)


def test_no_encoder_at_all() -> None:
    with pytest.raises(ValueError, match="at least one encoder; found none"):
        LateFusion({}, classes=3)


def test_bad_inputs() -> None:
    model, inputs = model_and_inputs()
    with pytest.raises(ValueError, match=r"'audoi' is none of 'audio', 'cam_left'. Did you mean 'audio'") as caught:
        model({"audoi": inputs["audio"], "label": torch.ones(7)}, {"cam_rihgt": torch.ones(7)})
    assert all(part in str(caught.value) for part in ("'label'", "'cam_rihgt'", "found none"))
    with pytest.raises(ValueError, match=r"at least one of 'audio', 'cam_left'; found none"):
        model({"audio": None})
    with pytest.raises(ValueError, match=r"'cam_left' was expected to give \[7, 5\]; found \[3, 5\]"):
        model({**inputs, "cam_left": inputs["cam_left"][:3]})
    with pytest.raises(ValueError, match=r"Unknown modality: 'audio_length'"):
        model(inputs, {"audio_length": torch.ones(7)})
    recurrent = LateFusion({"steps": nn.GRU(2, 4)}, classes=3, features={"steps": 4})
    with pytest.raises(ValueError, match=r"\[B, 4\]; found <class 'tuple'>"):
        recurrent({"steps": torch.zeros(2, 5, 2)})
    wrong = LateFusion({"map": nn.Conv1d(2, 4, 1)}, classes=3, features={"map": 4})
    with pytest.raises(ValueError, match=r"\[2, 4\]; found \[2, 4, 9\].*features=\{'map': …\}"):
        wrong({"map": torch.zeros(2, 2, 9)})


def test_bad_decisions() -> None:
    model, inputs = model_and_inputs(unimodal=None)
    misspelt: Any = "comittee"
    with pytest.raises(ValueError, match="uni-modal outputs; this one was built with unimodal=None"):
        model.predict(inputs, "committee")
    with pytest.raises(ValueError, match=r"Unknown decision: 'comittee'.*Did you mean 'committee'"):
        model.predict(inputs, misspelt)
    regression = LateFusion({"a": MLP(2)}, head=lambda size: nn.Linear(size, 1))
    with pytest.raises(ValueError, match=r"knows its task; this one was built with head.*model\(inputs\)"):
        regression.predict({"a": torch.zeros(3, 2)})


def test_inputs_without_names_are_told_how_to_be_given() -> None:
    model, inputs = model_and_inputs()
    loose: Any = inputs["audio"]
    for call in (model, model.features, model.predict):
        with pytest.raises(TypeError, match=r"by name, \{'audio': …, 'cam_left': …\}; found Tensor"):
            call(loose)
    with pytest.raises(TypeError, match="found Tensor"):
        model(*inputs.values())
