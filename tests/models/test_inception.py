"""InceptionTime beside a version written with 1-D convolutions, one sample at a time."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.models import Inception


def norm(maps: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    running = (weights[f"{name}.running_mean"], weights[f"{name}.running_var"])
    return F.batch_norm(maps, *running, weights[f"{name}.weight"], weights[f"{name}.bias"])


def by_the_paper(series: Tensor, weights: dict[str, Tensor], *, groups: int) -> Tensor:
    """In evaluation: the blocks of the paper, pooling by 2 between groups of three."""
    maps = series
    for group in range(groups):
        if group:
            maps = F.max_pool1d(maps, 2, ceil_mode=True)
        before = maps
        for block in range(3):
            name = f"groups.{group}.blocks.{block}"
            narrow = maps
            if f"{name}.bottleneck.weight" in weights:
                narrow = F.conv1d(maps, weights[f"{name}.bottleneck.weight"].squeeze(2))
            kernels = [weights[f"{name}.branches.{at}.weight"].squeeze(2) for at in range(3)]
            branches = [F.conv1d(narrow, kernel, padding=kernel.shape[2] // 2) for kernel in kernels]
            pooled = F.conv1d(F.max_pool1d(maps, 3, 1, 1), weights[f"{name}.pooled.weight"].squeeze(2))
            maps = norm(torch.cat([*branches, pooled], dim=1), weights, f"{name}.norm")
            if block == 2:
                shortcut = F.conv1d(before, weights[f"groups.{group}.shortcut.0.weight"].squeeze(2))
                maps = maps + norm(shortcut, weights, f"groups.{group}.shortcut.1")
            maps = maps.relu()
    return maps.mean(dim=2)


@pytest.mark.parametrize(("channels", "steps"), [(1, 1), (3, 9), (9, 50), (2, 101)])
@pytest.mark.parametrize("groups", [1, 2])
def test_it_is_the_network_of_the_paper(channels: int, steps: int, groups: int) -> None:
    torch.manual_seed(steps)
    encoder = Inception(channels, steps, features=16, groups=groups).double()
    for _ in range(2):
        encoder(torch.randn(5, channels, steps, dtype=torch.float64))
    series = torch.randn(4, channels, steps, dtype=torch.float64)
    expected = by_the_paper(series, encoder.eval().state_dict(), groups=groups)
    torch.testing.assert_close(encoder(series), expected)


@pytest.mark.parametrize(("steps", "stride"), [(24, 1), (256, 1), (257, 2), (1000, 8), (5000, 39)])
def test_long_series_are_strided_to_about_128_steps(steps: int, stride: int) -> None:
    encoder = Inception(2, steps, features=8)
    read = []
    encoder.groups[0].register_forward_hook(lambda _, inputs, __: read.append(inputs[0].shape))
    assert encoder(torch.randn(2, 2, steps)).shape == (2, 8)
    assert read[0][3] == -(-steps // stride)


def test_the_size_of_the_output_is_as_asked() -> None:
    for features in (1, 6, 64, 200):
        assert Inception(2, 30, features)(torch.randn(2, 2, 30)).shape == (2, features)
