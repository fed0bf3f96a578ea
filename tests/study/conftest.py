"""Fixtures of the tests of studies."""

from pathlib import Path
from typing import Any

import pytest

from equipoise.study.job import Job
from equipoise.study.store import Store
from equipoise.study.study import run_study
from small_study import jobs_of


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Job], list[dict[str, Any]], Path]:
    """A complete study of two methods."""
    folder = tmp_path_factory.mktemp("whole")
    jobs, splits = jobs_of("msl", "unimodal", measure="all")
    return jobs, run_study(jobs, splits, Store(folder), workers=1), folder
