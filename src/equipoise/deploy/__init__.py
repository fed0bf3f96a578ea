"""Shipping a trained model: an exported graph that knows missing sensors, a card, and a monitor of the sensors."""

from equipoise.deploy.deployable import Deployable as Deployable
from equipoise.deploy.deployable import Intake as Intake
from equipoise.deploy.exporting import FORMS as FORMS
from equipoise.deploy.exporting import Exported as Exported
from equipoise.deploy.exporting import export as export
from equipoise.deploy.kept import KeptRun as KeptRun
from equipoise.deploy.kept import open_run as open_run
from equipoise.deploy.monitor import SensorMonitor as SensorMonitor
from equipoise.deploy.monitor import Verdict as Verdict
from equipoise.deploy.trial import Trial as Trial
from equipoise.deploy.trial import fit_monitor as fit_monitor
from equipoise.deploy.trial import try_monitor as try_monitor
