"""Annotations of parameters: what is found where, and what does no harm."""

from typing import Annotated, Optional

from equipoise.study.registry import all_methods
from equipoise.util.annotated import ReadBy, Tried, annotations_of


def several(
    plain: int,
    one: Annotated[float, Tried(1.0, 2.0)] = 1.0,
    both: Annotated[str, ReadBy(str.upper), Tried("a")] = "a",
    maybe: Annotated[int | None, Tried(3)] = None,
    wrapped: Optional[Annotated[int, Tried(4, 5)]] = None,  # noqa: UP045 (what Python 3.10 makes of the one above)
) -> None: ...


def unknown(one: "NotThere", two: Annotated[float, Tried(1.0)] = 1.0) -> None: ...  # noqa: F821  # ty: ignore[unresolved-reference]


def test_annotations_of_one_kind_are_found_by_parameter() -> None:
    assert annotations_of(several, Tried) == {
        "one": Tried(1.0, 2.0),
        "both": Tried("a"),
        "maybe": Tried(3),
        "wrapped": Tried(4, 5),
    }
    assert annotations_of(several, ReadBy)["both"].read("x") == "X"


def test_what_does_not_resolve_or_has_no_annotations_has_none() -> None:
    assert annotations_of(unknown, Tried) == {}
    assert annotations_of(object.__init__, Tried) == {}


def test_methods_say_what_is_tried() -> None:
    """Those of which something is usually tried; the others have nothing to try, or set themselves."""
    tried = {name: method.tried for name, method in all_methods().items()}
    assert tried["mimo"] == {"penalty": (1.0, 10.0, 100.0), "smoothing": (0.01, 0.1, 1.0)}
    nothing = {name for name, values in tried.items() if not values}
    assert nothing == {"ensemble", "mgda", "msl", "primaldual", "unimodal"}
