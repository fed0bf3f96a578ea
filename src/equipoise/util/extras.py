"""Packages that are not always installed: what needs them, and the line to type."""

import json
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import final
from urllib.parse import unquote, urlparse


@final
class NotInstalled(ModuleNotFoundError):  # noqa: N818 (it says what there is)
    """A package is missing; the message says what needs it, and what to type."""


@contextmanager
def needs(what: str, extra: str | None = None) -> Generator[None]:
    """Import packages inside; where one is missing, say what needs it and what brings it.

    Args:
        what: Needs them.
        extra: Of this package, which brings them; None where the missing package is to be installed by its own name.

    Raises:
        NotInstalled: With the line to type.

    Example:
        >>> with needs("reading"):
        ...     import absent
        Traceback (most recent call last):
        equipoise.util.extras.NotInstalled: reading needs absent, which is not installed; type: pip install absent
    """
    try:
        yield
    except NotInstalled:
        raise
    except ModuleNotFoundError as missing:
        raise not_installed(what, missing.name or str(missing), extra) from None


def not_installed(what: str, module: str, extra: str | None = None) -> NotInstalled:
    """Make the error that `needs` raises, for a module that was looked for and not found."""
    package = module.partition(".")[0]
    line = f"pip install {package}" if extra is None else install_line(extra)
    return NotInstalled(f"{what} needs {package}, which is not installed; type: {line}", name=module)


def install_line(extra: str) -> str:
    """Return the line that installs an extra from the folder that the package was installed from.

    Without that folder it is the name alone, with which pip completes the package that is installed.
    """
    from importlib import metadata

    try:
        origin = json.loads(metadata.distribution("equipoise").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    about, folder = origin.get("dir_info"), Path(unquote(urlparse(origin.get("url", "")).path))
    if about is None or not (folder / "pyproject.toml").is_file():
        return f"pip install {shlex.quote(f'equipoise[{extra}]')}"
    return f"pip install {'-e ' if about.get('editable') else ''}{shlex.quote(f'{folder}[{extra}]')}"
