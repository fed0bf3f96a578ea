"""Balancers beside plain torch on random cases: equal gradients, tables and updates, or a refusal that is foreseen."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from methods import differential
from methods.count_differences import count_differences
from methods.differential import DifferenceError, Run, run_case
from methods.expected import shortest
from methods.random_cases import Case, draw_case


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
    ("PDMP", {"boost": 1.9999}),
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
