"""The methods, one file and one paper each."""

from equipoise.methods.agm import AGM as AGM
from equipoise.methods.arl import ARL as ARL
from equipoise.methods.barrier import Barrier as Barrier
from equipoise.methods.cggm import CGGM as CGGM
from equipoise.methods.dgl import DGL as DGL
from equipoise.methods.ew import EW as EW
from equipoise.methods.inforeg import InfoReg as InfoReg
from equipoise.methods.mcr import MCR as MCR
from equipoise.methods.mgda import MGDA as MGDA
from equipoise.methods.mimo import MIMO as MIMO
from equipoise.methods.mimo import mimo_objective as mimo_objective
from equipoise.methods.mlb import MLB as MLB
from equipoise.methods.mmpareto import MMPareto as MMPareto
from equipoise.methods.moddrop import ModDrop as ModDrop
from equipoise.methods.mses import MSES as MSES
from equipoise.methods.msl import MSL as MSL
from equipoise.methods.mslr import MSLR as MSLR
from equipoise.methods.ogm import OGM as OGM
from equipoise.methods.ogmge import OGMGE as OGMGE
from equipoise.methods.primaldual import PrimalDual as PrimalDual
from equipoise.methods.relearn import Relearn as Relearn
from equipoise.methods.smp import SMP as SMP
from equipoise.methods.unimodal import Unimodal as Unimodal
