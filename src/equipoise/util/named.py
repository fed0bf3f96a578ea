"""Code of the user's own by dotted path, such as my_file.Gap: imported where the path was typed."""

import difflib
import hashlib
import importlib
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.util.errors import BadInput, first_line


def is_path(text: str) -> bool:
    """Tell whether a text may be the dotted path of something in a module.

    Example:
        >>> is_path("my_file.Gap"), is_path("mimo"), is_path("../my_file.py")
        (True, False, False)
    """
    return "." in text and all(part.isidentifier() for part in text.split("."))


def imported(path: str) -> Any:
    """Import what a dotted path names. A file of the working folder is found too, behind all that is installed.

    Raises:
        BadInput: If there is no such module, it cannot be imported, or it has nothing of that name.
    """
    module, _, name = path.rpartition(".")
    if name == "py":
        raise BadInput(
            f"expected the class behind the name of its file, such as {module or 'my_file'}.Gap, found {path}"
        )
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # behind the others, so that no file there takes the place of a library
    importlib.invalidate_caches()  # the file may be a moment old
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise BadInput(f"importing {module} failed: {error}") from error
        looked = f"looked in {here}, on PYTHONPATH and among packages"
        hint = "a class Gap in the file my_file.py is named my_file.Gap"
        raise BadInput(f"No module named {error.name!r}: {looked}; {hint}") from None
    except Exception as error:  # code of the user's own may raise anything
        raise BadInput(f"importing {module} failed: {told(error)}") from error
    if not hasattr(found, name):
        near = difflib.get_close_matches(name, vars(found), n=1)
        hint = f"; did you mean {module}.{near[0]}?" if near else ""
        own = [key for key, value in vars(found).items() if getattr(value, "__module__", None) == found.__name__]
        known = ", ".join(key for key in own if not key.startswith("_"))
        hint += f"; it has {known}" if known else ""
        raise BadInput(f"{module} ({getattr(found, '__file__', None) or 'no file'}) has no attribute {name!r}{hint}")
    return getattr(found, name)


def told(error: Exception) -> str:
    """Say what code of the user's own raised, and in which line of it."""
    if isinstance(error, SyntaxError):  # whose message names the line
        return f"{type(error).__name__}: {error}"
    import sysconfig  # which `import equipoise` needs not

    libraries = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    installed = (str(Path(__file__).parents[1]), *libraries)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(installed)]
    own = [frame for frame in frames if not frame.filename.startswith("<")]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {first_line(error)}{place}"


def fingerprint(path: str) -> str:
    """Return a hash of the file that holds what a dotted path names, as it was when first asked; "" without a file.

    Raises:
        BadInput: If it cannot be imported.
    """
    return _fingerprint(path, imported(path))


@lru_cache(maxsize=64)
def _fingerprint(path: str, _loaded: object) -> str:
    """Hash once for each object that was loaded: a file that is edited later is not the one that runs."""
    file = getattr(sys.modules[path.rpartition(".")[0]], "__file__", None)
    if not file or not Path(file).is_file():
        return ""
    return f"sha256:{hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
