"""`Rocket` encoders: what they read in training is what they compute of inputs, once for all runs on some data."""

import errno
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import EW, MIMO
from equipoise.data import Splits
from equipoise.models import rocket
from equipoise.models.frozen import FrozenFeatures
from equipoise.models.rocket import Rocket
from equipoise.training import components
from equipoise.training.settings import Settings
from equipoise.training.step import evaluate
from equipoise.training.train import train
from tasks_made_up import splits_of

SETTINGS = Settings(epochs=2, batch=16, encoder="rocket", features=8, lr=0.05)


def test_the_model_reads_inputs_as_it_read_components() -> None:
    splits = splits_of("classes", gaps=0.3)
    result = train(splits, MIMO(), SETTINGS)
    told = result.curves[-1]["validation"]
    again = evaluate(result.model, splits.validation)
    assert {name: pytest.approx(values["accuracy"]) for name, values in again.items()} == told
    assert not any(isinstance(one, Rocket) and one.reads_components for one in result.model.modules())


def test_samples_are_computed_once_for_all_methods_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    splits, read, plain = splits_of("classes"), [], FrozenFeatures._raw

    def counted(self: FrozenFeatures, values: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        read.append(len(values))
        return plain(self, values, lengths)

    monkeypatch.setattr(FrozenFeatures, "_raw", counted)
    components.prepare(splits, SETTINGS)
    once = len(splits.modalities) * (len(splits.train) + len(splits.validation))
    assert sum(read) == once
    for balancer, seed in ((MIMO(), 0), (EW(), 0), (EW(), 1)):
        train(splits, balancer, SETTINGS, seed=seed)
    assert sum(read) == once


@pytest.mark.parametrize("samples", [5, 40, 300])
def test_components_are_uncorrelated_and_in_order(samples: int) -> None:
    encoder = Rocket((2, 30))
    values = torch.randn(samples, 2, 30, generator=torch.Generator().manual_seed(0))
    found = encoder.fit(values)
    assert found.shape == (samples, 128)
    assert found.isfinite().all()
    moments = torch.cov(found.T)
    spread = moments.diagonal()
    assert (spread.diff() <= 1e-3 * spread[0]).all()
    assert (moments - spread.diag()).abs().max() < 1e-2 * spread[0]
    torch.testing.assert_close(encoder.components_of(values), found, atol=1e-3, rtol=1e-3)
    assert {name for name, _ in encoder.named_parameters()} == {
        f"network.{n}" for n, _ in encoder.network.named_parameters()
    }


def test_a_run_that_goes_on_has_the_same_bits(tmp_path: Path) -> None:
    splits = splits_of("classes")
    whole = train(splits, MIMO(), SETTINGS.changed({"epochs": 4})).model.state_dict()

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(splits, MIMO(), SETTINGS.changed({"epochs": 4}), folder=tmp_path, on_epoch=stop, checkpoint_seconds=0)
    components._kept.clear()
    again = train(splits, MIMO(), SETTINGS.changed({"epochs": 4}), folder=tmp_path).model.state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_what_is_read_after_training_is_computed_once_by_all_runs_of_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    splits, read, plain = splits_of("classes", gaps=0.3), [], Rocket._computed
    values = {name: splits.test.inputs[name] for name in splits.modalities}
    alone = [one.components_of(values[name]) for name, one in trained_encoders(splits)]

    def counted(self: Rocket, values: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        read.append(len(values))
        return plain(self, values, lengths)

    components._kept.clear()
    with components.shared():
        components.prepare(splits, SETTINGS)
        monkeypatch.setattr(Rocket, "_computed", counted)
        encoders = [dict(trained_encoders(splits)) for _ in range(3)]
        for run in encoders:
            together = [one.components_of(values[name]) for name, one in run.items()]
            assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))
        assert read == [len(splits.test)] * len(values)
        changed = next(iter(values)), next(iter(values.values())).flip(0)
        encoders[0][changed[0]].components_of(changed[1])
        assert len(read) == len(values) + 1
    folder = encoders[0][changed[0]].shared
    assert folder is not None
    assert not folder.exists()
    assert torch.equal(encoders[0][changed[0]].components_of(values[changed[0]]), alone[0])


def trained_encoders(splits: Splits) -> list[tuple[str, Rocket]]:
    model = train(splits, EW(), SETTINGS.changed({"epochs": 1})).model
    return [(name, one) for name, one in model.encoders.items() if isinstance(one, Rocket)]


def test_a_file_that_is_renamed_meanwhile_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    kept = tmp_path / "one" / "kept.npy"
    kept.write_bytes(b"12345")
    gone = tmp_path / "one" / "kept.77"  # listed, and given its name by another run before it is looked at
    monkeypatch.setattr(Path, "glob", lambda _, __: iter([gone, kept]))
    assert rocket._bytes_in(tmp_path) == 5


def test_a_full_disk_costs_what_was_shared_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = splits_of("classes", gaps=0.3)
    values = {name: splits.test.inputs[name] for name in splits.modalities}
    alone = [one.components_of(values[name]) for name, one in trained_encoders(splits)]
    components._kept.clear()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with components.shared():
        components.prepare(splits, SETTINGS)
        monkeypatch.setattr(np, "save", full)
        encoders = trained_encoders(splits)
        again = [one.components_of(values[name]) for name, one in encoders]
        shared = encoders[0][1].shared
        assert shared is not None
        assert list(shared.iterdir()) == []  # nothing half-written is left
    assert all(torch.equal(one, other) for one, other in zip(alone, again, strict=True))
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    components._kept.clear()
    with components.shared():
        assert all(one.shared is None for _, one in trained_encoders(splits))


def test_a_damaged_file_is_computed_again(tmp_path: Path) -> None:
    encoder = Rocket((2, 30))
    values = torch.randn(20, 2, 30, generator=torch.Generator().manual_seed(0))
    found = encoder.fit(values)
    (tmp_path / "one").mkdir()
    encoder.shared = tmp_path / "one"
    expected = encoder.components_of(values)
    (file,) = encoder.shared.iterdir()
    for content in (b"", b"junk", file.read_bytes()[:200]):
        file.write_bytes(content)
        assert torch.equal(encoder.components_of(values), expected)
        assert torch.equal(torch.from_numpy(np.load(file)), expected)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = "import sys, time\nfrom equipoise.training import components\n"
    program += "with components.shared():\n    print('there', flush=True)\n    time.sleep(600)\n"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        (folder,) = tmp_path.iterdir()
        with components.shared():
            assert folder.is_dir()  # it is in use
            assert len(list(tmp_path.iterdir())) == 2
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == [folder]
    others = tmp_path / "of-another-program"
    others.mkdir()
    with components.shared():
        assert not folder.exists()
    assert list(tmp_path.iterdir()) == [others]
