"""Data sets, cut into parts that share no group."""

from equipoise.data.bundled import watch as watch
from equipoise.data.own.recordings import Recording as Recording
from equipoise.data.part import Part as Part
from equipoise.data.splits import Splits as Splits
