"""Encoders by name, for a command line and for presets."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_type_hints

from torch import nn

from equipoise.models.encoders import MLP, CNN1d, CNN2d, Frames, encoder_for
from equipoise.models.lenet import LeNet
from equipoise.models.resnet import ResNet18
from equipoise.models.sequence import AttentionPooled, FirstStepTransformer, PooledMap, Tokens
from equipoise.util.errors import BadInput, raise_all
from equipoise.util.names import unknown_name

Shape = tuple[int, ...]


def _lenet(shape: Shape, _: int) -> nn.Module:
    return LeNet(shape[0], int(math.log2(min(shape[1:]))))  # as many halvings as the picture allows: 28 → 4, 112 → 6


def _first_step(shape: Shape, features: int) -> nn.Module:
    return FirstStepTransformer(shape[0], features)


def _attention(start: Literal["lstm", "linear"]) -> Callable[[Shape, int], nn.Module]:
    return lambda shape, features: AttentionPooled(shape[0], features, start=start)


def _words(shape: Shape, features: int) -> nn.Module:
    """Word numbers, of which 16 bits hold so many."""
    if len(shape) != 1:
        raise ValueError("expected word numbers, one per step")
    return Tokens(2**15, AttentionPooled(300, features))


KINDS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "auto": encoder_for,
    "mlp": lambda shape, features: MLP(shape[0], features),
    "cnn1d": lambda shape, features: CNN1d(shape[0], features),
    "cnn2d": lambda shape, features: CNN2d(shape[0], features),
    "frames": lambda shape, features: Frames(CNN2d(shape[0], features)),
    "resnet18": lambda shape, _: ResNet18(shape[0]),
    "lenet": _lenet,
    "first-step": _first_step,
    "lstm-attention": _attention("lstm"),
    "attention": _attention("linear"),
    "words": _words,
    "pooled-map": lambda shape, features: PooledMap(shape[0], features),
}
"""What `encoder=NAME` can say: each makes an encoder from the shape of one input and the number of features."""
OR_A_PATH = "Or type a dotted path, such as my.module.Encoder."


def build_encoders(
    words: str, shapes: Mapping[str, Shape], features: int, *, checked: bool = False
) -> dict[str, nn.Module]:
    """One encoder per modality.

    Args:
        words: "auto", a kind, or a dotted path to a class or function, for all modalities; or "NAME:KIND,NAME:KIND" for
            some, the others chosen by shape. What a dotted path names is called with `shape` and `features`, as far as
            it has parameters of these names.
        shapes: Of one input of each modality.
        features: Size of the outputs.
        checked: Call what a dotted path names only if it makes modules, as `makes_modules` tells without calling it.

    Raises:
        BadInput: With all that is wrong.
    """
    wanted, problems = kinds_of(words, shapes)
    encoders, cause = {}, None
    for modality, kind in wanted.items():
        if not _can_be(kind):  # said already
            continue
        try:
            encoders[modality] = _make(kind, shapes[modality], features, checked=checked)
        except Exception as found:  # code of the user's own may stumble over anything
            problems.append(f"encoder of {modality!r}, {kind!r}, for inputs of shape {shapes[modality]}: {found}")
            cause = cause or found
    try:
        raise_all(problems)
    except BadInput as told:
        raise told from cause  # where in that code it happened
    return encoders


def kinds_of(words: str, modalities: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """What kind of encoder each modality is to have, and what is wrong with the words for it.

    Args:
        words: As for `build_encoders`.
        modalities: Those there are.
    """
    wanted = dict.fromkeys(modalities, "auto")
    problems = []
    named = [word.strip() for word in words.split(",")]
    for word in named:
        modality, colon, kind = word.partition(":")
        if not colon and len(named) > 1:
            problems.append(f"encoder: {word!r} among several should read MODALITY:KIND")
        elif not colon:
            wanted = dict.fromkeys(wanted, word)
        elif modality not in wanted:
            problems.append(f"encoder: {unknown_name(modality, wanted)}")
        else:
            wanted[modality] = kind
    unknown = (kind for kind in dict.fromkeys(wanted.values()) if not _can_be(kind))
    problems += [f"encoder: {unknown_name(kind, KINDS)} {OR_A_PATH}" for kind in unknown]
    return wanted, problems


def reads_tokens(kind: str, shape: Shape, features: int) -> bool:
    """Whether an encoder reads token numbers, which must not be scaled: it says so by an attribute ``reads_tokens``.

    A class is asked without being made; what a function makes has to be made to be asked. One that cannot be made
    reads nothing: `build_encoders` says why.
    """
    try:
        maker = KINDS.get(kind) or _imported(kind)
        asked = maker if isinstance(maker, type) else _make(kind, shape, features)
    except Exception:
        return False
    return bool(getattr(asked, "reads_tokens", False))


def _can_be(kind: str) -> bool:
    """Whether a word names an encoder, or may lead to one."""
    return kind in KINDS or "." in kind.strip(".")


def _imported(kind: str) -> Any:
    module, _, name = kind.rpartition(".")
    return getattr(importlib.import_module(module), name)


def makes_modules(maker: object) -> bool:
    """Tell whether something is a class of modules, or a function whose signature says that it returns one."""
    if inspect.isfunction(maker):
        try:
            maker = get_type_hints(maker).get("return")
        except Exception:  # words of the user's own, which may mean nothing
            return False
    return inspect.isclass(maker) and issubclass(maker, nn.Module)


def _make(kind: str, shape: Shape, features: int, *, checked: bool = False) -> nn.Module:
    if kind in KINDS:
        return KINDS[kind](shape, features)
    maker = _imported(kind)
    if checked and not makes_modules(maker):
        found = f"{type(maker).__name__} {getattr(maker, '__name__', '')}".strip()
        raise TypeError(f"expected a class of nn.Module, or a function with `-> nn.Module`, found the {found}")
    offered: dict[str, Any] = {"shape": shape, "features": features}
    known = inspect.signature(maker).parameters
    made = maker(**{key: value for key, value in offered.items() if key in known})
    if not isinstance(made, nn.Module):
        raise TypeError(f"expected an nn.Module, found {type(made).__name__}")
    return made
