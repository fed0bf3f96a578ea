"""Equipoise: balanced multi-modal learning for PyTorch."""

from equipoise.balancer import Balancer
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
from equipoise.models import (
    LateFusion,
    encoder_for,
    fit_committee,
)
from equipoise.observe import Seen
from equipoise.optimum import (
    Trajectory,
    least_squares,
)
from equipoise.rates import layerwise
from equipoise.routes import Weights
from equipoise.table import Table
from equipoise.window import Window

__version__ = "0.1.0"

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
    "MMPareto",
    "Seen",
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
