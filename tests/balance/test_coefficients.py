"""What a method answers: what it means block by block, the table that says it, and answers that are none."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable
from typing import Any, cast

import pytest
import torch

from equipoise import EW, MGDA, MIMO, MSL, OGM, OGMGE, Balancer, Coefficients, InfoReg, Losses, Mixing, Table, Weighting
from equipoise.testing import SmallModel, attached, balanced, batch, losses_of, names
from everything import METHODS, SHAPES
from random_answers import LAYOUTS, Answers, Part, coefficient, drawn_answer, name_of

ONES = torch.ones(3)
LOSSES = {"fused": torch.tensor(1.0), "audio": torch.tensor(2.0), "video": torch.tensor(3.0)}


def losses(count: int) -> Losses:
    unimodal = torch.arange(2, 2 + count, dtype=torch.float64)
    return Losses(torch.tensor(1.0, dtype=torch.float64), unimodal, unimodal)


# -- what an answer means --


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_each_cell_of_the_table_is_what_the_answer_says_of_its_block(layout: dict[str, Part]) -> None:
    draw = random.Random(str(layout))
    modalities, further, trunk = draw.randint(1, 4), draw.random() < 0.3, draw.random() < 0.5
    objectives = 1 + modalities * (2 if further else 1)
    answer = drawn_answer(layout, draw, objectives, modalities)
    assert answer.problems(objectives, modalities) == []
    blocks = [*range(modalities), *(["trunk"] if trunk else []), "fused head", "own heads"]
    table = answer.table(modalities, trunk=trunk)
    assert len(table) in (1 + modalities, objectives)
    for row, cells in enumerate(table.tolist()):
        assert cells == pytest.approx([coefficient(answer, row, block) for block in blocks])
    unsaid = range(len(table), objectives)
    assert all(coefficient(answer, row, block) == 0 for row in unsaid for block in blocks)


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_an_answer_says_of_itself_whether_one_sum_serves_all_blocks(layout: dict[str, Part]) -> None:
    draw = random.Random(str(layout))
    modalities = draw.randint(2, 4)
    answer = drawn_answer(layout, draw, 1 + modalities, modalities)
    table = answer.table(modalities, trunk=True)
    first = table[:, :1]
    assert answer.is_sum == torch.equal(table, first.expand_as(table))
    assert answer.moves_alike == torch.equal(table[:, :-1], first.expand(-1, modalities + 2))
    assert answer.is_alone == (not table[1:, :modalities].any())


def test_the_makers_by_hand() -> None:
    two = losses(2)
    weights, heads, factors = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]), torch.tensor([0.5, 0.1])
    columns = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    made = {
        Coefficients.shared(weights): [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]],
        Coefficients.joint(two): [[1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1]],
        Coefficients.joint(two, factors): [[0.5, 0.1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1]],
        Coefficients.weighted(weights, heads): [[1, 1, 4, 4], [2, 2, 5, 5], [3, 3, 6, 6]],
        Coefficients.weighted(weights, heads, factors): [[0.5, 0.1, 4, 4], [1, 0.2, 5, 5], [1.5, 0.3, 6, 6]],
        Coefficients.full(columns, heads): [[1, 2, 4, 4], [3, 4, 5, 5], [5, 6, 6, 6]],
    }
    for answer, table in made.items():
        torch.testing.assert_close(answer.table(2, trunk=False), torch.tensor(table).to(answer.encoders))
    assert Coefficients.joint(two).value == two.fused


def test_losses_in_the_order_of_the_table_and_weights_for_them() -> None:
    three = losses(3)
    assert three.all.tolist() == [1, 2, 3, 4]
    assert three._replace(further=torch.tensor([7.0, 8.0, 9.0])).all.tolist() == [1, 2, 3, 4, 7, 8, 9]
    assert three.weights(1.0, 0.5).tolist() == [1, 0.5, 0.5, 0.5]
    assert three.weights(2.0, 2.0).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("encoders", ["all", "one", "each"])
def test_the_value_is_the_sum_that_encoders_move_along_or_else_the_fused_head(encoders: Part, count: int) -> None:
    layout: dict[str, Part] = {"encoders": encoders, "fused_head": "all"}
    answer, model = drawn_answer(layout, random.Random(count), 1 + count, count), SmallModel(names(count))
    means = [1.0 + place for place in range(1 + count)]
    given = dict(zip(("fused", *names(count)), torch.tensor(means, dtype=torch.float64), strict=True))
    block = "fused head" if encoders == "each" else 0
    with torch.no_grad():
        value = float(attached(Answers(answer), model)(given))
        assert float(Answers(answer._replace(value=torch.tensor(5.0)))(given)) == 5.0
    assert value == pytest.approx(sum(coefficient(answer, row, block) * mean for row, mean in enumerate(means)))


# -- answers that are none --


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (Coefficients.shared(torch.ones(2)), r"encoders of shape \[2\], expected \[3\] or \[1\] or \[3, 2\]"),
        (Coefficients(ONES[:, None]), r"encoders of shape \[3, 1\], expected .*"),
        (Coefficients(ONES, factors=ONES), r"factors of shape \[3\], expected \[2\]"),
        (Coefficients(ONES, own_heads=ONES[:1]), r"own_heads of shape \[1\], expected \[3\]"),
        (Coefficients(ONES, trunk=ONES[:2]), r"trunk of shape \[2\], expected \[3\] or \[1\]"),
        (Coefficients(ONES, fused_head=cast("torch.Tensor", [1, 1, 1])), "fused_head of type list, expected a tensor"),
        (
            Coefficients(torch.ones(3, 2)),
            "a column for each encoder, and fused_head of None, which has no encoder to follow",
        ),
        (ONES, r"a tensor of shape \[3\] instead"),
        (None, "NoneType instead"),
    ],
)
def test_what_weigh_should_return_is_told(answer: Any, found: str) -> None:
    expected = (
        r"Answers\.weigh: expected it to return equipoise\.Coefficients, such as Coefficients\.shared\(weights\) with "
        r"a tensor of 3 weights, of fused, audio, video; found "
    )
    method = Answers(Coefficients.shared(ONES))
    method.given = answer
    with pytest.raises(ValueError, match=f"^{expected}{found}$"):
        method(LOSSES)


def test_all_that_is_wrong_with_an_answer_is_told_at_once() -> None:
    wrong = Coefficients(torch.ones(2, 2), fused_head=torch.ones(5), trunk=torch.ones(2), factors=torch.ones(1))
    told = wrong.problems(3, 2)
    assert [text.split()[0] for text in told] == ["encoders", "fused_head", "trunk", "factors"]


@pytest.mark.parametrize(("base", "lacking"), [(Weighting, "weigh"), (Mixing, "mix")])
def test_a_method_without_an_answer_is_told(base: type[Balancer], lacking: str) -> None:
    with pytest.raises(TypeError, match=f"Empty: expected a method '{lacking}'"):
        type("Empty", (base,), {})()


# -- the table --


def test_before_a_model_is_attached_the_table_knows_the_heads_alone() -> None:
    balancer = EW(0.5)
    with pytest.raises(RuntimeError, match=r"no step has been taken yet; call the balancer on losses first"):
        _ = balancer.table
    balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0)})
    lines = str(balancer.table).splitlines()
    assert lines[0].split() == ["audio", "fused", "head", "own", "heads"]
    assert lines[1].split() == ["fused", "?", "1", "–"]
    assert lines[2].split() == ["audio", "?", "?", "0.5"]
    assert lines[3:] == ["? is known once a model is attached: type balancer.attach(model, encoders={…})"]
    assert balancer.table.numbers() == {"fused": {"fused head": 1.0}, "audio": {"own heads": 0.5}}
    assert balancer.table.values.isnan().tolist() == [[True, False, True], [True, True, False]]


def test_once_a_model_is_attached_the_table_knows_every_cell() -> None:
    model = SmallModel(names(2))
    balancer = attached(EW(0.5), model)
    balancer(losses_of(model, batch(names(2))))
    lines = [line.split() for line in str(balancer.table).splitlines()]
    assert lines[1:] == [
        ["fused", "1", "1", "1", "–"],
        ["audio", "0.5", "–", "–", "0.5"],
        ["video", "–", "0.5", "–", "0.5"],
    ]
    table = balancer.table
    assert float(table.at("audio", "own heads")) == table.numbers()["audio"]["own heads"] == 0.5


@pytest.mark.parametrize("seed", range(10))
def test_the_columns_of_a_printed_table_line_up(seed: int) -> None:
    draw = random.Random(seed)
    rows = ("fused", *draw.sample(["a", "left hand", "camera", "gps"], 2))
    columns = (*rows[1:], "fused head", "own heads")
    values = torch.tensor([[draw.choice([1e-9, 1.0, 123456.0, torch.nan, -2.5]) for _ in columns] for _ in rows])
    lines = str(Table(rows, columns, values)).splitlines()
    assert len({len(line) for line in lines}) == 1
    for line, row in zip(lines[1:], values.tolist(), strict=True):
        assert line.startswith(rows[lines.index(line) - 1])
        cells = line.removeprefix(rows[lines.index(line) - 1]).split()
        assert cells == ["–" if math.isnan(value) else f"{value:.4g}" for value in row]


@pytest.mark.parametrize(
    ("make", "notes"),
    [
        (EW, []),
        (MSL, []),
        (MGDA, []),
        (OGM, []),
        (OGMGE, ["OGMGE changes the gradients of encoders after this table"]),
        (InfoReg, ["InfoReg adds a loss of its own, at weight one everywhere"]),
    ],
)
def test_the_table_notes_what_comes_after_it(make: type[Balancer], notes: list[str]) -> None:
    model = SmallModel(names(2))
    balancer = attached(make(), model)
    balancer(losses_of(model, batch(names(2)))).backward()
    assert list(balancer.table.notes) == notes
    assert str(balancer.table).splitlines()[4:] == notes
    scaled = make().attach(model, optimizer=torch.optim.Adam(model.parameters()))
    scaled(losses_of(model, batch(names(2)))).backward()
    told = ["factors act on what the optimiser does with gradients, not on these"] if balancer.needs.factors else []
    assert list(scaled.table.notes) == [*notes, *told]


def test_a_table_stays_on_the_device_of_the_losses_and_follows_the_last_step() -> None:
    balancer = MIMO(penalty=1.0, smoothing=0.0)
    balancer(LOSSES)
    first = balancer.table
    balancer({**LOSSES, "audio": torch.tensor(9.0)})
    assert (float(first.at("audio", "own heads")), float(first.at("video", "own heads"))) == (0.0, 1.0)
    assert balancer.table.numbers()["audio"] == {"own heads": 1.0}
    assert balancer.table.values.device == LOSSES["fused"].device


# -- the shapes that the engine is tried with --


def traits(name: str) -> set[Hashable]:
    """What the engine has to do for a method."""
    balancer, model = METHODS[name](), SmallModel(names(3))
    balanced(attached(balancer, model), losses_of(model, batch(names(3)))).backward()
    answer, kind, needs = balancer.answer, type(balancer), balancer.needs
    assert answer is not None

    def size(column: torch.Tensor | None) -> Hashable:
        return column if column is None else len(column) == 1

    layout = (answer.encoders.dim(), size(answer.encoders), size(answer.fused_head), size(answer.own_heads))
    held: dict[Hashable, bool] = {
        ("mixes at", balancer.at): isinstance(balancer, Mixing),
        ("layout", layout): isinstance(balancer, Weighting),
        "factors": answer.factors is not None,
        "further objectives": bool(needs.further),
        "scores that are given": bool(needs.given_scores),
        "scores read off losses": needs.logarithmic,
        "copies": bool(balancer._copies),
        "numbers on the host": bool(balancer.host_values()),
        "random numbers": bool(balancer.generators),
    }
    hooks = ("regulariser", "transform", "on_backward", "on_step")
    held |= {hook: getattr(kind, hook) is not getattr(Balancer, hook) for hook in hooks}
    return {trait for trait, holds in held.items() if holds}


def test_no_method_has_a_shape_that_the_engine_is_not_tried_with() -> None:
    tried = set[Hashable]().union(*map(traits, SHAPES))
    assert {name: left for name in METHODS if (left := traits(name) - tried)} == {}
