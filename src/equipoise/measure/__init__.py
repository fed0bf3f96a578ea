"""Measuring a trained model: decisions, uni-modal protocols, sensor faults, gradient conflict, time and memory."""

from equipoise.measure.faults import TrainingStatistics as TrainingStatistics
from equipoise.measure.faults import accuracy_under_faults as accuracy_under_faults
from equipoise.measure.faults import faulty_parts as faulty_parts
from equipoise.measure.faults import training_statistics as training_statistics
from equipoise.measure.outputs import Outputs as Outputs
from equipoise.measure.outputs import Scorer as Scorer
from equipoise.measure.outputs import accuracy as accuracy
from equipoise.measure.outputs import calibration_error as calibration_error
from equipoise.measure.outputs import decisions as decisions
from equipoise.measure.outputs import macro_f1 as macro_f1
from equipoise.measure.outputs import scores as scores
from equipoise.measure.protocols import conflict as conflict
from equipoise.measure.protocols import unimodal_accuracy as unimodal_accuracy
from equipoise.measure.run import measure_run as measure_run
from equipoise.measure.timing import peak_memory as peak_memory
from equipoise.measure.timing import step_seconds as step_seconds
