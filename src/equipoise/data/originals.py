"""The data sets that can be prepared, by the names users type."""

from __future__ import annotations

from equipoise.data.ave import AVE
from equipoise.data.avmnist import AVMNIST
from equipoise.data.cremad import CREMAD
from equipoise.data.kinetics_sounds import KineticsSounds
from equipoise.data.mosei import MOSEI
from equipoise.data.original import Original
from equipoise.data.urfunny import URFunny
from equipoise.data.vggsound import VGGSound

_ALL: tuple[type[Original], ...] = (CREMAD, URFunny, KineticsSounds, VGGSound, AVMNIST, MOSEI, AVE)
ORIGINALS: dict[str, type[Original]] = {each.name: each for each in _ALL}
