"""The tests every method inherits.

A new method subclasses `BalancerContract`, says how to make itself, and is held to all of it:

    class TestMyMethod(BalancerContract):
        def make(self) -> Balancer:
            return MyMethod()

Needs pytest.
"""

from equipoise.testing.contract import BalancerContract as BalancerContract
from equipoise.testing.models import SmallModel as SmallModel
from equipoise.testing.models import attached as attached
from equipoise.testing.models import balanced as balanced
from equipoise.testing.models import batch as batch
from equipoise.testing.models import beside as beside
from equipoise.testing.models import gradients_of as gradients_of
from equipoise.testing.models import losses_of as losses_of
from equipoise.testing.models import masks_for as masks_for
from equipoise.testing.models import names as names
