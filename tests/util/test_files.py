"""Nothing inside a folder of results is a way out of it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ended import Ended
from equipoise.study.store import Store
from equipoise.util.errors import BadInput
from equipoise.util.files import inside, link_problems, open_inside, write_atomic


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text("precious")
    return file


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "../victim", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(out: Path, name: str) -> None:
    for use in (lambda: inside(out, name), lambda: write_atomic(out, name, "x"), lambda: inside(out, "sub", name)):
        with pytest.raises(BadInput, match="expected the name of a file inside it"):
            use()


def lay_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def lay_dangling_link(path: Path, target: Path) -> None:
    path.symlink_to(target.with_name("not there yet"))


def lay_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("lay", [lay_link, lay_dangling_link, lay_pipe])
def test_what_is_no_file_is_refused_and_its_target_left_alone(
    out: Path, victim: Path, lay: Callable[[Path, Path], None]
) -> None:
    lay(out / "name", victim)
    uses = (
        lambda: inside(out, "name"),
        lambda: inside(out, "name", "below"),
        lambda: write_atomic(out, "name", "x"),
        lambda: open_inside(out, "name", os.O_RDWR | os.O_CREAT | os.O_TRUNC),
    )
    for use in uses:
        with pytest.raises(BadInput, match="name: expected a file"):
            use()
    assert len(link_problems(out)) == 1
    assert victim.read_text() == "precious"
    assert sorted(each.name for each in out.parent.iterdir()) == ["out", "victim"]


def test_a_link_in_the_place_of_the_unfinished_file_is_refused(out: Path, victim: Path) -> None:
    (out / f"name.{os.getpid()}.tmp").symlink_to(victim)
    with pytest.raises(BadInput, match=r"name\.\d+\.tmp"):
        write_atomic(out, "name", "x")
    assert victim.read_text() == "precious"


def test_a_hard_link_is_replaced_and_not_written_through(out: Path, victim: Path) -> None:
    os.link(victim, out / "name")
    write_atomic(out, "name", "new")
    assert (victim.read_text(), (out / "name").read_text()) == ("precious", "new")


def test_the_folder_itself_may_be_a_link(out: Path) -> None:
    chosen = out.with_name("chosen")
    chosen.symlink_to(out)
    assert write_atomic(chosen, "name", "text").read_text() == "text"
    assert link_problems(chosen) == []
    store = Store(chosen)
    with store.locked():
        store.append({"config": "a"})
    assert Store(out).rows() == [{"config": "a"}]


@pytest.mark.parametrize("name", [".lock", ".writable", "results.jsonl", "runs"])
def test_a_store_follows_no_link(out: Path, victim: Path, name: str) -> None:
    (out / name).symlink_to(victim.parent if name == "runs" else victim)

    def use() -> None:
        store = Store(out)
        with store.locked():
            store.append({"config": "a"})
            store.run_folder("sha256:0123456789abcdef")

    with pytest.raises(BadInput, match=f"{name}: expected a file or folder, found a link"):
        use()
    assert victim.read_text() == "precious"
    (out / name).unlink()
    shutil.rmtree(out)
    use()


@pytest.mark.slow
@pytest.mark.parametrize("last", ["file", "folder"])
def test_whatever_a_command_writes_it_writes_through_no_link(
    last: str, tmp_path: Path, equipoise: Callable[..., Ended]
) -> None:
    words = ["train", "--data", "generated", "--method", "msl", "--json", "epochs=1", "features=2", "device=cpu"]

    def commands(out: Path) -> list[Ended]:
        return [equipoise(*words, "--out", out), equipoise("report", out), equipoise("monitor", out)]

    whole = tmp_path / "whole"
    assert [each.code for each in commands(whole)] == [0, 0, 0]
    written = [each.relative_to(whole) for each in whole.rglob("*")]
    written += [Path(".lock"), Path(".writable")]
    victim = tmp_path / "victim"
    for place in written:
        if (whole / place).is_dir() != (last == "folder"):
            continue
        shutil.rmtree(victim, ignore_errors=True)
        victim.mkdir()
        (victim / "file").write_text("precious")
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        (out / place).parent.mkdir(parents=True)
        (out / place).symlink_to(victim if last == "folder" else victim / "file")
        ended = commands(out)
        first = next(each for each in ended if each.code)
        assert first.code == 2, place
        assert f"{out / place}: expected a file or folder, found a link" in first.err, place
        assert "Traceback" not in first.err
        assert [each.name for each in victim.iterdir()] == ["file"], place
        assert (victim / "file").read_text() == "precious", place


@pytest.mark.slow
def test_a_page_shows_nothing_from_behind_a_link(out: Path, victim: Path, equipoise: Callable[..., Ended]) -> None:
    words = ["train", "--data", "generated", "--method", "msl", "--json", "epochs=1", "features=2", "device=cpu"]
    assert equipoise(*words, "--out", out).code == 0
    (out / "command.txt").unlink()
    (out / "command.txt").symlink_to(victim)
    ended = equipoise("report", out)
    assert ended.code == 2
    assert "command.txt: expected a file or folder, found a link" in ended.err
    assert not (out / "report.html").exists()
