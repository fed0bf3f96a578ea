"""The published data sets that can be prepared, by the names users type."""

from equipoise.data.prepare.original import Original
from equipoise.data.sets.ave import AVE
from equipoise.data.sets.avmnist import AVMNIST
from equipoise.data.sets.cremad import CREMAD
from equipoise.data.sets.mosei import MOSEI
from equipoise.data.sets.urfunny import URFunny
from equipoise.data.sets.youtube import KineticsSounds, VGGSound

_ALL: tuple[type[Original], ...] = (CREMAD, URFunny, KineticsSounds, VGGSound, AVMNIST, MOSEI, AVE)
PUBLISHED: dict[str, type[Original]] = {kind.name: kind for kind in _ALL}
