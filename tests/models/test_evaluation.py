import pytest
import torch

from equipoise.models.evaluation import surviving_weights


@pytest.mark.parametrize("count", [2, 3, 5])
def test_survivors_have_a_vote_and_the_same_total_but_no_more_than_one_each(count: int) -> None:
    weights = torch.tensor([2.0, *(0.0 if k % 2 else 0.4 for k in range(count))])
    assert torch.equal(surviving_weights(weights, torch.ones(count, dtype=torch.bool)), weights)
    present = torch.ones(count, count, dtype=torch.bool).triu()  # row m lacks the first m sensors
    rows = surviving_weights(weights, present)
    for missing in range(1, count):
        left = rows[missing]
        assert torch.equal(left, surviving_weights(weights, present[missing]))
        assert torch.equal(left > 0, torch.tensor([False, *present[missing]]))  # the fused head goes with a sensor
        assert float(left.sum()) == pytest.approx(min(float(weights.sum()), count - missing))
        assert left[1 + missing :].min() > 0.1 / (count + 1)


def test_even_a_committee_without_weight_lets_survivors_vote() -> None:
    left = surviving_weights(torch.zeros(3), torch.tensor([False, True]))
    assert left[2] > 0


def test_by_hand() -> None:
    """The second sensor's weight of nothing is raised to a tenth of a quarter; both are scaled to the whole of 0.8."""
    left = surviving_weights(torch.tensor([0.4, 0.3, 0.0, 0.1]), torch.tensor([True, True, False]))
    assert left.tolist() == pytest.approx([0.0, 0.3 * 0.8 / 0.325, 0.025 * 0.8 / 0.325, 0.0])
