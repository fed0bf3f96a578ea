"""Ridge regression: the left-out answers against models that were fitted without the fold, and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from equipoise.models.ridge import STRENGTHS, choose_strength, folds_of, solve


def made_up(seed: int, samples: int = 60, features: int = 90) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(samples, features, generator=random) / features**0.5
    wanted = values[:, :2] * 3 + 0.3 * torch.randn(samples, 2, generator=random) + torch.tensor([5.0, -1.0])
    return values, wanted


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("grouped", [False, True])
def test_left_out_answers_are_those_of_models_that_never_saw_the_fold(seed: int, grouped: bool) -> None:
    values, wanted = made_up(seed)
    folds = folds_of(len(values), torch.arange(60) // 13 if grouped else None)
    chosen = choose_strength(values @ values.T, wanted, folds)
    assert chosen.strength in STRENGTHS
    for rows in folds:
        others = np.setdiff1d(np.arange(60), rows)
        model = Ridge(alpha=chosen.strength).fit(values[others].double(), wanted[others].double())
        np.testing.assert_allclose(chosen.left_out[rows], model.predict(values[rows].double()), atol=2e-3)


def test_the_strength_is_the_best_of_its_neighbours() -> None:
    values, wanted = made_up(7)
    folds = folds_of(60, None)
    chosen = choose_strength(values @ values.T, wanted, folds)
    losses = []
    for strength in STRENGTHS:
        errors = []
        for rows in folds:
            others = np.setdiff1d(np.arange(60), rows)
            model = Ridge(alpha=strength).fit(values[others].double(), wanted[others].double())
            errors.append((model.predict(values[rows].double()) - wanted[rows].double().numpy()) ** 2)
        losses.append(float(np.concatenate(errors).mean()))
    assert STRENGTHS[int(np.argmin(losses))] == chosen.strength
    assert chosen.loss == pytest.approx(min(losses), rel=1e-3)


@pytest.mark.parametrize(("samples", "features"), [(60, 90), (60, 20), (10, 3)])
def test_solutions_are_those_of_scikit_learn(samples: int, features: int) -> None:
    values, wanted = made_up(1, samples, features)
    weight, bias = solve(values, wanted, 0.3, values @ values.T)
    model = Ridge(alpha=0.3).fit(values.double(), wanted.double())
    np.testing.assert_allclose(weight, model.coef_, atol=1e-4)
    np.testing.assert_allclose(bias, model.intercept_, atol=1e-4)


def uneven(seed: int, columns: int) -> torch.Tensor:
    """Weights of 60 samples, some of them many times those of others."""
    return torch.rand(60, columns, generator=torch.Generator().manual_seed(seed)).mul(3.5).exp()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("columns", [1, 2])
def test_weighted_left_out_answers_are_those_of_models_that_never_saw_the_fold(seed: int, columns: int) -> None:
    values, wanted = made_up(seed)
    weight = uneven(seed, columns)
    folds = folds_of(60, torch.arange(60) // 13 if seed else None)
    chosen = choose_strength(values @ values.T, wanted, folds, weight)
    losses = dict.fromkeys(STRENGTHS, 0.0)
    for at in range(2):
        own = weight[:, at % columns].double().numpy()
        for rows in folds:
            others = np.setdiff1d(np.arange(60), rows)
            for strength in STRENGTHS:
                model = Ridge(alpha=strength).fit(values[others].double(), wanted[others, at].double(), own[others])
                answers = model.predict(values[rows].double())
                losses[strength] += float((own[rows] * (answers - wanted[rows, at].numpy()) ** 2).sum()) / 120
                if strength == chosen.strength:
                    np.testing.assert_allclose(chosen.left_out[rows, at], answers, atol=2e-3)
    assert chosen.strength == min(losses, key=lambda strength: losses[strength])
    assert chosen.loss == pytest.approx(losses[chosen.strength], rel=1e-3)


@pytest.mark.parametrize("features", [90, 20])
@pytest.mark.parametrize("columns", [1, 2])
def test_weighted_solutions_are_those_of_scikit_learn(features: int, columns: int) -> None:
    values, wanted = made_up(3, 60, features)
    own = uneven(5, columns)
    weight, bias = solve(values, wanted, 0.3, values @ values.T, own)
    for at in range(2):
        model = Ridge(alpha=0.3).fit(values.double(), wanted[:, at].double(), own[:, at % columns].double().numpy())
        np.testing.assert_allclose(weight[at], model.coef_, atol=1e-4)
        np.testing.assert_allclose(bias[at], model.intercept_, atol=1e-4)


def test_a_sample_that_counts_three_times_is_three_samples() -> None:
    values, wanted = made_up(2, 30, 50)
    times = torch.arange(30) % 3 + 1
    thrice = torch.arange(30).repeat_interleave(times)
    copied = solve(values[thrice], wanted[thrice], 0.3, values[thrice] @ values[thrice].T)
    weighted = solve(values, wanted, 0.3, values @ values.T, times[:, None])
    torch.testing.assert_close(weighted, copied, atol=1e-4, rtol=1e-4)
    folds = folds_of(30, None)
    chosen = choose_strength(values @ values.T, wanted, folds, times[:, None])
    of_copies = choose_strength(
        values[thrice] @ values[thrice].T, wanted[thrice], [torch.isin(thrice, rows).nonzero()[:, 0] for rows in folds]
    )
    assert chosen.strength == of_copies.strength
    torch.testing.assert_close(chosen.left_out[thrice], of_copies.left_out, atol=2e-3, rtol=0)


def test_folds_share_no_group_and_hold_every_sample() -> None:
    groups = torch.tensor([3, 1, 3, 2, 9, 9, 1, 4, 4, 2, 7])
    folds = folds_of(len(groups), groups)
    assert sorted(torch.cat(folds).tolist()) == list(range(len(groups)))
    owners = [set(groups[rows].tolist()) for rows in folds]
    assert sum(map(len, owners)) == len(set(groups.tolist()))
    assert len(folds_of(200, torch.arange(200))) == 10
    assert len(folds_of(50, torch.zeros(50))) == 10  # one group for all
