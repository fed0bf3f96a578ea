"""Rollouts: many episodes at once, simulated in worker processes, with one policy for all of them as a batch.

Simulators are in two banks: while the policy reads the observations of one, workers move the other.
"""

from __future__ import annotations

import multiprocessing as mp
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equipoise.control import worker
from equipoise.control.camera import Renderer
from equipoise.control.cloning import SENSORS
from equipoise.control.conditions import Condition
from equipoise.control.controller import Controller
from equipoise.control.policy import Policy
from equipoise.control.scene import CONTROL_STEP
from equipoise.util.processes import cores, exit_reason, start_without_sigint

BANKS = 2
PER_BANK = 8
"""Simulators of a worker in each bank: enough that a message and a pass of the policy cost little beside them."""
PATIENCE = 60.0  # seconds that workers may take to begin or to end


@final
@dataclass(frozen=True)
class Outcome:
    """Result of an episode.

    Args:
        condition: Its name.
        seed: Of the episode.
        success: Whether the peg went in.
        steps: Control steps taken.
        seconds: The same in simulated time.
        peak_force: Largest force at the wrist, in N.
        offset: Final distance between peg and hole in the plane, in mm.
        radius: Mean radius of the committee's interval of the next action, in mm/s.
        dropped: The sensor that the monitor had left out, if any.
        dropped_at: The step at which it did.
    """

    condition: str
    seed: int
    success: bool
    steps: int
    seconds: float
    peak_force: float
    offset: float
    radius: float
    dropped: str | None = None
    dropped_at: int | None = None


@final
class RolloutPool:
    """Worker processes that simulate episodes; made once, for any number of policies. Use it as a context.

    Args:
        workers: Processes; None for one per core.
        renderer: Of the camera; that of the demonstrations.
        per_bank: Simulators of a worker in each bank.
    """

    def __init__(self, workers: int | None = None, renderer: Renderer = "auto", per_bank: int = PER_BANK) -> None:
        context = mp.get_context("forkserver")  # a process that has touched a GPU cannot be forked
        context.set_forkserver_preload(["equipoise.control.worker"])
        self._workers: list[tuple[Any, Connection]] = []
        processes = workers or cores()
        rows = processes * BANKS * per_bank
        memory = context.RawArray("b", worker.Block.size_for(rows))
        self._block = worker.Block(memory, rows)
        numbers = np.arange(rows).reshape(BANKS, processes, per_bank)
        self._rows = [bank.ravel() for bank in numbers]
        for number in range(processes):
            ours, theirs = context.Pipe()
            banks = [range(int(bank[number, 0]), int(bank[number, -1]) + 1) for bank in numbers]
            arguments = (theirs, memory, rows, banks, renderer)
            process = context.Process(target=worker.serve, args=arguments, daemon=True)
            start_without_sigint(process)
            theirs.close()
            self._workers.append((process, ours))
        self._wait()

    def __enter__(self) -> RolloutPool:
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._workers:
            pipe.close()
            process.join(PATIENCE)
            if process.exitcode is None:
                process.kill()
                process.join(PATIENCE)

    def run(
        self,
        policy: Policy,
        episodes: Sequence[tuple[Condition, int]],
        on_progress: Callable[[int, int], None] | None = None,
        on_heads: Callable[[list[int], Tensor], None] | None = None,
    ) -> list[Outcome]:
        """Roll a policy out, and return the outcomes in the order of the episodes.

        Args:
            policy: On the device where it is to run.
            episodes: The condition and the seed of each.
            on_progress: Called with the number of finished episodes and that of all.
            on_heads: Called after each step with the numbers of some episodes, and what their heads said, [S, K, …].

        Raises:
            RuntimeError: If a worker fails.
        """
        waiting = deque(enumerate(episodes))
        banks = [_Bank(self._block, rows, policy) for rows in self._rows]
        outcomes: dict[int, Outcome] = {}
        moving: deque[tuple[int, _Bank]] = deque()
        for number, bank in enumerate(banks):
            if bank.fill(waiting):
                self._send(number)
                moving.append((number, bank))
        while moving:
            number, bank = moving.popleft()
            self._wait()
            finished = bank.finished()
            outcomes |= finished
            bank.act()
            if on_heads is not None:
                on_heads(*bank.said())
            if bank.fill(waiting):
                self._send(number)
                moving.append((number, bank))
            if finished and on_progress is not None:
                on_progress(len(outcomes), len(episodes))
        return [outcomes[number] for number in range(len(episodes))]

    def _send(self, bank: int) -> None:
        for _, pipe in self._workers:
            pipe.send_bytes(bytes([bank]))

    def _wait(self) -> None:
        """Wait until every worker has done what it was sent first."""
        for process, pipe in self._workers:
            try:
                error = pipe.recv_bytes()
            except (EOFError, OSError):
                process.join(PATIENCE)
                raise RuntimeError(f"a worker of the rollouts ended ({exit_reason(process.exitcode)})") from None
            if error:
                raise RuntimeError(f"a worker of the rollouts failed:\n{error.decode()}")


@final
class _Bank:
    """The episodes that move together.

    Args:
        block: Shared with the workers.
        rows: Of this bank.
        policy: Decides.
    """

    def __init__(self, block: worker.Block, rows: np.ndarray, policy: Policy) -> None:
        self._block, self._rows = block, rows
        self._episodes: list[tuple[int, Condition] | None] = [None] * len(rows)
        self._controller = Controller(policy, len(rows))
        self._block.orders["command"][rows] = worker.IDLE

    def fill(self, waiting: deque[tuple[int, tuple[Condition, int]]]) -> bool:
        """Give free rows the next episodes; return whether any row has one."""
        for place, row in enumerate(self._rows):
            if self._episodes[place] is None and waiting:
                number, (condition, seed) = waiting.popleft()
                self._episodes[place] = number, condition
                dead = worker.NONE if condition.dead is None else SENSORS.index(condition.dead)
                order = (worker.RESET, seed, condition.holes == "unseen", dead, condition.since, condition.delay, 0.0)
                self._block.orders[row] = order
                self._controller.begin(place, condition)
        return any(self._episodes)

    def finished(self) -> dict[int, Outcome]:
        """Return the outcomes of episodes that are over, by their numbers, and free their rows."""
        outcomes = {}
        for place, row in enumerate(self._rows):
            report, episode = self._block.reports[row], self._episodes[place]
            if episode is None or not report["done"]:
                continue
            number, condition = episode
            outcomes[number] = Outcome(
                condition.name,
                int(self._block.orders[row]["seed"]),
                bool(report["success"]),
                int(report["steps"]),
                int(report["steps"]) * CONTROL_STEP,
                float(report["peak_force"]),
                1e3 * float(report["offset"]),
                *self._controller.facts(place),
            )
            self._episodes[place] = None
            self._block.orders["command"][row] = worker.IDLE
        return outcomes

    def act(self) -> None:
        """Order the actions for the newest observations."""
        if not any(self._episodes):
            return
        observations = {name: torch.from_numpy(values[self._rows]) for name, values in self._observations()}
        self._block.orders["action"][self._rows] = self._controller.act(observations)
        going = self._rows[[episode is not None for episode in self._episodes]]
        self._block.orders["command"][going] = worker.STEP

    def said(self) -> tuple[list[int], Tensor]:
        """Return the numbers of the episodes that go on, and what the heads said of their newest observations."""
        places = [place for place, episode in enumerate(self._episodes) if episode is not None]
        return [episode[0] for episode in self._episodes if episode is not None], self._controller.heads[places]

    def _observations(self) -> list[tuple[str, np.ndarray]]:
        return list(self._block.observations.items())
