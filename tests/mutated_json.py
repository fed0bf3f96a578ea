"""JSON with errors made by chance: a value exchanged for an odd one, a field left out, text cut or changed."""

import copy
import json
import random
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**400, 0.5, 1e300, float("nan"), float("inf")),
    *("", "a", "\x1b[31m", "<script>", "../../etc", "\ud800", [], [None], [[1]], {}, {"": {}}, [0] * 50, [1.0, "a"]),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside of a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in inner for place in places(item, (*at, key)))]


def mutated_json(content: Any, draw: random.Random) -> bytes:
    """The content as a file, with one or two errors."""
    content = json.loads(json.dumps(content))
    for _ in range(draw.choice([1, 1, 2])):
        *parents, last = draw.choice(places(content)[1:] or [("",)])
        inner = content
        for key in parents:
            inner = inner[key]
        kind = draw.randrange(4)
        if kind == 0 and isinstance(inner, dict):
            inner.pop(last, None)
        elif kind == 1 and isinstance(inner, list):
            inner.append(copy.deepcopy(draw.choice(ODD)))
        else:
            inner[last] = copy.deepcopy(draw.choice(ODD))
    text = json.dumps(content).encode()
    if draw.random() < 0.15:
        place = draw.randrange(len(text))
        deep = b"[" * 100_000 + b"]" * 100_000
        text = text[:place] + draw.choice([b"", b"\xff", b"1" * 5_000, deep, b"\0", b'"']) + text[place + 1 :]
    return text
