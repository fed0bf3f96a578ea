"""The first thing the command runs. It loads nothing itself, so that Ctrl-C is answered while torch is being loaded."""

import atexit
import gc
import os
import shlex
import signal
import sys
from multiprocessing import active_children
from typing import NoReturn

INTERRUPTED = 130  # as shells have it


def main() -> None:
    """Load the command, which takes a few seconds, and run it."""
    # What is imported never becomes garbage: looking through it again and again takes a third of a short command.
    gc.set_threshold(100_000, 10, 10)
    atexit.register(gc.freeze)
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # whoever started us may want it ignored
    if heard:
        signal.signal(signal.SIGINT, _stop_loading)
    try:
        from equipoise.cli.main import main as run
    except ModuleNotFoundError as found:
        print(f"equipoise: {found}", file=sys.stderr)
        sys.exit(2)
    if heard:
        signal.signal(signal.SIGALRM, _interrupt)
        signal.signal(signal.SIGINT, _interrupt)
    try:
        run()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            for child in active_children():  # one that had just been started
                child.kill()
                child.join()
            _end_at_once()
        raise


def say_stopped() -> None:
    """Say how to go on after Ctrl-C."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    again = shlex.join(["equipoise", *sys.argv[1:]])
    print(f"\nStopped. What is finished is kept. To go on, type:\n  {again}", file=sys.stderr)


def _stop_loading(*_: object) -> None:
    """End at once. An exception would not do: a module that is half loaded makes an error of its own out of it."""
    say_stopped()
    _end_at_once()


def _interrupt(*_: object) -> None:
    """Interrupt whatever goes on, and again soon: modules that are loaded late may swallow an exception."""
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    raise KeyboardInterrupt


def _end_at_once() -> NoReturn:
    """End without unloading torch, which takes seconds on a machine that has much to do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)
