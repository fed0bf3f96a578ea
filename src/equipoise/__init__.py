"""Equipoise: balanced multi-modal learning for PyTorch."""

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Table, Weights
from equipoise.balance.theory import Trajectory, least_squares
from equipoise.balance.window import Window
from equipoise.methods import (
    AGM,
    DGL,
    EW,
    MGDA,
    MIMO,
    MLB,
    MSES,
    MSL,
    MSLR,
    OGM,
    OGMGE,
    MMPareto,
    Unimodal,
    mimo_objective,
)
from equipoise.models import LateFusion, encoder_for, fit_committee
from equipoise.training.optimisers import layerwise
from equipoise.util import VERSION as _VERSION

__version__ = _VERSION

__all__ = [
    "AGM",
    "DGL",
    "EW",
    "MGDA",
    "MIMO",
    "MLB",
    "MSES",
    "MSL",
    "MSLR",
    "OGM",
    "OGMGE",
    "Balancer",
    "LateFusion",
    "LossValues",
    "MMPareto",
    "Table",
    "Trajectory",
    "Unimodal",
    "Weights",
    "Window",
    "encoder_for",
    "fit_committee",
    "layerwise",
    "least_squares",
    "mimo_objective",
]
