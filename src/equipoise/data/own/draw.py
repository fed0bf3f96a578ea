"""The rules by which samples are divided into training, validation and test parts.

Parts are drawn by group, so that no group is in two of them, or within each class; the classes as even as can be.
Labels that are no classes have strata in their place, see `Labels.strata`.
"""

from collections.abc import Sequence

import numpy as np

PARTS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = 0, 1, 2
SHARES = (0.6, 0.2, 0.2)
DEALT = (TRAIN, TEST, VALIDATION, TRAIN, TRAIN)  # so a class of three is in every part, and of one in the training part
MOST_FOLDS, FEWEST_FOLDS = 5, 3
MOST_BYTES = 2**29  # of the samples of each class in each group
TRIES, STEPS = 50, 20_000  # a try takes a step per group


def draw(label: np.ndarray, group: np.ndarray | None, seed: int) -> np.ndarray:
    """Draw the part of each sample: about 60 % of them train, 20 % validate, 20 % test.

    Args:
        label: Classes, [N].
        group: Numbers of groups from 0, [N], three of them or more; None to draw within each class instead.
        seed: The same seed draws the same parts.
    """
    if group is None:
        return _stratified(label, DEALT, seed)
    return assign_groups(class_counts(label, group), SHARES, seed)[group]


def draw_fold(
    label: np.ndarray, group: np.ndarray | None, fold: int, folds: int, seed: int, needed: np.ndarray | None = None
) -> np.ndarray:
    """Draw the part of each sample in one of several folds: it tests, the next one validates, the others train.

    Args:
        label: Classes, [N].
        group: Numbers of groups from 0, [N]; None to draw within each class instead.
        fold: Which one.
        folds: How many there are.
        seed: The same seed draws the same folds.
        needed: What the training part should not lack: classes from 0, [N], or 0 and 1 for each of several labels,
            [N, L]. Where the next fold holds the last of one, another fold validates, or the groups that have it train.
    """
    return fold_marks(draw_places(label, group, folds, seed, spread=needed is not None), group, fold, folds, needed)


def draw_places(label: np.ndarray, group: np.ndarray | None, folds: int, seed: int, *, spread: bool) -> np.ndarray:
    """Draw the fold that each sample is tested in.

    Args:
        label: As for `draw_fold`, like the next three.
        group: Numbers of groups; None to draw within each class.
        folds: How many there are.
        seed: Of the drawing.
        spread: Whether a class of several groups has to be in several folds.
    """
    if group is None:
        place = np.empty(len(label), np.int64)
        place[_by_class(label, seed)] = np.arange(len(label)) % folds
        return place
    counts = class_counts(label, group)
    places = assign_groups(counts, [1 / folds] * folds, seed)
    return (_spread(counts, places, folds) if spread else places)[group]


def fold_marks(
    place: np.ndarray, group: np.ndarray | None, fold: int, folds: int, needed: np.ndarray | None
) -> np.ndarray:
    """Return the part of each sample in one fold; the arguments as for `draw_fold`, `place` from `draw_places`."""
    if needed is None:
        return np.select([place == fold, place == (fold + 1) % folds], [TEST, VALIDATION], TRAIN)
    row, kind = np.nonzero(needed) if needed.ndim == 2 else (np.arange(len(needed)), needed)
    held = np.zeros((folds, int(kind.max(initial=0)) + 1), bool)
    held[place[row], kind] = True
    lost = held & (held.sum(axis=0) - held[fold] == 1)  # the last of these, beside those that are tested
    following = (fold + 1 + np.arange(folds - 1)) % folds
    unit = np.arange(len(place)) if group is None else group
    size = np.bincount(unit)
    # A fold that validates keeps one group at least; every class that it alone has goes back with its smallest group.
    spare = np.array([len(np.unique(unit[place == each])) for each in range(folds)]) - 1
    short = np.maximum(lost.sum(axis=1) - spare, 0)[following]
    validation = following[np.lexsort((lost[following].sum(axis=1), short))[0]]
    marks = np.select([place == fold, place == validation], [TEST, VALIDATION], TRAIN)
    last = (place[row] == validation) & lost[validation, kind]
    units, kinds = unit[row[last]], kind[last]
    order = np.lexsort((units, size[units]))
    _, first = np.unique(kinds[order], return_index=True)
    back = np.unique(units[order][first])[: spare[validation]]
    marks[np.isin(unit, back)] = TRAIN
    return marks


def hold_out(label: np.ndarray, group: np.ndarray | None, seed: int, share: float = 0.25) -> np.ndarray:
    """Draw samples for validation out of those for training, whole groups where there are some, as a mask.

    Args:
        label: Classes, [N].
        group: Numbers of groups, [N]; None to draw within each class instead.
        seed: The same seed draws the same samples.
        share: How many of the samples, about; at most half. A class of two has one of them.
    """
    if group is None:
        return _stratified(label, np.diff(np.floor(share * np.arange(-2, 99))), seed).astype(bool)
    present, numbers = np.unique(group, return_inverse=True)
    if len(present) < 2:
        return np.zeros(len(label), bool)
    return assign_groups(class_counts(label, numbers), (1 - share, share), seed)[numbers].astype(bool)


def fold_count(samples: int, groups: int | None) -> int:
    """Return the number of folds: five, or one per group where there are fewer; none of fewer than three."""
    folds = min(MOST_FOLDS, samples if groups is None else groups)
    return folds if folds >= FEWEST_FOLDS else 0


def assign_groups(counts: np.ndarray, shares: Sequence[float], seed: int) -> np.ndarray:
    """Assign each group to a part, none of the parts empty.

    Groups are assigned one after the other to the part where they do most good, the largest first, and then again in
    random orders; the outcome with the least `unevenness` counts.

    Args:
        counts: Samples of each class in each group, [groups, classes].
        shares: How much of all samples each part should have.
        seed: The same seed gives the same parts.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    groups = len(counts)
    orders = [np.lexsort((random.random(groups), -counts.sum(axis=1)))]
    orders += [random.random(groups).argsort() for _ in range(min(TRIES, STEPS // groups))]
    outcomes = [_greedy(counts, np.array(shares), order) for order in orders]
    return min(outcomes, key=lambda places: unevenness(counts, shares, places))


def class_counts(label: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Count the samples of each class in each group, [groups, classes]; classes that no sample has are left out."""
    classes, numbers = np.unique(label, return_inverse=True)
    counts = np.zeros((int(group.max()) + 1, len(classes)))
    np.add.at(counts, (group, numbers), 1)
    return counts


def table_problem(label: np.ndarray, group: np.ndarray) -> str:
    """Say that there are too many groups and classes to draw parts by group; "" where there are not."""
    groups, classes = len(np.unique(group)), len(np.unique(label))
    if 8 * groups * classes <= MOST_BYTES:
        return ""
    expected = f"expected at most {MOST_BYTES // 8:,} counts of a class in a group to draw parts by"
    advice = "give split; or, if label holds numbers to predict, type task=regression"
    return f"group: {expected}, found {groups:,} groups of {classes:,} classes; {advice}"


def unevenness(counts: np.ndarray, shares: Sequence[float], places: np.ndarray) -> float:
    """Return the distance of parts from their shares: over all samples, and in the mean over the classes; both as χ².

    A class that the largest part lacks, so that it could not be learnt, costs more than all of that.
    """
    wanted = np.array(shares)[:, None]
    held = np.stack([counts[places == part].sum(axis=0) for part in range(len(shares))])
    of_all = held.sum(axis=1, keepdims=True) / counts.sum()
    of_classes = held / counts.sum(axis=0)
    lost = (held[np.argmax(shares)] == 0).sum()
    per_class = ((of_classes - wanted) ** 2 / wanted).sum(0).mean()
    return float(((of_all - wanted) ** 2 / wanted).sum() + per_class + 10 * lost)


def _greedy(counts: np.ndarray, shares: np.ndarray, order: np.ndarray) -> np.ndarray:
    # The size of a group counts as one more class, as heavy as all the others together.
    sizes = counts.sum(axis=1, keepdims=True) / counts.sum()
    weights = np.concatenate([counts / counts.sum(axis=0) / counts.shape[1] ** 0.5, sizes], 1)
    wanted = shares[:, None] * weights.sum(axis=0)
    held = np.zeros_like(wanted)
    taken, places = np.zeros(len(shares), np.int64), np.empty(len(counts), np.int64)
    for assigned, group in enumerate(order):
        worse = ((2 * (held - wanted) + weights[group]) * weights[group]).sum(axis=1) / shares
        if len(order) - assigned <= (taken == 0).sum():  # just enough groups are left for the parts that have none
            worse[taken > 0] = np.inf
        place = places[group] = int(worse.argmin())
        held[place] += weights[group]
        taken[place] += 1
    return places


def _spread(counts: np.ndarray, places: np.ndarray, folds: int) -> np.ndarray:
    """Move groups so that no class of several groups is in one fold only, where it could not be tested and learnt."""
    places = places.copy()
    for number in range(counts.shape[1]):
        groups = np.flatnonzero(counts[:, number])
        if len(groups) > 1 and len(np.unique(places[groups])) == 1:
            sizes = np.bincount(places, counts.sum(axis=1), folds)
            sizes[places[groups[0]]] = np.inf
            places[groups[counts[groups].sum(axis=1).argmin()]] = sizes.argmin()
    return places


def _stratified(label: np.ndarray, pattern: Sequence[int] | np.ndarray, seed: int) -> np.ndarray:
    """Assign the samples of each class, in random order, to parts by a pattern that repeats."""
    marks = np.empty(len(label), np.int64)
    _, sizes = np.unique(label, return_counts=True)
    marks[_by_class(label, seed)] = np.concatenate([np.resize(pattern, size) for size in sizes])
    return marks


def _by_class(label: np.ndarray, seed: int) -> np.ndarray:
    """Return all samples, class by class, in random order within each."""
    random = np.random.Generator(np.random.PCG64(seed))
    return np.lexsort((random.random(len(label)), label))
