"""Many random cases in a row, and what came of them, by method and by trait.

As a program, `python -m methods.count_differences COUNT [SEED]`, it prints the counts and the first case of each kind.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from methods.differential import DifferenceError, run_case
from methods.random_cases import draw_case


class Counts(NamedTuple):
    """What came of many cases.

    Args:
        outcomes: How many were equal, were refused, or differed, by kind.
        met: How many cases a method or a trait had.
        differed: How many of those differed.
        failures: The first case of each method and kind that differed.
        noise: What OGM-GE added, in standard deviations.
    """

    outcomes: Counter[str]
    met: Counter[str]
    differed: Counter[str]
    failures: dict[tuple[str, str], str]
    noise: list[Tensor]

    def noise_problems(self) -> list[str]:
        """All noise together has a mean of zero and a variance of one, within five standard errors."""
        if not self.noise:
            return []
        whole = torch.cat(self.noise)
        mean, variance, error = float(whole.mean()), float(whole.square().mean()), len(whole) ** -0.5
        found = [f"expected noise with a mean of 0, found {mean:.4f}"] * (abs(mean) > 5 * error)
        off = abs(variance - 1) > 5 * 2**0.5 * error
        return found + [f"expected noise with a variance of 1, found {variance:.4f}"] * off


def count_differences(seed: int, count: int) -> Counts:
    """Run that many cases of a seed."""
    counts = Counts(Counter(), Counter(), Counter(), {}, [])
    for number in range(count):
        case = draw_case(f"{seed} {number}")
        words = [case.title, *case.traits]
        counts.met.update(words)
        try:
            outcome, noise = run_case(case.seed)
            counts.noise.extend(noise)
        except DifferenceError as error:
            outcome = f"differed: {error.kind}"
            counts.differed.update(words)
            counts.failures.setdefault((case.title, error.kind), str(error))
        counts.outcomes[outcome] += 1
    return counts


def main(count: int, seed: int) -> None:
    """Print the counts."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    counts = count_differences(seed, count)
    seconds = time.perf_counter() - began
    print(f"seed {seed}, {count} cases in {seconds:.0f} s, {count / seconds:.0f} a second: {dict(counts.outcomes)}")
    print(f"{sum(map(len, counts.noise))} numbers of noise: {counts.noise_problems() or 'as expected'}")
    for word, met in sorted(counts.met.items()):
        print(f"{word:32} {counts.differed[word]:5} of {met:5}")
    for (title, _), text in sorted(counts.failures.items()):
        print(f"\n{title}, {text}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
