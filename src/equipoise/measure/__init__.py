"""Measuring a trained model: decisions, uni-modal protocols, sensor faults, gradient conflict, time and memory."""

from equipoise.measure.corrupt import Training as Training
from equipoise.measure.corrupt import training_statistics as training_statistics
from equipoise.measure.gradients import conflict as conflict
from equipoise.measure.outputs import Outputs as Outputs
from equipoise.measure.outputs import decisions as decisions
from equipoise.measure.probe import probe_accuracy as probe_accuracy
from equipoise.measure.protocols import beats_best_single as beats_best_single
from equipoise.measure.protocols import disparity as disparity
from equipoise.measure.protocols import unimodal_accuracy as unimodal_accuracy
from equipoise.measure.run import measure_run as measure_run
from equipoise.measure.scoring import accuracy as accuracy
from equipoise.measure.scoring import calibration_error as calibration_error
from equipoise.measure.scoring import macro_f1 as macro_f1
from equipoise.measure.scoring import scores as scores
from equipoise.measure.sensors import faults as faults
from equipoise.measure.sensors import faulty_parts as faulty_parts
from equipoise.measure.timing import peak_memory as peak_memory
from equipoise.measure.timing import step_seconds as step_seconds
