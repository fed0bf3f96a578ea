"""Worker processes of rollouts: simulators whose observations lie in memory that the parent shares.

A message is one byte, the bank of simulators to move on by one control step; orders, actions, observations and reports
stay in shared memory, so that no picture passes through a pipe.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, final

import numpy as np

from equipoise.control.camera import Renderer
from equipoise.control.simulator import Observation, Simulator
from equipoise.util.processes import exit_with_parent

IDLE, RESET, STEP = range(3)
NONE = -1
SENSORS: dict[str, tuple[tuple[int, ...], str]] = {
    "proprioception": ((9,), "f4"),
    "camera": ((3, 64, 64), "u1"),
    "force": ((6, 10), "f4"),
}
ORDER = np.dtype(
    [
        ("command", "i1"),
        ("seed", "i8"),
        ("unseen", "?"),
        ("dead", "i1"),  # the place of the sensor that dies in SENSORS, or NONE
        ("since", "i4"),
        ("delay", "i4"),
        ("action", "f4", (3,)),
    ]
)
REPORT = np.dtype([("done", "?"), ("success", "?"), ("steps", "i4"), ("peak_force", "f4"), ("offset", "f4")])
Report = Callable[[bytes], None]


@final
class Block:
    """Arrays in one piece of shared memory, a row for each simulator.

    Args:
        memory: The bytes; `size_for` tells how many.
        rows: Simulators.
    """

    def __init__(self, memory: Any, rows: int) -> None:
        place, arrays = 0, []
        for kind, shape in _layout(rows):
            arrays.append(np.frombuffer(memory, kind, int(np.prod(shape)), place).reshape(shape))
            place += arrays[-1].nbytes
        self.orders: np.ndarray = arrays[0]
        self.reports: np.ndarray = arrays[1]
        self.observations: Observation = dict(zip(SENSORS, arrays[2:], strict=True))

    @staticmethod
    def size_for(rows: int) -> int:
        """Return the bytes that so many simulators need."""
        return sum(np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in _layout(rows))


def _layout(rows: int) -> list[tuple[np.dtype, tuple[int, ...]]]:
    sensors = [(np.dtype(kind), (rows, *shape)) for shape, kind in SENSORS.values()]
    return [(ORDER, (rows,)), (REPORT, (rows,)), *sensors]


@final
class Episode:
    """A simulator in the condition of an order: its observations late, or those of a sensor dead.

    Args:
        simulator: Anything with the interface of `Simulator`.
    """

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self._late: deque[Observation] = deque(maxlen=1)

    def move(self, order: np.void) -> Observation:
        """Begin an episode or take a step as ordered, and return what the policy observes."""
        if order["command"] == RESET:
            observed = self.simulator.reset(int(order["seed"]), "unseen" if order["unseen"] else "seen")
            self._late = deque(maxlen=int(order["delay"]) + 1)
        else:
            observed = self.simulator.step(order["action"])
        self._late.append({name: values.copy() for name, values in observed.items()})
        observed = dict(self._late[0])
        if order["dead"] != NONE and self.simulator.steps >= order["since"]:
            name = list(SENSORS)[order["dead"]]
            observed[name] = np.zeros_like(observed[name])
        return observed

    def report(self) -> tuple[bool, bool, int, float, float]:
        """Return the state of the episode, as `REPORT` has it."""
        now = self.simulator
        offset = float(np.linalg.norm(now.peg[:2] - now.hole))
        return now.done, now.success, now.steps, now.peak_force, offset


def serve(pipe: Connection, memory: Any, rows: int, banks: list[range], renderer: Renderer) -> None:
    """Move the simulators of a worker, bank by bank, until the parent closes the pipe.

    Args:
        pipe: Gives the number of a bank, and takes an empty message when it has moved, or the text of an error.
        memory: Of a `Block` with so many `rows`.
        rows: Simulators of all workers.
        banks: The rows of this worker in each bank.
        renderer: Of all simulators.
    """
    exit_with_parent(from_server=True)
    block = Block(memory, rows)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone, or done
        try:
            episodes = {row: Episode(Simulator(renderer)) for bank in banks for row in bank}
            pipe.send_bytes(b"")
            while True:
                for row in banks[pipe.recv_bytes()[0]]:
                    if block.orders[row]["command"] != IDLE:
                        for name, values in episodes[row].move(block.orders[row]).items():
                            block.observations[name][row] = values
                        block.reports[row] = episodes[row].report()
                pipe.send_bytes(b"")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception:
            pipe.send_bytes(traceback.format_exc().encode())
