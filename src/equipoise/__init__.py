"""Equipoise: balanced multi-modal learning for PyTorch."""

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues
from equipoise.balance.optimum import Trajectory, least_squares
from equipoise.balance.routes import Weights
from equipoise.balance.table import Table
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
from equipoise.training.rates import layerwise
from equipoise.util.version import VERSION as __version__

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
