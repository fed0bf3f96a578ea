"""OGM-GE: slow the modality that is ahead, and add noise as large as the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues
from equipoise.balance.method import Weights
from equipoise.methods.noise import Noise
from equipoise.methods.ogm import Parameters, check_ogm, is_kernel, ogm_weights
from equipoise.methods.scores import log_likelihood
from equipoise.util.errors import demand


@final
class OGMGE(Balancer):
    """On-the-fly gradient modulation with generalisation enhancement.

    Encoder m moves along c_m · ∇f_mm + ε, c_m as in OGM. ε is normal noise, for each tensor with the standard
    deviation of its own gradient: before modulation (the authors' present code), or after (their first release and
    their word). Both are added to every modality.

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
        >>> balancer({name: logits.square().mean(1) for name, logits in outputs.items()}).backward()
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
        self._random: torch.Generator | None = None  # made where the gradients are
        self._random_state: Tensor | None = None
        self._draws = Noise()

    def score(self, losses: Tensor) -> Tensor:
        """The log of the mean probability of the right class."""
        return log_likelihood(losses)

    def touches(self, tensor: Tensor) -> bool:
        """All tensors, or kernels only."""
        return self.parameters_modulated == "all" or is_kernel(tensor)

    def weigh(self, values: LossValues) -> Weights:
        """A factor below one for whoever is ahead."""
        return ogm_weights(values, self.strength)

    def refine(self, modality: str, mixed: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:  # noqa: ARG002
        """Add noise to every tensor that is modulated."""
        if any(gradient.is_sparse for gradient in mixed):
            msg = "OGMGE: noise for sparse gradients is not supported; type sparse=False for embeddings"
            raise RuntimeError(msg)
        generator = self._generator(mixed[0].device)
        sources = parts[0] if self.noise == "before" else mixed
        chosen = [place for place, gradient in enumerate(mixed) if self.touches(gradient)]
        sized = [sources[place] for place in chosen]
        noisy = list(mixed)
        added = torch._foreach_add([mixed[place] for place in chosen], self._draws.like(sized, generator))
        for place, gradient in zip(chosen, added, strict=True):
            noisy[place] = gradient
        return noisy

    @property
    def phase(self) -> tuple[()]:
        """The noise comes from a generator, which moves on by itself."""
        return ()

    def generators(self) -> list[torch.Generator]:
        """Where the noise comes from."""
        return [] if self._random is None else [self._random]

    def host_state(self) -> dict[str, Any]:
        """Where the noise has got to."""
        return {"random": self._random_state if self._random is None else self._random.get_state()}

    def load_host_state(self, state: dict[str, Any]) -> None:
        """Go on drawing where the saved run stopped."""
        self._random, self._random_state = None, state["random"]

    def _generator(self, device: torch.device) -> torch.Generator:
        """The one generator, which a resumed run and every rank start alike."""
        if self._random is None or self._random.device != device:
            self._random = torch.Generator(device).manual_seed(self.seed)
            if self._random_state is not None and self._random_state.shape == self._random.get_state().shape:
                self._random.set_state(self._random_state)  # of the same kind of device
        return self._random

    def __getstate__(self) -> dict[str, Any]:
        """Generators cannot be copied everywhere; their state can."""
        return {**super().__getstate__(), "_random": None, "_random_state": self.host_state()["random"]}
