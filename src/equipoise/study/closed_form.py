"""Closed-form heads on fixed features, as a member of a committee."""

from typing import Any

from equipoise.data.splits import Splits
from equipoise.models.late_fusion import LateFusion
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput


def closed_form_member(
    splits: Splits,  # noqa: ARG001
    settings: Settings,  # noqa: ARG001
) -> tuple[LateFusion, dict[str, Any]]:
    """Solve the closed-form model of some data, and return it with what it is built from.

    Raises:
        BadInput: If the data or the settings do not allow it.
    """
    raise BadInput("closed-form heads are not there yet")
