"""CGGM: slow the modality whose classifier improves, and turn the fused head towards the others."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.balance import collectives
from equipoise.balance.coefficients import Coefficients, Losses, Tensors
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.balance.passes import hooks_disabled
from equipoise.balance.presence import neutral
from equipoise.util.annotated import Tried


@final
class CGGM(Weighting):
    """Classifier-guided gradient modulation: an encoder learns the slower, the more its own classifier improved.

    Encoder k moves along ρ B_k · ∇f_mm, f_mm the fused loss, with B_k = (Σ_j Δ_j − Δ_k) / Σ_j Δ_j. Δ_k is the change
    of the accuracy of modality k since the step before, on a batch, as its classifier has it, which learns beside the
    encoder. To this comes the direction term λ/K · Σ_k (abs(B_k) − B_k cos(g_k, g_mm,k)): g_k is the gradient of f_k at
    the output layer of classifier k, a constant, g_mm,k that of f_mm at modality k's part of the fused output layer.

    Accuracies of batches rise and fall by chance, and where some fell the quotient may be anything, also negative: then
    an encoder would climb. Here a fall counts as Δ_k = 0, and where nobody rose the B_k are even, 1 − 1/K; so they lie
    between 0 and 1, and are the published ones where all rose. A modality alone has factor one and no direction term.

    The authors' code takes cosines of weights in the place of gradients, and adds the term of the batch before as a
    constant, which moves nothing; the term is here as the paper has it. It needs a `LateFusion` whose fused output is a
    sum over modalities, with a Linear head for each, and is left out for other models, which `remarks` says.

    Tasks: any, with an accuracy as for `MSLR`: of several labels the share of right ones, of a number the mean of
    exp(−f_k), f_k the error of the standardised number.

    Paper: Guo et al., "Classifier-guided Gradient Modulation for Enhanced Multimodal Learning" (NeurIPS 2024).
    Cost: two backward passes, one without the direction term.

    Args:
        strength: ρ. The authors use 1.3.
        direction: λ, the weight of the direction term; 0 leaves it out. The authors use 0.05 for Food-101, 0.2
            elsewhere. Where gradients are accumulated, each micro-batch has its own.

    Example:
        >>> from equipoise import LateFusion
        >>> encoders = {"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}
        >>> model = LateFusion(encoders, classes=2, unimodal="detached")
        >>> balancer = CGGM(strength=1.0).attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> losses = {name: logits.square().mean(1) for name, logits in outputs.items()}
        >>> balancer(losses, scores={"audio": torch.tensor(0.6), "video": torch.tensor(0.2)}).backward()
        >>> round(float(balancer.table.at("fused", "audio")), 4)  # before the first step accuracies are zero
        0.25
    """

    needs = Needs(learns_from_own=False, factors=True, scores=("accuracy",))
    accuracy: Tensor

    def __init__(self, strength: float = 1.3, direction: Annotated[float, Tried(0.0, 0.05, 0.2)] = 0.2) -> None:
        super().__init__()
        self.check_arguments(
            (strength > 0, "strength should be above zero", strength),
            (direction >= 0, "direction should be zero or more", direction),
        )
        self.strength, self.direction = strength, direction
        self.add_state("accuracy")

    def weigh(self, losses: Losses) -> Coefficients:
        """A factor from the changes since the step before."""
        count = len(losses.unimodal)
        if count == 1:
            return Coefficients.joint(losses, torch.ones_like(losses.unimodal))
        rise = (losses.scores - self.accuracy.to(losses.scores.dtype)).clamp(min=0)
        if losses.presence is not None:
            rise = neutral(rise, losses.presence)
        total = rise.sum()
        return Coefficients.joint(losses, self.strength * (1 - torch.where(total == 0, 1 / count, rise / total)))

    def on_backward(self, losses: Losses, finite: Tensor) -> None:
        """The accuracies are those of the last step that was taken, of the sensors that it had."""
        known = finite if losses.presence is None else finite & (losses.presence > 0)
        self.accuracy.copy_(torch.where(known, losses.scores.to(self.accuracy.dtype), self.accuracy))

    def regulariser(self, scalars: Tensors, losses: Losses, answer: Coefficients | None) -> Tensor | None:  # noqa: ARG002
        """Return the direction term, where the model tells its output layers."""
        layers = self._output_layers()
        if not layers or self.direction == 0 or len(self.modalities) == 1:
            return None
        assert self.attachment is not None
        if any(type(layer).__name__ == "OptimizedModule" for layer in self.attachment.layers):
            raise ValueError(
                "CGGM: its direction term differentiates gradients of the heads, which a model that is compiled as a "
                "whole does not allow; compile the encoders alone, or type CGGM(direction=0)"
            )
        assert answer is not None
        assert answer.factors is not None
        coefficients = dict(zip(self.modalities, (answer.factors / self.strength).unbind(), strict=True))
        own = [layers[name][0] for name in self.modalities]
        fused = list({id(part.tensor): part.tensor for _, part in layers.values()}.values())
        with hooks_disabled([*own, *fused]):
            guides = [_gradients(scalars[n], [weight])[0] for n, weight in zip(self.modalities, own, strict=True)]
            found = dict(zip(map(id, fused), _gradients(scalars["fused"], fused, create_graph=True), strict=True))
        turned = [part.of(found[id(part.tensor)]) for part in (layers[name][1] for name in self.modalities)]
        # Over ranks the cosine of the mean gradients counts, whose derivative reaches each rank by its own part.
        means = [collectives.mean(one, self.group) for one in (*guides, *(gradient.detach() for gradient in turned))]
        count, terms = len(own), []
        for name, local, guide, mean in zip(self.modalities, turned, means[:count], means[count:], strict=True):
            point = mean.clone().requires_grad_()
            cosine = F.cosine_similarity(guide.flatten(), point.flatten(), dim=0)
            (slope,) = torch.autograd.grad(cosine, point)
            cosine = cosine.detach() + (slope * (local - local.detach())).sum()
            terms.append(coefficients[name].abs() - coefficients[name] * cosine)
        return self.direction / count * torch.stack(terms).sum()

    def _output_layers(self) -> Mapping[str, Any]:
        return {} if self.attachment is None else self.attachment.output_layers()

    @property
    def remarks(self) -> dict[str, str]:
        """A note for a row of results, where the direction term was left out."""
        left_out = self.direction > 0 and len(self.modalities) > 1 and not self._output_layers()
        return {"direction": "left out: the model does not tell its output layers"} if left_out else {}


def _gradients(loss: Tensor, tensors: Sequence[Tensor], *, create_graph: bool = False) -> list[Tensor]:
    """Return the gradients of a loss at tensors, zeros where it does not depend on one or nothing is to be learnt."""
    asked = [tensor for tensor in tensors if tensor.requires_grad] if loss.requires_grad else []
    found: Sequence[Tensor] = ()
    if asked:
        found = torch.autograd.grad(
            loss, asked, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
    known = dict(zip(map(id, asked), found, strict=True))
    return [known.get(id(tensor), torch.zeros_like(tensor)) for tensor in tensors]
