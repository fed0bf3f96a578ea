"""The tests every method inherits.

A new method subclasses `BalancerContract`, says how to make itself, and is held to all of it:

    class TestMyMethod(BalancerContract):
        def make(self) -> Balancer:
            return MyMethod()

Needs pytest.
"""

from equipoise.testing.contract import BalancerContract as BalancerContract
from equipoise.testing.contract import SmallModel as SmallModel
from equipoise.testing.contract import attached as attached
from equipoise.testing.contract import balanced as balanced
from equipoise.testing.contract import batch as batch
from equipoise.testing.contract import beside as beside
from equipoise.testing.contract import gradients_of as gradients_of
from equipoise.testing.contract import losses_of as losses_of
from equipoise.testing.contract import masks_for as masks_for
from equipoise.testing.contract import names as names
