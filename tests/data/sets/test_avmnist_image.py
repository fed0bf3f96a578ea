"""What is left of images when leading principal components are kept: by hand, and against singular values."""

import numpy as np
import pytest
import torch

from equipoise.data.sets.avmnist import PrincipalComponents


def tiny_set(*pairs_of_values: tuple[int, int]) -> np.ndarray:
    """Images that are grey but for their first two pixels."""
    images = np.full((len(pairs_of_values), 28, 28), 100, np.uint8)
    images[:, 0, :2] = pairs_of_values
    return images


def test_remains_by_hand() -> None:
    """Deviations of ±10 and ±20 that do not go together: variances 100 and 400, one and four fifths of the whole."""
    training = tiny_set((90, 80), (110, 80), (90, 120), (110, 120))
    components = PrincipalComponents.fit(training, 0.85)
    assert (len(components.components), components.kept) == (1, pytest.approx(0.8))
    seen = components.project(tiny_set((117, 133))[0])
    assert seen[0, :3].tolist() == pytest.approx([100, 133, 100])  # the mean is added back
    assert len(PrincipalComponents.fit(training, 0.8).components) == 1
    assert len(PrincipalComponents.fit(training, 1.0).components) >= 2
    with pytest.raises(ValueError, match=r"energy: expected at least 0\.8000, the share of the first .* found 0\.79"):
        PrincipalComponents.fit(training, 0.79)


@pytest.mark.parametrize("energy", [0.1, 0.3, 0.7])
def test_remains_against_singular_values(energy: float) -> None:
    training = np.random.default_rng(2).integers(0, 256, (60, 28, 28)).astype(np.uint8)
    components = PrincipalComponents.fit(training, energy)
    flat = training.reshape(60, -1).astype(float)
    mean = flat.mean(axis=0)
    _, values, rows = (each.numpy() for each in torch.linalg.svd(torch.from_numpy(flat - mean), full_matrices=False))
    share = np.cumsum(values**2) / np.sum(values**2)
    count = int(np.searchsorted(share, energy, side="right"))
    assert len(components.components) == count > 0
    assert components.kept == pytest.approx(share[count - 1])
    expected = mean + np.einsum("np,kp,kq->nq", flat - mean, rows[:count], rows[:count], optimize=True)
    found = np.stack([components.project(image) for image in training]).reshape(60, -1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.sum((found - mean) ** 2) / np.sum((flat - mean) ** 2) == pytest.approx(components.kept)
