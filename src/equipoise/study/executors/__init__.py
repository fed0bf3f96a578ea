"""Studies on other machines: on the workers of a Ray cluster, or as an array job of Slurm."""

from equipoise.study.executors.place import Place as Place
from equipoise.study.executors.place import Workforce as Workforce
from equipoise.study.executors.place import place_of as place_of
