"""InfoReg: hold the modality that is ahead near where its epoch began, as long as it learns fast."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights, mean_of_others
from equipoise.balance.theory import scaled, values_of


@final
class InfoReg(Balancer):
    """Information acquisition regulation: early on, the encoder that is ahead is pulled back to its epoch's start.

    The loss is f_mm + Σ_m f_m + Σ_m β_m · ½‖θ_m − θ_m⁰‖², with f_mm the fused loss and f_m that of modality m, in the
    published form of its share of the fused output (``LateFusion(…, unimodal="split")``); θ_m are the parameters of
    encoder m, θ_m⁰ those at the start of the epoch. β_m = β · exp(tanh(n · (s_m − r_m))) if s_m > r_m and modality m is
    in its prime learning window, else 0. s_m is the mean probability of the right class as modality m sees it,
    exp(−f_m) sample by sample, and r_m the mean of s_j over the other modalities j; of two, that of the other one. The
    authors sum over their batch instead, hence n.

    The window is open in the first epoch, and after epoch e if T_m(e) − T_m(e − 1) > κ · T_m(e). T_m(e) is the mean of
    the Fisher traces of the last epochs, zero before the first. The trace of an epoch is the sum over its steps, and
    over the matrices and kernels of encoder m, of the mean of their squared gradients: those that the attached
    optimiser gets, clipped if they are clipped. The authors' code has one window for all modalities, that of audio.

    Tasks: classes and labels. No regression where f_m is the loss of a share: shares of a number add up to it, and
    cannot each meet it alone.

    Paper: Huang et al., "Adaptive Unimodal Regulation for Balanced Multimodal Information Acquisition" (CVPR 2025).
    Cost: one backward pass, and a copy of each encoder.

    Args:
        strength: β. The authors' code has 0.95 for audio and 0.1 for video.
        strengths: β per modality, instead.
        threshold: κ.
        memory: How many epochs T_m is the mean of.
        sharpness: n, the authors' batch.

    Example:
        >>> from equipoise import LateFusion
        >>> encoders = {"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}
        >>> model = LateFusion(encoders, classes=2, unimodal="split")
        >>> balancer = InfoReg().attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> balancer({name: logits.square().mean(1) for name, logits in outputs.items()}).backward()
        >>> balancer.open.tolist()
        [1.0, 1.0]
    """

    route = "weighted"
    unimodal = "split"
    search: ClassVar = {"strength": (0.1, 0.3, 0.95)}
    shares_train_heads = True
    logarithmic_scores = True
    history: Tensor
    trace: Tensor
    open: Tensor
    strengths: Tensor

    def __init__(
        self,
        strength: float = 0.95,
        strengths: Mapping[str, float] | None = None,
        threshold: float = 0.05,
        memory: int = 10,
        sharpness: float = 64.0,
    ) -> None:
        super().__init__()
        given = [strength, *(strengths or {}).values()]
        self.check_arguments(
            (all(0 <= one < math.inf for one in given), "strength should be zero or more", given),
            (memory >= 1, "memory should be at least one epoch", memory),
            (sharpness > 0, "sharpness should be above zero", sharpness),
        )
        self.threshold, self.sharpness = threshold, sharpness
        if strengths is None:
            self.add_state("strengths", fill=strength)
        else:
            self.add_given_state("strengths", strengths)
        self.add_state("history", (memory,))
        self.add_state("trace")
        self.add_state("open", fill=1.0)
        self._anchors: dict[str, list[Tensor]] = {}
        self._pull = torch.zeros(0)
        self._closed = False  # for all: then a step is that of equal weights

    def weigh(self, values: LossValues) -> Weights:
        """One for each loss; beside it, the pull on whoever is ahead while its window is open."""
        likely = values.scores.exp()
        lead = likely - mean_of_others(likely)
        pull = self.strengths.to(lead.dtype) * torch.tanh(self.sharpness * lead).exp()
        self._pull = torch.where((lead > 0) & (self.open > 0), pull, 0.0)
        return Weights(torch.ones_like(torch.cat([values.fused[None], values.unimodal])))

    @_disable_dynamo
    def act(self, losses: Mapping[str, Tensor], weights: Weights, *, scored: bool) -> Tensor | None:  # noqa: ARG002
        """Return the distances to the epoch's start, each at its strength."""
        if self._closed:
            return None
        pulls = dict(zip(self.modalities, self._pull.unbind(), strict=True))
        terms = [
            _Distance.apply(pulls[name], self._anchors_of(name, parameters), *parameters)
            for name, parameters in self.encoder_parameters().items()
            if parameters
        ]
        return torch.stack(terms).sum() if terms else None

    def attached(self, model: nn.Module | None) -> None:
        """Another model has another start."""
        if self._attachment is not None and self._attachment.model is not model:
            self._anchors = {}

    def _anchors_of(self, modality: str, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the start of the epoch, which is now where none is known."""
        kept = self._anchors.get(modality, [])
        if [anchor.shape for anchor in kept] != [tensor.shape for tensor in parameters]:
            kept = [tensor.detach().clone() for tensor in parameters]
        elif any(anchor.device != tensor.device for anchor, tensor in zip(kept, parameters, strict=True)):
            kept = [anchor.to(tensor) for anchor, tensor in zip(kept, parameters, strict=True)]
        self._anchors[modality] = kept
        return kept

    @torch.no_grad()
    def stepped(self, taken: Tensor | int = 1) -> None:
        """Add the squared gradients of a step to the traces."""
        if not isinstance(taken, Tensor) and not taken:
            return
        parameters = self.encoder_parameters()
        traces = torch.stack([self._trace_of(parameters[name]) for name in self.modalities])
        self.trace += traces if not isinstance(taken, Tensor) else torch.where(taken > 0, traces, 0.0)

    def _trace_of(self, parameters: Sequence[Tensor]) -> Tensor:
        matrices = [tensor.grad for tensor in parameters if tensor.dim() > 1]
        gradients = [gradient for gradient in matrices if gradient is not None]
        if not gradients:
            return torch.zeros_like(self.trace[0])
        norms = torch._foreach_norm([values_of(gradient).to(self.trace.dtype) for gradient in gradients])
        roots = torch._foreach_div(norms, [math.sqrt(gradient.numel()) for gradient in gradients])
        return torch.stack(roots).square().sum()

    @torch.no_grad()
    def learn(self, metrics: dict[str, Tensor]) -> None:  # noqa: ARG002
        """Open or close the windows by how the traces grow, and begin an epoch where the encoders are."""
        if not self.follows_optimizer and not self._warned:
            self._warned = True
            warnings.warn(_NO_OPTIMIZER, UserWarning, stacklevel=4)
        total = self.history.sum(dim=1) - self.history[:, 0] + self.trace
        growth = torch.where(total == 0, 1.0, (self.trace - self.history[:, 0]) / total)
        self.history.copy_(torch.cat([self.history[:, 1:], self.trace[:, None]], dim=1))
        self.open.copy_((growth > self.threshold).to(self.open.dtype))
        self.trace.zero_()
        self._closed = not bool(self.open.any())
        for name, parameters in self.encoder_parameters().items():
            if name in self._anchors and parameters:
                torch._foreach_copy_(self._anchors_of(name, parameters), parameters)

    @property
    def phase(self) -> tuple[str, ...]:
        """A mark of windows that have all closed: then nothing is pulled."""
        return ("closed",) if self._closed else ()

    def host_state(self) -> dict[str, Any]:
        """Return where the encoders were at the start of the epoch."""
        return {"anchors": self._anchors, "closed": self._closed}

    def load_host_state(self, state: dict[str, Any]) -> None:
        """Go on with the epoch of the saved run."""
        self._anchors = {name: list(tensors) for name, tensors in state["anchors"].items()}
        self._closed = state["closed"]

    def task_problem(self, kind: str) -> str:
        """K shares that each meet a number add up to K times of it."""
        return (
            "InfoReg lets each encoder learn to meet the target with its share of the fused output, beside the whole "
            "of it; shares of a number add up, so that they cannot all meet it; choose ew or mlb"
            if kind == "regression"
            else ""
        )


@final
class _Distance(torch.autograd.Function):
    """½ · pull · ‖θ − θ⁰‖² over many tensors, in few kernels and one node."""

    @staticmethod
    def forward(ctx: Any, pull: Tensor, anchors: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.pull, ctx.apart = pull, list(torch._foreach_sub([each.detach() for each in parameters], anchors))
        lengths = torch._foreach_norm(ctx.apart)
        return pull * torch.stack([length.to(pull.dtype) for length in lengths]).square().sum() / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *scaled(ctx.apart, scale * ctx.pull))


_NO_OPTIMIZER = (
    "InfoReg reads squared gradients when the optimiser takes a step, and none is attached, so that its window never "
    "closes; type balancer.attach(…, optimizer=optimizer)"
)
