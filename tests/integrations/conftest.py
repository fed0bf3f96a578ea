import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def accelerate_state() -> Iterator[None]:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    before = dict(os.environ)
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    os.environ.clear()
    os.environ.update(before)
