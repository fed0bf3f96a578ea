"""Bad input is one class, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import MIMO
from equipoise.study.registry import entries
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput, Unreadable, collect
from equipoise.util.files import reading


def say(problem: Exception) -> object:
    raise problem


def test_the_problems_of_all_inputs_are_told_at_once_and_each_once() -> None:
    questions = [BadInput("one"), Unreadable("two"), BadInput("one")]
    with pytest.raises(BadInput) as found:
        collect(lambda: 3, *(lambda each=each: say(each) for each in questions))
    assert str(found.value) == "one\ntwo"


@pytest.mark.parametrize("fault", [ValueError("unpack"), TypeError("none"), KeyError("key"), UnicodeError("bytes")])
def test_a_fault_of_the_program_passes_through(fault: Exception) -> None:
    with pytest.raises(type(fault)) as found:
        collect(lambda: say(BadInput("told")), lambda: say(fault))
    assert found.value is fault


def test_what_a_user_got_wrong_is_bad_input_and_a_value_error_as_before(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="penalty"):
        MIMO(penalty=-1.0)
    with pytest.raises(BadInput, match="epochs should be"):
        Settings(epochs=-1)
    with pytest.raises(BadInput, match="did you mean 'mimo'"):
        entries(["mimoo"])
    with pytest.raises(Unreadable), reading(tmp_path / "nowhere"):
        pass
    assert issubclass(BadInput, ValueError)
