"""Shipping a trained model: an exported graph that handles missing sensors, a card, and a monitor of the sensors."""

from equipoise.deploy.deployable import Deployable as Deployable
from equipoise.deploy.deployable import InputSpec as InputSpec
from equipoise.deploy.exporting import FORMS as FORMS
from equipoise.deploy.exporting import ExportedModel as ExportedModel
from equipoise.deploy.exporting import export as export
from equipoise.deploy.monitor import MonitorOutput as MonitorOutput
from equipoise.deploy.monitor import SensorMonitor as SensorMonitor
from equipoise.deploy.monitor_evaluation import MonitorEvaluation as MonitorEvaluation
from equipoise.deploy.monitor_evaluation import evaluate_monitor as evaluate_monitor
from equipoise.deploy.monitor_evaluation import fit_monitor as fit_monitor
from equipoise.deploy.prediction import Prediction as Prediction
from equipoise.deploy.predictor import Predictor as Predictor
from equipoise.deploy.predictor import load as load
from equipoise.deploy.saved_model import SavedModel as SavedModel
from equipoise.deploy.saved_model import load_saved_model as load_saved_model
from equipoise.deploy.stream import Stream as Stream
from equipoise.deploy.stream import StreamAnswer as StreamAnswer
