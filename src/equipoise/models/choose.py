"""Encoders by name, for a command line and for presets."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_type_hints

from torch import nn

from equipoise.models.encoders import MLP, CNN1d, CNN2d, Frames, LeNet, RegularisedMLP, ResNet18
from equipoise.models.frozen import FrozenFeatures
from equipoise.models.inception import Inception
from equipoise.models.rocket import Rocket
from equipoise.models.sequence import AttentionPooled, FirstStepTransformer, PooledMap, Tokens
from equipoise.models.sound import LogMel, is_sound
from equipoise.models.trunk import Stem
from equipoise.models.vision import SmallResNet, Video
from equipoise.util.errors import BadInput, unknown_name
from equipoise.util.named import imported

Shape = tuple[int, ...]
LEAST_STEPS, LEAST_SIDE, LEAST_FRAMES = 24, 16, 4
"""Below these, series, pictures and video are so small that a small CNN reads as much of them, and costs less."""


def encoder_for(shape: Sequence[int], features: int = 64) -> nn.Module:
    """Choose an encoder by the shape of one sample.

    Args:
        shape: Small or large, as the table says:

            | shape | encoder | of a small one |
            |---|---|---|
            | (D,) | `RegularisedMLP` | |
            | (C, T) | `Inception` | `CNN1d`, below 24 steps |
            | (1, T) or (2, T), T ≥ 4000 | `LogMel` | |
            | (C, H, W) | `SmallResNet` | `CNN2d`, where a side is below 16 |
            | (C, T, H, W) | `Video` | `Frames` of a `CNN2d`, below 4 frames or where a side is below 16 |
        features: The size of the encoder's output vector.

    Returns:
        A fresh encoder.

    Raises:
        ValueError: If the shape has another number of axes, or an axis without length.
    """
    sizes = () if isinstance(shape, int) else tuple(shape)
    if not 1 <= len(sizes) <= 4 or min(sizes) < 1:
        raise ValueError(
            "encoder_for expected the shape of one sample, (D,), (C, T), (C, H, W) or (C, T, H, W), every axis at least"
            f" 1; found {sizes or shape}. Pass array.shape[1:], or write an encoder of your own: any nn.Module with an "
            "integer attribute `features`."
        )
    return KINDS[_kind_for(sizes)](sizes, features)


def _kind_for(shape: Shape) -> str:
    """Name the kind of encoder for the shape of one sample."""
    if len(shape) == 1:
        return "regularised-mlp"
    if len(shape) == 2:
        if is_sound(shape):
            return "log-mel"
        return "inception" if shape[1] >= LEAST_STEPS else "cnn1d"
    large = min(shape[-2:]) >= LEAST_SIDE
    if len(shape) == 3:
        return "small-resnet" if large else "cnn2d"
    return "video" if large and shape[1] >= LEAST_FRAMES else "frames"


def _words(shape: Shape, features: int) -> nn.Module:
    """Make an encoder of word numbers of 16 bits."""
    if len(shape) != 1:
        raise ValueError("expected word numbers, one per step")
    return Tokens(2**15, AttentionPooled(300, features))


def _axes(shape: Shape, count: int) -> Shape:
    """Return a shape that has so many axes, or raise a ValueError."""
    if len(shape) != count:
        raise ValueError(f"expected {count} axes, found {len(shape)}")
    return shape


KINDS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "auto": encoder_for,
    "mlp": lambda shape, features: MLP(shape[0], features),
    "regularised-mlp": lambda shape, features: RegularisedMLP(shape[0], features),
    "cnn1d": lambda shape, features: CNN1d(shape[0], features),
    "inception": lambda shape, features: Inception(*_axes(shape, 2), features),
    "log-mel": lambda shape, features: LogMel(*_axes(shape, 2), features),
    "frozen": lambda shape, _: FrozenFeatures(shape),
    "rocket": lambda shape, features: Rocket(shape, features),
    "cnn2d": lambda shape, features: CNN2d(shape[0], features),
    "frames": lambda shape, features: Frames(CNN2d(shape[0], features)),
    "small-resnet": lambda shape, features: SmallResNet(shape[0], max(_axes(shape, 3)[1:]), features),
    "video": lambda shape, features: Video(shape[0], max(_axes(shape, 4)[2:]), features),
    "resnet18": lambda shape, _: ResNet18(shape[0]),
    # As many halvings as the picture allows: 28 → 4, 112 → 6.
    "lenet": lambda shape, _: LeNet(shape[0], int(math.log2(min(shape[1:])))),
    "first-step": lambda shape, features: FirstStepTransformer(shape[0], features),
    "lstm-attention": lambda shape, features: AttentionPooled(shape[0], features, start="lstm"),
    "attention": lambda shape, features: AttentionPooled(shape[0], features, start="linear"),
    "words": _words,
    "stem": lambda shape, features: Stem(shape, features),
    "pooled-map": lambda shape, features: PooledMap(shape[0], features),
}
"""The kinds that `encoder=NAME` takes: each makes an encoder from the shape of one input and the number of features."""
OR_A_PATH = "Or type a dotted path, such as my.module.Encoder."


def build_encoders(
    words: str, shapes: Mapping[str, Shape], features: int, *, checked: bool = False
) -> dict[str, nn.Module]:
    """Make one encoder per modality.

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
        if not _can_be(kind):  # among the problems already
            continue
        try:
            encoders[modality] = _make(kind, shapes[modality], features, checked=checked)
        except Exception as error:  # code of the user's own may raise anything
            problems.append(f"encoder of {modality!r}, {kind!r}, for inputs of shape {shapes[modality]}: {error}")
            cause = cause or error
    if problems:
        raise BadInput("\n".join(problems)) from cause  # the line of that code
    return encoders


def kinds_of(words: str, modalities: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Read the kind of encoder of each modality from words, and list what is wrong with them.

    Args:
        words: As for `build_encoders`.
        modalities: Their names.
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
    """Tell whether an encoder reads token numbers, which must not be scaled, by its attribute ``reads_tokens``.

    A class tells without being made; a function has to be called. An encoder that cannot be made reads nothing:
    `build_encoders` says why.
    """
    try:
        maker = KINDS.get(kind) or imported(kind)
        encoder = maker if isinstance(maker, type) else _make(kind, shape, features)
    except Exception:
        return False
    return bool(getattr(encoder, "reads_tokens", False))


def _can_be(kind: str) -> bool:
    """Tell whether a word names an encoder, or may be the dotted path of one."""
    return kind in KINDS or "." in kind.strip(".")


def own_encoders(words: str) -> list[str]:
    """List the dotted paths among words that name encoders."""
    kinds = [word.strip().rpartition(":")[2] for word in words.split(",")]
    return list(dict.fromkeys(kind for kind in kinds if kind not in KINDS and _can_be(kind)))


def makes_modules(maker: object) -> bool:
    """Tell whether something is a class of modules, or a function whose signature says that it returns one."""
    if inspect.isfunction(maker):
        try:
            maker = get_type_hints(maker).get("return")
        except Exception:  # annotations of the user's own may not resolve
            return False
    return inspect.isclass(maker) and issubclass(maker, nn.Module)


def _make(kind: str, shape: Shape, features: int, *, checked: bool = False) -> nn.Module:
    if kind in KINDS:
        return KINDS[kind](shape, features)
    maker = imported(kind)
    if checked and not makes_modules(maker):
        kind_found = f"{type(maker).__name__} {getattr(maker, '__name__', '')}".strip()
        raise TypeError(f"expected a class of nn.Module, or a function with `-> nn.Module`, found the {kind_found}")
    known = inspect.signature(maker).parameters
    made = maker(**{key: value for key, value in (("shape", shape), ("features", features)) if key in known})
    if not isinstance(made, nn.Module):
        raise TypeError(f"expected an nn.Module, found {type(made).__name__}")
    return made
