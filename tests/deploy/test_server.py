"""The example server: JSON in, answers out, a flag per sensor, and our message where input is wrong."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import equipoise
from deploy.shipped_runs import recorded, rows_of, trained

SAMPLES = 60
FILE = Path(__file__).parents[2] / "examples" / "server.py"


@pytest.fixture(scope="module", params=["classes", "number"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    label = np.array(["walk", "rest"])[np.arange(SAMPLES) % 5 % 2]
    trained(folder, recorded(), label if request.param == "classes" else np.linspace(-4.5, 9.5, SAMPLES))
    return folder


@pytest.fixture
def client(run: Path) -> TestClient:
    return TestClient(runpy.run_path(str(FILE))["create_app"](str(run)))


def question(sample: dict[str, Any], **flags: bool) -> dict[str, Any]:
    return {
        "sensors": {
            name: {"present": flags.get(name, True), "values": np.asarray(values).tolist()}
            for name, values in sample.items()
        }
    }


def test_answers_are_those_of_the_package(run: Path, client: TestClient) -> None:
    sample = {name: values[0] for name, values in rows_of(recorded(), [7]).items()}
    model = equipoise.load(run)
    for flags in ({}, {"camera": False}, {"camera": False, "heat": False, "speech": False, "series": False}):
        found = client.post("/predict", json=question(sample, **flags))
        assert found.status_code == 200
        there = {name: values for name, values in sample.items() if flags.get(name, True)}
        assert found.json() == model.predict(there).as_dict()
        assert found.json()["sensors"] == list(there)
    found = client.post("/predict", json={**question(sample), "decision": "fused"})
    assert found.json() == model.predict(sample, "fused").as_dict()


def test_health_says_what_is_expected(run: Path, client: TestClient) -> None:
    told = client.get("/health").json()
    assert told["status"] == "ok"
    assert told["names"] == list(equipoise.load(run).names)
    assert told["sensors"]["series"] == "[2, 6] for one sample or [N, 2, 6] for many"


def test_null_over_a_whole_sensor_is_a_missing_one(run: Path, client: TestClient) -> None:
    sample = {name: values[0] for name, values in rows_of(recorded(), [7]).items()}
    without = equipoise.load(run).predict({**sample, "series": None}).as_dict()
    given = question(sample)
    given["sensors"]["series"]["values"] = [[None] * 6] * 2
    assert client.post("/predict", json=given).json() == without
    nothing = client.post("/predict", json={"sensors": {"heat": {"present": False}}})
    assert nothing.status_code == 200
    assert nothing.json()["sensors"] == []


def test_what_is_wrong_is_told_with_422(client: TestClient) -> None:
    given = {"sensors": {"vectr": {"values": [0, 0, 0, 0]}, "series": {"values": [[1, 2], [3]]}}}
    found = client.post("/predict", json=given)
    assert found.status_code == 422
    assert "Did you mean 'vector'?" in found.json()["detail"]
    assert "series: expected" in found.json()["detail"]
    for values in ([[0.0] * 6, [0.0] * 3 + [None] * 3], [[[0.0] * 6] * 2, [[0.0] * 4] * 2]):
        found = client.post("/predict", json={"sensors": {"series": {"values": values}}})
        assert found.status_code == 422
        assert "in sample" in found.json()["detail"]
    assert client.post("/predict", json={"sensors": 3}).status_code == 422
    assert client.post("/predict", json={"sensors": {}, "decision": "guess"}).status_code == 422
