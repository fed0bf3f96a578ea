"""Hybrid and early fusion through `train`: every method, the trunk's column, and attention over the epochs."""

import math
import warnings
from typing import Any

import pytest
import torch

from equipoise import MIMO, HybridFusion
from equipoise.data.bundled import two_sensors
from equipoise.study.registry import all_methods, entries
from equipoise.training.train import train

FUSED_ALONE = {"fused": 1.0, "easy": None, "hard": None}
"""The trunk learns from the fused loss: no uni-modal loss reaches it."""
TRUNKS: dict[str, dict[str, float | None]] = {
    **dict.fromkeys(("msl", "moddrop", "agm", "ogm", "ogmge", "mslr", "mses", "smp", "cggm"), FUSED_ALONE),
    "relearn": FUSED_ALONE,
    "dgl": {"fused": 1.0, "easy": 0.0, "hard": 0.0},
    "ew": {"fused": 1.0, "easy": 1.0, "hard": 1.0},
    "inforeg": {"fused": 1.0, "easy": 1.0, "hard": 1.0},
    "primaldual": {"fused": 1.0, "easy": 1.0, "hard": 1.0},
    "mcr": {"fused": 1.0, "easy": 1.0, "hard": 1.0, "permuted easy": 0.0, "permuted hard": 0.0},
    "arl": {"fused": 1.0, "easy": 4.0, "hard": 4.0},
}
"""What the trunk's column of the table says, by method, where it is the same at every step."""


def trained(name: str, *words: str) -> tuple[Any, Any]:
    (entry,) = entries([name], ["fusion=hybrid", "features=8", "epochs=2", "batch=20", *words])
    balancer = entry.balancer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # AGM takes its approximate form
        return train(two_sensors(samples=80), balancer, entry.settings), balancer


@pytest.mark.parametrize("name", list(all_methods()))
def test_every_method_trains_a_hybrid_model(name: str) -> None:
    result, balancer = trained(name)
    assert isinstance(result.model, HybridFusion)
    record = result.curves[-1]
    assert all(math.isfinite(value) for value in record["validation"].values())
    column = {loss: row.get("trunk") for loss, row in record["table"].items()}
    if name in TRUNKS:
        assert column == pytest.approx(TRUNKS[name])
    elif name in ("mimo", "mlb"):  # as the encoder of that modality
        assert column["fused"] == 1
        row = "easy" if name == "mimo" else "fused"
        assert column["easy"] == pytest.approx(record["table"][row]["easy"])
    elif name in ("barrier", "mgda", "mmpareto"):
        assert all(value is not None and value >= 0 for value in column.values())
        assert name != "mgda" or sum(map(float, column.values())) == pytest.approx(1)
    else:
        assert name in ("unimodal", "ensemble")
        assert result.model.unimodal == "head"  # models of one modality each share no trunk
        assert column == {"fused": 0.0, "easy": None, "hard": None}
    # The vectors of missing sensors start at zero, and learn from masked passes under every method.
    assert all(bool(vector.any()) for vector in result.model.absent) == (result.model.unimodal != "head")
    assert ("attention" in record) == balancer.needs.fused
    if balancer.needs.fused:
        shares = record["attention"]
        assert list(shares) == ["easy", "hard"]
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) > 0


@pytest.mark.parametrize("objective", ["masked", "head"])
@pytest.mark.parametrize("fusion", ["hybrid", "early"])
def test_the_trunk_learns_from_masked_objectives_and_not_from_heads(fusion: str, objective: str) -> None:
    result, _ = trained("mimo", f"fusion={fusion}", f"objective={objective}")
    assert result.model.unimodal == objective
    table = result.curves[-1]["table"]
    assert ("trunk" in table["easy"]) == (objective == "masked")
    # What the fused loss does not reach: the vector in the place of the other sensor, or the head.
    assert set(table["easy"]) == {"easy", "own heads"} | ({"trunk", "fused head"} if objective == "masked" else set())


def test_attention_is_that_of_the_validation_part() -> None:
    splits = two_sensors(samples=80)
    (entry,) = entries(["mimo"], ["fusion=early", "features=8", "epochs=1", "batch=20"])
    result = train(splits, MIMO(), entry.settings)
    assert isinstance(result.model, HybridFusion)
    model = result.model.eval()
    with torch.no_grad():
        shares = model.attention_shares(model.features(splits.validation.inputs))
    wanted = {name: float(share.mean()) for name, share in shares.items()}
    assert result.curves[-1]["attention"] == pytest.approx(wanted, rel=1e-5)
