"""Finding encoders and optimisers in what users have."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from equipoise import EW, MGDA, MIMO, MSL, OGM, HybridFusion, LateFusion
from equipoise.balance.attach import Attachment, layers
from equipoise.models.fusion_model import Unimodal as View
from equipoise.testing import SmallModel, attached, balanced, batch, gradients_of, losses_of, names
from everything import METHODS, SHAPES


class Own(nn.Module):
    """A user's model that names its parts as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.audio_net = nn.Linear(3, 4)
        self.backbone = nn.ModuleDict({"video": nn.Linear(3, 4)})
        self.empty = nn.ReLU()
        self.head = nn.Linear(8, 3)


def test_encoders_by_module_by_dotted_name_and_by_list() -> None:
    model = Own()
    found = Attachment(
        model, {"audio": model.audio_net, "video": "backbone.video", "both": [model.audio_net, model.head.bias]}
    ).parameters()
    assert [p.shape for p in found["audio"]] == [p.shape for p in model.audio_net.parameters()]
    assert found["video"][0] is model.backbone["video"].weight
    assert found["both"][-1] is model.head.bias


def test_a_wrong_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(ValueError, match="no part called 'audio_nte'; did you mean 'audio_net'"):
        MIMO().attach(Own(), encoders={"audio": "audio_nte"})
    with pytest.raises(ValueError, match=r"no part called 'zzz'; its parts are \['audio_net', 'backbone'"):
        MIMO().attach(Own(), encoders={"audio": "zzz"})
    with pytest.raises(ValueError, match="so the model is needed too"):
        MIMO().attach(encoders={"audio": "audio_net"})
    with pytest.raises(TypeError, match="an encoder is a module, a dotted name or a list of these, found int"):
        MIMO().attach(Own(), encoders={"audio": [3]})  # ty: ignore[invalid-argument-type]


def test_a_model_that_does_not_say_is_asked() -> None:
    with pytest.raises(
        ValueError, match=r"no mapping `encoders`\. Its parts are \['audio_net', 'backbone', 'empty', 'head'\]"
    ):
        MIMO().attach(Own())
    with pytest.raises(ValueError, match="names no modality"):
        MIMO().attach(Own(), encoders={})


def test_an_encoder_without_parameters_is_refused() -> None:
    model = Own()
    with pytest.raises(ValueError, match="found none in 'video'"):
        MIMO().attach(model, encoders={"audio": model.audio_net, "video": model.empty})


def test_other_modalities_than_before_are_refused() -> None:
    balancer = EW()
    balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(1.0)})
    with pytest.raises(ValueError, match=r"serves \['audio'\], found encoders for \['audio', 'video'\]"):
        balancer.attach(SmallModel(names(2)))


def test_wrappers_are_looked_through() -> None:
    model = SmallModel(names(2))
    wrapped = torch.compile(nn.DataParallel(model), backend="eager")
    assert isinstance(wrapped, nn.Module)
    assert layers(wrapped)[-1] is model
    assert set(Attachment(wrapped, None).encoders) == set(names(2))
    assert Attachment(wrapped, None).compiled()
    assert not Attachment(model, None).compiled()
    model.encoders["audio"].compile(backend="eager")
    assert Attachment(model, None).compiled()


def test_a_part_called_module_is_not_mistaken_for_a_wrapper() -> None:
    model = nn.Module()
    model.module = Own()
    assert layers(model) == [model]


def test_parameters_are_looked_up_at_each_call() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = MGDA().attach(model)
    balancer(losses_of(model, data)).backward()
    model.encoders["audio"] = nn.Sequential(nn.Linear(3, 4).double())  # an encoder replaced after attaching
    model.zero_grad()
    balancer(losses_of(model, data)).backward()
    assert bool(gradients_of(model)["encoders.audio.0.weight"].any())


def test_something_that_is_no_optimiser_is_refused() -> None:
    with pytest.raises(TypeError, match=r"optimizer should be a torch\.optim\.Optimizer or a list of them, found str"):
        OGM().attach(SmallModel(names(2)), optimizer="sgd")


def test_attaching_again_lets_the_old_optimiser_go() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    old, new = (torch.optim.Adam(model.parameters(), 0.1) for _ in range(2))
    balancer = OGM().attach(model, optimizer=old).attach(model, optimizer=new)
    balancer(losses_of(model, data)).backward()
    before = copy.deepcopy(model.state_dict())
    old.step()
    moved = model.state_dict()["encoders.audio.0.weight"] - before["encoders.audio.0.weight"]
    wanted = 0.1 * torch.ones_like(moved)
    torch.testing.assert_close(moved.abs(), wanted, rtol=1e-4, atol=1e-6)  # a full step of Adam: nobody scaled it


def test_nothing_of_the_model_is_registered_or_changed() -> None:
    model = SmallModel(names(2))
    before = set(model.state_dict())
    balancer = MSL().attach(model)
    assert not list(balancer.children())
    assert set(model.state_dict()) == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# -- heads that are not uni-modal --


class Attending(nn.Module):
    """Encoders whose features attend to each other before heads read them; those named alone stay by themselves."""

    def __init__(self, alone: tuple[str, ...] = ()) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoders = nn.ModuleDict({name: nn.Linear(3, 4) for name in names(3)})
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.heads = nn.ModuleDict({name: nn.Linear(4, 3) for name in ("fused", *names(3))})
        self.alone = alone
        self.double()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: encoder(inputs[name]) for name, encoder in self.encoders.items()}
        tokens = torch.stack(list(own.values()), dim=1)
        met, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        features = {"fused": met.mean(dim=1), **dict(zip(own, met.unbind(dim=1), strict=True))}
        features |= {name: own[name] for name in self.alone}
        return {name: self.heads[name](feature) for name, feature in features.items()}


NOT_UNIMODAL = "attach: the losses of {} reach the encoders of other modalities: their heads stand behind a part where"


# Where responses are given, a modality's own output may be its response, which reaches all encoders by its definition.
OWN = [name for name in SHAPES if METHODS[name]().needs.further != "response"]


@pytest.mark.parametrize("method", OWN)
def test_heads_behind_cross_attention_are_warned_of_once(method: str) -> None:
    model, data = Attending(), batch(names(3))
    balancer = attached(METHODS[method](), model)
    with pytest.warns(UserWarning, match=NOT_UNIMODAL.format("'audio', 'video', 'text'")) as caught:
        balanced(balancer, losses_of(model, data)).backward()
    assert len(caught) == 1
    for _ in range(2):  # where a warning is an error
        balanced(balancer, losses_of(model, data)).backward()
    assert "not uni-modal, since other encoders are reached: audio, video, text" in balancer.table.notes


@pytest.mark.parametrize(("alone", "named"), [(("audio",), "'video', 'text'"), (("audio", "text"), "'video'")])
def test_the_modality_whose_head_is_not_its_own_is_named(alone: tuple[str, ...], named: str) -> None:
    model = Attending(alone)
    balancer = attached(EW(), model)
    with pytest.warns(UserWarning, match=NOT_UNIMODAL.format(named)):
        balancer(losses_of(model, batch(names(3)))).backward()
    reached = {name: set(row) for name, row in balancer.table.numbers().items() if name != "fused"}
    assert all(len(columns & set(names(3))) == (1 if name in alone else 3) for name, columns in reached.items())


def test_the_warning_points_to_the_line_that_called_the_balancer() -> None:
    model = Attending()
    with pytest.warns(UserWarning, match="reach the encoders of other modalities") as caught:
        attached(EW(), model)(losses_of(model, batch(names(3))))
    assert [one.filename for one in caught] == [__file__]


def test_another_model_is_looked_at_anew() -> None:
    first, second = Attending(), SmallModel(names(3))
    balancer = attached(EW(), first)
    for model in (first, second, first):
        attached(balancer, model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            balancer(losses_of(model, batch(names(3))))
        assert len(caught) == (model is first)
        assert any("not uni-modal" in note for note in balancer.table.notes) == (model is first)


def shared_backbone() -> SmallModel:
    model, backbone = SmallModel(names(2)), nn.Linear(3, 4).double()
    for name in names(2):
        model.encoders[name] = nn.Sequential(backbone, nn.Tanh(), nn.Linear(4, 4).double())
    return model


def hybrid(view: View) -> HybridFusion:
    encoders = {name: nn.Linear(3, 4) for name in names(2)}
    return HybridFusion(encoders, classes=3, unimodal=view, width=4, depth=1).double()


def late(view: View) -> LateFusion:
    return LateFusion({name: nn.Linear(3, 4) for name in names(2)}, classes=3, unimodal=view).double()


UNIMODAL: dict[str, Callable[[], nn.Module]] = {
    "separate heads": lambda: SmallModel(names(2)),
    "detached heads": lambda: SmallModel(names(2), detached=True),
    "a shared backbone": shared_backbone,
    "late fusion, heads": lambda: late("head"),
    "late fusion, shares": lambda: late("split"),
    "hybrid fusion, heads": lambda: hybrid("head"),
    "hybrid fusion, detached heads": lambda: hybrid("detached"),
    "hybrid fusion, masked": lambda: hybrid("masked"),
    "hybrid fusion, masked and detached": lambda: hybrid("masked_detached"),
}


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (method, kind)
        for method in ("msl", "ew", "ogm", "mgda", "mcr")
        for kind in UNIMODAL
        if not ("detached" in kind and METHODS[method]().needs.learns_from_own)  # refused: see test_delivery.py
    ],
)
def test_heads_that_are_unimodal_are_not_warned_of(method: str, kind: str) -> None:
    model, balancer = UNIMODAL[kind](), METHODS[method]()
    attached(balancer, model)
    for seed in range(3):  # where a warning is an error
        balanced(balancer, losses_of(model, batch(names(2), seed=seed))).backward()
    assert not any("not uni-modal" in note for note in balancer.table.notes)
