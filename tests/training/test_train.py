"""The loop: the same bits again, whatever interrupts it, and no others than a bare loop gives."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import AGM, MIMO, MSES, MSL, OGM, OGMGE, Balancer, MMPareto, Unimodal
from equipoise.data import Part, Splits
from equipoise.data.bundled import two_sensors
from equipoise.data.feed import Feed, epoch_rows, micro_batches
from equipoise.models import LateFusion
from equipoise.training.optimisers import make_optimizer, make_schedule
from equipoise.training.settings import Settings
from equipoise.training.step import build_model, evaluate, losses_of, split
from equipoise.training.train import Record, Run, Trained, train
from fed import training

DATA = two_sensors(samples=150)
EVERYTHING = Settings(
    epochs=4, batch=32, optimizer="adamw", schedule="cosine", dropout=0.3, accumulate=2, features=8, lr=0.02
)
PLAIN = Settings(epochs=4, batch=32, features=8, encoder="mlp")
RUNS: dict[str, tuple[Callable[[], Balancer], Settings]] = {
    "msl": (MSL, PLAIN),
    "msl, auto": (MSL, PLAIN.changed({"encoder": "auto"})),  # whose encoders draw at random
    "mimo": (MIMO, PLAIN),
    "ogmge": (OGMGE, PLAIN),
    "agm": (AGM, PLAIN),
    "mmpareto": (MMPareto, PLAIN),
    "mses": (lambda: MSES(patience=0, smoothing="recursive", rollback=True), PLAIN.changed({"lr": 1.0})),
    "mimo, everything": (MIMO, EVERYTHING),
    "mimo, by layer": (MIMO, EVERYTHING.changed({"layer_decay": 0.5, "accumulate": 1})),
    "agm, everything": (lambda: AGM(start=1), EVERYTHING),
    "ogmge, best": (OGMGE, EVERYTHING.changed({"select": "best", "schedule": "step"})),
    "msl, patience": (MSL, EVERYTHING.changed({"patience": 2, "lr": 0.3, "epochs": 8})),
    "mses, everything": (lambda: MSES(patience=0), EVERYTHING.changed({"lr": 0.3})),
}


class Killed(Exception):  # noqa: N818
    """The end of a sitting."""


def weights(trained: Trained) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def told(curves: list[Record]) -> list[Record]:
    """What a run shows, without the time it took."""
    return [{key: value for key, value in record.items() if key != "seconds"} for record in curves]


def interrupted(name: str, at: set[int], folder: Path, **options: Any) -> Trained:
    """A run that is killed after each of these epochs and started again."""
    make, settings = RUNS[name]
    left = set(at)

    def kill(record: Record) -> None:
        if record["epoch"] - 1 in left:  # an epoch after the checkpoint, so that something is lost
            left.discard(record["epoch"] - 1)
            raise Killed

    while True:
        try:
            return train(DATA, make(), settings, folder=folder, on_epoch=kill, checkpoint_seconds=0, **options)
        except Killed:
            torch.manual_seed(torch.seed() % 2**31)  # the next sitting finds another random state
            torch.rand(7)


@pytest.mark.parametrize("name", RUNS)
def test_killed_anywhere_a_run_comes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    make, settings = RUNS[name]
    undisturbed = train(DATA, make(), settings)
    assert same(weights(undisturbed), weights(train(DATA, make(), settings)))  # two identical runs
    last = len(undisturbed.curves)
    for number, at in enumerate([*({epoch} for epoch in range(1, last)), set(range(1, last))]):
        found = interrupted(name, at, tmp_path / str(number))
        assert same(weights(found), weights(undisturbed)), at
        assert told(found.curves) == told(undisturbed.curves)
        assert found.epoch == undisturbed.epoch
    if name == "msl, patience":
        assert last < settings.passes
    if name.startswith("mses"):  # its state has mattered
        stopped = [record["table"] for record in undisturbed.curves]
        assert stopped[0] != stopped[-1]


def test_a_finished_run_trains_no_further(tmp_path: Path) -> None:
    first = train(DATA, MIMO(), PLAIN, folder=tmp_path)
    seen: list[Record] = []
    again = train(DATA, MIMO(), PLAIN, folder=tmp_path, on_epoch=seen.append)
    assert seen == []
    assert same(weights(first), weights(again))
    assert again.curves == first.curves
    assert again.seconds == first.seconds


def test_another_seed_is_another_run() -> None:
    short = PLAIN.changed({"epochs": 1})
    assert not same(weights(train(DATA, MSL(), short, seed=1)), weights(train(DATA, MSL(), short, seed=2)))


def test_best_gives_the_weights_of_the_best_epoch() -> None:
    rough = Settings(epochs=8, batch=16, lr=0.5, features=8, select="best")
    found = train(DATA, MSL(), rough)
    scores = [record["validation"]["fused"] for record in found.curves]
    assert found.epoch == 1 + scores.index(max(scores))
    assert found.epoch < len(scores)
    assert evaluate(found.model, DATA.validation)["fused"]["accuracy"] == max(scores)
    assert same(weights(found), weights(train(DATA, MSL(), rough.changed({"epochs": found.epoch, "select": "last"}))))


def test_without_a_fused_loss_the_modalities_decide_which_epoch_is_best() -> None:
    found = train(DATA, Unimodal(), Settings(epochs=6, batch=16, lr=0.3, features=8, select="best"))
    means = [(r["validation"]["easy"] + r["validation"]["hard"]) / 2 for r in found.curves]
    assert found.epoch == 1 + means.index(max(means))


def test_patience_stops_after_as_many_epochs_without_a_better_one() -> None:
    found = train(DATA, MSL(), Settings(epochs=50, batch=32, lr=0.05, features=8, patience=3))
    scores = [record["validation"]["fused"] for record in found.curves]
    assert len(scores) == 1 + scores.index(max(scores)) + 3 < 50
    assert found.epoch == len(scores)


def bare_loop(splits: Splits, settings: Settings, seed: int, clip: float | None = None) -> dict[str, Tensor]:
    """Joint training as anyone would write it, with heads on detached features beside it."""
    torch.manual_seed(seed)
    model = build_model(splits, MSL(), settings)
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, momentum=0.9, weight_decay=1e-4, fused=True)
    shuffle = torch.Generator().manual_seed(seed)
    part = splits.train
    for _ in range(settings.passes):
        for rows in torch.randperm(len(part.label), generator=shuffle).split(settings.batch):
            outputs = model({name: array[rows] for name, array in part.inputs.items()})
            loss = torch.stack([F.cross_entropy(z, part.label[rows]) for z in outputs.values()]).sum()
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_joint_training_is_a_bare_loop_bit_for_bit(clip: float | None, dropout: float) -> None:
    settings = PLAIN.changed({"clip": clip, "dropout": dropout})
    found = weights(train(DATA, MSL(), settings, seed=3))
    assert same(found, bare_loop(DATA, settings, 3, clip))
    assert same(found, bare_loop(DATA, settings, 3)) is (clip is None)


def test_clipping_bounds_the_step() -> None:
    one_step = Settings(epochs=1, batch=90, lr=1.0, momentum=0, weight_decay=0, features=8, clip=0.01)
    torch.manual_seed(0)
    before = build_model(DATA, MSL(), one_step).state_dict()
    after = weights(train(DATA, MSL(), one_step))
    moved = math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in before))
    assert moved == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("method", [MSL, MIMO, OGMGE, MMPareto])
def test_half_precision_trains_on_a_cpu(method: type[Balancer]) -> None:
    found = train(DATA, method(), PLAIN.changed({"precision": "bf16"}))
    assert found.curves[-1]["validation"]["fused"] > 0.5
    assert all(tensor.dtype == torch.float32 for tensor in weights(found).values() if tensor.is_floating_point())
    assert not same(weights(found), weights(train(DATA, method(), PLAIN)))


def test_accumulation_is_the_same_step_in_pieces() -> None:
    whole = weights(train(DATA, MSL(), PLAIN.changed({"epochs": 1})))
    cut = weights(train(DATA, MSL(), PLAIN.changed({"epochs": 1, "accumulate": 4})))
    for name in whole:
        torch.testing.assert_close(whole[name], cut[name], rtol=1e-4, atol=1e-6)


def part(size: int) -> Part:
    return Part({"a": torch.arange(size)}, torch.arange(size))


@pytest.mark.parametrize(
    ("samples", "size", "expected"),
    [(9, 4, [4, 4]), (10, 4, [4, 4, 2]), (8, 4, [4, 4]), (1, 4, [1]), (3, 1, [1, 1, 1]), (3, 64, [3])],
)
def test_a_last_batch_of_one_is_left_out(samples: int, size: int, expected: list[int]) -> None:
    rows = epoch_rows(samples, size, torch.Generator().manual_seed(0))
    found = list(training(Feed(part(samples), "cpu"), rows, epoch=0))
    assert [len(each) for each in found] == expected
    seen = torch.cat([each.label for each in found]).tolist()
    assert len(set(seen)) == sum(expected)
    assert all(torch.equal(each.inputs["a"], each.label) for each in found)


def test_micro_batches_hold_every_sample_once() -> None:
    for count in (1, 2, 3, 20):
        sizes = [len(each.rows) for each in micro_batches(torch.arange(10), micro=count)]
        found = [each.label for each in split(part(10), sizes)]
        assert [len(each) for each in found] == sizes
        assert torch.cat(found).tolist() == list(range(10))


def test_a_run_is_taken_step_by_step() -> None:
    """A step moves the weights when it is asked for, and not before; what is left of an epoch can be left."""
    whole = weights(train(DATA, MIMO(), PLAIN.changed({"epochs": 2})))
    run = Run(DATA, MIMO(), PLAIN)
    taken = run.steps()
    seen = [run.model.state_dict()["heads.easy.weight"].clone()]
    for left in (2, 1, 0):
        assert next(taken) == left
        seen.append(run.model.state_dict()["heads.easy.weight"].clone())
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise(seen))
    assert next(taken, None) is None
    shown = run.end_epoch()
    assert (shown["epoch"], run.state.epoch, run.state.batch, run.state.samples) == (1, 1, 0, 0)
    assert all(0 < loss < 10 for loss in shown["train"].values())
    assert not any(run.state.sums[name] for name in shown["train"])
    for _ in run.steps():
        pass
    assert same(run.model.state_dict(), whole)
    run.end_epoch()
    assert next(run.steps()) == 2
    assert not same(run.model.state_dict(), whole)


def test_the_schedule_moves_between_epochs() -> None:
    run = Run(DATA, MSL(), PLAIN.changed({"schedule": "step", "lr": 0.1}))
    rates = []
    for _ in range(PLAIN.passes):
        rates.append(run.step.optimizer.param_groups[0]["lr"])
        run.train_epoch()
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.01])  # a tenth after 70 % of four epochs


def test_shares_decide_while_heads_learn_beside() -> None:
    """One step of OGM by hand: factors from the shares, encoders and fused head from the fused loss alone."""
    settings = Settings(features=8, encoder="mlp")  # without dropout
    torch.manual_seed(0)
    model = build_model(DATA, OGM(), settings)
    reference = build_model(DATA, OGM(), settings)
    assert isinstance(reference, LateFusion)
    reference.load_state_dict(model.state_dict())
    some, rate = DATA.train.take(torch.arange(20)), 0.1
    optimizer = torch.optim.SGD(model.parameters(), rate)
    balancer = OGM(strength=0.8).attach(model, optimizer=optimizer)
    loss, seen = losses_of(model, balancer, some)
    loss.backward()

    features = reference.features(some.inputs)
    shares = reference.fusion.share(features)
    right = {name: F.cross_entropy(z, some.label, reduction="none").neg().exp().mean() for name, z in shares.items()}
    ratio = {"easy": right["easy"] / right["hard"], "hard": right["hard"] / right["easy"]}
    factor = {name: 1 - torch.tanh(0.8 * value) if value > 1 else torch.ones(()) for name, value in ratio.items()}
    assert sorted(value < 1 for value in factor.values()) == [False, True]
    F.cross_entropy(reference.fusion(features), some.label).backward()
    for name, feature in features.items():
        F.cross_entropy(reference.heads[name](feature.detach()), some.label).backward()
        for tensor in reference.encoders[name].parameters():
            assert tensor.grad is not None
            tensor.grad.mul_(factor[name].detach())
    expected = dict(reference.named_parameters())
    for name, tensor in model.named_parameters():
        torch.testing.assert_close(tensor.grad, expected[name].grad, rtol=1e-5, atol=1e-7)
    assert list(seen) == ["fused", "easy", "hard"]
    torch.testing.assert_close(
        seen["hard"], F.cross_entropy(reference.heads["hard"](features["hard"]), some.label, reduction="none")
    )
    assert balancer.table.at("fused", "easy") == pytest.approx(float(factor["easy"].detach()), rel=1e-5)


def test_evaluation_counts_each_sample_once_and_leaves_the_model_alone() -> None:
    model = build_model(DATA, MSL(), PLAIN.changed({"dropout": 0.5})).train()
    whole, cut = evaluate(model, DATA.validation), evaluate(model, DATA.validation, batch=7)
    assert model.training
    for name, numbers in whole.items():
        assert numbers["accuracy"] == cut[name]["accuracy"]
        assert numbers["loss"] == pytest.approx(cut[name]["loss"], rel=1e-5)
    with torch.no_grad():
        logits = model.eval()(DATA.validation.inputs)["fused"]
    assert whole["fused"]["loss"] == pytest.approx(float(F.cross_entropy(logits, DATA.validation.label)), rel=1e-5)


def test_optimisers_and_schedules_by_name() -> None:
    model = torch.nn.Linear(2, 2)
    kinds = {name: type(make_optimizer(model, Settings(optimizer=name))) for name in ("sgd", "adam", "adamw")}
    assert kinds == {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}

    def rates(**words: Any) -> list[float]:
        settings = Settings(epochs=10, lr=1.0, **words)
        optimizer = make_optimizer(model, settings)
        schedule, found = make_schedule(optimizer, settings), []
        for _ in range(10):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if schedule is not None:
                schedule.step()
        return found

    assert rates() == [1.0] * 10
    assert rates(schedule="step") == pytest.approx([1.0] * 7 + [0.1] * 3)
    assert rates(schedule="cosine") == pytest.approx([(1 + math.cos(math.pi * k / 10)) / 2 for k in range(10)])


def test_nothing_to_train_is_fine() -> None:
    found = train(DATA, MSL(), PLAIN.changed({"epochs": 0}))
    assert (found.epoch, found.curves) == (0, [])


def test_the_test_part_is_never_touched() -> None:
    blind = Splits("blind", DATA.train, DATA.validation, None, DATA.classes)  # ty: ignore[invalid-argument-type]
    assert same(weights(train(blind, MIMO(), PLAIN)), weights(train(DATA, MIMO(), PLAIN)))


def test_a_record_shows_losses_accuracies_and_the_table() -> None:
    (record,) = train(DATA, MIMO(), PLAIN.changed({"epochs": 1})).curves
    assert list(record) == ["epoch", "seconds", "train", "validation", "table"]
    assert list(record["train"]) == list(record["validation"]) == ["fused", "easy", "hard"]


@pytest.mark.parametrize(("given", "told"), [("mimo", r"such as MIMO\(\); found 'mimo'"), (MSL, r"such as MSL\(\)")])
def test_a_method_that_was_not_made_is_refused(given: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        train(two_sensors(samples=30), given)


def test_a_rank_in_the_environment_alone_makes_no_second_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")  # as a scheduler may leave it, without the other processes
    records: list[Record] = []
    train(DATA, MSL(), PLAIN, folder=tmp_path, on_epoch=records.append)
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    assert train(DATA, MSL(), PLAIN, folder=tmp_path).curves == records
