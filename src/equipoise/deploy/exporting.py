"""Export of a model to one file for another runtime, compared with PyTorch."""

import logging
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from equipoise.deploy.deployable import COMMITTEE, FUSED, HEAD, HIGH, LENGTH, LOW, RADII, VALID, Deployable
from equipoise.models.evaluation import evaluating
from equipoise.models.intervals import rows_of
from equipoise.models.task import Regression, Task
from equipoise.util.errors import BadInput, look_up
from equipoise.util.extras import needs
from equipoise.util.files import inside

TOLERANCE = 1e-3
"""Largest difference of an exported graph to PyTorch, in probabilities.

In log-probabilities and log-odds it is by their size, and in numbers by the deviation of the target.
"""
SAMPLES = 64
"""Samples of the validation part that a graph is tried on."""
ROUNDING = 0.05  # of a number's own size: a target far from zero has fewer digits left for its deviation

BATCHES = (1, 64)
MOST_SUBSETS = 64
EXAMPLE_BATCH = 3  # neither 0 nor 1, for which graphs are specialised

Runner = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Runs a graph: tensors by name in, tensors by name out."""
Writer = Callable[["Deployable", Path, Mapping[str, str]], tuple[Path, Runner | None]]
"""Writes a model into a folder, with facts, and returns its file and how to run it."""


class ExportedModel(NamedTuple):
    """A graph that was written.

    Args:
        file: The graph.
        form: "onnx" or "torch-export".
        difference: The largest difference to PyTorch found; None where nothing was there to run it with.
        checked: In words, what was compared.
        inputs: Names of the graph's inputs, in order.
        outputs: Names of its outputs.
        problem: Where the graph differs from PyTorch by more than `TOLERANCE`; empty if it does not.
    """

    file: Path
    form: str
    difference: float | None
    checked: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    problem: str = ""


@final
class GraphDifference(NamedTuple):
    """The largest difference of a graph to PyTorch, and where it was found.

    Args:
        size: The difference.
        output: The output that differs most.
        where: In words, the inputs.
    """

    size: float = 0.0
    output: str = ""
    where: str = ""


def export(
    model: Deployable,
    folder: Path | str,
    to: str = "onnx",
    *,
    facts: Mapping[str, str] | None = None,
    samples: Mapping[str, Tensor] | None = None,
) -> ExportedModel:
    """Write a model as one graph, run it, and compare it with PyTorch on every subset of the sensors.

    Args:
        model: What to export, with its inputs.
        folder: Made if absent; the file is called model.onnx or model.pt2.
        to: "onnx" or "torch-export".
        facts: Plain words that travel inside an ONNX file, such as the names of the classes.
        samples: Real inputs of the graph to compare on, beside random ones.

    Returns:
        What was written, and how far it is from PyTorch. A graph that is too far is kept, and `problem` says where.

    Raises:
        BadInput: If the form is unknown, or an encoder cannot be exported.
        NotInstalled: If a package is missing; says what to type.
    """
    write = look_up("form", to, FORMS)
    if to == "onnx":
        with needs("export to ONNX", "export"):
            import onnx  # noqa: F401
            import onnxscript  # noqa: F401
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with evaluating(model), torch.no_grad(), _plain_and_quiet():
        try:
            file, run = write(model, folder, facts or {})
        except BadInput:
            raise
        except Exception as error:  # exporters raise whatever their parts do
            raise BadInput(_who_cannot(model, error, to)) from error
        found = None if run is None else compare(model, run, samples)
    names = tuple(model.input_names), tuple(model.output_names)
    subsets = len(_subsets(list(model.input_specs)))
    of = [f"batches of {' and '.join(map(str, BATCHES))} random samples"]
    of += [f"{len(next(iter(samples.values())))} samples of the validation part"] if samples else []
    checked = f"{subsets} subset{'s' if subsets > 1 else ''} of the sensors: {', '.join(of)}"
    if found is None or found.size <= TOLERANCE:
        return ExportedModel(file, to, None if found is None else found.size, checked, *names)
    problem = (
        f"the exported graph differs from PyTorch by {found.size:.1g}, more than {TOLERANCE:g}, in {found.output!r} on "
        f"{found.where}. {file} was kept; compare the other way: --to {next(form for form in FORMS if form != to)}"
    )
    return ExportedModel(file, to, found.size, checked, *names, problem)


def compare(model: Deployable, run: Runner, samples: Mapping[str, Tensor] | None = None) -> GraphDifference:
    """Compute the largest difference of a graph to PyTorch, over subsets of the sensors.

    Random batches are compared with `LateFusion.predict`: absent sensors hold NaN, or the largest number there is, in
    every second sample, and in the others what they would if they were there, so that a graph which reads them is found
    out. Samples, and a batch with other sensors in every sample, are compared with the same graph in PyTorch.

    Args:
        model: What was exported.
        run: Runs the exported graph.
        samples: Real inputs of the graph, with the flags of the sensors that each sample has.
    """
    worst, random, task = GraphDifference(), torch.Generator().manual_seed(0), model.model.known_task()
    subsets = _subsets(list(model.input_specs))

    def tried(expected: Mapping[str, Tensor], given: dict[str, Tensor], where: str) -> None:
        nonlocal worst
        found = _difference(expected, run(given), task, where)
        worst = found if found.size > worst.size else worst

    for batch in BATCHES:
        inputs = model.examples(batch, random)
        for subset in subsets:
            given = _flagged(model, inputs, {name: torch.full((batch,), name in subset) for name in model.input_specs})
            tried(_by_predict(model, inputs, subset), given, f"random samples of {_named(subset)}")
    inputs = model.examples(BATCHES[-1], random)
    given = _flagged(model, inputs, {name: torch.rand(BATCHES[-1], generator=random) < 0.5 for name in model.readers})
    tried(model(given), given, "random samples that each lack other sensors")
    for subset in subsets if samples else ():
        assert samples is not None
        here = {name: samples[name + VALID] & (name in subset) for name in model.input_specs}
        given = _flagged(model, samples, here)
        tried(model(given), given, f"validation samples of {_named(subset)}")
    return worst


def _named(subset: Sequence[str]) -> str:
    return " and ".join(subset) if len(subset) < 3 else f"{', '.join(subset[:-1])} and {subset[-1]}"


def _program(model: nn.Module, inputs: dict[str, Tensor]) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(model, (inputs,), dynamic_shapes=({name: {0: batch} for name in inputs},))


def _to_onnx(model: Deployable, folder: Path, facts: Mapping[str, str]) -> tuple[Path, Runner | None]:
    program = _program(model, model.examples(EXAMPLE_BATCH))
    written = torch.onnx.export(
        program, dynamo=True, input_names=model.input_names, output_names=model.output_names, verbose=False
    )
    assert written is not None
    _name_batch(written.model)
    written.model.metadata_props.update({f"equipoise.{key}": value for key, value in facts.items()})
    file, _ = inside(folder, "model.onnx"), inside(folder, "model.onnx.data")  # the weights of a large model
    written.save(str(file))
    return file, run_onnx(file) if find_spec("onnxruntime") is not None else None


def _name_batch(model: Any) -> None:
    """Call the first axis of inputs "batch" all through, in place of the symbol that the exporter made for it."""
    symbol = str(model.graph.inputs[0].shape[0])
    nodes = (value for node in model.graph for value in node.outputs)
    for value in (*model.graph.inputs, *nodes):
        for axis, size in enumerate(value.shape or ()):
            if not isinstance(size, int):
                value.shape[axis] = re.sub(rf"\b{symbol}\b", "batch", str(size))


def _to_torch_export(model: Deployable, folder: Path, _: Mapping[str, str]) -> tuple[Path, Runner]:
    file = inside(folder, "model.pt2")
    torch.export.save(_program(model, model.examples(EXAMPLE_BATCH)), file)
    return file, torch.export.load(file).module()


FORMS: dict[str, Writer] = {"onnx": _to_onnx, "torch-export": _to_torch_export}
"""The formats that a model can be exported to."""


def run_onnx(file: Path | str) -> Runner:
    """Return a function that runs an ONNX file in onnxruntime: tensors by name in, tensors by name out."""
    with needs("running an ONNX file", "export"):
        import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = {argument.name for argument in session.get_inputs()}  # what no output depends on is left out

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        given = {name: value.numpy() for name, value in inputs.items() if name in wanted}
        return {name: torch.from_numpy(array) for name, array in zip(names, session.run(None, given), strict=True)}

    return run


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """List every non-empty subset of the sensors, the whole first; of very many those that lack or keep few."""
    sizes = sorted(range(1, len(names) + 1), key=lambda size: (min(size, len(names) - size), -size))
    return list(islice((subset for size in sizes for subset in combinations(names, size)), MOST_SUBSETS))


def _flagged(model: Deployable, inputs: Mapping[str, Tensor], valid: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Set the flags of sensors, and overwrite what those that are not valid hold in every second sample."""
    given = dict(inputs)
    for name, here in valid.items():
        raw = inputs[name]
        poison = torch.nan if raw.is_floating_point() else torch.iinfo(raw.dtype).max
        kept = here | (torch.arange(len(raw)) % 2 == 1)
        given[name] = raw.where(kept.reshape(-1, *[1] * (raw.dim() - 1)), torch.tensor(poison, dtype=raw.dtype))
        given[name + VALID] = here
        if model.input_specs[name].ragged:
            given[name + LENGTH] = inputs[name + LENGTH].where(here, -5)
    return given


def _by_predict(model: Deployable, inputs: Mapping[str, Tensor], subset: Sequence[str]) -> dict[str, Tensor]:
    """Compute the model's own answers to these sensors, by the path that users of PyTorch take."""
    plain, read = model.model, {}
    for name in subset:
        lengths = inputs.get(name + LENGTH)
        read[name] = model.readers[name](inputs[name], lengths)
        read |= {} if lengths is None else {name + LENGTH: lengths}
    task, answers = plain.known_task(), {FUSED: plain.predict(read)}
    if plain.unimodal is not None:
        answers[COMMITTEE] = plain.predict(read, decision="committee")
    if isinstance(task, Regression):
        row = rows_of(torch.tensor([[name in subset for name in plain.encoders]]))
        radii = {decision: plain.radii[RADII[decision], row] for decision in answers}
        answers |= {f"{decision}{LOW}": answers[decision] - radius for decision, radius in radii.items()}
        answers |= {f"{decision}{HIGH}": answers[decision] + radius for decision, radius in radii.items()}
    if plain.unimodal is not None:
        outputs = plain(read)
        answers |= {f"{name}{HEAD}": task.member(outputs[name]) for name in subset}
    return answers


def _difference(
    expected: Mapping[str, Tensor], outputs: Mapping[str, Tensor], task: Task, where: str
) -> GraphDifference:
    """Find the largest difference: of numbers by the target's deviation, of the rest by their size above one."""
    worst = GraphDifference()
    for name, value in expected.items():
        if value.dtype == torch.bool:  # which sensors were used
            largest = float((value != outputs[name]).any())
        else:
            size = value.abs().clamp(min=1)
            if isinstance(task, Regression):
                size = torch.maximum(task.deviation.cpu(), ROUNDING * value.abs())
            same = outputs[name] == value  # an interval that could not be calibrated has no end
            gap = ((outputs[name] - value).abs() / size).where(~same, 0)
            largest = float(gap.max()) if gap.isfinite().all() else torch.inf
        worst = GraphDifference(largest, name, where) if largest > worst.size else worst
    return worst


def _who_cannot(model: Deployable, error: Exception, to: str) -> str:
    """Name the encoders that cannot be exported by themselves, and why."""
    advice = "Let its forward decide by tensors (torch.where) and not by `if` on their values"
    other = "" if to == "torch-export" else ", or try --to torch-export"
    if not model.model.encoded:
        return f"this model of your own cannot be exported to {to}: {_reason(error)}\n{advice}{other}"
    examples, problems = model.examples(EXAMPLE_BATCH), []
    for name, reader in model.readers.items():
        lengths = examples.get(name + LENGTH)
        alone = {"input": reader(examples[name], lengths)} | ({} if lengths is None else {"lengths": lengths})
        encoder = model.model.encoders[name]
        try:
            program = _program(_Alone(encoder), alone)
            if to == "onnx":
                torch.onnx.export(program, dynamo=True, verbose=False)
        except Exception as reason:
            problems.append(f"the encoder of {name!r}, {type(encoder).__name__}, cannot be exported: {_reason(reason)}")
    if not problems:
        return f"the model cannot be exported to {to}, though each encoder can by itself: {_reason(error)}"
    another = f"; or train with another encoder: encoder={next(iter(model.input_specs))}:…"
    return "\n".join([*problems, f"{advice}{other}{another}"])


@final
class _Alone(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        given = {"lengths": inputs["lengths"]} if "lengths" in inputs else {}
        return self.encoder(inputs["input"], **given)


def _reason(error: BaseException) -> str:
    """Return the first line of a reason; exporters add pages to it, and wrap the first one."""
    while error.__cause__ is not None:
        error = error.__cause__
    if "specialized it to be a constant" in str(error):
        return "its forward fixes the size of the batch; there, write x.shape[0] for len(x), and no int(…) or .item()"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no reason given'}"


@contextmanager
def _plain_and_quiet() -> Generator[None]:
    """Run transformers by their plain steps, and exporters without warnings.

    The fused kernel of evaluation has no counterpart in other runtimes; exporters warn of their own deprecations and of
    packages that nobody asked for.
    """
    logger: Any = logging.getLogger("torch.onnx._internal.exporter._registration")
    level, fused = logger.level, torch.backends.mha.get_fastpath_enabled()
    try:
        logger.setLevel(logging.ERROR)
        torch.backends.mha.set_fastpath_enabled(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        torch.backends.mha.set_fastpath_enabled(fused)
