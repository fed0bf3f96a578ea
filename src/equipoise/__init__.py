"""Equipoise: balanced multi-modal learning for PyTorch."""

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

from equipoise.balance.balancer import Balancer
from equipoise.balance.coefficients import Coefficients, Losses, Table
from equipoise.balance.kinds import Mixing, Weighting
from equipoise.balance.mixture import Gram
from equipoise.balance.needs import Needs
from equipoise.balance.theory import Trajectory, least_squares
from equipoise.balance.window import Window
from equipoise.methods import (
    AGM,
    ARL,
    CGGM,
    DGL,
    EW,
    MCR,
    MGDA,
    MIMO,
    MLB,
    MSES,
    MSL,
    MSLR,
    OGM,
    OGMGE,
    SMP,
    Barrier,
    InfoReg,
    MMPareto,
    ModDrop,
    PrimalDual,
    Relearn,
    Unimodal,
    mimo_objective,
)
from equipoise.models import HybridFusion, LateFusion, encoder_for, fit_committee, tcmax_loss
from equipoise.training.optimisers import layerwise
from equipoise.util import VERSION as _VERSION

if _TYPE_CHECKING:
    from equipoise.deploy.predictor import Predictor as _Predictor

__version__ = _VERSION


def load(
    path: _Path | str, *, encoder: str | None = None, model: str | None = None, trust: bool = False
) -> "_Predictor":
    """Load the model of a finished run, ready to answer: `equipoise.load("runs/one").predict({"imu": window})`.

    Args:
        path: The folder of a run, or of a command that made a single one.
        encoder: The encoders as they were named for training, where one was your own.
        model: The model as it was named for training, where it was your own.
        trust: Import the model or the encoders that the folder names.

    Raises:
        BadInput: If there is no such run, or its model cannot be built again.
    """
    from equipoise.deploy.predictor import load as load_predictor

    return load_predictor(path, encoder=encoder, model=model, trust=trust)


__all__ = [
    "AGM",
    "ARL",
    "CGGM",
    "DGL",
    "EW",
    "MCR",
    "MGDA",
    "MIMO",
    "MLB",
    "MSES",
    "MSL",
    "MSLR",
    "OGM",
    "OGMGE",
    "SMP",
    "Balancer",
    "Barrier",
    "Coefficients",
    "Gram",
    "HybridFusion",
    "InfoReg",
    "LateFusion",
    "Losses",
    "MMPareto",
    "Mixing",
    "ModDrop",
    "Needs",
    "PrimalDual",
    "Relearn",
    "Table",
    "Trajectory",
    "Unimodal",
    "Weighting",
    "Window",
    "encoder_for",
    "fit_committee",
    "layerwise",
    "least_squares",
    "load",
    "mimo_objective",
    "tcmax_loss",
]
