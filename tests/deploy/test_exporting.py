"""An exported model says what PyTorch says, for every subset of the sensors; and a run is shipped without its data."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.data.source import DataSet
from equipoise.data.splits import Splits
from equipoise.data.views import LogSTFT, Rescaled, TimeLast
from equipoise.deploy import (
    Deployable,
    ExportedModel,
    InputSpec,
    SavedModel,
    export,
    exporting,
    load_saved_model,
    saved_model,
)
from equipoise.deploy.card import card, write_card
from equipoise.models import LateFusion
from equipoise.models.encoders import MLP, CNN1d, CNN2d, Frames, LeNet, RegularisedMLP, ResNet18
from equipoise.models.fusion_model import FusionModel
from equipoise.models.inception import Inception
from equipoise.models.sequence import AttentionPooled, FirstStepTransformer, PooledMap, Tokens
from equipoise.models.sound import LogMel
from equipoise.models.vision import SmallResNet, Video
from equipoise.study.job import Job, run_job
from equipoise.study.registry import entries
from equipoise.util.errors import BadInput
from equipoise.util.extras import NotInstalled

Inputs = dict[str, Tensor]

# Small encoders of every kind: how to make one, the shape of a sample, and whether its time is ragged.
KINDS: dict[str, tuple[Any, tuple[int, ...], bool]] = {
    "mlp": (lambda: MLP(5, 8, (6,)), (5,), False),
    "cnn1d": (lambda: CNN1d(2, 8, 4), (2, 9), False),
    "regularised-mlp": (lambda: RegularisedMLP(5, 8, 6), (5,), False),
    "inception": (lambda: Inception(2, 9, 8), (2, 9), True),
    "inception-of-long": (lambda: Inception(2, 300, 8), (2, 13), False),
    "log-mel": (lambda: LogMel(1, 999, 8, 2), (1, 999), True),
    "small-resnet": (lambda: SmallResNet(1, 40, 8, 2), (1, 9, 7), False),
    "video": (lambda: Video(1, 9, 8, 2), (1, 5, 9, 7), True),
    "cnn2d": (lambda: CNN2d(1, 8, 4), (1, 7, 7), False),
    "frames": (lambda: Frames(CNN2d(1, 8, 4)), (1, 4, 7, 7), True),
    "lenet": (lambda: LeNet(1, 2), (1, 8, 8), False),
    "resnet18": (lambda: ResNet18(1), (1, 9, 9), False),
    "first-step": (lambda: FirstStepTransformer(3, 8, 1, 2, 16), (3, 6), True),
    "attention": (lambda: AttentionPooled(3, 8, 8, 1, 2, 16, start="linear"), (3, 6), True),
    "lstm-attention": (lambda: AttentionPooled(3, 8, 8, 1, 2, 16, start="lstm"), (3, 6), True),
    "words": (lambda: Tokens(50, AttentionPooled(6, 8, 8, 1, 2, 16), 6), (6,), True),
    "pooled-map": (lambda: PooledMap(3, 8, (6,)), (3, 2, 2), False),
}
FEW = ["mlp", "frames", "words"]


def deployable(kinds: Sequence[str], fusion: str = "concat", unimodal: Any = "head", seed: int = 0) -> Deployable:
    torch.manual_seed(seed)
    model = LateFusion({kind: KINDS[kind][0]() for kind in kinds}, classes=4, fusion=fusion, unimodal=unimodal)
    model.committee.copy_(torch.rand(len(kinds) + 1).where(torch.arange(len(kinds) + 1) != 1, 0))  # one has no vote
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):  # as if it had been trained
            module.running_mean = torch.rand(module.num_features) - 0.5
            module.running_var = torch.rand(module.num_features) + 0.5
    return Deployable(model.eval(), examples=examples(kinds, 2))


def examples(kinds: Sequence[str], batch: int) -> Inputs:
    inputs = {}
    for kind in kinds:
        _, shape, ragged = KINDS[kind]
        words = kind == "words"
        inputs[kind] = torch.randint(1, 50, (batch, *shape)).short() if words else torch.randn(batch, *shape)
        if ragged:
            inputs[f"{kind}_length"] = torch.randint(1, shape[0 if words else 1] + 1, (batch,))
    return inputs


def subsets(kinds: Sequence[str]) -> list[tuple[str, ...]]:
    return [subset for size in range(1, len(kinds) + 1) for subset in combinations(kinds, size)]


def flagged(inputs: Inputs, valid: dict[str, Tensor]) -> Inputs:
    """The inputs of a graph, with rubbish in every sensor that is not there."""
    given = {}
    for name, here in valid.items():
        raw = inputs[name]
        rubbish = torch.full_like(raw, 30_000 if raw.dtype == torch.short else math.nan)
        given[name] = torch.where(here.reshape(-1, *[1] * (raw.dim() - 1)), raw, rubbish)
        if f"{name}_length" in inputs:
            given[f"{name}_length"] = inputs[f"{name}_length"].where(here, -7)
        given[f"{name}_valid"] = here
    return given


def predicted(model: FusionModel, inputs: Inputs, subset: Sequence[str]) -> Inputs:
    """What PyTorch says to a dictionary that lacks the other sensors."""
    there = {key: each for key, each in inputs.items() if key.removesuffix("_length") in subset}
    found = {"fused": model.predict(there)}
    if model.unimodal is not None:
        found["committee"] = model.predict(there, decision="committee")
        with torch.no_grad():
            found |= {f"{name}_head": model(there)[name].log_softmax(1) for name in subset}
    return found


def agree(found: Inputs, wanted: Inputs) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-5)


# -- the rule for missing sensors, in tensors --


@pytest.mark.parametrize("fusion", ["concat", "sum", "gated", "film"])
@pytest.mark.parametrize("unimodal", ["head", "detached", "split", None])
@pytest.mark.parametrize("kinds", [["mlp", "cnn1d"], FEW], ids=len)
def test_the_graph_decides_as_predict_does(kinds: list[str], unimodal: str | None, fusion: str) -> None:
    if unimodal == "split" and fusion in ("gated", "film"):
        pytest.skip("no shares")
    model, batch = deployable(kinds, fusion, unimodal), 5
    inputs = examples(kinds, batch)
    for subset in subsets(kinds):
        valid = {kind: torch.full((batch,), kind in subset) for kind in kinds}
        with torch.no_grad():
            found = model(flagged(inputs, valid))
        assert list(found) == model.output_names
        agree(found, predicted(model.model, inputs, subset))


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_of_a_batch_may_lack_other_sensors(kind: str) -> None:
    kinds = [*{kind, "mlp", "cnn2d"}]
    model, inputs = deployable(kinds), examples(kinds, 8)
    patterns = torch.tensor([[at >> place & 1 for place in range(len(kinds))] for at in range(8)]).bool()
    with torch.no_grad():
        found = model(flagged(inputs, dict(zip(kinds, patterns.unbind(1), strict=True))))
    for row, present in enumerate(patterns.tolist()):
        subset = [name for name, here in zip(kinds, present, strict=True) if here]
        alone = {name: each[row : row + 1] for name, each in found.items()}
        if subset:
            agree(alone, predicted(model.model, {name: each[row : row + 1] for name, each in inputs.items()}, subset))
        else:
            for name in ("committee", "fused"):
                torch.testing.assert_close(alone[name], torch.full((1, 4), 0.25))
    for name, column in zip(kinds, patterns.unbind(1), strict=True):
        torch.testing.assert_close(found[f"{name}_head"][~column], torch.full((int((~column).sum()), 4), -math.log(4)))


def test_the_vote_of_those_left_worked_out_by_hand() -> None:
    model = LateFusion({name: MLP(2, 2) for name in "abc"}, classes=2)
    says = {"a": [0.9, 0.1], "b": [0.2, 0.8], "c": [0.5, 0.5]}
    for name, chances in says.items():  # heads that say the same whatever they read
        head = model.heads[name]
        assert isinstance(head, nn.Linear)
        nn.init.zeros_(head.weight)
        head.bias.data = torch.tensor(chances).log()
    model.committee.copy_(torch.tensor([0.4, 0.3, 0.0, 0.1]))
    inputs = {name: torch.randn(1, 2) for name in "abc"}
    valid = {"a": torch.tensor([True]), "b": torch.tensor([True]), "c": torch.tensor([False])}
    with torch.no_grad():
        found = Deployable(model.eval(), examples=inputs)(flagged(inputs, valid))["committee"]
    # b's weight 0 is raised to 0.1/4; 0.3 and 0.025 are scaled to the total of all four, 0.8.
    scale = 0.8 / 0.325
    odds = (9 ** (0.3 * scale)) * ((0.2 / 0.8) ** (0.025 * scale))
    torch.testing.assert_close(found, torch.tensor([[odds / (1 + odds), 1 / (1 + odds)]]))


def test_a_head_that_is_sure_cannot_forbid_a_class() -> None:
    model = LateFusion({name: MLP(2, 2) for name in "ab"}, classes=2)
    for name, scores in {"a": [0.0, -1000.0], "b": [-40.0, 0.0]}.items():
        head = model.heads[name]
        assert isinstance(head, nn.Linear)
        nn.init.zeros_(head.weight)
        head.bias.data = torch.tensor(scores)
    model.committee.copy_(torch.tensor([0.0, 0.5, 0.5]))
    inputs = {name: torch.randn(1, 2) for name in "ab"}
    with torch.no_grad():
        found = Deployable(model.eval(), examples=inputs)(
            flagged(inputs, {name: torch.tensor([True]) for name in "ab"})
        )
    torch.testing.assert_close(found["committee"], torch.tensor([[0.5, 0.5]]))  # both are as sure as may be
    agree(found, predicted(model, inputs, ["a", "b"]))


def test_lengths_of_a_missing_sensor_are_not_read() -> None:
    class LastStep(nn.Module):
        """Looks its last step up, and so cannot bear a length that is none."""

        features = 3

        def forward(self, series: Tensor, lengths: Tensor) -> Tensor:
            return series.gather(2, (lengths - 1).reshape(-1, 1, 1).expand(-1, 3, 1)).squeeze(2)

    model = LateFusion({"series": LastStep(), "mlp": MLP(2, 3)}, classes=2).eval()
    inputs = {"series": torch.randn(2, 3, 5), "series_length": torch.tensor([2, 4]), "mlp": torch.randn(2, 2)}
    valid = {"series": torch.tensor([False, False]), "mlp": torch.tensor([True, True])}
    with torch.no_grad():
        found = Deployable(model, examples=inputs)(flagged(inputs, valid))
    agree(found, predicted(model, inputs, ["mlp"]))


@pytest.mark.parametrize("name", ["committee", "a_valid", "a_head", "a_used", "fused_low"])
def test_a_sensor_with_the_name_of_another_input_or_output_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"may be called '{name}'"):
        LateFusion({"a": MLP(2, 2), name: MLP(2, 2)}, classes=2)


# -- what happens to raw inputs --


def test_views_and_scales_of_training_are_in_the_graph() -> None:
    model = LateFusion({"sound": CNN1d(3, 4, 2), "image": CNN2d(1, 4, 2)}, classes=2).eval()
    mean, deviation = torch.tensor([[5.0], [-3.0], [0.1]]), torch.tensor([[2.0], [0.5], [10.0]])
    input_specs = {
        "sound": InputSpec((3, 8), mean=mean, deviation=deviation),
        "image": InputSpec((1, 6, 6), torch.uint8, view=Rescaled(1 / 255)),
    }
    raw = {"sound": 10 * torch.randn(4, 3, 8), "image": torch.randint(256, (4, 1, 6, 6), dtype=torch.uint8)}
    everybody = {name: torch.ones(4, dtype=torch.bool) for name in raw}
    with torch.no_grad():
        found = Deployable(model, input_specs)(flagged_bytes(raw, everybody))
    agree(
        found,
        predicted(model, {"sound": (raw["sound"] - mean) / deviation, "image": raw["image"] / 255}, list(input_specs)),
    )


def flagged_bytes(raw: Inputs, valid: dict[str, Tensor]) -> Inputs:
    return {**raw, **{f"{name}_valid": here for name, here in valid.items()}}


def test_padding_stays_zero_when_it_is_standardised_in_the_graph() -> None:
    class Greedy(nn.Module):
        """Reads padding too, so that what stands there shows."""

        features = 3

        def forward(self, series: Tensor, lengths: Tensor) -> Tensor:
            return series.sum(dim=2) + 0 * lengths.unsqueeze(1)

    model = LateFusion({"series": Greedy()}, classes=2).eval()
    mean, deviation = torch.full((3, 1), 4.0), torch.full((3, 1), 2.0)
    raw, lengths = torch.randn(2, 3, 5), torch.tensor([2, 5])
    given = {"series": raw, "series_length": lengths, "series_valid": torch.ones(2, dtype=torch.bool)}
    with torch.no_grad():
        found = Deployable(model, {"series": InputSpec((3, 5), ragged=True, mean=mean, deviation=deviation)})(given)
    read = (raw - mean) / deviation
    read[0, :, 2:] = 0
    agree(found, predicted(model, {"series": read, "series_length": lengths}, ["series"]))


# -- files --


def opened_onnx(file: Path) -> Callable[[Inputs], Inputs]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]

    def run(given: Inputs) -> Inputs:
        found = session.run(None, {name: each.numpy() for name, each in given.items()})
        return dict(zip(names, map(torch.from_numpy, found), strict=True))

    return run


def opened_pt2(file: Path) -> Callable[[Inputs], Inputs]:
    return torch.export.load(file).module()


GROUPS = [
    ("onnx", "concat", ["mlp", "frames"]),
    ("torch-export", "sum", ["mlp", "resnet18", "cnn2d"]),
    pytest.param("onnx", "concat", ["inception", "log-mel"], marks=pytest.mark.slow),
    pytest.param("onnx", "sum", ["video", "small-resnet", "regularised-mlp"], marks=pytest.mark.slow),
    pytest.param("torch-export", "concat", ["inception-of-long", "video", "log-mel"], marks=pytest.mark.slow),
    pytest.param("onnx", "film", ["words", "cnn1d", "first-step"], marks=pytest.mark.slow),
    pytest.param("onnx", "gated", ["mlp", "lenet"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("form", "fusion", "kinds"), GROUPS)
def test_the_file_agrees_with_pytorch_on_every_subset(form: str, fusion: str, kinds: list[str], tmp_path: Path) -> None:
    model = deployable(kinds, fusion)
    exported = export(model, tmp_path, form, facts={"classes": "[…]"})
    assert exported.difference is not None
    assert exported.difference <= 1e-5
    assert exported.inputs == tuple(model.input_names)
    if form == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(exported.file)
        assert {each.shape[0] for each in (*session.get_inputs(), *session.get_outputs())} == {"batch"}
    run = opened_onnx(exported.file) if form == "onnx" else opened_pt2(exported.file)
    for batch in (1, 64):
        inputs = examples(kinds, batch)
        for subset in subsets(kinds):
            given = flagged(inputs, {kind: torch.full((batch,), kind in subset) for kind in kinds})
            with torch.no_grad():
                found = run(given)
            agree(found, predicted(model.model, inputs, subset))


def test_a_graph_that_is_wrong_is_found_out_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = deployable(["mlp", "cnn2d"])

    def careless(given: Inputs) -> Inputs:
        """Right, but for reading one sensor whose flag says that it is not there."""
        return model({**given, "mlp_valid": torch.ones_like(given["mlp_valid"])})

    def write(_: Deployable, folder: Path, __: object) -> tuple[Path, Any]:
        (folder / "model.wrong").write_text("")
        return folder / "model.wrong", careless

    def leaky(given: Inputs) -> Inputs:
        """Right, but for multiplying where it should choose: what is absent may be no number."""
        return {name: each + 0 * given["mlp"].sum(dim=1, keepdim=True) for name, each in model(given).items()}

    with torch.no_grad():
        assert exporting.compare(model, model).size <= 1e-6
        assert exporting.compare(model, leaky).size == math.inf
        with monkeypatch.context() as patch:  # a rule that is not that of predict, in both
            rule = "equipoise.deploy.deployable.surviving_weights"
            patch.setattr(rule, lambda _, present: present.new_ones(len(present), 3).float())
            assert exporting.compare(model, model).size > 1e-3
    monkeypatch.setitem(exporting.FORMS, "wrong", write)
    written = export(model, tmp_path, "wrong")
    assert list(tmp_path.iterdir()) == [tmp_path / "model.wrong"]
    told = "differs from PyTorch by 1, more than 0.001, in 'mlp_used' on random samples that each lack other sensors."
    assert written.difference == 1
    assert told in written.problem


def test_samples_find_what_random_inputs_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = deployable(["mlp", "cnn1d"])
    real = {**examples(["mlp", "cnn1d"], 5), "mlp_valid": torch.ones(5).bool(), "cnn1d_valid": torch.arange(5) > 0}
    real["mlp"][3] = 100.0

    def saturating(given: Inputs) -> Inputs:
        return model({**given, "mlp": given["mlp"].nan_to_num(0).clamp(-10, 10)})

    with torch.no_grad():
        assert exporting.compare(model, saturating).size < 1e-6
        found = exporting.compare(model, saturating, real)
        assert found.size > 1e-3
        assert found.where.startswith("validation samples of mlp")
        assert exporting.compare(model, model, real).size == 0
    monkeypatch.setitem(exporting.FORMS, "itself", lambda _, folder, __: (folder / "model", model))
    written = export(model, tmp_path, "itself", samples=real)
    assert (
        written.checked
        == "3 subsets of the sensors: batches of 1 and 64 random samples, 5 samples of the validation part"
    )
    assert written.problem == ""


class Decides(nn.Module):
    features = 2

    def forward(self, values: Tensor) -> Tensor:
        return values if values.sum() > 0 else -values


class FixesTheBatch(nn.Module):
    features = 2

    def forward(self, values: Tensor) -> Tensor:
        return values.reshape(len(values), -1)


@pytest.mark.parametrize(("encoder", "reason"), [(Decides(), "Could not guard"), (FixesTheBatch(), "write x.shape")])
def test_an_encoder_that_cannot_be_exported_is_named(encoder: nn.Module, reason: str, tmp_path: Path) -> None:
    model = LateFusion({"fine": MLP(2, 2), "odd": encoder}, classes=2)
    deployed = Deployable(model.eval(), examples={"fine": torch.zeros(1, 2), "odd": torch.zeros(1, 2)})
    with pytest.raises(BadInput) as found:
        export(deployed, tmp_path, "torch-export")
    assert f"the encoder of 'odd', {type(encoder).__name__}, cannot be exported" in str(found.value)
    assert reason in str(found.value)
    assert "'fine'" not in str(found.value)


def test_what_is_missing_is_said_with_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = deployable(["mlp"])
    with pytest.raises(BadInput, match="did you mean 'onnx'"):
        export(model, tmp_path, "onx")
    for package in ("onnx", "onnxscript"):
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, package, None)
            said = rf"export to ONNX needs {package}, which is not installed; type: pip install .*\[export\]'"
            with pytest.raises(NotInstalled, match=said):
                export(model, tmp_path)


# -- runs --


def raw_arrays() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    label, person = np.arange(240) % 3, np.arange(240) // 24
    centres = {"strong": 40 * draw.normal(size=(3, 4)), "weak": 0.01 * draw.normal(size=(3, 2, 6))}
    noise = {"strong": 30.0, "weak": 0.02}
    arrays = {
        name: (each[label] + noise[name] * draw.normal(size=(240, *each.shape[1:])) + 7).astype(np.float32)
        for name, each in centres.items()
    }
    return arrays, label, person


def finished_run(folder: Path, method: str = "mimo") -> tuple[dict[str, Any], Splits]:
    arrays, label, person = raw_arrays()
    splits = Splits.from_arrays(arrays, label, group=person)
    (entry,) = entries([method], ["epochs=3", "features=8", "fusion=sum"])
    job = Job(entry, DataSet("own", lambda _: splits, 0, ""), None, 0, splits.fingerprint(), measure="quick")
    return run_job(job, splits, folder), splits


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "runs" / "abc"
    finished_run(folder)
    return folder


@pytest.mark.parametrize("method", ["mimo", "ensemble", "msl"])
def test_a_run_opened_again_reaches_its_accuracy_on_raw_numbers(method: str, tmp_path: Path) -> None:
    row, splits = finished_run(tmp_path, method)
    run = load_saved_model(tmp_path)
    assert run.row == json.loads(json.dumps(row))
    test = splits.test
    raw = {name: test.inputs[name] * splits.scales[name][1] + splits.scales[name][0] for name in splits.modalities}
    with torch.no_grad():
        found = run.deployable()(flagged(raw, {name: torch.ones(len(test), dtype=torch.bool) for name in raw}))
    for decision in ("fused", "committee"):
        right = (found[decision].argmax(1) == test.label).double().mean().item()
        assert right == pytest.approx(row["test"][decision], abs=1e-9)


def test_standardised_splits_say_how_raw_numbers_became_theirs() -> None:
    arrays, label, person = raw_arrays()
    splits = Splits.from_arrays(arrays, label, group=person)
    everything = torch.cat([part.inputs["weak"] for part in splits.parts.values()])
    mean, deviation = splits.scales["weak"]
    back = (everything * deviation + mean).sort(dim=0).values
    torch.testing.assert_close(back, torch.from_numpy(arrays["weak"]).sort(dim=0).values)


def test_what_does_not_name_one_run_is_refused(run_folder: Path, tmp_path: Path) -> None:
    assert load_saved_model(run_folder.parent.parent).folder == run_folder
    with pytest.raises(BadInput, match=r"no such folder.*equipoise train"):
        load_saved_model(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"found no model.json in it\. Make one"):
        load_saved_model(tmp_path)
    (tmp_path / "runs" / "old" / "epoch-00003").mkdir(parents=True)
    with pytest.raises(BadInput, match="not finished: type its command again"):
        load_saved_model(tmp_path)
    for name in ("one", "two"):
        finished_run(tmp_path / "runs" / name)
    with pytest.raises(
        BadInput,
        match=r"2 finished runs; name one of them, or take the best .*:\n.*one  mimo on own, seed 0: .*\n.*two",
    ):
        load_saved_model(tmp_path)


def test_a_run_that_cannot_be_built_again_is_refused(run_folder: Path, tmp_path: Path) -> None:
    content = json.loads((run_folder / saved_model.DESCRIPTION).read_text())
    weights = (run_folder / saved_model.WEIGHTS).read_bytes()

    def opened(plain: Any, tensors: bytes = weights) -> SavedModel:
        (tmp_path / saved_model.DESCRIPTION).write_text(plain if isinstance(plain, str) else json.dumps(plain))
        (tmp_path / saved_model.WEIGHTS).write_bytes(tensors)
        return load_saved_model(tmp_path)

    assert opened(content).classes == ("0", "1", "2")
    with pytest.raises(BadInput, match="found damage"):
        opened("{")
    with pytest.raises(BadInput, match="expected format 1 or 2, found 9"):
        opened({**content, "format": 9})
    with pytest.raises(BadInput, match="expected the weights"):
        opened(content, b"no weights")
    with pytest.raises(BadInput, match="train with --method ensemble"):
        opened({**content, "row": {**content["row"], "method": "unimodal"}})
    own = {**content, "row": {**content["row"], "run": {**content["row"]["run"], "encoder": "my.gone.Encoder"}}}
    with pytest.raises(BadInput, match=r"If it is yours, type --encoder my\.gone\.Encoder; "):
        opened(own)
    ways: list[dict[str, Any]] = [{"encoder": "my.gone.Encoder"}, {"trust": True}]
    for how in ways:
        with pytest.raises(BadInput, match=r"cannot be made again: .*No module named 'my'"):
            load_saved_model(tmp_path, **how)


def test_trials_are_not_kept(tmp_path: Path) -> None:
    arrays, label, person = raw_arrays()
    splits = Splits.from_arrays(arrays, label, group=person)
    (entry,) = entries(["msl"], ["epochs=1", "features=4"])
    job = Job(entry, DataSet("own", lambda _: splits, 0, ""), None, 0, splits.fingerprint(), measure="validation")
    run_job(job, splits, tmp_path)
    assert not (tmp_path / saved_model.DESCRIPTION).exists()


def test_stored_data_whose_view_the_graph_cannot_do_is_taken_behind_it() -> None:
    plain = {"read": [1, 129, 11], "stored": [3000], "dtype": "int16", "ragged": False}
    sound = saved_model._input_spec({**plain, "view": LogSTFT(2000, 256, 200).as_dict()})
    assert sound.shape == (1, 129, 11)
    assert sound.dtype == torch.float32
    assert sound.before == LogSTFT(2000, 256, 200)
    series = saved_model._input_spec(
        {"read": [4, 9], "stored": [9, 4], "dtype": "float16", "ragged": True, "view": TimeLast().as_dict()}
    )
    assert (series.shape, series.dtype, series.steps, series.before) == ((9, 4), torch.float16, 9, None)


def test_the_card_says_what_the_row_says(run_folder: Path) -> None:
    run = load_saved_model(run_folder)
    exported = ExportedModel(
        Path("model.onnx"), "onnx", 2e-7, "everything", ("strong",), ("committee", "fused", "weak_head")
    )
    content = card(run, exported)
    assert content["data"]["fingerprint"] == run.row["split"]
    assert content["accuracy"]["committee"] == run.row["test"]["committee"]
    assert content["accuracy"]["sensors"] == run.row["test"]["head"]
    assert {each["name"]: each["shape"] for each in content["inputs"]} == {
        "strong": ["batch", 4],
        "strong_valid": ["batch"],
        "weak": ["batch", 2, 6],
        "weak_valid": ["batch"],
    }
    assert content["decision"]["weights"] == dict(
        zip(["fused", "strong", "weak"], run.model.committee.tolist(), strict=True)
    )
    assert sum(part["samples"] for part in content["data"]["parts"].values()) == 240


def test_the_card_warns_as_the_run_did(run_folder: Path, tmp_path: Path) -> None:
    run = load_saved_model(run_folder)
    exported = ExportedModel(tmp_path / "model.onnx", "onnx", 2e-7, "all", (), ("committee", "fused"))
    _, page = write_card(run, exported, tmp_path)
    text = page.read_text()
    (warning,) = run.row["warnings"]
    assert warning.startswith("training took ")
    assert f"**Warning:** {warning}." in text
    assert text.startswith("# mimo on own, seed 0")
    assert f"({run.row['validation']['committee_fit']})." in text
    groups = run.row["test"]["interval_groups"]
    assert groups == run.parts["test"]["groups"] == 2
    low, high = run.row["test"]["committee_interval"]
    assert f"| committee | {100 * run.row['test']['committee']:.1f} [{100 * low:.1f}, {100 * high:.1f}] |" in text
    assert "over the groups of the test part, of 2 groups: too few to tell." in text
    write_card(run._replace(row={**run.row, "fold": 3}), exported, tmp_path)
    assert page.read_text().startswith("# mimo on own, fold 3, seed 0")


def test_of_very_many_subsets_only_those_that_are_compared_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [0]

    def counted(*what: Any) -> Iterator[tuple[str, ...]]:
        for subset in combinations(*what):
            listed[0] += 1
            yield subset

    monkeypatch.setattr(exporting, "combinations", counted)
    found = exporting._subsets([f"sensor {k}" for k in range(12)])
    assert listed[0] == len(found) == len(set(found)) == exporting.MOST_SUBSETS
    assert {len(subset) for subset in found} == {12, 11, 1, 10}


def test_a_card_of_a_folder_of_anybody_holds_text_alone(run_folder: Path, tmp_path: Path) -> None:
    """A stranger's row may hold HTML, pictures that tell who looks, and commands for a terminal."""
    run, odd = load_saved_model(run_folder), "<script>alert(1)</script> ![](http://x.y/z) \x1b[31m | & \u202e"
    named = dict.fromkeys(("label", "data", "config", "about"), odd)
    row = {**run.row, **named, "versions": {odd: odd}, "params": {odd: odd}, "warnings": [odd]}
    exported = ExportedModel(tmp_path / "model.onnx", "onnx", None, "", (), ("committee", "fused"))
    plain, page = write_card(run._replace(row=row), exported, tmp_path)
    text = page.read_text()
    assert text.count("&lt;script>alert(1)&lt;/script>") > 5
    assert not any(part in text for part in ("<script", "</script", "![](", "\x1b", "\u202e", " | & "))
    assert json.loads(plain.read_text())["data"]["name"] == odd  # which is escaped by JSON
