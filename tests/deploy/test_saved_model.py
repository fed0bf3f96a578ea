"""A folder of a run that somebody edited: one message with what is wrong, nothing run, nothing large allocated."""

import json
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ended import Ended
from equipoise.data.source import DataSet
from equipoise.data.splits import Splits
from equipoise.data.views import LogSTFT, Rescaled, TimeLast, VideoFrames
from equipoise.deploy import ExportedModel, SavedModel, description, load_saved_model, saved_model
from equipoise.deploy.card import write_card
from equipoise.models import LateFusion
from equipoise.models.choose import KINDS, build_encoders, makes_modules
from equipoise.models.encoders import MLP
from equipoise.study.job import Job, run_job, save_model
from equipoise.study.registry import entries
from equipoise.util.errors import BadInput
from memory_peak import takes_less_than

VALUES = (
    None,
    True,
    0,
    -1,
    1,
    3,
    2**31 - 1,
    2**31,
    2**63,
    10**400,
    -1e308,
    1e308,
    0.5,
    "",
    "x",
    "cProfile.main",
    "float16",
    "../../x",
    "\x1b[31m",
    "x" * 100_000,
    [],
    [1],
    [-1],
    [10**9] * 3,
    ["x"],
    {},
    {"x": 1},
    {"kind": "Scaled"},
    {"kind": "LogSTFT", "samples": 1, "n_fft": 1, "hop": 0},
)
"""What a field is replaced with: other types, null, huge, negative."""


def trained(folder: Path, method: str = "mimo", *words: str) -> Splits:
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(60) % 3
    inputs = {"strong": torch.randn(60, 4, generator=generator), "weak": torch.randn(60, 2, 6, generator=generator)}
    splits = Splits.from_arrays(inputs, label)
    (entry,) = entries([method], ["epochs=1", "features=4", "device=cpu", *words])
    job = Job(entry, DataSet("own", lambda _: splits, 0, ""), None, 0, splits.fingerprint())
    run_job(job, splits, folder)
    return splits


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    trained(folder)
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (saved_model.DESCRIPTION, saved_model.WEIGHTS):
        shutil.copyfile(original / name, folder / name)
    return folder


def content_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / saved_model.DESCRIPTION).read_text(encoding="utf-8"))


def opened(folder: Path, content: Any) -> SavedModel | None:
    """What becomes of a folder with such a description: a run whose card can be written, or None with one message."""
    (folder / saved_model.DESCRIPTION).write_text(json.dumps(content), encoding="utf-8")
    told = ""
    try:
        found = load_saved_model(folder)
        graph = found.deployable()
    except BadInput as problem:
        told = str(problem)
    if told:
        assert "\x1b" not in told
        assert len(told) < 20_000
        return None
    write_card(found, ExportedModel(folder / "model.onnx", "onnx", 0.0, "", (), tuple(graph.output_names)), folder)
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field, at any depth."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def edited(content: Any, path: tuple[Any, ...], value: Any = ...) -> Any:
    """The same with one field replaced, or removed."""
    copy = json.loads(json.dumps(content))
    at = copy
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return copy


NEEDED = [
    ("format",),
    ("classes",),
    ("unimodal",),
    ("inputs",),
    ("inputs", "strong"),
    ("inputs", "strong", "read"),
    ("inputs", "weak", "stored"),
    ("inputs", "weak", "dtype"),
    ("inputs", "weak", "ragged"),
    ("inputs", "weak", "view"),
    ("inputs", "weak", "mean"),
    ("inputs", "weak", "deviation"),
    ("parts",),
    ("row",),
    *[("row", key) for key in ("data", "split", "config", "label", "method", "seed", "fold", "params", "run")],
    *[("row", "run", key) for key in ("encoder", "features", "fusion")],
    ("row", "test", "faults", "worst"),
]


@pytest.mark.parametrize("path", NEEDED, ids=lambda path: ".".join(path))
def test_a_field_that_is_needed_is_missed_by_its_name(path: tuple[str, ...], run: Path) -> None:
    (run / saved_model.DESCRIPTION).write_text(json.dumps(edited(content_of(run), path)))
    with pytest.raises(
        BadInput, match=path[-1] if len(path) < 3 or path[-1] not in ("mean", "deviation") else "neither"
    ):
        load_saved_model(run)


@pytest.mark.parametrize("many", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_field_edited_gives_a_run_or_a_message(many: int, run: Path) -> None:
    """Every field of a real description, removed and replaced with everything: never another exception."""
    content, random = content_of(run), Random(many)
    faults = content["row"]["test"]["faults"]  # hundreds of the same kind: one fault of one sensor is enough
    content["row"]["test"]["faults"] = {"strong": {"missing": faults["strong"]["missing"]}} | {
        key: faults[key] for key in ("mean", "worst")
    }
    assert opened(run, content) is not None
    refused = total = 0
    for path in places(content):
        for value in (..., *random.sample(VALUES, many)):
            refused += opened(run, edited(content, path, value)) is None
            total += 1
    print(f"{refused} of {total} edits refused")
    assert refused > total / 4


@pytest.mark.parametrize("value", [*VALUES, [None] * 3, float("nan"), float("inf")], ids=lambda value: repr(value)[:20])
def test_what_is_no_description_is_refused(value: Any, run: Path) -> None:
    assert opened(run, value) is None


@pytest.mark.parametrize(
    "text", ["", "{", "\0" * 100, "[" * 100_000, '{"format": 1' + ', "x": {' * 900, '{"format": NaN}', "9" * 10_000]
)
def test_damage_is_told(text: str, run: Path) -> None:
    (run / saved_model.DESCRIPTION).write_text(text)
    with pytest.raises(BadInput, match=r"model\.json: expected the description of a model, found damage"):
        load_saved_model(run)


def test_all_problems_are_told_at_once(run: Path) -> None:
    content = content_of(run)
    content["inputs"]["weak"]["dtype"] = "load"
    content["row"]["run"]["features"] = -3
    del content["row"]["seed"]
    (run / saved_model.DESCRIPTION).write_text(json.dumps(content))
    (run / saved_model.WEIGHTS).write_bytes((run / saved_model.WEIGHTS).read_bytes()[:-7])
    with pytest.raises(BadInput) as told:
        load_saved_model(run)
    lines = str(told.value).splitlines()
    assert len(lines) == 4
    for place, line in zip(
        ("inputs.weak.dtype", "row.seed", "row.run.features", saved_model.WEIGHTS), lines, strict=True
    ):
        assert f"{place}: expected" in line


@pytest.mark.parametrize("features", [10**6, 2**31 - 1])
def test_sizes_are_compared_with_the_weights_before_anything_is_allocated(features: int, run: Path) -> None:
    content = content_of(run)
    with takes_less_than(300):
        assert opened(run, edited(content, ("row", "run", "features"), features)) is None
        assert opened(run, edited(content, ("classes",), ["x"] * 10**6)) is None
        assert opened(run, edited(content, ("inputs", "strong", "read"), [features])) is None
        both = edited(
            edited(content, ("inputs", "weak", "read"), [2, features]), ("inputs", "weak", "stored"), [2, features]
        )
        if 8 * 64 * 2 * features > description._memory():
            assert opened(run, both) is None


def test_ten_million_classes_take_no_memory(run: Path) -> None:
    content = content_of(run)
    text = json.dumps(edited(content, ("classes",), ["MANY"])).replace('"MANY"', ", ".join(["0"] * 10**7))
    (run / saved_model.DESCRIPTION).write_text(text)
    with pytest.raises(BadInput, match=r"at most .* bytes, found more"), takes_less_than(200):
        load_saved_model(run)


def test_weights_that_are_not_those_of_the_model_are_told(run: Path) -> None:
    file = run / saved_model.WEIGHTS
    whole, tensors = file.read_bytes(), load_file(file)

    def refused(expected: str, changed: dict[str, torch.Tensor] | bytes | None = None) -> None:
        if isinstance(changed, bytes):
            file.write_bytes(changed)
        elif changed is not None:
            save_file(changed, file)
        with pytest.raises(BadInput, match=expected):
            load_saved_model(run)

    for size in (0, 1, 8, 100, len(whole) - 1):
        refused("expected the weights", whole[:size])
    refused("expected the weights", b"\xff" * len(whole))
    refused("expected the weights", whole + b"x")
    for name, tensor in tensors.items():
        others = {key: each for key, each in tensors.items() if key != name}
        refused(f"expected {name} of shape .*, found no such tensor", others)
        refused(f"(?s)expected {name} of shape .*found 'x'", {**others, "x": tensor})
        refused(f"expected {name} of shape", {**others, name: torch.zeros(7, 7, 7)})
        refused(f"expected {name} of shape .* and type", {**others, name: tensor.to(torch.float16)})
    file.unlink()
    refused("expected the weights")
    (run / "elsewhere").write_bytes(whole)
    file.symlink_to(run / "elsewhere")
    refused("found a link")
    file.unlink()
    file.write_bytes(whole)
    assert load_saved_model(run).folder == run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fusion", ["concat", "gated"])
def test_every_encoder_of_the_package_is_built_again(kind: str, fusion: str, tmp_path: Path, original: Path) -> None:
    shapes = {
        **dict.fromkeys(("auto", "mlp", "regularised-mlp"), (5,)),
        **dict.fromkeys(("cnn1d", "inception", "log-mel", "first-step", "attention", "lstm-attention"), (3, 9)),
        **dict.fromkeys(("frames", "video"), (3, 4, 16, 16)),
        "words": (9,),
    }
    shape = shapes.get(kind, (3, 16, 16))
    model = LateFusion(build_encoders(f"a:{kind},b:mlp", {"a": shape, "b": (4,)}, 8), 3, fusion=fusion)
    inputs = {"a": torch.randn(12, *shape), "b": torch.randn(12, 4)}
    tokens = ["a"] if kind == "words" else []
    if tokens:
        inputs["a"] = torch.randint(100, (12, *shape))
    splits = Splits.from_arrays(inputs, torch.arange(12) % 3, tokens=tokens)
    row = content_of(original)["row"]
    row["run"] |= {"encoder": f"a:{kind},b:mlp", "features": 8, "fusion": fusion}
    save_model(tmp_path, model, row, splits)
    found = load_saved_model(tmp_path).model
    for (name, tensor), (other, again) in zip(model.state_dict().items(), found.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(tensor, again)
        assert again.device.type == "cpu"


@pytest.mark.parametrize("method", ["msl", "ensemble"])
def test_an_encoder_of_the_users_own_is_built_once_it_is_named_again(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("their_encoders")
    calls: list[tuple[int, ...]] = []

    class Own(nn.Module):
        """Ties its weights, and draws numbers in its constructor."""

        def __init__(self, shape: tuple[int, ...], features: int) -> None:
            super().__init__()
            calls.append(shape)
            self.layers = nn.Sequential(MLP(shape[0], shape[0]), MLP(shape[0], features, hidden=()))
            self.again = self.layers[0]
            self.features, self.drawn = features, torch.randn(1).item()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layers(inputs)

    def unsaid(shape, features):  # noqa: ANN001, ANN202
        calls.append(shape)
        return Own(shape, features)

    def said(shape: tuple[int, ...], features: int) -> nn.Module:
        return Own(shape, features)

    for name, thing in (("Own", Own), ("unsaid", unsaid), ("said", said), ("number", 3)):
        setattr(module, name, thing)
    monkeypatch.setitem(sys.modules, "their_encoders", module)
    words = "strong:their_encoders.Own,weak:cnn1d"
    trained(tmp_path, method, f"encoder={words}")
    calls.clear()
    with pytest.raises(BadInput, match=rf"no code runs because a file names it.*--encoder {words};.*--trust"):
        load_saved_model(tmp_path)
    assert not calls
    before = load_file(tmp_path / saved_model.WEIGHTS)
    ways: list[dict[str, Any]] = [{"encoder": words}, {"trust": True}, {"encoder": words.replace("Own", "said")}]
    for how in ways:
        calls.clear()
        found = load_saved_model(tmp_path, **how)
        assert calls == [(4,)], "made once"
        state = found.model.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in before.items())
    for name, expected in (("unsaid", "-> nn.Module"), ("number", "-> nn.Module"), ("gone", "no attribute")):
        calls.clear()
        with pytest.raises(BadInput, match=f"cannot be made again.*{expected}"):
            load_saved_model(tmp_path, encoder=words.replace("Own", name))
        assert not calls
    content = edited(content_of(tmp_path), ("row", "run", "features"), 10**6)
    (tmp_path / saved_model.DESCRIPTION).write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"row\.run\.features: expected at most as many"):
        load_saved_model(tmp_path, trust=True)
    assert not calls


def test_what_makes_modules_is_told_without_calling_it() -> None:
    import os
    import runpy

    def broken() -> "NoSuchThing":  # noqa: F821  # ty: ignore[unresolved-reference]
        pytest.fail("called")

    for thing in (runpy.run_path, os.system, print, "text", 3, dict, object(), nn, nn.Linear(1, 1), broken):
        assert not makes_modules(thing)
    for thing in (nn.Linear, MLP, nn.Module):
        assert makes_modules(thing)


def test_a_method_that_a_file_names_by_a_path_is_a_label_only(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / saved_model.DESCRIPTION).write_text(json.dumps(edited(content_of(run), ("row", "method"), "os.system")))
    monkeypatch.setattr("equipoise.util.named.importlib.import_module", pytest.fail)
    assert load_saved_model(run).row["method"] == "os.system"


@pytest.mark.parametrize("path", ["cProfile.main", "subprocess.getoutput", "strong:code.interact,weak:cnn1d"])
def test_no_code_is_run_because_a_file_names_it(path: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / saved_model.DESCRIPTION).write_text(json.dumps(edited(content_of(run), ("row", "run", "encoder"), path)))
    monkeypatch.setattr("equipoise.util.named.importlib.import_module", pytest.fail)
    with pytest.raises(BadInput, match="no code runs because a file names it"):
        load_saved_model(run)
    monkeypatch.undo()
    with pytest.raises(BadInput, match=r"expected a class of nn\.Module, or a function with `-> nn\.Module`"):
        load_saved_model(run, trust=True)


@pytest.mark.parametrize("view", [Rescaled(0.5), TimeLast(), VideoFrames(2, 8), LogSTFT(20, 8, 4)])
def test_every_view_is_described_as_it_is_read(view: Any) -> None:
    plain = json.loads(json.dumps(view.as_dict()))
    assert [*description._check_view(plain, "view")] == []
    assert [*description._check_view({**plain, "kind": "View"}, "view")] != []


def test_of_several_runs_a_damaged_one_is_told(original: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        shutil.copyfile(original / saved_model.DESCRIPTION, tmp_path / "runs" / name / saved_model.DESCRIPTION)
    (tmp_path / "runs" / "one" / saved_model.DESCRIPTION).write_text('{"format": 1, "row": {}}')
    with pytest.raises(BadInput, match=r"(?s)two  mimo on own, seed 0.*one  cannot be read: row\.data: expected it"):
        load_saved_model(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["export", "monitor"])
def test_an_edited_folder_ends_a_command_with_one_message(
    command: str, run: Path, equipoise: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = content_of(run)
    whole = (run / saved_model.WEIGHTS).read_bytes()
    edits: list[tuple[tuple[Any, ...], Any]] = [
        (("row", "run", "encoder"), "cProfile.main"),
        (("row", "run", "model"), "cProfile.main"),
        (("row", "run", "features"), 10**9),
        (("row",), None),
        (("inputs",), {}),
        (("classes",), ["x"] * 10**5),
        (("row", "method"), "os.system()"),
        (("inputs", "weak", "dtype"), "load"),
        (("row", "fold"), -1),
    ]
    for path, value in edits:
        (run / saved_model.DESCRIPTION).write_text(json.dumps(edited(content, path, value)))
        ended = equipoise(command, run)
        assert (ended.code, ended.out) == (2, ""), path
        assert ended.err.startswith("equipoise: ")
        assert "Traceback" not in ended.err
    (run / saved_model.DESCRIPTION).write_text(json.dumps(content))
    (run / saved_model.WEIGHTS).write_bytes(whole[:-1])
    ended = equipoise(command, run)
    assert ended.code == 2
    assert "expected the weights of this run's model" in ended.err
    monkeypatch.chdir(run)
    if command == "monitor":
        (run / saved_model.WEIGHTS).write_bytes(whole)
        for data in ("own", "/dev/zero", "../x.npz", str(run / "x.npz")):
            (run / saved_model.DESCRIPTION).write_text(json.dumps(edited(content, ("row", "data"), data)))
            ended = equipoise(command, run)
            assert ended.code == 2
            assert f"the run was trained on {data!r}, and there is no such file here; type --data PATH" in ended.err
        for row in ({"data": "generated", "fold": 10**6}, {"data": "generated"}):
            (run / saved_model.DESCRIPTION).write_text(json.dumps({**content, "row": {**content["row"], **row}}))
            ended = equipoise(command, run)
            assert ended.code == 2
            assert "found fold 1000000" in ended.err or "fingerprint" in ended.err
