"""Finding encoders and optimisers in what users have."""

import copy

import pytest
import torch
from torch import nn

from equipoise import EW, MGDA, MIMO, MSL, OGM
from equipoise.balance.attach import Attachment, layers, moves_with_the_gradient
from equipoise.testing import SmallModel, batch, gradients_of, losses_of, names


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


def test_a_factor_on_the_gradient_is_one_on_the_step_for_sgd_only() -> None:
    for kind in (torch.optim.SGD, torch.optim.ASGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        moves = []
        for factor in (1.0, 0.25):
            parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
            optimizer = kind([parameter], lr=0.1)
            parameter.grad = factor * torch.tensor([0.3, -0.7])
            before = parameter.detach().clone()
            optimizer.step()
            moves.append(parameter.detach() - before)
        proportional = torch.allclose(moves[1], 0.25 * moves[0], rtol=1e-3)
        assert proportional == moves_with_the_gradient(optimizer), kind


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
