"""What a task of an array answers is plain: nothing in the folder of a study is unpickled, or becomes a command."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("submitit")

from equipoise.data.bundled import two_sensors
from equipoise.data.source import DataSet
from equipoise.study.executors import remote
from equipoise.study.executors.remote import RemoteResult, RemoteTask
from equipoise.study.executors.slurm import EPOCHS, SUBMITTED, ArrayTask, SlurmExecutor
from equipoise.study.job import Job, run_job
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import plan
from equipoise.util.errors import BadInput

DATA = DataSet("small", lambda fold: two_sensors(samples=60, seed=fold or 0), 0, "Small.")
PLACE = "0123456789abcdef"


def small() -> Job:
    return plan(entries(["msl"], ["epochs=1", "features=2", "device=cpu"]), DATA, [0], [None], measure="quick")[0][0]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A task that was done in this process."""
    job, folder = small(), tmp_path_factory.mktemp("run")
    assert ArrayTask(RemoteTask(run_job, job, job.facts(), folder))() is None
    return job, folder


class Harmful:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_an_answer_is_read_as_it_was_given(done: tuple[Job, Path]) -> None:
    job, folder = done
    kind, row = remote.read_result(folder, job)
    assert kind == "done"
    assert row["config"] == job.config
    assert row == json.loads((folder / remote.RESULT).read_text())["content"]
    (record,), end = remote.read_epochs(folder, EPOCHS, 0)
    assert record["epoch"] == 1
    assert end == (folder / EPOCHS).stat().st_size
    assert remote.read_epochs(folder, EPOCHS, end) == ([], end)


@pytest.mark.parametrize("kind", ["failed", "unwritable"])
def test_a_reason_is_read_as_it_was_given(kind: str, tmp_path: Path) -> None:
    remote.write_result(tmp_path, RemoteResult(kind, {"reason": "no ünits"}, {}))
    assert remote.read_result(tmp_path, small()) == (kind, {"reason": "no ünits"})
    remote.remove_result(tmp_path)
    assert not remote.has_result(tmp_path)


@pytest.mark.parametrize("fact", ["config", "seed", "split", "params", "run", "method", "validation"])
def test_the_row_of_another_run_is_refused(fact: str, done: tuple[Job, Path], tmp_path: Path) -> None:
    job, folder = done
    _, row = remote.read_result(folder, job)
    remote.write_result(tmp_path, RemoteResult("done", {**row, fact: "another"}, {}))
    with pytest.raises(BadInput, match=f"found another.* {fact}"):
        remote.read_result(tmp_path, job)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"kind": "done", "content": NaN}',
        b'{"kind": "done", "content": {}}',
        b'{"kind": "odd", "content": {}}',
        b'{"kind": ["failed"], "content": {}}',
        b'{"kind": "failed", "content": {"reason": 3}}',
        b'{"kind": "failed", "content": "because"}',
        pickle.dumps(RemoteResult("failed", {}, {})),
    ],
)
def test_what_is_no_answer_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / remote.RESULT).write_bytes(content)
    with pytest.raises(BadInput, match=r"answer\.json: expected"):
        remote.read_result(tmp_path, small())


def test_an_answer_is_read_with_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LARGEST", 100)
    remote.write_result(tmp_path, RemoteResult("failed", {"reason": "x" * 200}, {}))
    with pytest.raises(BadInput, match="at most 100 bytes"):
        remote.read_result(tmp_path, small())


@pytest.mark.parametrize(
    "line", ["{", "3", '{"epoch": 1}', '{"epoch": "1", "validation": {"fused": 1}}', '{"epoch": 1, "validation": {}}']
)
def test_what_is_no_epoch_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / EPOCHS).write_text(f"{line}\n")
    with pytest.raises(BadInput, match=r"epochs\.jsonl: expected"):
        remote.read_epochs(tmp_path, EPOCHS, 0)


def test_an_epoch_of_sensors_that_train_alone_has_no_fused_accuracy(tmp_path: Path) -> None:
    (tmp_path / EPOCHS).write_text('{"epoch": 1, "validation": {"audio": 0.5}}\n')
    (record,), _ = remote.read_epochs(tmp_path, EPOCHS, 0)
    assert record["validation"] == {"audio": 0.5}


def test_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    (tmp_path / EPOCHS).write_text('{"epoch": 1, "validation": {"fused": 0.5}}\n{"epo')
    (record,), end = remote.read_epochs(tmp_path, EPOCHS, 0)
    assert (record["epoch"], end) == (1, 43)


@pytest.mark.parametrize("place", ["", PLACE])
def test_pickles_in_the_folder_of_a_study_are_left_alone(place: str, tmp_path: Path) -> None:
    out, mark, job = tmp_path / "out", tmp_path / "mark", small()
    laid = out / "slurm" / place
    laid.mkdir(parents=True)
    row = {"config": job.config, "id": "77", **({"place": place} if place else {})}
    (out / "slurm" / SUBMITTED).write_text(json.dumps(row) + "\n")
    for name in ("77_0_result.pkl", "77_submitted.pkl"):
        (laid / name).write_bytes(pickle.dumps(Harmful(mark)))
    remote.remove_result(folder := Store(out).run_folder(job.config))
    folder.mkdir(parents=True)
    (folder / remote.RESULT).write_bytes(pickle.dumps(Harmful(mark)))
    executor = SlurmExecutor(pytest.fail, {}, Store(out), cluster="local")
    executor.start(job)
    if place:  # found again, with an answer that is none
        with pytest.raises(BadInput, match=r"answer\.json: expected JSON"):
            list(executor.events())
    else:  # to be submitted anew, in a folder of another name
        assert executor.running
        assert not executor._watched
    assert not mark.exists()


@pytest.mark.parametrize(
    "row",
    [
        {"config": "a", "id": "--user=me", "place": PLACE},
        {"config": "a", "id": "7 8", "place": PLACE},
        {"config": "a", "id": 7, "place": PLACE},
        {"config": "a", "id": "7", "place": "../../elsewhere"},
        {"config": "a", "id": "7", "place": None},
        {"config": ["a"], "id": "7", "place": PLACE},
        {"id": "7"},
        ["a"],
    ],
)
def test_numbers_of_tasks_are_numbers(row: Any, tmp_path: Path) -> None:
    executor = SlurmExecutor(pytest.fail, {}, Store(tmp_path), cluster="local")
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / SUBMITTED).write_text(json.dumps(row) + "\n")
    with pytest.raises(BadInput, match=r"submitted\.jsonl: expected the number of a task"):
        executor.start(small())


def test_nothing_is_read_or_written_through_a_link(tmp_path: Path) -> None:
    victim, job = tmp_path / "victim", small()
    victim.write_text("{}\n")
    out = tmp_path / "out"
    (out / "slurm").mkdir(parents=True)
    (out / "slurm" / SUBMITTED).symlink_to(victim)
    with pytest.raises(BadInput, match="found a link"):
        SlurmExecutor(pytest.fail, {}, Store(out), cluster="local").start(job)
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (EPOCHS, remote.RESULT):
        (folder / name).symlink_to(victim)
    with pytest.raises(BadInput, match="found a link"):
        ArrayTask(RemoteTask(pytest.fail, job, job.facts(), folder))()
    with pytest.raises(BadInput, match="found a link"):
        remote.read_result(folder, job)
    assert victim.read_text() == "{}\n"


@pytest.mark.slow
def test_a_study_of_processes_collects_plain_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.study.executors.slurm.TICK", 0.05)
    monkeypatch.setattr("pickle.load", pytest.fail)
    job = small_of_a_name()
    with SlurmExecutor(run_job, {}, Store(tmp_path), cluster="local") as executor:
        executor.start(job)
        heard, tasks = [], []
        while executor.running:
            for _, kind, content in executor.events():
                heard.append((kind, content))
                tasks += [each.task for each in executor._watched.values()]
    tasks[0]._process.wait()
    assert [kind for kind, _ in heard] == ["epoch", "done"]
    assert heard[-1][1]["config"] == job.config
    assert not remote.has_result(Store(tmp_path).run_folder(job.config))


def small_of_a_name() -> Job:
    """On data that another process finds by itself."""
    from equipoise.data.source import all_data

    chosen = entries(["msl"], ["epochs=1", "features=2", "device=cpu"])
    return plan(chosen, all_data()["generated"], [0], [None], measure="quick")[0][0]
