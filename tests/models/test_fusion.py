import pytest
import torch
from torch import Tensor, nn

from equipoise.models import Concat, FiLM, Gated, Sum, build_fusion
from equipoise.models.fusion import Custom

MANY = [1, 2, 3, 5]


def linear(size: int) -> nn.Linear:
    return nn.Linear(size, 4)


def two_layers(size: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 3), nn.ReLU(), nn.Linear(3, 4))


def features_for(count: int) -> tuple[dict[str, int], dict[str, Tensor]]:
    sizes = {f"s_{k}": 3 + k for k in range(count)}
    return sizes, {name: torch.randn(6, size) for name, size in sizes.items()}


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("name", ["concat", "sum"])
@pytest.mark.parametrize("bias", [True, False])
def test_shares_sum_to_the_fused_output(name: str, count: int, bias: bool) -> None:
    sizes, features = features_for(count)
    fusion = build_fusion(name, sizes, lambda size: nn.Linear(size, 4, bias=bias)).double()
    features = {name: feature.double() for name, feature in features.items()}
    shares = fusion.share(features)
    assert fusion.additive
    assert list(shares) == list(sizes)
    torch.testing.assert_close(torch.stack(list(shares.values())).sum(dim=0), fusion(features), rtol=0, atol=1e-14)


def test_a_share_depends_on_its_own_modality_only() -> None:
    sizes, features = features_for(3)
    for fusion in (Concat(sizes, linear), Sum(sizes, linear)):
        before = fusion.share(features)
        after = fusion.share({**features, "s_1": torch.randn(6, sizes["s_1"])})
        torch.testing.assert_close(before["s_0"], after["s_0"], rtol=0, atol=0)
        assert not torch.allclose(before["s_1"], after["s_1"])


def test_sum_is_additive_under_any_head_and_concat_only_under_a_linear_one() -> None:
    sizes, features = features_for(2)
    assert Sum(sizes, two_layers).additive
    concat = Concat(sizes, two_layers)
    assert not concat.additive
    with pytest.raises(ValueError, match=r"Concat has no shares.*Linear head"):
        concat.share(features)


def test_gated_is_the_papers_formula_for_two() -> None:
    sizes, features = features_for(2)
    fusion = Gated(sizes, linear)
    gate = torch.sigmoid(fusion.gates["s_0"](features["s_0"]))
    torch.testing.assert_close(fusion(features), fusion.head(gate * fusion.project(features["s_1"])))
    assert fusion.project.weight.shape == (sizes["s_1"], sizes["s_1"])


def test_gated_averages_the_gates_of_the_others() -> None:
    sizes, features = features_for(3)
    fusion = Gated(sizes, linear, carrier="s_1")
    gates = [torch.sigmoid(fusion.gates[name](features[name])) for name in ("s_0", "s_2")]
    expected = fusion.head((gates[0] + gates[1]) / 2 * fusion.project(features["s_1"]))
    torch.testing.assert_close(fusion(features), expected)


def test_a_carrier_alone_is_projected() -> None:
    sizes, features = features_for(1)
    fusion = Gated(sizes, linear)
    torch.testing.assert_close(fusion(features), fusion.head(fusion.project(features["s_0"])))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_film_scales_and_shifts_the_others(count: int) -> None:
    sizes, features = features_for(count)
    fusion = FiLM(sizes, linear)
    others = torch.cat([features[name] for name in list(sizes)[1:]], dim=1)
    parameters = fusion.scale_and_shift(features["s_0"])
    scale, shift = parameters[:, : others.shape[1]], parameters[:, others.shape[1] :]
    torch.testing.assert_close(fusion(features), fusion.head(scale * others + shift))


def test_film_takes_any_conditioner_but_not_one_alone() -> None:
    sizes, features = features_for(3)
    assert FiLM(sizes, linear, conditioner="s_2")(features).shape == (6, 4)
    with pytest.raises(ValueError, match=r"at least two modalities.*only 's.0'.*concat"):
        FiLM({"s_0": 3}, linear)


@pytest.mark.parametrize("name", ["gated", "film"])
def test_what_is_no_sum_has_no_shares(name: str) -> None:
    sizes, features = features_for(2)
    fusion = build_fusion(name, sizes, linear)
    assert not fusion.additive
    with pytest.raises(ValueError, match="has no shares: its output is no sum"):
        fusion.share(features)


@pytest.mark.parametrize(
    ("name", "count"),
    [(name, count) for name in ("concat", "sum", "gated", "film") for count in MANY if (name, count) != ("film", 1)],
)
def test_the_order_of_the_features_does_not_matter(name: str, count: int) -> None:
    sizes, features = features_for(count)
    fusion = build_fusion(name, sizes, linear)
    torch.testing.assert_close(fusion(dict(reversed(features.items()))), fusion(features), rtol=0, atol=0)


class Product(nn.Module):
    features = 3

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return torch.stack([feature[:, :3] for feature in features.values()]).prod(dim=0)


def test_a_users_module_gets_a_head() -> None:
    sizes, features = features_for(3)
    joint = Product()
    fusion = build_fusion(joint, sizes, linear)
    assert isinstance(fusion, Custom)
    torch.testing.assert_close(fusion(features), fusion.head(joint(features)))


def test_a_fusion_is_taken_as_it_is() -> None:
    sizes, _ = features_for(3)
    own = Gated(sizes, linear, carrier="s_0")
    assert build_fusion(own, sizes, linear) is own


def test_a_users_module_must_tell_its_size() -> None:
    with pytest.raises(ValueError, match=r"Identity does not.*fusion\.features = 64"):
        build_fusion(nn.Identity(), {"a": 3}, linear)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(ValueError, match=r"Unknown fusion: 'conact'.*Did you mean 'concat'"):
        build_fusion("conact", {"a": 3}, linear)
    with pytest.raises(ValueError, match=r"Unknown carrier: 'vidoe'.*Did you mean 'video'"):
        Gated({"audio": 3, "video": 3}, linear, carrier="vidoe")
    with pytest.raises(ValueError, match="Unknown conditioner: 'x'"):
        FiLM({"audio": 3, "video": 3}, linear, conditioner="x")
