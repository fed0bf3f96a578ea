import pytest
import torch

from equipoise.models import pool
from equipoise.models.evaluation import FLOOR, surviving_weights


def test_pool_is_the_log_linear_pool() -> None:
    first, second = torch.randn(5, 4).log_softmax(dim=1), torch.randn(5, 4).log_softmax(dim=1)
    expected = first.exp().pow(0.3) * second.exp().pow(0.8)
    expected /= expected.sum(dim=1, keepdim=True)
    torch.testing.assert_close(pool({"fused": first, "audio": second}, torch.tensor([0.3, 0.8])), expected)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_survivors_have_a_vote_and_the_same_total(count: int) -> None:
    weights = torch.tensor([2.0, *(0.0 if k % 2 else 0.4 for k in range(count))])
    assert torch.equal(surviving_weights(weights, torch.ones(count, dtype=torch.bool)), weights)
    present = torch.ones(count, count, dtype=torch.bool).triu()  # row m lacks the first m sensors
    rows = surviving_weights(weights, present)
    for missing in range(1, count):
        left = rows[missing]
        assert torch.equal(left, surviving_weights(weights, present[missing]))
        assert torch.equal(left > 0, torch.tensor([False, *present[missing]]))  # the fused head goes with a sensor
        assert float(left.sum()) == pytest.approx(float(weights.sum()))
        assert left[1 + missing :].min() > FLOOR / (count + 1)


def test_even_a_committee_without_weight_lets_survivors_vote() -> None:
    left = surviving_weights(torch.zeros(3), torch.tensor([False, True]))
    assert left[2] > 0


def test_pool_names_what_does_not_match() -> None:
    logs = {"fused": torch.zeros(2, 3), "audio": torch.zeros(2, 3)}
    with pytest.raises(ValueError, match=r"each of 'fused', 'audio'; found weights of shape \[3\]"):
        pool(logs, torch.ones(3))
