"""What a balancer says when losses are not what it expects."""

from typing import Any, cast, final

import pytest
import torch

from equipoise import EW, MIMO, MSL, Balancer, LossValues, Unimodal, Weights
from equipoise.balance.losses import FiniteCheck
from equipoise.testing import SmallModel, batch, losses_of, names


def test_everything_wrong_is_said_at_once() -> None:
    losses = {"audio": torch.tensor([1, 2]), "fused": torch.ones(0), "video_length": torch.tensor(1.0), "label": 3.0}
    with pytest.raises(ValueError, match="losses: ") as caught:
        EW()(cast("dict[str, torch.Tensor]", losses))
    text = str(caught.value)
    for part in (
        "loss 'audio' should hold floating-point numbers, found torch.int64",
        "loss 'fused' is empty",
        "No modality may be called 'video_length'",
        "No modality may be called 'label'",
        "loss 'label' should be a tensor, found float",
    ):
        assert part in text


@pytest.mark.parametrize("name", ["fused", "heads", "label", "split", "group", "audio_length"])
def test_reserved_words_name_no_modality(name: str) -> None:
    if name != "fused":
        with pytest.raises(ValueError, match=f"No modality may be called '{name}'"):
            MSL()({"fused": torch.tensor(1.0), name: torch.tensor(1.0)})
    with pytest.raises(ValueError, match=f"No modality may be called '{name}'"):
        MIMO().attach(encoders={name: torch.nn.Linear(2, 2)})


def test_the_fused_loss_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"expected the fused loss under the key 'fused', found keys \['audio'\]"):
        MIMO()({"audio": torch.tensor(1.0)})
    with pytest.raises(ValueError, match="expected one loss per modality besides 'fused', found none"):
        MIMO()({"fused": torch.tensor(1.0)})
    assert float(Unimodal()({"audio": torch.tensor(1.0)})) == 1.0


def test_scalars_and_samples_mean_the_same() -> None:
    per_sample = losses_of(SmallModel(names(2)), batch(names(2)))
    scalars = {name: loss.mean() for name, loss in per_sample.items()}
    assert float(MIMO()(per_sample).detach()) == pytest.approx(float(MIMO()(scalars).detach()))


def test_half_precision_losses_are_weighed_in_single_precision() -> None:
    losses = {"fused": torch.tensor(1.0), "a": torch.tensor(1.25), "b": torch.tensor(1.0)}
    half = {name: loss.to(torch.bfloat16) for name, loss in losses.items()}
    assert float(MIMO(smoothing=0.01)(half)) == pytest.approx(float(MIMO(smoothing=0.01)(losses)), rel=1e-6)


def test_losses_with_more_dimensions_are_averaged() -> None:
    losses = {"fused": torch.rand(4, 3), "a": torch.rand(4, 3), "b": torch.rand(4, 3)}
    expected = losses["fused"].mean() + losses["a"].mean() + losses["b"].mean()
    assert float(EW()(losses)) == pytest.approx(float(expected))


def test_a_nan_is_said_once_and_training_may_go_on() -> None:
    balancer = MIMO()
    with pytest.raises(FloatingPointError, match="'a'"):
        balancer({"fused": torch.tensor(1.0), "a": torch.tensor(torch.nan)})
    assert float(balancer({"fused": torch.tensor(1.0), "a": torch.tensor(1.0)})) == pytest.approx(11.0)


@final
class Returns(Balancer):
    """A method that returns what it is told."""

    def __init__(self, weights: Any) -> None:
        super().__init__()
        self.weights = weights

    def weigh(self, values: LossValues) -> Weights:  # noqa: ARG002
        return self.weights


LOSSES = {"fused": torch.tensor(1.0), "audio": torch.tensor(2.0), "video": torch.tensor(3.0)}
ONES, NAN = torch.ones(3), torch.tensor([1.0, torch.nan, 1.0])


@pytest.mark.parametrize(
    "weights", [Weights(NAN), Weights(ONES, heads=NAN), Weights(ONES, encoders=torch.tensor([torch.inf, 1.0]))]
)
def test_weights_that_are_not_finite_are_told_of_the_method(weights: Weights) -> None:
    method = Returns(weights)
    for _ in range(2):  # and again
        with pytest.raises(FloatingPointError, match=r"Returns\.weigh: expected finite weights, found NaN or infinite"):
            method(LOSSES)
    with pytest.raises(FloatingPointError, match="loss 'audio' is NaN"):
        method({**LOSSES, "audio": torch.tensor(torch.nan)})


def test_on_another_device_the_first_to_be_not_finite_is_told_at_the_end() -> None:
    fine, bad = (LossValues(torch.tensor(x), torch.tensor([x, 1.0]), torch.ones(2)) for x in (1.0, torch.nan))
    for steps, told in (
        (((fine, Weights(ONES)), (fine, Weights(ONES))), None),
        (((fine, Weights(NAN)), (bad, Weights(NAN))), r"Gap\.weigh"),
        (((bad, Weights(NAN)), (fine, Weights(NAN))), "loss 'fused', 'audio' is NaN"),
    ):
        noted = FiniteCheck(("fused", "audio", "video"), torch.device("cpu"), "Gap")
        noted.device = torch.device("cuda")  # the tensors stay here
        for values, weights in steps:
            noted.note(values)
            noted.note_weights(weights)
        if told is not None:
            with pytest.raises(FloatingPointError, match=told):
                noted.check()
        noted.check()  # once


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        (Weights(torch.ones(2)), r"losses of shape \[2\], expected \[3\]"),
        (Weights(ONES, encoders=ONES), r"encoders of shape \[3\], expected \[2\]"),
        (Weights(ONES, heads=cast("torch.Tensor", [1, 1, 1])), "heads of type list, expected a tensor"),
        (ONES, r"a tensor of shape \[3\] instead"),
        (None, "NoneType instead"),
    ],
)
def test_what_weigh_should_return_is_told(weights: Any, found: str) -> None:
    expected = (
        r"Returns\.weigh: expected it to return equipoise\.Weights\(losses=…\), a tensor of 3 weights, of fused, "
    )
    with pytest.raises(ValueError, match=f"{expected}audio, video; found {found}$"):
        Returns(weights)(LOSSES)


def test_a_method_without_weigh_is_told() -> None:
    with pytest.raises(NotImplementedError, match=r"Balancer: expected a method `weigh\(self, values\)` that returns "):
        Balancer()(LOSSES)


def test_unimodal_for_one_modality_names_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"modality should be one of \['a', 'b'\], found 'c'"):
        Unimodal("c")({"a": torch.tensor(1.0), "b": torch.tensor(1.0)})


def test_the_table_prints_rows_and_columns() -> None:
    balancer = EW(0.5)
    balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0)})
    lines = str(balancer.table).splitlines()
    assert lines[0].split() == ["audio", "heads"]
    assert lines[1].split() == ["fused", "1", "1"]
    assert lines[2].split() == ["audio", "0.5", "0.5"]
    assert balancer.table.numbers() == {"fused": {"audio": 1.0, "heads": 1.0}, "audio": {"audio": 0.5, "heads": 0.5}}


def test_everything_wrong_with_masks_is_said_at_once() -> None:
    losses = {name: torch.ones(4) for name in ("fused", "audio", "video", "text", "depth", "touch")}
    losses["text"] = torch.tensor(1.0)
    mask = torch.ones(4, dtype=torch.bool)
    present = {
        "fused": mask,
        "vidoe": mask,
        "text": mask,
        "depth": mask[:3],
        "touch": torch.full((4,), 0.5),
        "audio": [True, True],
    }
    with pytest.raises(ValueError, match="present: ") as caught:
        EW()(losses, present=cast("dict[str, torch.Tensor]", present))
    text = str(caught.value)
    for part in (
        "the fused loss covers every sample and takes no mask",
        "'vidoe' is none of 'audio', 'video', 'text', 'depth', 'touch'. Did you mean 'video'?",
        "loss 'text' should hold one value per sample, found one of shape []; type F.cross_entropy(…, reduction=",
        "the mask of 'depth' should hold 4 values, one per sample, found shape [3]",
        "the mask of 'touch' should hold True and False, or 1 and 0, found other numbers",
        "the mask of 'audio' should be a tensor, found list",
    ):
        assert part in text
    with pytest.raises(TypeError, match="present: expected a mapping from modalities to masks"):
        EW()(losses, present=cast("dict[str, torch.Tensor]", mask))


def test_a_mask_may_be_given_for_a_sensor_whose_loss_is_not() -> None:
    balancer = MSL().attach(SmallModel(names(2)))
    losses = {"fused": torch.ones(4)}
    assert float(balancer(losses, present={"audio": torch.ones(4, dtype=torch.bool)})) == 1.0
