"""Steps that are recorded once and played back: the same training as steps that are not. Most of it needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torchjd.scalarization import DWA

from equipoise import AGM, MIMO, MSES, MSLR, OGM, SMP, Balancer
from equipoise.data import Part, Splits
from equipoise.data.bundled import two_sensors
from equipoise.data.feed import Feed
from equipoise.data.views import VideoFrames
from equipoise.integrations.torchjd import from_torchjd
from equipoise.testing import SmallModel, attached, balanced, batch, losses_of, names
from equipoise.training import cuda_graph
from equipoise.training.cuda_graph import WARM_UP, CapturedStep
from equipoise.training.settings import Settings
from equipoise.training.train import Trained, train
from everything import METHODS
from tasks_made_up import KINDS, splits_of

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU HERE: recorded steps were not tried")

SHORT = Settings(epochs=6, batch=20, schedule="step", precision="fp32", lr=0.02, features=8, device="cuda")
MORE: dict[str, Callable[[], Balancer]] = {
    "ogm-window": lambda: OGM(start=2, stop=4),
    "agm-window": lambda: AGM(strength=2.0, start=1, stop=3),
    "mslr-rates": lambda: MSLR(rates={"easy": 0.5, "hard": 1.5}, memory=1),
    "smp-order": lambda: SMP(stage=2, order=["hard", "easy"], start=1),
    "mses-rollback": lambda: MSES(patience=1, rollback=True),
}


class Waiting(nn.Module):
    """Asks the device for a number in every step."""

    features = 4

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weights = nn.Linear(shape[0], 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weights(inputs) * float(inputs.abs().max().item() > 0)


class Drawing(nn.Module):
    """Draws from a generator that nobody knows of."""

    features = 4

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weights = nn.Linear(shape[0], 4)
        self.random: torch.Generator | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.random is None:
            self.random = torch.Generator(inputs.device).manual_seed(0)
        return self.weights(inputs + 0.1 * torch.rand(inputs.shape, device=inputs.device, generator=self.random))


def both(make: Callable[[], Balancer], splits: Splits | None = None, **changes: Any) -> tuple[Trained, Trained]:
    data = splits or two_sensors(samples=300)
    captured = train(data, make(), SHORT.changed({"capture": True, **changes}))
    plain = train(data, make(), SHORT.changed({"capture": False, **changes}))
    assert plain.path["captured"] == "capture=false"
    return captured, plain


def same(one: Trained, other: Trained, tolerance: float = 1e-4) -> None:
    for (name, a), b in zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")
    for a, b in zip(one.curves, other.curves, strict=True):
        assert a["train"] == pytest.approx(b["train"], rel=tolerance, abs=tolerance)
        assert a["table"].keys() == b["table"].keys()


@on_a_gpu
@pytest.mark.parametrize("name", [*METHODS, *MORE])
def test_a_recorded_step_is_the_step(name: str) -> None:
    """With a rate that falls, encoders that stop, windows of epochs, means that move: nothing is frozen."""
    captured, plain = both({**METHODS, **MORE}[name])
    assert captured.path["captured"] == "yes"
    same(captured, plain)


@on_a_gpu
@pytest.mark.parametrize("name", ["mimo", "ogm", "mses", "mmpareto"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_with_optimisers_that_keep_more(name: str, optimizer: str) -> None:
    captured, plain = both(METHODS[name], optimizer=optimizer, lr=1e-3)
    assert captured.path["captured"] == "yes"
    same(captured, plain, 2e-3)


@on_a_gpu
@pytest.mark.parametrize(
    "changes",
    [
        {"clip": 0.1},
        {"accumulate": 2},
        {"dropout": 0.3},
        {"feed": "streamed"},
        {"schedule": "warmup-cosine"},
        {"average": 0.99},
        {"label_smoothing": 0.1, "select": "loss"},
        {"loss": "tcmax"},
    ],
    ids=str,
)
def test_with_everything_a_step_can_have(changes: dict[str, Any]) -> None:
    captured, plain = both(METHODS["mimo"], **changes)
    assert captured.path["captured"] == "yes"
    same(captured, plain)


@on_a_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mimo", "ogm", "mmpareto", "mses"])
def test_of_every_task_with_samples_that_lack_a_sensor(name: str, kind: str) -> None:
    captured, plain = both(METHODS[name], splits_of(kind, gaps=0.3), batch=16)
    assert captured.path["captured"] == "yes"
    same(captured, plain)


@on_a_gpu
def test_random_views_are_drawn_anew_for_every_batch() -> None:
    random = torch.Generator().manual_seed(0)
    frames = torch.randint(256, (90, 4, 3, 24, 24), dtype=torch.uint8, generator=random)
    sound = torch.randn(90, 6, generator=random)
    part = Part({"video": frames, "sound": sound}, torch.arange(90) % 3, views={"video": VideoFrames(2, 16)})
    splits = Splits("made up", part, part, part, ("a", "b", "c"))
    changes = {"batch": 10, "encoder": "video:frames,sound:mlp"}
    captured, plain = both(METHODS["mimo"], splits, **changes)
    assert captured.path["captured"] == "yes"
    other = train(splits, METHODS["mimo"](), SHORT.changed({"capture": False, **changes, "feed": "streamed"}))
    same_view = _first_frames(part)
    frozen = Splits("made up", same_view, same_view, same_view, ("a", "b", "c"))
    still = train(frozen, METHODS["mimo"](), SHORT.changed({"capture": False, **changes}))
    assert _apart(captured, plain) < 1e-3  # convolutions of frames do not repeat themselves to the bit: losses tell
    assert _apart(plain, other) < 1e-3
    assert _apart(plain, still) > 1e-2


def _first_frames(part: Part) -> Part:
    """The same samples, of which every view is the same."""
    video = part.inputs["video"][:, :1, :, :16, :16].expand(-1, 4, -1, -1, -1).contiguous()
    return Part({**part.inputs, "video": video}, part.label, views={"video": VideoFrames(2, 16)})


def _apart(one: Trained, other: Trained) -> float:
    pairs = zip(one.curves, other.curves, strict=True)
    return max(abs(a["train"][name] - b["train"][name]) for a, b in pairs for name in a["train"])


@on_a_gpu
def test_resumed_where_it_was_left(tmp_path: Path) -> None:
    """A generator goes on, the sums of the epoch, the rate and the state of the method too."""
    settings = SHORT.changed({"capture": True, "dropout": 0.3, "schedule": "constant"})
    data = two_sensors(samples=300)
    whole = train(data, METHODS["agm"](), settings)
    train(data, METHODS["agm"](), settings.changed({"epochs": 3}), folder=tmp_path)
    resumed = train(data, METHODS["agm"](), settings, folder=tmp_path)
    assert resumed.path["captured"] == "yes"
    same(resumed, whole, 1e-5)


@on_a_gpu
@pytest.mark.parametrize(("encoder", "reason"), [("Waiting", "waits for the device"), ("Drawing", "not be recorded")])
def test_a_model_that_cannot_be_recorded_is_trained_all_the_same(encoder: str, reason: str) -> None:
    captured, plain = both(METHODS["agm"], encoder=f"easy:training.test_cuda_graph.{encoder},hard:mlp", dropout=0.2)
    assert reason in captured.path["captured"]
    same(captured, plain)
    again, _ = both(METHODS["agm"], dropout=0.2)  # the device and its generators serve the next run
    assert again.path["captured"] == "yes"


def test_a_method_that_decides_on_the_host_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a GPU: it is refused before anything is touched."""
    feed = Feed(two_sensors(samples=60).train, "cpu")
    monkeypatch.setattr(cuda_graph, "_on_stream", nullcontext)
    for balancer, recorded in ((from_torchjd(DWA()), False), (MIMO(), True)):
        done: list[int] = []
        written: Any = Mock(
            balancer=balancer, feed=feed, side_effect=lambda batch, _, done=done: done.append(len(batch))
        )
        step = CapturedStep(written, 10, "for now")
        step.why_not = ""
        step(torch.arange(10), [])
        assert done == [10]
        assert step.why_not == ("" if recorded else "TorchJDScalarizer decides anew on the host in every step")
        assert not step.captured


def test_what_a_recording_depends_on() -> None:
    """Every method tells what would be frozen: nothing, or what it reads on the host to decide by."""
    found = {}
    for name, make in METHODS.items():
        balancer = make()
        model = SmallModel(names(2), detached=not balancer.needs.learns_from_own)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        balancer.attach(model, optimizer=optimizer)
        assert balancer.host_values() == {}, name
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
        optimizer.step()
        found |= {name: list(balancer.host_values())} if balancer.host_values() else {}
    assert found == {"mses": ["running"], "inforeg": ["open"], "relearn": ["due"]}
    assert WARM_UP > 1  # the first makes the optimiser's state, the last is watched for waits


def test_a_step_is_recorded_anew_where_an_encoder_stops() -> None:
    model = SmallModel(names(2), detached=True)
    balancer = attached(MSES(patience=0), model)
    balanced(balancer, losses_of(model, batch(names(2)))).backward()
    assert balancer.stopped == []
    before = balancer.host_values()
    for loss in (1.0, 2.0):
        balancer.end_epoch({"audio": {"loss": loss}, "video": {"loss": 1 / loss}})
    assert balancer.stopped == ["audio"]
    assert (before, balancer.host_values()) == ({"running": (1.0, 1.0)}, {"running": (0.0, 1.0)})
