"""The example server: JSON in, answers out, a flag per sensor, and our message where input is wrong."""

import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient

import equipoise
from deploy.shipped_runs import recorded, rows_of, trained

SAMPLES = 60
JSON = {"content-type": "application/json"}
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


def test_nulls_in_a_row_are_one_sensor_that_is_missing(run: Path, client: TestClient) -> None:
    sample = {name: values[0] for name, values in rows_of(recorded(), [7]).items()}
    without = equipoise.load(run).predict({**sample, "vector": None}).as_dict()
    given = question(sample)
    given["sensors"]["vector"]["values"] = [None] * 4
    assert client.post("/predict", json=given).json() == without
    alone = client.post("/predict", json={"sensors": {"vector": {"values": [None] * 4}}}).json()
    for nothing in ({"sensors": {}}, {"sensors": {"vector": {}}}, {"sensors": {"vector": {"values": [[None] * 4]}}}):
        found = client.post("/predict", json=nothing)
        assert found.status_code == 200
        if nothing["sensors"].get("vector", {}).get("values") is None:
            assert found.json() == alone
    assert alone["sensors"] == []
    assert alone == equipoise.load(run).predict({}).as_dict()


def test_either_flag_says_that_a_sensor_is_missing(run: Path, client: TestClient) -> None:
    sample = {name: values[0] for name, values in rows_of(recorded(), [7]).items()}
    without = equipoise.load(run).predict({**sample, "series": None}).as_dict()
    for flags in ({"valid": False}, {"present": False}, {"valid": False, "present": True}):
        given = question(sample)
        del given["sensors"]["series"]["present"]
        given["sensors"]["series"] |= flags
        assert client.post("/predict", json=given).json() == without


def test_keys_that_are_not_known_are_refused(client: TestClient) -> None:
    vector = {"values": [0.0] * 4}
    for wrong, told in (
        ({"sensors": {"vector": {**vector, "vaild": False}}}, "sensors.vector: unknown key: 'vaild' is none of"),
        ({"sensors": {"vector": {**vector, "vaild": False}}}, "Did you mean 'valid'?"),
        ({"sensors": {"vector": vector}, "decison": "fused"}, "question: unknown key: 'decison' is none of"),
        ({"sensors": {"vector": vector}, "decison": "fused"}, "Did you mean 'decision'?"),
        ({"vector": vector}, "sensors: Field required"),
        ({"sensors": {"vector": [0.0] * 4}}, "sensors.vector: "),
    ):
        found = client.post("/predict", json=wrong)
        assert found.status_code == 422
        assert told in found.json()["detail"]


def test_numbers_that_no_model_can_compute_with(run: Path, client: TestClient) -> None:
    sample = {name: values[0] for name, values in rows_of(recorded(), [7]).items()}
    given = question(sample)
    given["sensors"]["vector"]["values"][1] = 1e25
    found = client.post("/predict", json=given).json()
    assert found["unusable"] == ["vector"]
    without = equipoise.load(run).predict({**sample, "vector": None}).as_dict()
    assert found == {**without, "unusable": ["vector"]}
    for number in ("1e39", "1" * 401):
        body = '{"sensors": {"vector": {"values": [0, 0, 0, ' + number + "]}}}"
        refused = client.post("/predict", content=body, headers=JSON)
        assert refused.status_code == 422
        assert "vector: expected finite numbers" in refused.json()["detail"]


def test_a_question_that_is_too_long_is_refused(client: TestClient) -> None:
    def pieces(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield b" " * 2**20

    assert client.post("/predict", content=b" " * (8 * 2**20 + 1)).status_code == 413
    refused = client.post("/predict", content=pieces(20))  # of no length that is told before
    assert refused.status_code == 413
    assert refused.json()["detail"] == "expected a question of at most 8,388,608 bytes, found 20,971,520"
    assert (
        client.post("/predict", content=b'{"sensors": {}}' + b" " * (8 * 2**20 - 15), headers=JSON).status_code == 200
    )
    refused = client.post("/predict", content=b'{"sensors": {}}')
    assert refused.status_code == 422
    assert "with the header content-type: application/json" in refused.json()["detail"]


@pytest.fixture
def server(run: Path) -> Iterator[tuple[int, ExitStack]]:
    """A server in a process of its own, on a free port; it ends on SIGTERM before its clients do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    words = [sys.executable, str(FILE), str(run), "--port", str(port), "--seconds", "2"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ExitStack() as clients, process:
        try:
            until = time.monotonic() + 120
            while time.monotonic() < until and process.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield port, clients
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) in (0, -signal.SIGTERM)
        finally:
            process.kill()


@pytest.mark.slow
def test_slow_clients_are_hung_up_on_and_keep_nobody_waiting(run: Path, server: tuple[int, ExitStack]) -> None:
    port, clients = server
    head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    starts = [b"", b"POST /pre", head, head + b"content-length: 100\r\n\r\n", head + b"content-length: 100\r\n\r\n{"]
    slow = [clients.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(40)]
    for number, client in enumerate(slow):
        client.sendall(starts[number % len(starts)])
    expected = equipoise.load(run).predict({}).as_dict()
    for _ in range(5):
        assert httpx.post(f"http://127.0.0.1:{port}/predict", json={"sensors": {}}, timeout=60).json() == expected
    for number, client in enumerate(slow):
        client.settimeout(60)
        told = b"".join(iter(lambda client=client: client.recv(2**16), b""))  # to its end
        assert told == b"" or told.startswith(b"HTTP/1.1 408 ")
        assert bool(told) == (number % len(starts) >= 3)
    assert httpx.post(f"http://127.0.0.1:{port}/predict", content=b" " * 2**24, timeout=60).status_code == 413
    for _ in range(20):  # that are waited for when the server is told to end
        clients.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(starts[3])


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
