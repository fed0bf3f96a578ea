"""Sensor faults: each modality in turn goes wrong, and both decisions are scored again.

A fault acts on an array [N, …], which is never changed itself. Time is axis 2 of [N, C, T] and [N, C, T, H, W]; [N, D]
and [N, C, H, W] have none, and there the samples of a group, in their order, are the time line. Where time is ragged,
padding counts as signal: encoders that know lengths ignore it. An axis that is said not to be time (`Part.spatial`) is
none either: there "delayed" is left out.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.data.splits import Part
from equipoise.measure.outputs import Scorer, decide, read_features, reading
from equipoise.models.fusion_model import FusionModel
from equipoise.util.errors import raise_all

NOISE_LEVELS = (0.5, 1.0, 2.0, 4.0)
DELAYS = (0.1, 0.25, 0.5)
BURST_SHARES = (0.25, 0.5)
BURST = 5.0  # deviations: far outside of what training has shown
SAMPLE = 1000
LEGEND = {
    "missing zeros": "its input is zero as the encoder reads it: after standardising, so the mean of each channel, and "
    "not a raw 0",
    "missing mean": "the mean training sample stands in its place",
    "missing absent": "it is not given: its flag is off",
    f"noisy {', '.join(f'{level:g}' for level in NOISE_LEVELS)}": "Gaussian noise is added, of so many training "
    "deviations of each channel",
    "frozen random": "it stands still from a random step of each window on; a sensor without a time axis repeats the "
    "sample before, of the same group",
    f"delayed {', '.join(f'{share:.0%}' for share in DELAYS)}": "it is late by this share of the window; without a "
    "time axis, by this share of the group's samples",
    f"bursts {', '.join(f'{share:.0%}' for share in BURST_SHARES)}": "random stretches, this share of each window, are "
    f"noise of {BURST:g} training deviations around the mean; without a time axis, this share of the samples",
}
"""Every fault with its levels, in words."""
STRETCHES = 20  # a window is cut into so many stretches, and a burst takes whole ones


class TrainingStatistics(NamedTuple):
    """Statistics of the training part, per modality.

    Args:
        mean: The mean sample, of the shape of one.
        deviation: The standard deviation of each channel, [C, 1, …], over samples and everything behind the channel.
    """

    mean: dict[str, Tensor]
    deviation: dict[str, Tensor]


def training_statistics(train: Part) -> TrainingStatistics:
    """Compute what faults are measured by: the mean sample of the training part, and the deviation of each channel.

    Where inputs are made from what is stored (frames of videos, say), a thousand samples stand for all.
    """
    if train.views:
        train = train.take(torch.linspace(0, len(train) - 1, min(len(train), SAMPLE)).long()).ready()
    # Lengths of ragged time are whole numbers, and gaps truth values. Samples without a sensor say nothing of it.
    train = train.in_memory()
    arrays = {name: array for name, array in train.inputs.items() if array.is_floating_point()}
    arrays |= {name: arrays[name][mask] for name, mask in train.present.items() if name in arrays}
    mean = {name: array.mean(dim=0) for name, array in arrays.items()}
    deviation = {name: x.std(dim=[0, *range(2, x.dim())], correction=0, keepdim=True)[0] for name, x in arrays.items()}
    return TrainingStatistics(mean, deviation)


def accuracy_under_faults(
    model: FusionModel, part: Part, training: TrainingStatistics, seed: int = 0, batch: int = 512, metric: str = "auto"
) -> dict[str, Any]:
    """Break one sensor after the other and give the accuracy of both decisions, or another metric.

    - ``missing``: "zeros" (its input is zero), "mean" (the mean training sample), "absent" (it is not in the inputs:
      zero features for the fused head, the other heads for the committee; left out where it is the only sensor).
    - ``noisy``: Gaussian noise of "0.5", "1", "2" and "4" training deviations of each channel.
    - ``frozen``: the signal stands still from a "random" time on.
    - ``delayed``: the signal is late by "10%", "25%" and "50%" of its window; left out where its axis is not time.
    - ``bursts``: random stretches, "25%" and "50%" of the time, are replaced by noise of five deviations.

    The draws depend on the seed and the part, not on the model, so models can be compared in pairs; and all levels of a
    fault share them.

    Args:
        model: The model; its committee votes with the weights it has.
        part: The part to judge on, with every modality.
        training: The `training_statistics` of the training part.
        seed: Of the draws.
        batch: Samples that the encoders read at a time.
        metric: The metric by name.

    Returns:
        ``{modality: {fault: {level: {"fused": accuracy, "committee": accuracy or None}}}}``, and beside the modalities
        "mean" and "worst", each ``{"fused": …, "committee": …}``. The worst is that of all levels of all faults. In the
        mean every fault of every modality counts alike, whatever its number of levels; the ways to answer a missing
        sensor count as levels.

    Raises:
        ValueError: If an input is no floating-point array, or a modality has the name of a summary.
    """
    raise_all(_problems(model, part, training))
    results: dict[str, Any] = {}
    scorer = Scorer.of(model, metric)
    with reading(model):
        clean = read_features(model, part, batch)
        known = decide(model, clean, part.label, present=part.present).unimodal
        for modality in model.encoders:
            by_fault = results[modality] = {}
            # Encoders and heads read their own modality only: those of the others need not run again.
            others, heads = ({name: x for name, x in some.items() if name != modality} for some in (clean, known))
            for fault, level, faulty in faulty_parts(part, modality, training, seed):
                if not faulty.inputs:
                    continue
                alone = replace(faulty, inputs=_chosen(faulty, modality, own=True))
                broken = read_features(model, alone, batch) if modality in faulty.inputs else {}
                outputs = decide(model, others | broken, part.label, heads, part.present)
                answers = {"fused": scorer.task.answer(outputs.fused), "committee": outputs.committee}
                by_fault.setdefault(fault, {})[level] = {
                    name: None if answer is None else scorer.answer(answer, outputs.label)
                    for name, answer in answers.items()
                }
    levels = [list(by_level.values()) for by_fault in results.values() for by_level in by_fault.values()]
    results |= {"mean": {}, "worst": {}}
    for decision in ("fused", "committee"):
        rows = [[accuracies[decision] for accuracies in row] for row in levels]
        known = rows[0][0] is not None
        results["mean"][decision] = fmean(map(fmean, rows)) if known else None
        values = [value for row in rows for value in row]
        results["worst"][decision] = min(values, key=scorer.metric.merit) if known else None
    return results


def faulty_parts(
    part: Part, modality: str, training: TrainingStatistics, seed: int = 0
) -> Iterator[tuple[str, str, Part]]:
    """Give the part with one sensor broken in every way, as (fault, level, part); other modalities stay as they are.

    Args:
        part: The part.
        modality: The sensor that breaks.
        training: The `training_statistics` of the training part.
        seed: Of the draws.
    """
    array, mean, deviation = part.inputs[modality], training.mean[modality], training.deviation[modality]
    group = part.group

    def broken(values: Tensor) -> Part:
        return replace(part, inputs={**part.inputs, modality: values})

    def draws(fault: str) -> torch.Generator:
        words = hashlib.sha256(f"{seed}/{modality}/{fault}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(words[:8], "big"))

    yield "missing", "zeros", broken(torch.zeros_like(array))
    yield "missing", "mean", broken(mean.to(array).expand_as(array))
    yield "missing", "absent", replace(part, inputs=_chosen(part, modality, own=False))
    for level in NOISE_LEVELS:
        yield "noisy", f"{level:g}", broken(noisy(array, level, deviation, draws("noisy")))
    spatial, shape = modality in part.spatial, array.shape
    if spatial:  # without a time axis, as a vector
        array, mean, deviation = array.flatten(1), mean.flatten(), deviation.expand_as(mean).flatten()
    yield "frozen", "random", broken(frozen(array, group, draws("frozen")).reshape(shape))
    for share in () if spatial else DELAYS:
        yield "delayed", f"{share:.0%}", broken(delayed(array, share, group))
    for share in BURST_SHARES:
        yield "bursts", f"{share:.0%}", broken(bursts(array, share, mean, deviation, draws("bursts")).reshape(shape))


def _chosen(part: Part, modality: str, *, own: bool) -> dict[str, Tensor]:
    """Give the inputs of a modality and its lengths alone, or all others."""
    names = (modality, f"{modality}_length", f"{modality}_present")
    return {name: array for name, array in part.inputs.items() if (name in names) == own}


def _problems(model: FusionModel, part: Part, training: TrainingStatistics) -> Iterator[str]:
    for name in getattr(model, "encoders", ()):
        if name not in part.inputs or name not in training.mean:
            hint = f"found {sorted(part.inputs)} and {sorted(training.mean)}. Type training_statistics(splits.train)."
            yield f"faults expected floating-point inputs of {name!r} in the part and its training statistics; {hint}"
        elif not part.inputs[name].is_floating_point():
            yield f"faults expected floating-point inputs; found {part.inputs[name].dtype} in {name!r}. Type .float()."


def has_time(array: Tensor) -> bool:
    """Tell whether an array has a time axis, axis 2: [N, C, T] and [N, C, T, H, W] do."""
    return array.dim() in (3, 5)


def noisy(array: Tensor, level: float, deviation: Tensor, random: torch.Generator) -> Tensor:
    """Add Gaussian noise of `level` times the training deviation."""
    return array + level * deviation.to(array) * _normal(array, random)


def frozen(array: Tensor, group: Tensor | None, random: torch.Generator) -> Tensor:
    """Let the signal stand still from a time on that is drawn for each sample, the first and the last step included.

    Without a time axis each sample is the one before it in its group; the first of a group stays.
    """
    if not has_time(array):
        return array[earlier_rows(len(array), group, lag=1)]
    steps = torch.arange(array.shape[2])
    onset = torch.randint(array.shape[2], (len(array), 1), generator=random)
    return _at_times(array, torch.minimum(steps, onset))


def delayed(array: Tensor, share: float, group: Tensor | None) -> Tensor:
    """Let the signal arrive late by a share of its window, its first value repeated until then.

    Without a time axis each sample comes from earlier in its group, by this share of the group's samples; the first
    sample of the group is repeated.
    """
    if not has_time(array):
        return array[earlier_rows(len(array), group, share=share)]
    steps = torch.arange(array.shape[2])
    late = (steps - round(share * len(steps))).clamp(min=0)
    return _at_times(array, late.expand(len(array), -1))


def bursts(array: Tensor, share: float, mean: Tensor, deviation: Tensor, random: torch.Generator) -> Tensor:
    """Replace random stretches by noise around the training mean, five deviations wide, for a share of the time.

    A window is cut into 20 stretches, or into single steps where it has fewer, and of each sample this share of them is
    hit. A greater share hits the stretches of a smaller one and more. Without a time axis a burst takes a whole sample,
    and this share of the samples is hit, wherever they are: neighbours often are of one class.
    """
    noise = mean.to(array) + BURST * deviation.to(array) * _normal(array, random)
    if not has_time(array):
        hit = _lowest(torch.rand(1, len(array), generator=random), share)[0]
        return torch.where(_behind(hit, array), noise, array)
    steps = array.shape[2]
    stretches = min(STRETCHES, steps)
    stretch_of_step = torch.arange(steps) * stretches // steps
    hit = _lowest(torch.rand(len(array), stretches, generator=random), share)[:, stretch_of_step]
    return torch.where(_behind(hit[:, None], array), noise, array)


def earlier_rows(count: int, group: Tensor | None, *, lag: int = 0, share: float = 0.0) -> Tensor:
    """Give for each sample the row of an earlier one of its group, but no earlier than the group's first.

    Args:
        count: Number of samples.
        group: The group of each, [N]; None where all are of one.
        lag: Samples by which it is earlier.
        share: A share of the group's samples by which it is earlier still.
    """
    group = torch.zeros(count, dtype=torch.int64) if group is None else group.cpu()
    order = group.argsort(stable=True)  # group by group, in the order of the file
    sizes = group[order].unique_consecutive(return_counts=True)[1]
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    lags = (lag + (share * sizes).round().long()).repeat_interleave(sizes)
    rows = torch.empty_like(order)
    rows[order] = order[torch.maximum(torch.arange(count) - lags, starts)]
    return rows


def _at_times(array: Tensor, times: Tensor) -> Tensor:
    """Read each sample at times of its own, [N, T]."""
    return array.gather(2, _behind(times[:, None], array).expand_as(array))


def _behind(values: Tensor, array: Tensor) -> Tensor:
    """Give values the missing axes of an array behind their own, on its device."""
    return values.reshape(*values.shape, *[1] * (array.dim() - values.dim())).to(array.device)


def _lowest(luck: Tensor, share: float) -> Tensor:
    """Mark the lowest of each row, as many as the share says."""
    return luck.argsort(dim=1).argsort(dim=1) < round(share * luck.shape[1])


def _normal(array: Tensor, random: torch.Generator) -> Tensor:
    """Draw normal numbers in the shape of an array, on the CPU so that every device sees the same."""
    return torch.randn(array.shape, generator=random).to(array)
