"""The two-layer linear model of the toy problem, and its gradients in closed form beside those the paper prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from equipoise.balance.table import FUSED
from equipoise.paper.toy import Recipe, Toy

Parameters = Mapping[str, Tensor]
"""Tensors by name: encoders.m1 is θ_m1 [D, H], fused.m1 is ϑ_mm,m1 [H], heads.m1 is ϑ_m1 [H]."""


@final
class TwoLayer(nn.Module):
    """A linear encoder per modality, its part of the fused head, and its own head; no biases.

    The fused output is Σ_k ϑ_mm,kᵀ θ_kᵀ x_k, the output of modality k alone ϑ_kᵀ θ_kᵀ x_k.

    Args:
        recipe: Sizes, and how close to zero weights start.
        seed: Of the weights; not that of the data, though the numbers may agree.
        names: The modalities; those of the recipe by default.
    """

    def __init__(self, recipe: Recipe, seed: int, names: Sequence[str] | None = None) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(10_000 + seed)

        def near_zero(*shape: int) -> nn.Parameter:
            return nn.Parameter(recipe.start * torch.randn(shape, generator=random, dtype=torch.float64))

        made = {name: near_zero(recipe.inputs, recipe.hidden) for name in recipe.names}
        fused = {name: near_zero(recipe.hidden) for name in recipe.names}
        heads = {name: near_zero(recipe.hidden) for name in recipe.names}
        # All are drawn even where few are kept, so that a modality starts alike with and without the others.
        kept = recipe.names if names is None else names
        self.encoders = nn.ParameterDict({name: made[name] for name in kept})
        self.fused = nn.ParameterDict({name: fused[name] for name in kept})
        self.heads = nn.ParameterDict({name: heads[name] for name in kept})

    def losses(self, toy: Toy) -> dict[str, Tensor]:
        """The fused loss and one per modality, each the mean of (y − ŷ)²."""
        return losses(dict(self.named_parameters()), toy)


def losses(parameters: Parameters, toy: Toy) -> dict[str, Tensor]:
    """The fused loss and one per modality, as a function of the parameters, which may have a batch dimension."""
    fused, alone = torch.zeros_like(toy.target), {}
    for name, x in toy.inputs.items():
        heads = torch.stack([parameters[f"fused.{name}"], parameters[f"heads.{name}"]], dim=-1)
        # θ_k times both heads first: two columns of D numbers are fewer than N rows of H features.
        shared, own = (x @ (parameters[f"encoders.{name}"] @ heads)).unbind(dim=-1)
        fused = fused + shared
        alone[name] = (toy.target - own).square().mean(dim=-1)
    return {FUSED: (toy.target - fused).square().mean(dim=-1), **alone}


def closed_form(parameters: Parameters, toy: Toy, weights: Mapping[str, float]) -> dict[str, Tensor]:
    """The gradient of f_mm + Σ_k a_k f_k, where weights a are held; for MIMO they are a_k = λσ_k.

    With Ψ_k = C_yk − Σ_j C_kj θ_j ϑ_mm,j and Ψ̌_k = C_yk − C_k θ_k ϑ_k, columns of D numbers:
    ∇θ_k = −2 (Ψ_k ϑ_mm,kᵀ + a_k Ψ̌_k ϑ_kᵀ), ∇ϑ_mm,k = −2 θ_kᵀ Ψ_k, ∇ϑ_k = −2 a_k θ_kᵀ Ψ̌_k.
    """
    found = {}
    for name, (fused, own) in _residuals(parameters, toy).items():
        encoder, weight = parameters[f"encoders.{name}"], weights[name]
        found[f"encoders.{name}"] = -2 * (
            torch.outer(fused, parameters[f"fused.{name}"]) + weight * torch.outer(own, parameters[f"heads.{name}"])
        )
        found[f"fused.{name}"] = -2 * encoder.T @ fused
        found[f"heads.{name}"] = -2 * weight * encoder.T @ own
    return found


def printed(parameters: Parameters, toy: Toy, weights: Mapping[str, float]) -> dict[str, Tensor]:
    """The appendix's table to the letter, with λ_k from ``weights``, turned over to our shapes at the very end.

    The table takes C_yk and heads as rows and encoders as [H, D], against the [D, H] of the text.
    """
    correlations, found = toy.correlations, {}
    rows = {name: column[None, :] for name, column in correlations.target.items()}
    encoders = {name: parameters[f"encoders.{name}"].T for name in rows}
    heads = {kind: {name: parameters[f"{kind}.{name}"][None, :] for name in rows} for kind in ("fused", "heads")}
    for name, row in rows.items():
        others = [heads["fused"][j] @ encoders[j] @ correlations.inputs[j, name] for j in rows]
        fused = row - torch.stack(others).sum(dim=0)
        own = row - heads["heads"][name] @ encoders[name] @ correlations.inputs[name, name]
        encoder = heads["fused"][name].T @ fused + weights[name] * heads["heads"][name].T @ own
        found[f"encoders.{name}"] = encoder.T
        found[f"fused.{name}"] = (fused @ encoders[name].T)[0]
        found[f"heads.{name}"] = (weights[name] * own @ encoders[name].T)[0]
    return found


def _residuals(parameters: Parameters, toy: Toy) -> dict[str, tuple[Tensor, Tensor]]:
    """Ψ_k and Ψ̌_k per modality."""
    correlations, found = toy.correlations, {}
    for name, column in correlations.target.items():
        fused = column.clone()
        for other in correlations.target:
            fused -= correlations.inputs[name, other] @ (parameters[f"encoders.{other}"] @ parameters[f"fused.{other}"])
        own = column - correlations.inputs[name, name] @ (parameters[f"encoders.{name}"] @ parameters[f"heads.{name}"])
        found[name] = (fused, own)
    return found


class Agreement(NamedTuple):
    """One row of the appendix's table of gradients, beside autograd.

    Args:
        block: The parameter.
        corrected: ‖closed form − autograd‖ / ‖autograd‖, with our corrections.
        as_printed: The same for the table to the letter, in the right shape.
        factor: The number that brings the printed row closest to autograd.
    """

    block: str
    corrected: float
    as_printed: float
    factor: float


def compare_gradients(
    parameters: Parameters, toy: Toy, delivered: Parameters, weights: Mapping[str, float], penalty: float
) -> list[Agreement]:
    """The closed forms beside the gradients that a training step of MIMO delivered.

    Args:
        parameters: Where they were taken.
        toy: The data.
        delivered: By autograd, through the balancer.
        weights: λσ_k, from the balancer's table.
        penalty: λ, which the printed table gives to the modality that is furthest behind.
    """
    furthest = max(weights, key=weights.__getitem__)
    hard = {name: penalty if name == furthest else 0.0 for name in weights}
    ours, theirs = closed_form(parameters, toy, weights), printed(parameters, toy, hard)
    rows = []
    for block, wanted in delivered.items():
        size = float(wanted.norm()) or 1.0  # the hard maximum leaves all heads but one where they are
        along = float((theirs[block] * wanted).sum() / theirs[block].square().sum()) if theirs[block].any() else 0.0
        rows.append(
            Agreement(
                block, float((ours[block] - wanted).norm()) / size, float((theirs[block] - wanted).norm()) / size, along
            )
        )
    return rows
