"""The model as training, measuring and shipping see it: outputs by name, a committee of them, and missing sensors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from equipoise.models.evaluation import evaluating, surviving_weights
from equipoise.models.fusion import Fusion
from equipoise.models.intervals import new_radii, rows_of
from equipoise.models.task import Regression, Task
from equipoise.util.errors import raise_all, unknown_name

Unimodal = Literal["head", "detached", "split", "masked", "masked_detached"]
"""The source of a modality's own output."""
Decision = Literal["fused", "committee"]
Inputs = Mapping[str, Tensor | None]
Lengths = Mapping[str, Tensor]
Tensors = dict[str, Tensor]


class FusionModel(nn.Module, ABC):
    """Base of the models that are trained, measured and shipped: `LateFusion`, and `OwnModel` around any other.

    Args:
        modalities: Their number.
        task: The task; None where it is not known, and then there is no `predict`.
        unimodal: The source of a modality's own output; None for no such outputs.
    """

    encoded: ClassVar[bool] = True
    """True if features are vectors, [B, size], each of which depends on its own modality alone."""
    encoders: Any
    """The part of each modality, by name."""
    fitted: str | None = None
    """The reason for the committee's weights where they were fitted with the model, so that measuring keeps them."""
    fusion: Fusion
    """Gives the fused output from complete features."""
    committee: Tensor
    """The weights with which the fused head and the heads of the modalities vote, [K + 1]."""
    radii: Tensor
    """The radii of the intervals of a regression."""

    def __init__(self, modalities: int, task: Task | None, unimodal: Unimodal | None) -> None:
        super().__init__()
        self.task, self.unimodal = task, unimodal
        self.register_buffer("committee", torch.full((modalities + 1,), 1 / (modalities + 1)))
        if isinstance(task, Regression):
            self.register_buffer("radii", new_radii(modalities, task.size))

    @abstractmethod
    def forward(self, inputs: Inputs, lengths: Lengths | None = None) -> Tensors:
        """Give the fused output, then the output of each modality at hand, in the order of the encoders."""

    def with_shares(self, inputs: Inputs, lengths: Lengths | None = None) -> tuple[Tensors, Tensors]:
        """Give the outputs as `forward` does, and beside them each modality's share of the additive fused output."""
        return self(inputs, lengths), self.fusion.share(self.complete(self.features(inputs, lengths)))

    def with_permuted(
        self, inputs: Inputs, permutations: int, lengths: Lengths | None = None
    ) -> tuple[Tensors, Tensors]:
        """Give the outputs as `forward` does, and beside them how little the fused one depends on each modality."""
        raise NotImplementedError(f"{type(self).__name__} knows no features to permute; expected a LateFusion")

    def response_problems(self) -> list[str]:
        """List why the responses of modalities are not known; empty where `with_responses` gives them."""
        return [f"{type(self).__name__} has no fused output that is known to be a sum over modalities"]

    def with_responses(self, inputs: Inputs, lengths: Lengths | None = None) -> tuple[Tensors, Tensors]:
        """Give the outputs as `forward` does, and beside them the responses that add up to the fused one."""
        raise NotImplementedError("; ".join(self.response_problems()))

    @abstractmethod
    def features(self, inputs: Inputs, lengths: Lengths | None = None) -> Tensors:
        """Give what `outputs_from` needs of each modality at hand."""

    @abstractmethod
    def complete(self, features: Mapping[str, Tensor]) -> Tensors:
        """Add the features of each missing modality."""

    @abstractmethod
    def silenced(self, features: Mapping[str, Tensor], names: set[str]) -> Tensors:
        """Return features as if some modalities were missing."""

    @abstractmethod
    def unimodal_outputs(self, features: Mapping[str, Tensor]) -> Tensors:
        """Give the own output of each modality from its features; nothing where the model has no such outputs."""

    @abstractmethod
    def outputs_from(
        self, features: Mapping[str, Tensor], skip: Mapping[str, Any] | None = None, batch: int | None = None
    ) -> Tensors:
        """Give the outputs as `forward` does, from features.

        Args:
            features: Of each modality at hand.
            skip: Modalities whose own outputs are known; they need not be given.
            batch: Samples that are read at a time, where that matters; None for all at once.
        """

    @abstractmethod
    def graph_features(self, name: str, read: Tensor, lengths: Tensor | None, here: Tensor) -> Tensors:
        """Give the features of one modality, some of whose samples may be missing, in operations that can be exported.

        Args:
            name: The modality.
            read: Its input.
            lengths: Of ragged time.
            here: Which samples have it, booleans [B].
        """

    @abstractmethod
    def compile_encoders(self, *, steady: bool = False, **options: object) -> None:
        """Compile each encoder in place, where the model knows how they are called."""

    @abstractmethod
    def uncompile_encoders(self) -> None:
        """Run the encoders as they are written again."""

    def vote(self, members: Mapping[str, Tensor], present: Mapping[str, Tensor] | None = None) -> Tensor:
        """Let the committee vote: the pool of its members, [B, size], as the task has it.

        Members are "fused" and each modality at hand, [B, size], as `Task.member` gives them. Their weights are those
        in `committee`; with a sensor missing, those of `surviving_weights`.

        Args:
            members: By name.
            present: For a modality that only some samples have, which ones, [B].
        """
        weights, fused = self.committee.to(members["fused"].dtype), members["fused"]
        here = [name in members for name in self.encoders]
        if present:
            every, none = (torch.full_like(fused[:, 0], value, dtype=torch.bool) for value in (1, 0))
            masks = [present.get(name, every) if name in members else none for name in self.encoders]
            weights = surviving_weights(weights, torch.stack(masks, dim=1))
        elif not all(here):
            weights = surviving_weights(weights, torch.tensor(here).to(weights.device, non_blocking=True))
        voting = [member for member, there in zip(["fused", *self.encoders], [True, *here], strict=True) if there]
        chosen = weights if all(here) else weights[..., [True, *here]]
        return self.known_task().pool(torch.stack([members[name] for name in voting], dim=1), chosen)

    def predict(self, inputs: Inputs, decision: Decision = "fused", lengths: Lengths | None = None) -> Tensor:
        """Give the answer [B, size], in evaluation mode and without gradients: probabilities, or numbers.

        Args:
            inputs: As for `forward`; any non-empty subset of the modalities.
            decision: "fused": the fused head decides. "committee": all heads vote with the weights in `committee`; with
                a sensor missing, the heads of those at hand.
            lengths: As for `forward`.

        Returns:
            Probabilities of the classes or labels, or numbers in the units of the target.

        Raises:
            ValueError: If the decision is unknown or needs outputs that the model does not have, or the model knows no
                task.
        """
        if decision not in get_args(Decision):
            raise_all([f"Unknown decision: {unknown_name(decision, get_args(Decision))}"])
        if decision == "committee" and self.unimodal is None:
            hint = "this one was built with unimodal=None. Write LateFusion(…, unimodal='head') or decision='fused'."
            raise ValueError(f"decision='committee' expected a model with uni-modal outputs; {hint}")
        task = self.known_task()
        with evaluating(self), torch.no_grad():
            members = {name: task.member(output) for name, output in self(inputs, lengths).items()}
            if decision == "fused":
                return task.answer(members["fused"])
            return self.vote(members, self.gaps(inputs))

    def radius(self, present: Mapping[str, Tensor], samples: int, decision: int = 1) -> Tensor:
        """Give the radius of the interval around each answer of a regression, [B, size]; infinite until calibrated.

        Args:
            present: Of modalities that only some samples have, or none, which samples have them, [B].
            samples: Their number B.
            decision: 0 for the fused head, 1 for the committee.
        """
        every = torch.ones(samples, dtype=torch.bool, device=self.radii.device)
        return self.radii[decision][rows_of(torch.stack([present.get(name, every) for name in self.encoders], dim=1))]

    def gaps(self, inputs: Inputs) -> Tensors:
        """Give, of each modality at hand that some samples may lack, which samples have it, booleans [B]."""
        masks = {name: inputs.get(f"{name}_present") for name in self.encoders if inputs.get(name) is not None}
        return {name: mask.bool() for name, mask in masks.items() if mask is not None}

    def known_task(self) -> Task:
        """Return the task, or raise a ValueError where the model was built without one."""
        if self.task is None:
            hint = "this one was built with head=… alone. Write LateFusion(…, task=Regression(['angle']), head=…)"
            raise ValueError(f"predict and vote expected a model that knows its task; {hint}, or call model(inputs).")
        return self.task
