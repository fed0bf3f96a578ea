"""How many cores and how much memory are counted: those of the machine, and those that a container grants."""

import os
from pathlib import Path

import pytest

from equipoise.util import processes
from equipoise.util.processes import cores, free_memory, memory_problem


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of sixteen cores with control groups of its own, none of them limited yet."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(processes, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(processes, "OWN_GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text("0::/pods/mine\n")
    return tmp_path / "groups"


def limit(group: Path, **files: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (group / name.replace("cpu_", "cpu.")).write_text(text + "\n")


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 16), ("400000 100000", 4), ("150000 100000", 2), ("1000 100000", 1), ("9900000 100000", 16)],
)
def test_the_time_that_a_container_grants(limits: Path, quota: str, expected: int) -> None:
    limit(limits / "pods" / "mine", cpu_max=quota)
    assert cores() == expected


def test_the_tightest_group_counts(limits: Path) -> None:
    for group, quota in (("", "700000 100000"), ("pods", "300000 100000"), ("pods/mine", "500000 100000")):
        limit(limits / group, cpu_max=quota)
    limit(limits / "pods" / "others", cpu_max="100000 100000")
    limit(limits.parent, cpu_max="100000 100000")  # no control group
    assert cores() == 3


def test_inside_a_container_that_sees_its_own_group_as_the_top(limits: Path) -> None:
    limit(limits, cpu_max="200000 100000")
    assert cores() == 2


def test_groups_of_the_first_version(limits: Path) -> None:
    processes.OWN_GROUPS.write_text("4:memory:/mine\n2:cpu,cpuacct:/mine\n1:cpuset:/\n")
    limit(limits / "cpu" / "mine", cpu_cfs_quota_us="-1", cpu_cfs_period_us="100000")
    limit(limits / "memory" / "mine", cpu_cfs_quota_us="100000", cpu_cfs_period_us="100000")
    assert cores() == 16
    limit(limits / "cpu" / "mine", cpu_cfs_quota_us="250000", cpu_cfs_period_us="50000")
    assert cores() == 5


def test_without_any_of_it(limits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not limits.exists()
    assert cores() == 16
    processes.OWN_GROUPS.unlink()
    assert cores() == 16
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert cores() == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


@pytest.mark.parametrize("quota", ["", "400000", "some 100000", "400000 0", "400000 100000 100000"])
def test_files_that_say_nothing_set_no_limit(limits: Path, quota: str) -> None:
    limit(limits / "pods" / "mine", cpu_max=quota)
    assert cores() == 16
    limit(limits / "pods", cpu_max="200000 100000")
    assert cores() == 2
    processes.OWN_GROUPS.write_text("\nnonsense\n0::/pods/mine\n")
    assert cores() == 2
    processes.OWN_GROUPS.write_bytes(b"\xff\xfe")
    assert cores() == 16


def test_this_machine() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.fixture
def memory(limits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one gibibyte free, and control groups of its own."""
    monkeypatch.setattr(processes, "MEMORY", tmp_path / "memory")
    (tmp_path / "memory").write_text(
        "MemTotal: 4194304 kB\nMemFree: 100 kB\nMemAvailable:    1048576 kB\nBuffers: 1 kB\n"
    )
    return limits


def grant(group: Path, **files: object) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (group / f"memory.{name}").write_text(f"{content}\n")


def test_memory_that_is_free_on_the_machine(memory: Path) -> None:
    assert not memory.exists()
    assert free_memory() == 2**30
    grant(memory / "pods" / "mine", max="max", current=2**29, stat="inactive_file 0")
    assert free_memory() == 2**30


def test_memory_that_a_container_grants(memory: Path) -> None:
    grant(memory / "pods" / "mine", max=2**29, current=2**28, stat="anon 5\ninactive_file 1000\nactive_file 7")
    assert free_memory() == 2**28 + 1000
    grant(memory / "pods", max=2**27, current=2**26, stat="inactive_file 0")
    assert free_memory() == 2**26
    grant(memory, max=2**20, current=2**21, stat="inactive_file 0")  # it was lowered
    assert free_memory() == 0
    assert memory_problem(2**30) == "needs about 1.0 GiB of memory, and 0.0 GiB are free"


def test_memory_in_groups_of_the_first_version(memory: Path) -> None:
    processes.OWN_GROUPS.write_text("4:memory:/mine\n2:cpu,cpuacct:/mine\n")
    grant(memory / "memory" / "mine", limit_in_bytes=9223372036854771712, usage_in_bytes=5, stat="cache 1")
    grant(memory / "cpu" / "mine", limit_in_bytes=1, usage_in_bytes=1, stat="cache 1")
    assert free_memory() == 2**30
    grant(memory / "memory", limit_in_bytes=2**20, usage_in_bytes=2**19, stat="total_inactive_file 24")
    assert free_memory() == 2**19 + 24


def test_memory_where_nothing_says(memory: Path) -> None:
    grant(memory / "pods" / "mine", max="much", current="x", stat="what is this")
    assert free_memory() == 2**30
    processes.MEMORY.write_text("no numbers")
    assert free_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    processes.MEMORY.unlink()
    assert memory_problem(2**10) == ""


def test_this_machine_has_some_memory() -> None:
    assert 2**20 < free_memory() < 2**50
