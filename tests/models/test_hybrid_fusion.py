"""Hybrid fusion: masked outputs, missing sensors, dropout, ragged time, and a user's own trunk."""

import copy
import pickle
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from equipoise import EW, MIMO, MSL, HybridFusion
from equipoise.models.encoders import CNN1d
from equipoise.models.own_model import OwnModel
from equipoise.models.sequence import SequenceTransformer
from equipoise.models.task import Classification, MultiLabel, Regression, Task
from equipoise.models.trunk import Stem
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput
from own_models import Meets

NAMES = ["audio", "video", "text", "depth"]
VIEWS = ["masked", "masked_detached", "head", "detached"]
TASKS: dict[str, Task] = {
    "classes": Classification(["x", "y", "z"]),
    "labels": MultiLabel(["x", "y"]),
    "regression": Regression(["x"], torch.tensor([1.0]), torch.tensor([3.0])),
}


def stirred(model: HybridFusion) -> HybridFusion:
    """The model, with vectors of missing sensors that are not zero."""
    for vector in model.absent:
        nn.init.normal_(vector)
    return model


def model_of(names: list[str], kind: str = "hybrid", **options: Any) -> HybridFusion:
    """A small model of some sensors, each with a shape of its own; the weights follow the name."""
    encoders: dict[str, nn.Module] = {}
    for name in names:
        torch.manual_seed(NAMES.index(name))
        size = 3 + NAMES.index(name)
        encoders[name] = Stem((size,), width=8) if kind == "early" else nn.Linear(size, 6 + NAMES.index(name))
    torch.manual_seed(7)
    given: dict[str, Any] = {"classes": 3, "width": 8, **options}
    return stirred(HybridFusion(encoders, **given))


def inputs_of(names: list[str], samples: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    every = {name: torch.randn(samples, 3 + place, generator=generator) for place, name in enumerate(NAMES)}
    return {name: every[name] for name in names}


def subsets(names: list[str]) -> list[list[str]]:
    return [list(some) for size in range(1, len(names) + 1) for some in combinations(names, size)]


# -- outputs --


@pytest.mark.parametrize("kind", ["hybrid", "early"])
@pytest.mark.parametrize("unimodal", [*VIEWS, None])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_outputs_are_fused_then_the_modalities_in_order(count: int, unimodal: Any, kind: str) -> None:
    names = NAMES[:count]
    model = model_of(names, kind, unimodal=unimodal)
    outputs = model(dict(reversed(inputs_of(names).items())))
    assert list(outputs) == ["fused", *(names if unimodal else [])]
    assert {tuple(output.shape) for output in outputs.values()} == {(5, 3)}


@pytest.mark.parametrize("kind", ["hybrid", "early"])
@pytest.mark.parametrize("unimodal", ["masked", "masked_detached"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_masked_output_is_the_fused_one_with_the_other_sensors_absent(count: int, unimodal: Any, kind: str) -> None:
    names = NAMES[:count]
    model, inputs = model_of(names, kind, unimodal=unimodal), inputs_of(names)
    for training in (True, False):
        model.train(training)
        outputs = model(inputs)
        for name in names:
            assert_close(outputs[name], model({name: inputs[name]})["fused"])
            gaps = {f"{other}_present": torch.zeros(5, dtype=torch.bool) for other in names if other != name}
            noise = {other: torch.full_like(inputs[other], 1e3) for other in names if other != name}
            assert_close(outputs[name], model({**inputs, **noise, **gaps})["fused"])
        assert not any(output.isnan().any() for output in outputs.values())


@pytest.mark.parametrize("unimodal", VIEWS)
def test_every_subset_of_sensors_is_answered(unimodal: Any) -> None:
    names = NAMES[:3]
    model, inputs = model_of(names, unimodal=unimodal).eval(), inputs_of(names)
    full = model(inputs)
    for subset in subsets(names):
        some = {name: inputs[name] for name in subset}
        outputs = model(some)
        assert list(outputs) == ["fused", *subset]
        for name in subset:
            assert_close(outputs[name], full[name])
        assert torch.isclose(outputs["fused"], full["fused"]).all() == (subset == names)
        features = model.complete(model.features(some))
        for name in set(names) - set(subset):
            assert_close(features[name], model.missing(name).expand(5, -1))
        assert_close(model.fusion(features), outputs["fused"])
        # Three ways to say that a sensor is missing.
        gone = {f"{name}_present": torch.zeros(5, dtype=torch.bool) for name in set(names) - set(subset)}
        assert_close(model({**inputs, **gone})["fused"], outputs["fused"])
        silenced = model.silenced(model.features(inputs), set(names) - set(subset))
        assert_close(model.outputs_from(silenced)["fused"], outputs["fused"])


@pytest.mark.parametrize("unimodal", VIEWS)
def test_gaps_are_those_of_each_sample(unimodal: Any) -> None:
    """A batch with gaps answers as its samples do one by one, with the sensors that each has."""
    names = NAMES[:3]
    model, inputs = model_of(names, unimodal=unimodal).eval(), inputs_of(names, 6)
    present = {"audio": torch.arange(6) % 2 == 0, "text": torch.arange(6) % 3 > 0}
    broken = {name: x.where(present[name][:, None], torch.nan) if name in present else x for name, x in inputs.items()}
    outputs = model({**broken, **{f"{name}_present": mask for name, mask in present.items()}})
    for row in range(6):
        here = {name: x[row : row + 1] for name, x in inputs.items() if name not in present or present[name][row]}
        alone = model(here)
        for name in alone:
            assert_close(outputs[name][row : row + 1], alone[name])
    assert not outputs["fused"].isnan().any()


@pytest.mark.parametrize("unimodal", VIEWS)
def test_the_order_of_the_names_changes_no_output(unimodal: Any) -> None:
    names = NAMES[:3]
    forth, back = model_of(names, unimodal=unimodal), model_of(names[::-1], unimodal=unimodal)
    back.fusion.load_state_dict(
        {key: x for key, x in forth.fusion.state_dict().items() if key != "places"}, strict=False
    )
    with torch.no_grad():
        own, *places = forth.fusion.get_parameter("places").split([1, 4, 4, 4])
        back.fusion.get_parameter("places").copy_(torch.cat([own, *places[::-1]]))
        for name in names:
            back.missing(name).copy_(forth.missing(name))
            if unimodal in ("head", "detached"):
                back.heads[name].load_state_dict(forth.heads[name].state_dict())
    outputs, turned = forth(inputs_of(names)), back(inputs_of(names))
    assert list(turned) == ["fused", *names[::-1]]
    for name, output in outputs.items():
        assert_close(turned[name], output, rtol=1e-4, atol=1e-5)


def test_one_sensor_is_its_own_masked_output() -> None:
    model = model_of(["audio"])
    outputs = model(inputs_of(["audio"]))
    assert_close(outputs["audio"], outputs["fused"])
    assert_close(model.attention_shares(model.features(inputs_of(["audio"]))), {"audio": torch.ones(5)})


# -- gradients --


def reached(model: HybridFusion, output: Tensor) -> set[str]:
    """The parts of a model that an output sends a gradient to that is not zero."""
    model.zero_grad()
    output.square().sum().backward(retain_graph=True)
    found = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    return {".".join(name.split(".")[: 2 if name.startswith(("encoders", "heads", "absent")) else 1]) for name in found}


def test_what_an_own_output_trains() -> None:
    names = NAMES[:3]
    wanted = {
        "masked": {"encoders.audio", "fusion", "absent.1", "absent.2"},
        "masked_detached": {"absent.1", "absent.2"},
        "head": {"encoders.audio", "heads.audio"},
        "detached": {"heads.audio"},
    }
    for unimodal, parts in wanted.items():
        model = model_of(names, unimodal=unimodal)
        outputs = model(inputs_of(names))
        assert reached(model, outputs["audio"]) == parts, unimodal
        assert reached(model, outputs["fused"]) == {"fusion", *(f"encoders.{name}" for name in names)}


@pytest.mark.parametrize("unimodal", VIEWS)
def test_every_parameter_takes_part_in_every_step(unimodal: Any) -> None:
    """DistributedDataParallel waits for a gradient of every parameter, zero or not."""
    names = NAMES[:3]
    for one in (names, names[:1]):
        model = model_of(one, unimodal=unimodal, dropout=0.3)
        torch.stack([output.sum() for output in model(inputs_of(one)).values()]).sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_the_trunk_is_what_no_encoder_and_no_head_has() -> None:
    model = model_of(NAMES[:2])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trunk = {names[id(tensor)] for tensor in model.trunk}
    rest = {name.split(".")[0] for name in names.values() if name not in trunk}
    assert all(name.startswith("fusion.") for name in trunk)
    assert rest == {"encoders", "absent", "fusion"}
    assert {name for name in names.values() if name.startswith("fusion.head.")}.isdisjoint(trunk)


# -- dropout, attention, ragged time --


def test_dropout_masks_the_fused_path_in_training_only() -> None:
    names = NAMES[:3]
    model, inputs = model_of(names, dropout=0.5), inputs_of(names, 400)
    for name in names:
        inputs[name] = inputs[name][:1].expand(400, -1)
    possible = torch.cat(
        [model_of(names).eval()({name: inputs[name][:1] for name in s})["fused"] for s in subsets(names)]
    )
    outputs = model(inputs)
    apart = (outputs["fused"][:, None] - possible).abs().amax(dim=2)
    assert bool((apart.amin(dim=1) < 1e-5).all())  # each sample is answered as with some sensors missing, never all
    share = (apart.argmin(dim=1) == len(possible) - 1).float().mean()
    assert 0.05 < float(share) < 0.22  # complete ones: an eighth
    assert bool((outputs["audio"] - outputs["audio"][0]).abs().max() < 1e-5)  # own outputs see everything
    assert_close(model.eval()(inputs)["fused"], possible[-1].expand(400, -1))


def test_attention_shares_of_a_model() -> None:
    names = NAMES[:3]
    model, inputs = model_of(names), inputs_of(names)
    for subset in subsets(names):
        shares = model.attention_shares(model.features({name: inputs[name] for name in subset}))
        assert list(shares) == names  # the vector of a missing sensor is paid attention to as well
        assert_close(torch.stack(list(shares.values())).sum(dim=0), torch.ones(5))
        assert all(bool((share > 0).all()) for share in shares.values())


@pytest.mark.parametrize("unimodal", VIEWS)
def test_lengths_reach_the_encoders_that_take_them(unimodal: Any) -> None:
    torch.manual_seed(0)
    encoders = {"speech": SequenceTransformer(4, 8, layers=1), "image": nn.Linear(3, 5)}
    model = stirred(HybridFusion(encoders, classes=2, unimodal=unimodal, width=8)).eval()
    speech, image, lengths = torch.randn(3, 10, 4), torch.randn(3, 3), torch.tensor([10, 4, 7])
    whole = model({"speech": speech, "image": image, "speech_length": lengths})
    assert_close(model({"speech": speech, "image": image}, {"speech": lengths}), whole)
    for row, length in enumerate(lengths.tolist()):
        alone = model({"speech": speech[row : row + 1, :length], "image": image[row : row + 1]})
        for name, output in alone.items():
            assert_close(whole[name][row : row + 1], output, rtol=1e-4, atol=1e-5)


def test_batch_statistics_are_those_of_real_signals() -> None:
    """Each encoder runs once: masked passes add nothing to what batch normalisation sees."""
    torch.manual_seed(0)
    encoders = {"a": CNN1d(2, 6), "b": CNN1d(3, 6)}
    model, twin = (
        HybridFusion(copy.deepcopy(encoders), classes=2, unimodal=view, width=8) for view in ("masked", None)
    )
    inputs = {"a": torch.randn(8, 2, 32), "b": torch.randn(8, 3, 32)}
    model(inputs), twin(inputs)
    assert_close(dict(model.encoders["a"].named_buffers()), dict(twin.encoders["a"].named_buffers()))


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("decision", ["fused", "committee"])
def test_it_predicts_with_any_sensors(kind: str, decision: Any) -> None:
    names = NAMES[:3]
    model, inputs = model_of(names, classes=None, task=TASKS[kind]), inputs_of(names)
    for subset in subsets(names):
        answer = model.predict({name: inputs[name] for name in subset}, decision)
        assert answer.shape == (5, TASKS[kind].size)
        assert bool(answer.isfinite().all())
        if decision == "committee" and len(subset) == 1:  # the fused head and the one masked pass agree: they are one
            assert_close(answer, model.predict({name: inputs[name] for name in subset}))


def test_it_survives_copying_pickling_and_saving() -> None:
    model, inputs = model_of(NAMES[:3]), inputs_of(NAMES[:3])
    fresh = model_of(NAMES[:3])
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    fresh.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), fresh):
        assert_close(twin(inputs), model(inputs), rtol=0, atol=0)


# -- messages --


def test_what_does_not_fit_is_refused() -> None:
    encoders = {"a": nn.Linear(3, 4), "b": nn.Linear(3, 4)}
    with pytest.raises(
        ValueError, match="HybridFusion expected unimodal='masked', 'head' or 'detached'; found 'split'"
    ):
        HybridFusion(encoders, classes=2, unimodal="split")
    with pytest.raises(ValueError, match=r"HybridFusion expected either classes or a task; found neither.*\ndropout"):
        HybridFusion(encoders, dropout=1.0)
    with pytest.raises(ValueError, match=r"Unknown modality: 'c' is none of 'a', 'b'"):
        HybridFusion(encoders, classes=2)({"c": torch.randn(2, 3)})
    with pytest.raises(ValueError, match="at least one of 'a', 'b'; found none"):
        HybridFusion(encoders, classes=2)({})


def test_a_sensor_called_trunk_is_told_to_take_another_name() -> None:
    model = HybridFusion({"trunk": nn.Linear(3, 4), "arm": nn.Linear(3, 4)}, classes=2, width=8)
    with pytest.raises(ValueError, match=r"No modality may be called 'trunk' where a model has a trunk.*another name"):
        EW().attach(model)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"objective": "masked"}, "objective should be auto or head with late fusion; type fusion=hybrid"),
        ({"objective": "both"}, "objective should be one of auto, head, masked, found 'both'"),
        ({"fusion": "hybrib"}, "fusion should be one of concat, sum, gated, film, hybrid, early"),
        ({"fusion": "early", "encoder": "cnn1d"}, "encoder should be auto with fusion=early.*type fusion=hybrid"),
        ({"fusion": "hybrid", "step": "safe"}, "step should be given with fusion=hybrid"),
        ({"fusion": "early", "parallel": "fsdp"}, "parallel should be ddp with fusion=early"),
    ],
)
def test_settings_say_what_to_type(words: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Settings(**words)


def test_the_objective_follows_the_fusion() -> None:
    masked = [Settings(fusion="hybrid"), Settings(fusion="early"), Settings(model="a.B", objective="masked")]
    heads = [Settings(), Settings(fusion="hybrid", objective="head"), Settings(model="a.B"), Settings(fusion="film")]
    assert all(one.masks for one in masked)
    assert not any(one.masks for one in heads)


# -- a model of one's own --

SHAPES: dict[str, tuple[int, ...]] = {"a": (4,), "b": (2, 6), "c": (3,)}


def own(**options: Any) -> OwnModel:
    torch.manual_seed(0)
    task = TASKS["classes"]
    return OwnModel(Meets(SHAPES, task, **options), SHAPES, copy.deepcopy(task), unimodal="masked")


def own_inputs(samples: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {name: torch.randn(samples, *shape, generator=generator) for name, shape in SHAPES.items()}


def test_masked_outputs_of_a_users_own_cross_attention() -> None:
    model, inputs = own(), own_inputs()
    outputs = model(inputs)
    assert list(outputs) == ["fused", *SHAPES]
    for name in SHAPES:
        assert_close(outputs[name], model({name: inputs[name]})["fused"])
        here = {other: torch.full((4,), other == name) for other in SHAPES}
        assert_close(outputs[name], model.model(inputs, present=here))
    assert list(model({"c": inputs["c"], "a": inputs["a"]})) == ["fused", "a", "c"]
    gaps = {"b_present": torch.tensor([True, False, True, False])}
    some = model({**inputs, **gaps})
    rest = {name: inputs[name] for name in ("a", "c")}
    assert_close(some["fused"][1::2], model(rest)["fused"][1::2])
    assert_close(some["fused"][::2], outputs["fused"][::2])


@pytest.mark.parametrize("shares", [False, True])
def test_the_table_of_a_users_own_trunk(shares: bool) -> None:
    """With a layer that encoders and trunk have in common, each objective reaches every encoder: it is entangled."""
    model, inputs, label = own(shares=shares).double(), own_inputs(), torch.tensor([0, 1, 2, 0])
    inputs = {name: x.double() for name, x in inputs.items()}
    balancer = MIMO(penalty=2.0, smoothing=0.5).attach(model)
    outputs = model(inputs)
    losses = {name: nn.functional.cross_entropy(x, label, reduction="none") for name, x in outputs.items()}
    total = balancer(losses)
    table = balancer.table
    assert table.blocks == (*SHAPES, "trunk", "fused head", "own heads")
    for objective in SHAPES:
        for block in SHAPES:
            assert table.at(objective, block).isnan() == (objective != block and not shares)
        assert table.at(objective, "trunk") == table.at(objective, "fused head")
    parameters = dict(model.model.named_parameters())
    found = torch.autograd.grad(total, list(parameters.values()), retain_graph=True)
    wanted = [torch.zeros_like(parameter) for parameter in parameters.values()]
    means = torch.stack([losses[name].mean() for name in SHAPES]).detach()
    weights = [1.0, *(2.0 * (means / 0.5).softmax(dim=0)).tolist()]
    for weight, name in zip(weights, ["fused", *SHAPES], strict=True):
        alone = {other: torch.full((4,), name in ("fused", other)) for other in SHAPES}
        loss = nn.functional.cross_entropy(model.model(inputs, present=alone), label)
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        wanted = [sum_ if one is None else sum_ + weight * one for sum_, one in zip(wanted, gradients, strict=True)]
    assert_close(list(found), wanted, rtol=1e-9, atol=1e-12)


def test_the_mask_of_a_users_own_model_learns_beside_joint_training() -> None:
    """As `train` has it: the encoders and the trunk learn from the fused loss, the token of a missing sensor beside."""
    model, inputs, label = own(), own_inputs(), torch.tensor([0, 1, 2, 0])
    outputs = model(inputs)
    losses = {name: nn.functional.cross_entropy(x, label, reduction="none") for name, x in outputs.items()}
    MSL().attach(model)(losses).backward()
    named = dict(model.model.named_parameters())
    found = {name: parameter.grad for name, parameter in named.items()}
    present = {name: torch.ones(4, dtype=torch.bool) for name in SHAPES}
    joint = nn.functional.cross_entropy(model.model(inputs, present=present), label)
    wanted = dict(zip(named, torch.autograd.grad(joint, list(named.values())), strict=True))
    rest = sum(nn.functional.cross_entropy(model({name: inputs[name]})["fused"], label) for name in SHAPES)
    assert isinstance(rest, Tensor)
    (wanted["absent"],) = torch.autograd.grad(rest, named["absent"])
    assert_close(found, wanted)


def test_a_fused_output_alone_is_told_what_to_type() -> None:
    task = TASKS["classes"]
    with pytest.raises(BadInput, match=r"found Tensor\. For a fused output alone, type objective=masked"):
        OwnModel(Meets(SHAPES, task), SHAPES, task)(own_inputs())


def test_a_part_that_is_not_there_is_named() -> None:
    with pytest.raises(BadInput, match=r"Meets: `trunk` names 'mixed', which it has not; did you mean 'mixer'\?"):
        own(trunk="mixed")
