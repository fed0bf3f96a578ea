"""OGM-GE: slow the modality that is ahead, and add noise as large as the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.checks import demand
from equipoise.methods.ogm import Parameters, check_ogm, is_kernel, ogm_weights
from equipoise.methods.scores import log_likelihood
from equipoise.observe import Seen
from equipoise.routes import Weights


@final
class OGMGE(Balancer):
    """On-the-fly gradient modulation with generalisation enhancement.

    Encoder m moves along c_m · ∇f_mm + ε, c_m as in OGM. ε is normal noise, for each tensor with the standard
    deviation of its own
    gradient: before modulation (the authors' present code), or after (their first release and their word). Both are
    added to every modality.

    Paper: Peng et al., "Balanced Multimodal Learning via On-the-fly Gradient Modulation" (CVPR 2022).
    Cost: one backward pass, and noise of the encoders' size.

    Args:
        strength: α, as in OGM.
        parameters: "all" tensors of an encoder, or the "kernels" of its convolutions only, as in the authors' code.
        noise: Take the standard deviation from the gradient "before" modulation or "after".
        seed: Of the noise. The ranks of a distributed run draw the same noise.
        start: First epoch that modulates and adds noise.
        stop: First epoch that no longer does.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = OGMGE(strength=0.8).attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> balancer({name: logits.square().mean() for name, logits in outputs.items()}).backward()
    """

    route = "fused"
    unimodal = "split"
    search: ClassVar = {"strength": (0.1, 0.4, 0.8, 1.5)}
    modulates = True
    refines = True
    logarithmic_scores = True

    def __init__(
        self,
        strength: float = 0.8,
        parameters: Parameters = "all",
        noise: Literal["before", "after"] = "before",
        seed: int = 0,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        super().__init__(start=start, stop=stop)
        check_ogm("OGMGE", strength, parameters)
        demand("OGMGE", (noise in ("before", "after"), "noise should be 'before' or 'after'", noise))
        self.strength, self.parameters_modulated, self.noise, self.seed = strength, parameters, noise, seed
        self._draws = 0

    def score(self, losses: Tensor) -> Tensor:
        """The log of the mean probability of the right class."""
        return log_likelihood(losses)

    def touches(self, tensor: Tensor) -> bool:
        """All tensors, or kernels only."""
        return self.parameters_modulated == "all" or is_kernel(tensor)

    def weigh(self, seen: Seen) -> Weights:
        """A factor below one for whoever is ahead."""
        return ogm_weights(seen, self.strength)

    def refine(self, modality: str, mixed: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Add noise to every tensor that is modulated."""
        # Seeded by a count, so that a resumed run and every rank draw what they would have drawn.
        self._draws += 1
        place = self.modalities.index(modality)
        generator = torch.Generator(mixed[0].device).manual_seed(hash((self.seed, self._draws, place)) % 2**63)
        sources = parts[0] if self.noise == "before" else mixed
        chosen = [place for place, gradient in enumerate(mixed) if self.touches(gradient)]
        noisy = list(mixed)
        for place, noise in zip(chosen, _noise_like([sources[place] for place in chosen], generator), strict=True):
            noisy[place] = mixed[place] + noise
        return noisy

    def host_state(self) -> dict[str, Any]:
        """How often noise was drawn."""
        return {"draws": self._draws}

    def load_host_state(self, state: dict[str, Any]) -> None:
        """Go on drawing where the saved run stopped."""
        self._draws = state["draws"]


def _noise_like(gradients: list[Tensor], generator: torch.Generator) -> list[Tensor]:
    """For each gradient normal noise of its standard deviation; none for a single number, which has no deviation."""
    sizes = [gradient.numel() for gradient in gradients]
    drawn = torch.randn(sum(sizes), generator=generator, device=generator.device).split(sizes)
    return [
        noise.view(gradient.shape).to(gradient.dtype) * (gradient.std() if gradient.numel() > 1 else 0.0)
        for noise, gradient in zip(drawn, gradients, strict=True)
    ]
