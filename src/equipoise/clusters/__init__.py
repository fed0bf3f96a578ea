"""Studies on other machines: on the workers of a Ray cluster, or as an array job of Slurm."""

from equipoise.clusters.place import Place as Place
from equipoise.clusters.place import Workforce as Workforce
from equipoise.clusters.place import place_of as place_of
