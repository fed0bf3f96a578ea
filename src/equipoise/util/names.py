"""Names that modalities may have, and a mapping of modules that takes any such name."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import final

from torch import nn

_TAKEN = {
    "fused": "it is the key of the joint output",
    "heads": "it is the name of the heads in a balancing table",
    "mean": "it is a summary over sensor faults",
    "worst": "it is a summary over sensor faults",
    "label": "it is the column of the answers in a data file",
    "split": "it is the column of the train, validation and test marks in a data file",
    "group": "it is the column of the persons, speakers or videos in a data file",
}


def name_problems(names: Iterable[object]) -> list[str]:
    """List what is wrong with each name that no modality may have; an empty list means that all are fine."""
    problems = []
    for name in names:
        if not isinstance(name, str):
            problems.append(f"A modality's name must be a string, found {name!r}: write {str(name)!r}.")
        elif "." in name:
            plain = name.replace(".", "_")
            problems.append(f"No modality may be called {name!r}: dots separate modules in PyTorch; write {plain!r}.")
        elif why := _TAKEN.get(name) or (name.endswith("_length") and "it holds the lengths of ragged time"):
            problems.append(f"No modality may be called {name!r}: {why}. Choose another name.")
    return problems


def unknown_name(name: object, known: Iterable[str]) -> str:
    """Say that a name is not known, which ones are, and which one was probably meant."""
    known = list(known)
    close = get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{name!r} is none of {', '.join(map(repr, known))}.{hint}"


@final
class NamedModules(nn.Module, Mapping[str, nn.Module]):
    """Modules by name, in the order given, for any name that a modality may have.

    `nn.ModuleDict` refuses names of its own attributes, such as "keys". Here those are stored with a "%" behind them,
    so that only they look odd in a state dict, and "audio" stays "audio".

    Args:
        modules: The modules by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._named: dict[str, str] = {}  # the key of each name
        for name, module in modules.items():
            # A name that ends in "%" itself gets one more, so that no two names share a key.
            self._named[name] = f"{name}%" if not name or name.endswith("%") or hasattr(self, name) else name
            self.add_module(self._named[name], module)

    def __getitem__(self, name: str) -> nn.Module:
        return self._modules[self._named[name]]  # ty: ignore[invalid-return-type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    # A mapping compares by content and so has no hash; torch keeps modules in sets, by identity.
    __eq__, __hash__ = object.__eq__, object.__hash__
