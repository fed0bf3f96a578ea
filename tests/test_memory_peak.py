"""What the tests of memory lean on: a peak is seen where a higher one came before."""

import numpy as np
import pytest

from memory_peak import takes_less_than


def test_a_peak_below_an_earlier_one_is_seen() -> None:
    assert np.ones(2**28, np.uint8).all()
    with takes_less_than(200):
        assert np.ones(100 * 2**20, np.uint8).all()
    with pytest.raises(AssertionError, match=r"^(19|20|21)\d MiB"), takes_less_than(150):
        assert np.ones(200 * 2**20, np.uint8).all()
