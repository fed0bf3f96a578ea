"""What a balancer reads off what it is given, and what it says when that is not what it expects."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from equipoise import ARL, EW, MCR, MIMO, MSL, OGM, Coefficients, Losses, Unimodal
from equipoise.balance.reading import FiniteCheck, GivenStep, Reading
from equipoise.testing import SmallModel, attached, batch, losses_of, masks_for, names
from random_answers import Answers

LOSSES = {"fused": torch.tensor(1.0), "audio": torch.tensor(2.0), "video": torch.tensor(3.0)}
ONES, NAN = torch.ones(3), torch.tensor([1.0, torch.nan, 1.0])


# -- losses --


def test_everything_wrong_is_said_at_once() -> None:
    losses = {"audio": torch.tensor([1, 2]), "fused": torch.ones(0), "video_length": torch.tensor(1.0), "label": 3.0}
    with pytest.raises(ValueError, match="losses: ") as caught:
        EW()(cast("dict[str, Tensor]", losses))
    text = str(caught.value)
    for part in (
        "loss 'audio' should hold floating-point numbers, found torch.int64",
        "loss 'fused' is empty",
        "No modality may be called 'video_length'",
        "No modality may be called 'label'",
        "loss 'label' should be a tensor, found float",
    ):
        assert part in text


def test_losses_on_several_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"losses should live on one device, found \['cpu', 'meta'\]"):
        EW()({**LOSSES, "audio": torch.ones((), device="meta")})


@pytest.mark.parametrize("name", ["fused", "fused head", "own heads", "label", "split", "group", "audio_length"])
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
    assert float(MSL()({"fused": torch.tensor(1.0)})) == 1.0


def test_a_method_for_one_modality_names_what_there_is() -> None:
    model = SmallModel(names(2))
    with pytest.raises(ValueError, match=r"Unimodal: unknown modality 'vidoe'.*Did you mean 'video'"):
        Unimodal("vidoe").attach(model)


@pytest.mark.parametrize("shape", [(4, 3), (4, 1), (2, 3, 4)])
def test_a_loss_of_more_than_one_dimension_is_refused(shape: tuple[int, ...]) -> None:
    losses = {**LOSSES, "audio": torch.rand(shape), "fused": torch.rand(shape)}
    with pytest.raises(ValueError, match="losses: ") as caught:
        EW()(losses)
    for name in ("audio", "fused"):
        assert (
            f"loss '{name}' should be a scalar or hold one value per sample, found shape {list(shape)}: of outputs, "
            "type F.cross_entropy(…, reduction='none')" in str(caught.value)
        )


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_each_loss_is_the_mean_of_the_samples_that_have_the_sensor(count: int, masked: bool) -> None:
    losses, masks = losses_of(SmallModel(names(count)), batch(names(count))), masks_for(names(count))
    balancer = Answers(Coefficients.shared(torch.arange(1.0, 2.0 + count, dtype=torch.float64)))
    rows = {name: loss[masks[name]] if masked and name in masks else loss for name, loss in losses.items()}
    expected = sum(place * float(row.detach().mean()) for place, row in enumerate(rows.values(), start=1))
    value = balancer(losses, present=masks if masked else None)
    assert float(value.detach()) == pytest.approx(expected, rel=1e-12)
    scalars = {name: row.mean() for name, row in rows.items()}
    assert float(balancer(scalars).detach()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_losses_are_weighed_in_single_precision(dtype: torch.dtype) -> None:
    losses = {"fused": torch.tensor(1.0), "a": torch.tensor(1.25), "b": torch.tensor(1.0)}
    half = {name: loss.to(dtype) for name, loss in losses.items()}
    assert float(MIMO(smoothing=0.01)(half)) == pytest.approx(float(MIMO(smoothing=0.01)(losses)), rel=1e-6)
    # 257 in place of 256 is lost in bfloat16, whose mean would be 256.
    many = {name: torch.tensor([256.0, 258.0], dtype=dtype) for name in ("fused", "a")}
    assert float(EW(0.0)(many)) == 257.0


def test_what_is_not_a_loss_beside_the_losses_is_said() -> None:
    with pytest.raises(TypeError, match="extra: expected a mapping from names to losses"):
        EW()(LOSSES, extra=cast("dict[str, Tensor]", torch.tensor(1.0)))
    with pytest.raises(ValueError, match=r"extra: 'a' should be a tensor, found 1\.0; 'b' should be a tensor"):
        EW()(LOSSES, extra=cast("dict[str, Tensor]", {"a": 1.0, "b": torch.ones(0)}))


# -- scores --


def test_scores_that_a_method_needs_are_asked_for() -> None:
    model = SmallModel(names(2))
    losses = losses_of(model, batch(names(2)))
    with pytest.raises(ValueError, match=r"by entropy and magnitude, which losses do not tell.*\[B, 2\]"):
        attached(ARL(), model)(losses)
    scores = {"audio": torch.rand(12, 2)}
    with pytest.raises(ValueError, match=r"scores: .*found none for \['video'\]"):
        attached(ARL(), model)(losses, scores=scores)
    with pytest.raises(ValueError, match="one more objective per modality: pass further="):
        attached(MCR(), model)(losses)


def test_several_scores_are_means_over_the_samples_at_hand() -> None:
    model = SmallModel(names(2))
    losses = losses_of(model, batch(names(2)))
    scores = {name: torch.rand(12, 2, dtype=torch.float64) for name in names(2)}
    mask = torch.arange(12) < 5
    balancer = attached(ARL(), model)
    for given in (scores, {"audio": scores["audio"][mask].mean(0), "video": scores["video"].mean(0)}):
        read = balancer.read(GivenStep(losses, given, {"audio": mask})).losses
        expected = torch.stack([scores["audio"][mask].mean(0), scores["video"].mean(0)])
        torch.testing.assert_close(read.scores, expected)
        assert read.presence is not None
        assert read.presence.tolist() == pytest.approx([5 / 12, 1])


def test_a_mean_loss_does_not_tell_a_probability_which_is_warned_of_once() -> None:
    model = SmallModel(names(2))
    losses = losses_of(model, batch(names(2)))
    means, balancer = {name: loss.mean() for name, loss in losses.items()}, attached(OGM(), model)
    with pytest.warns(UserWarning, match="pass one value per sample") as caught:
        balancer(means)
    assert [one.filename for one in caught] == [__file__]
    balancer(means)  # else a warning is an error here
    attached(OGM(), model)(losses)  # of one value per sample there is nothing to warn of


# -- numbers that are not finite --


def test_a_nan_is_said_once_and_training_may_go_on() -> None:
    balancer = MIMO()
    with pytest.raises(FloatingPointError, match="'a'"):
        balancer({"fused": torch.tensor(1.0), "a": torch.tensor(torch.nan)})
    assert float(balancer({"fused": torch.tensor(1.0), "a": torch.tensor(1.0)})) == pytest.approx(11.0)


@pytest.mark.parametrize("part", ["encoders", "fused_head", "trunk", "own_heads", "factors"])
def test_an_answer_that_is_not_finite_is_told_of_the_method(part: str) -> None:
    whole = Coefficients(ONES, ONES, ONES, ONES, ONES[:2])
    bad = torch.tensor([torch.inf, 1.0]) if part == "factors" else NAN
    method = Answers(whole._replace(**{part: bad}))
    for _ in range(2):  # and again
        with pytest.raises(FloatingPointError, match=r"Answers\.weigh: expected finite weights, found NaN or infinite"):
            method(LOSSES)
    with pytest.raises(FloatingPointError, match="loss 'audio' is NaN"):
        method({**LOSSES, "audio": torch.tensor(torch.nan)})


def reading(fused: float) -> Reading:
    losses = Losses(torch.tensor(fused), torch.tensor([fused, 1.0]), torch.ones(2))
    return Reading(losses, losses.all, [None] * 3, losses.all)


FINE, BAD, WEIGHED, WRONG = reading(1.0), reading(torch.nan), Coefficients.shared(ONES), Coefficients.shared(NAN)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([(FINE, WEIGHED), (FINE, WEIGHED)], None),
        ([(FINE, WRONG), (BAD, WRONG)], r"Noted\.weigh"),
        ([(BAD, WRONG), (FINE, WRONG)], "loss 'fused', 'audio' is NaN"),
        ([(FINE, WEIGHED), (BAD, WRONG)], "loss 'fused', 'audio' is NaN"),
        ([(FINE, WRONG), (FINE, WEIGHED)], r"Noted\.weigh"),
    ],
)
def test_on_another_device_the_first_to_be_not_finite_is_told_at_the_end(
    steps: list[tuple[Reading, Coefficients]], told: str | None
) -> None:
    noted = FiniteCheck(("fused", "audio", "video"), 2, torch.device("cpu"), "Noted(1.0)")
    noted.device = torch.device("cuda")  # the tensors stay here
    for values, answer in steps:
        noted.note(values)
        noted.note_answer(answer)
    if told is not None:
        with pytest.raises(FloatingPointError, match=told):
            noted.check()
    noted.check()  # once


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -1.0])
def test_a_score_that_is_no_score_is_told_of_its_modality(bad: float) -> None:
    model = SmallModel(names(2))
    scores = {"audio": torch.tensor(0.5), "video": torch.tensor(bad)}
    with pytest.raises(ValueError, match="score of 'video': expected finite numbers of zero or more"):
        attached(OGM(), model)(losses_of(model, batch(names(2))), scores=scores)


# -- masks --


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
        EW()(losses, present=cast("dict[str, Tensor]", present))
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
        EW()(losses, present=cast("dict[str, Tensor]", mask))


def test_a_mask_may_be_given_for_a_sensor_whose_loss_is_not() -> None:
    balancer = MSL().attach(SmallModel(names(2)))
    losses = {"fused": torch.ones(4)}
    assert float(balancer(losses, present={"audio": torch.ones(4, dtype=torch.bool)})) == 1.0


@pytest.mark.parametrize(("first", "second"), [("cpu", "meta"), ("meta", "cpu")])
def test_a_mask_on_another_device_is_said(first: str, second: str) -> None:
    losses = {name: torch.ones(4, device=first) for name in ("fused", "audio")}
    with pytest.raises(ValueError, match=f"the mask of 'audio' should live on {first}, found {second}"):
        EW()(losses, present={"audio": torch.ones(4, device=second)})
