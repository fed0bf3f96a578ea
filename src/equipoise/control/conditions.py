"""Conditions of a rollout: which sensors fail, when, and whether the policy is told.

A policy that is told of a missing sensor leaves it out: the fused head reads what its model puts in the place of a
missing sensor (zero features, or learned tokens), the committee lets the heads of the others vote. Until a sensor is
missing, the fused head decides.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

from equipoise.control.cloning import SENSORS
from equipoise.models.fusion_model import Decision
from equipoise.util.errors import collect, look_up

if TYPE_CHECKING:
    from equipoise.control.simulator import Holes

MIDDLE = 15
"""The step from which on a sensor fails: in demonstrations, most pegs are on their way to the hole then."""
DELAY = 2
"""Control steps of 100 ms."""


@final
@dataclass(frozen=True)
class Condition:
    """One condition.

    Args:
        name: Its name in tables.
        holes: The range that the hole is drawn from.
        dead: The sensor that gives zeros from step `since` on, while the policy is not told.
        lost: The sensor that is missing from step `since` on, of which the policy is told.
        since: The step of the failure.
        delay: Control steps by which all observations are late.
        decision: The head that decides once a sensor is missing.
        monitored: Whether a monitor watches the heads, and has the committee go on without a sensor it holds for bad.
    """

    name: str
    holes: "Holes" = "seen"
    dead: str | None = None
    lost: str | None = None
    since: int = 0
    delay: int = 0
    decision: Decision = "fused"
    monitored: bool = False

    def suits(self, sensors: Sequence[str]) -> bool:
        """Tell whether a policy with these sensors can be tried: one that is left with another if it loses one."""
        if not {self.dead, self.lost} - {None} <= {*sensors}:
            return False
        return len(sensors) > 1 or not (self.monitored or self.lost)


_ALL = (
    Condition("clean"),
    Condition("unseen", holes="unseen"),
    Condition("camera_black", dead="camera", since=MIDDLE),
    Condition("force_dead", dead="force", since=MIDDLE),
    Condition("delay", delay=DELAY),
    Condition("camera_lost_zero", lost="camera", since=MIDDLE),
    Condition("camera_lost_committee", lost="camera", since=MIDDLE, decision="committee"),
    Condition("monitored", dead="camera", since=MIDDLE, decision="committee", monitored=True),
    Condition("monitored_clean", decision="committee", monitored=True),
    *(Condition(f"without_{sensor}", lost=sensor) for sensor in SENSORS),
)
CONDITIONS = {one.name: one for one in _ALL}
"""Every condition, by name."""


def conditions_of(names: Iterable[str]) -> list[Condition]:
    """Return conditions by name, "all" for every one; unknown names raise one BadInput."""
    names = [name for one in names for name in (CONDITIONS if one == "all" else [one])]
    return collect(*(partial(look_up, "condition", name, CONDITIONS) for name in names))
