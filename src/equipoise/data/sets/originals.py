"""The data sets that can be prepared, by the names users type."""

from __future__ import annotations

from equipoise.data.prepare.original import Original
from equipoise.data.sets.ave import AVE
from equipoise.data.sets.avmnist import AVMNIST
from equipoise.data.sets.cremad import CREMAD
from equipoise.data.sets.kinetics_sounds import KineticsSounds
from equipoise.data.sets.mosei import MOSEI
from equipoise.data.sets.urfunny import URFunny
from equipoise.data.sets.vggsound import VGGSound

_ALL: tuple[type[Original], ...] = (CREMAD, URFunny, KineticsSounds, VGGSound, AVMNIST, MOSEI, AVE)
ORIGINALS: dict[str, type[Original]] = {each.name: each for each in _ALL}
