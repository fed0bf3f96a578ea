"""MSLR: a learning rate per modality, following how its validation accuracy moves."""

from collections.abc import Mapping
from typing import Annotated, Literal, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried


@final
class MSLR(Weighting):
    """Modality-specific learning rates.

    Encoder m and its part of the fused head move along c_m · r_m · ∇f_mm. c_m is a fixed rate; r_m = A_m(e) / mean(A_m
    of the `memory` epochs before e), one until that many are known, A_m(e) the validation accuracy of modality m after
    epoch e: give it to `end_epoch`.

    Tasks: any, with A_m a score from 0 to 1 that grows as the modality gets better. Where a sample has several labels
    it is the share of right ones; of a number, the mean of exp(−f_m), f_m the error of the standardised number.

    Paper: Yao and Mihalcea, "Modality-specific Learning Rates for Effective Multimodal Additive Late-fusion" (ACL
    Findings 2022), with the rule of the code that published comparisons use.
    Cost: one backward pass, and a copy of the fused head's gradient.

    Args:
        rates: c_m per modality, one where not given. That code has audio 0.9 and video 1.1 for CREMA-D.
        memory: How many epochs the present one is compared with.
        heads: "scaled" scales a modality's part of the fused head with its encoder, as that code does: its head where
            heads are summed, its columns of one Linear on concatenated features (the bias is shared, and not scaled).
            It is known for an additive `LateFusion`; in a model of your own, name the head beside the encoder,
            ``encoders={"audio": [model.audio_net, model.audio_head]}``. "plain" scales encoders alone.
        start: First epoch that modulates.
        stop: First epoch that no longer does.

    Example:
        >>> balancer = MSLR(rates={"audio": 0.9, "video": 1.1}, memory=1)
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> _ = balancer.attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> balancer.end_epoch({"audio": {"accuracy": 0.5}, "video": {"accuracy": 0.4}})
        >>> balancer.end_epoch({"audio": {"accuracy": 0.6}, "video": {"accuracy": 0.4}})
        >>> [round(rate, 2) for rate in balancer.rate.tolist()]  # 0.9 · 0.6 / 0.5 and 1.1
        [1.08, 1.1]
    """

    history: Tensor
    fixed: Tensor
    rate: Tensor

    def __init__(
        self,
        rates: Mapping[str, float] | None = None,
        memory: Annotated[int, Tried(3, 5)] = 5,
        start: int = 0,
        stop: int | None = None,
        heads: Literal["scaled", "plain"] = "scaled",
    ) -> None:
        super().__init__(start=start, stop=stop)
        self.check_arguments((memory >= 1, "memory should be at least one epoch", memory))
        self.memory = memory
        self.needs = Needs(
            learns_from_own=False,
            factors=True,
            block="with head" if heads == "scaled" else "all",
            metrics=("accuracy",),
            modalities=tuple(rates or ()),
        )
        self.add_state("history", (memory,), fill=torch.nan)
        for name in ("fixed", "rate"):
            if rates is None:
                self.add_state(name, fill=1.0)
            else:
                self.add_given_state(name, rates)

    def weigh(self, losses: Losses) -> Coefficients:
        """The rate of each modality, on the fused gradient."""
        return Coefficients.joint(losses, self.rate.to(losses.fused.dtype))

    def on_epoch(self, metrics: Mapping[str, Tensor]) -> None:
        """Compare this epoch with the ones before it, then remember it."""
        now = metrics["accuracy"]
        before = self.history.mean(dim=1)  # NaN until enough epochs are known
        ratio = torch.where((now == 0) & (before == 0), 1.0, now / before)
        ratio = torch.where(before.isnan(), 1.0, ratio.nan_to_num(posinf=1.0))
        self.rate.copy_(self.fixed * ratio)
        self.history.copy_(torch.cat([self.history[:, 1:], now[:, None]], dim=1))
