"""Balancers beside plain torch on random cases: equal gradients, tables and updates, or a refusal that is foreseen."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from equipoise import MGDA, Gram, Losses
from methods import differential
from methods.count_differences import count_differences
from methods.differential import DifferenceError, Run, run_case
from methods.expected import shortest
from methods.random_cases import RULES, Case, draw_case


class TestDifferential:
    @pytest.mark.slow
    def test_random_cases(self, capsys: pytest.CaptureFixture[str]) -> None:
        alone = os.environ.get("EQUIPOISE_CASE")
        if alone is not None:
            run_case(alone)
            return
        seed, count = int(os.environ.get("EQUIPOISE_SEED", "0")), int(os.environ.get("EQUIPOISE_CASES", "500"))
        counts = count_differences(seed, count)
        said = f"seed {seed}, {count} cases: {dict(counts.outcomes)}"
        with capsys.disabled():
            print(f"\n{said}")
        assert not counts.failures, "\n\n".join([said, *(f"{t}, {text}" for (t, _), text in counts.failures.items())])
        assert counts.noise_problems() == []
        assert count < 2000 or min(counts.met.values()) >= 25, counts.met  # nothing is drawn too seldom
        assert counts.outcomes["refused"] < 0.15 * count


@cache
def with_trunks() -> list[tuple[str, Case]]:
    """The cases whose model has a trunk that the balancer knows of, with their seeds."""
    drawn = ((seed, draw_case(seed)) for seed in (f"trunk {number}" for number in range(3000)))
    return [(seed, case) for seed, case in drawn if case.has_trunk]


def cases_with_a_trunk(method: str, kind: str, most: int) -> list[str]:
    """The seeds of the first cases with a trunk of a method and a kind of model."""
    return [seed for seed, case in with_trunks() if (case.method, case.shape.kind) == (method, kind)][:most]


class TestTrunk:
    """Some of the random cases at any time: a few of every method with a hybrid model, or with a trunk of one's own."""

    @pytest.mark.parametrize("kind", ["hybrid", "own"])
    @pytest.mark.parametrize("method", RULES)
    def test_cases_with_a_trunk(self, method: str, kind: str) -> None:
        seeds = cases_with_a_trunk(method, kind, 2)
        assert len(seeds) == 2
        assert "equal" in {run_case(seed)[0] for seed in seeds}

    def test_a_trunk_that_learns_otherwise_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The comparison itself: a coefficient of the trunk that is a little off is told from the right one."""
        mixed = MGDA.mix

        def off(self: MGDA, gram: Gram, losses: Losses) -> Tensor:
            of_trunk = len(gram.products) == 1 and len(gram.objectives[0]) > 2
            return mixed(self, gram, losses) * (1.0001 if of_trunk else 1.0)

        monkeypatch.setattr(MGDA, "mix", off)
        monkeypatch.setattr(Run, "_compare_table", lambda *_: None)
        cases = (draw_case(seed) for seed in cases_with_a_trunk("MGDA", "hybrid", 20))
        masked = (one for one in cases if one.shape.unimodal == "masked" and len(one.shape.modalities) > 1)
        assert any(_kind(replace(one, twice=False), monkeypatch) == "gradient" for one in masked)


OTHER_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("EW", {"weight": 1.0001}),
    ("Unimodal", {"modality": None}),
    ("MIMO", {"penalty": 9.999}),
    ("MIMO", {"smoothing": 0.1001}),
    ("MIMO", {"floor": 1e-4}),
    ("MIMO", {"heads": "plain"}),
    ("MIMO", {"optimum": None}),
    ("MGDA", {"at": "features"}),
    ("MMPareto", {"boost": 1.5001}),
    ("Barrier", {"strength": 1.0001}),
    ("Barrier", {"smoothing": 0.1001}),
    ("MMPareto", {"rescale": "encoder"}),
    ("OGM", {"strength": 0.8001}),
    ("OGM", {"parameters": "kernels"}),
    ("OGMGE", {"start": 5}),
    ("AGM", {"strength": 1.01}),
    ("AGM", {"cap": 0.2}),
    ("MSLR", {"rates": None}),
    ("MSES", {"patience": 1}),
    ("InfoReg", {"strength": 0.9, "strengths": None}),
    ("InfoReg", {"threshold": 2.0}),
    ("InfoReg", {"sharpness": 2.0}),
    ("Relearn", {"strength": 1.0}),
    ("Relearn", {"times": 0}),
    ("SMP", {"stage": 3}),
    ("SMP", {"start": 3}),
    ("DGL", {"weight": 3.9999}),
    ("MLB", {"ceiling": 1.75}),
    ("ARL", {"sharpness": 7.99}),
    ("ARL", {"weight": 3.9999}),
    ("CGGM", {"strength": 1.2999}),
]


class TestAMistakeIsFound:
    """The comparison itself: a balancer that was made with other options than the rule is told from it."""

    @pytest.mark.slow
    @pytest.mark.parametrize(("method", "other"), OTHER_OPTIONS)
    def test_another_option(self, method: str, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        make = Case.balancer
        monkeypatch.setattr(
            Case, "balancer", lambda case, model: make(replace(case, options={**case.options, **other}), model)
        )
        monkeypatch.setattr(Run, "_compare_table", lambda *_: None)  # gradients alone have to tell
        cases = (draw_case(f"other {number}") for number in range(2000))
        affected = (case for case in cases if case.method == method and case.options != {**case.options, **other})
        kinds = (_kind(replace(case, hooked=0.0, form="separate", twice=False), monkeypatch) for case in affected)
        assert any(kind in {"gradient", "update", "noise", "value"} for kind in kinds)


def _kind(case: Case, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(differential, "draw_case", lambda _: case)
    try:
        return run_case(case.seed)[0]
    except DifferenceError as error:
        return error.kind


class TestShortest:
    def test_by_hand(self) -> None:
        assert shortest(np.array([[2.0, 0.0], [0.0, 1.0]])) == pytest.approx([0.2, 0.8])
        assert shortest(np.array([[1.0, 1.0], [3.0, 1.0], [-1.0, 5.0]])) == pytest.approx([1.0, 0.0, 0.0])

    @pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
    def test_no_vector_of_the_hull_shortens_it(self, size: float) -> None:
        """The condition of optimality: every gradient is at least as long as the shortest vector, along it."""
        draw = np.random.default_rng(0)
        for count in (2, 3, 4, 6):
            rows = draw.normal(size=(count, 8)) + 0.5
            rows[1:] *= size
            weights = shortest(rows)
            found = weights @ rows
            assert weights.sum() == pytest.approx(1)
            assert (weights >= 0).all()
            assert (rows @ found >= found @ found * (1 - 1e-9)).all()
