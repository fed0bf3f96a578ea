"""One record of all that has to be known of a method before it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

Score: TypeAlias = Literal["loss", "bounded loss", "likelihood", "accuracy", "entropy", "magnitude"]
Block: TypeAlias = Literal["all", "kernels", "with head"]
READ_OFF_LOSSES = ("loss", "bounded loss", "likelihood")

SCALES_GRADIENTS = (
    "this method multiplies gradients, which Adam and its variants divide out again; with such an optimiser, type "
    "balancer.attach(…, optimizer=optimizer), and it will scale the updates instead"
)


@final
class ApproximationWarning(UserWarning):
    """A method runs in an approximate form, since it was not given what the published one needs."""


@final
@dataclass(frozen=True)
class Needs:
    """The needs of a method. Every field has several users among the methods; where one is alone, it says why.

    Args:
        unimodal: A modality's own output: a "head" on its features, or its "share" of an additive fused output.
        learns_from_own: Encoders learn from uni-modal losses. False: these train only what the fused loss does not
            reach, so that heads go on detached features.
        fused: The fused loss has to be given. Uni-modal training alone does without, and its fused head is untrained:
            a row of results has to say so.
        losses: Uni-modal losses have to be given.
        encoders: Blocks are told apart, so that a model has to be attached.
        block: What of an encoder its column and factor mean: "all" of it, the "kernels" of its convolutions, or all
            "with" its part of an additive fused "head".
        factors: The answer has factors, which act on updates where the optimiser is such as Adam.
        optimizer: Why the optimiser has to be attached, for the warning where none is; "" where factors say it.
        scores: What modalities are compared by. The "loss", the "bounded loss" (of probabilities of at least 1e-8) and
            the "likelihood", mean exp(−f) as its logarithm, are read off losses; "accuracy", "entropy" and "magnitude"
            are given.
        further: The prefix of the names of further objectives, one per modality, that are given; "" for none.
        draws: Over how many random draws each further objective is a mean. One method draws; its trainer has to know.
        instead: What the method does where further objectives are not given; "": it refuses. One method has a form
            without them.
        metrics: Metrics of each modality that `end_epoch` has to be given.
        due: Whether metrics are read after so many epochs; None: after each.
        modalities: Names that were given in arguments, of modalities that have to exist.
        tasks: Kinds of tasks that the method is not for, "classes", "labels" or "regression", with the reason.
        model: Arguments that the model has to be built with. One method trains by an argument alone (its dropout).
    """

    unimodal: Literal["head", "share"] = "head"
    learns_from_own: bool = True
    fused: bool = True
    losses: bool = True
    encoders: bool = True
    block: Block = "all"
    factors: bool = False
    optimizer: str = ""
    scores: tuple[Score, ...] = ("loss",)
    further: str = ""
    draws: int = 1
    instead: str = ""
    metrics: tuple[str, ...] = ()
    due: Callable[[int], bool] | None = None
    modalities: tuple[str, ...] = ()
    tasks: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, float] = field(default_factory=dict)

    @property
    def given_scores(self) -> tuple[Score, ...]:
        """The scores that losses do not tell."""
        return tuple(one for one in self.scores if one not in READ_OFF_LOSSES)

    @property
    def logarithmic(self) -> bool:
        """True if scores are logarithms of probabilities, so that their mean over ranks is taken inside."""
        return "likelihood" in self.scores

    @property
    def takes_gradients(self) -> bool:
        """True if gradients of single losses may be taken, which static graphs and donated buffers do not allow."""
        return self.encoders or not self.learns_from_own

    @property
    def view(self) -> Literal["head", "detached", "split"]:
        """The `unimodal` of a model that offers the outputs the method wants."""
        return "split" if self.unimodal == "share" else "head" if self.learns_from_own else "detached"

    @property
    def warning(self) -> str:
        """The warning where no optimiser is attached; "" where it is not needed."""
        return self.optimizer or (SCALES_GRADIENTS if self.factors else "")

    def metrics_after(self, epochs: int) -> tuple[str, ...]:
        """Return the metrics that the end of an epoch has to be given, when so many have ended with it."""
        return self.metrics if self.due is None or self.due(epochs) else ()
