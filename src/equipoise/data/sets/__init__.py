"""The published data sets that can be prepared, one module each, by the names users type."""

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
PUBLISHED: dict[str, type[Original]] = {kind.name: kind for kind in _ALL}
