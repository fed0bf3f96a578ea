"""InfoReg: hold the modality that is ahead near where its epoch began, as long as it learns fast."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, final

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from equipoise.balance.coefficients import Coefficients, Losses, Tensors, mean_of_others
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.balance.tensors import scaled, values_of
from equipoise.util.annotated import Tried

_OPTIMIZER = (
    "InfoReg reads squared gradients when the optimiser takes a step, and without one its window never closes; type "
    "balancer.attach(…, optimizer=optimizer)"
)
_REGRESSION = (
    "InfoReg lets each encoder learn to meet the target with its share of the fused output, beside the whole of it; "
    "shares of a number add up, so that they cannot all meet it; choose ew or mlb"
)


@final
class InfoReg(Weighting):
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

    history: Tensor
    trace: Tensor
    open: Tensor
    strengths: Tensor

    def __init__(
        self,
        strength: Annotated[float, Tried(0.1, 0.3, 0.95)] = 0.95,
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
        self.needs = Needs(
            unimodal="share",
            optimizer=_OPTIMIZER,
            scores=("likelihood",),
            modalities=tuple(strengths or ()),
            tasks={"regression": _REGRESSION},
        )
        if strengths is None:
            self.add_state("strengths", fill=strength)
        else:
            self.add_given_state("strengths", strengths)
        self.add_state("history", (memory,))
        self.add_state("trace")
        self.add_state("open", fill=1.0)
        self.add_copy("anchor", of="parameters", at_first=True)  # of the start of the epoch

    def weigh(self, losses: Losses) -> Coefficients:
        """One for each loss."""
        return Coefficients.shared(losses.weights(1.0, 1.0))

    @_disable_dynamo
    def regulariser(self, scalars: Tensors, losses: Losses, answer: Coefficients | None) -> Tensor | None:  # noqa: ARG002
        """Return the distances to the epoch's start, that of a modality that is ahead while its window is open."""
        if not any(self.on_host("open")):
            return None
        likely = losses.scores.exp()
        lead = likely - mean_of_others(likely)
        pull = self.strengths.to(lead.dtype) * torch.tanh(self.sharpness * lead).exp()
        pull = torch.where((lead > 0) & (self.open > 0), pull, 0.0)
        terms = []
        for name, own in zip(self.modalities, pull.unbind(), strict=True):
            parameters, anchors = self.beside_copies("anchor", name)
            terms += [_Distance.apply(own, anchors, *parameters)] if parameters else []
        return torch.stack(terms).sum() if terms else None

    def on_step(self, taken: Tensor | int) -> None:
        """Add the squared gradients of a step to the traces."""
        if not isinstance(taken, Tensor) and not taken:
            return
        traces = torch.stack([self._trace_of(self.tensors_of(name, "parameters")) for name in self.modalities])
        self.trace += traces if not isinstance(taken, Tensor) else torch.where(taken > 0, traces, 0.0)

    def _trace_of(self, parameters: Sequence[Tensor]) -> Tensor:
        matrices = [tensor.grad for tensor in parameters if tensor.dim() > 1]
        gradients = [gradient for gradient in matrices if gradient is not None]
        if not gradients:
            return torch.zeros_like(self.trace[0])
        norms = torch._foreach_norm([values_of(gradient).to(self.trace.dtype) for gradient in gradients])
        roots = torch._foreach_div(norms, [math.sqrt(gradient.numel()) for gradient in gradients])
        return torch.stack(roots).square().sum()

    def on_epoch(self, metrics: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Open or close the windows by how the traces grow, and begin an epoch where the encoders are."""
        total = self.history.sum(dim=1) - self.history[:, 0] + self.trace
        growth = torch.where(total == 0, 1.0, (self.trace - self.history[:, 0]) / total)
        self.history.copy_(torch.cat([self.history[:, 1:], self.trace[:, None]], dim=1))
        self.open.copy_((growth > self.threshold).to(self.open.dtype))
        self.trace.zero_()
        for name in self.modalities:
            if self.copied("anchor", name):
                self.copy_encoder("anchor", name)


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
