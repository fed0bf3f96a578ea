"""Whether a run compiles its encoders: where it is long enough to earn the wait back, and measures faster."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch.utils._triton import has_triton

from equipoise.models import LateFusion
from equipoise.settings import Settings


class Experience(NamedTuple):
    """What compiling was like, or is assumed to be where nobody has tried.

    Args:
        ratio: Time of a compiled epoch by that of one as written.
        cost: Seconds that compiling took.
    """

    ratio: float = 0.8
    cost: float = 60.0


KEEPS = 0.97
"""Compiled encoders stay only if an epoch takes less than this part of what it took."""


def pays(left: float, known: Experience) -> bool:
    """Whether compiling is likely to save twice what it costs in the rest of a run.

    Args:
        left: Seconds the rest would take as written.
        known: What compiling is like.

    Example:
        >>> pays(300.0, Experience()), pays(3000.0, Experience()), pays(1e6, Experience(ratio=1.0))
        (False, True, False)
    """
    return known.ratio < KEEPS and left * (1 - known.ratio) > 2 * known.cost


@final
class Compiling:
    """Watches the epochs of a run, and compiles its encoders when that pays.

    Args:
        model: Whose encoders.
        settings: Of the run: compile=true at once, false never, "auto" on a GPU when it pays.
        shapes: Of the inputs.
        precision: Of the run.
    """

    def __init__(
        self, model: LateFusion, settings: Settings, shapes: Mapping[str, tuple[int, ...]], precision: str
    ) -> None:
        self._model, self._epochs = model, settings.epochs
        self._may_search = model.committee.is_cuda and not settings.deterministic
        self._watches = settings.compile == "auto" and self._may_search and has_triton()
        self._plain = 0.0
        self._tried_at = 0
        self._cost = 0.0
        self.told = "no"
        if settings.compile is True:
            model.compile_encoders(steady=True)
            self.told = "yes"
        if self._watches:
            facts = (str(model), sorted(shapes.items()), settings.batch, precision, torch.__version__)
            self._key = hashlib.sha256(repr((*facts, torch.cuda.get_device_name())).encode()).hexdigest()
            self._known = remembered(self._key)

    def searching(self, *, full: bool) -> AbstractContextManager[None]:
        """Let cuDNN race all the convolutions it has in a step, where encoders are compiled.

        That takes ten seconds for every new shape of batch and saves 3 % of a step, so who is too short for the one is
        for the other.

        Args:
            full: Whether the batch has the size that most have.
        """
        return _race() if full and self._may_search and not self.told.startswith("no") else nullcontext()

    def changes(self, seconds: float, epoch: int, *, whole: bool) -> bool:
        """Look at an epoch that has ended; whether the step is another one from now on.

        Args:
            seconds: It took.
            epoch: Its number, from one.
            whole: Whether they are those of a whole epoch.
        """
        if not self._watches or not whole or epoch == 1:  # the first one warms up
            return False
        if self.told == "no":
            self._plain = seconds
            if not pays((self._epochs - epoch) * seconds, self._known):
                return False
            self._model.compile_encoders(steady=True)
            self.told, self._tried_at = "on trial", epoch
            return True
        if self.told != "on trial":
            return False
        if epoch == self._tried_at + 1:
            self._cost = max(seconds - self._plain, 0.0)
            return False
        self._watches = False
        ratio = seconds / self._plain
        remember(self._key, Experience(ratio, self._cost))
        if ratio < KEEPS:
            self.told = f"yes: an epoch takes {ratio:.2f} of its time"
            return False
        self._model.uncompile_encoders()
        self.told = f"no: an epoch took {ratio:.2f} of its time"
        return True


@contextmanager
def _race() -> Generator[None, None, None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def remembered(key: str) -> Experience:
    """What was found out before about this model on this device."""
    try:
        return Experience(*json.loads(_file().read_text(encoding="utf-8"))[key])
    except (OSError, ValueError, KeyError, TypeError):
        return Experience()


def remember(key: str, found: Experience) -> None:
    """Keep it for later runs, where a file can be kept at all."""
    file = _file()
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({**known, key: found}, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(file)
    except (OSError, ValueError):
        return


def _file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "equipoise" / "compiling.json"
