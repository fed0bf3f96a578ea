"""Equipoise: balanced multi-modal learning for PyTorch."""

from equipoise.balancer import Balancer as Balancer
from equipoise.methods import AGM as AGM
from equipoise.methods import DGL as DGL
from equipoise.methods import EW as EW
from equipoise.methods import MGDA as MGDA
from equipoise.methods import MIMO as MIMO
from equipoise.methods import MLB as MLB
from equipoise.methods import MSES as MSES
from equipoise.methods import MSL as MSL
from equipoise.methods import MSLR as MSLR
from equipoise.methods import OGM as OGM
from equipoise.methods import OGMGE as OGMGE
from equipoise.methods import MMPareto as MMPareto
from equipoise.methods import Unimodal as Unimodal
from equipoise.methods import mimo_objective as mimo_objective
from equipoise.models import LateFusion as LateFusion
from equipoise.models import encoder_for as encoder_for
from equipoise.models import fit_committee as fit_committee
from equipoise.observe import Seen as Seen
from equipoise.optimum import Trajectory as Trajectory
from equipoise.optimum import least_squares as least_squares
from equipoise.rates import layerwise as layerwise
from equipoise.routes import Weights as Weights
from equipoise.table import Table as Table
from equipoise.window import Window as Window

__version__ = "0.1.0"
