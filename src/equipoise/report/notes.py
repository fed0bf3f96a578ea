"""Sentences about results: the notes below a table, and the answer to the question of a study."""

import re
from collections import Counter
from collections.abc import Collection, Sequence

from equipoise.measure.bootstrap import FEW_GROUPS
from equipoise.report.aggregate import (
    DECISIONS,
    PROTOCOLS,
    SHIPPED,
    RunGroup,
    baseline_group,
    dig,
    headline,
    number,
    varying,
)
from equipoise.report.differences import Difference
from equipoise.report.headline import Headline, Row

MOST_NAMES = 100  # in a note
MOST_ANSWERED = 6  # names in a sentence of the answer


def notes_below(
    groups: Sequence[RunGroup],
    differences: Sequence[Difference],
    shown: Collection[str] | None = None,
    decision: str = SHIPPED,
) -> list[str]:
    """Write one sentence each on decision, protocol, selection, runs, split, marks, times and intervals.

    Args:
        groups: All groups of one data set.
        differences: Of them, to the baseline.
        shown: Keys of the columns of the table: what is said of others is left out. None for all.
        decision: The one that is the headline, and that differences are of.
    """
    rows = [row for group in groups for row in group.rows]

    def has(*names: str) -> bool:
        return shown is None or any(name in key for key in shown for name in names)

    notes = (
        _decisions(groups, decision) if has(*DECISIONS, SHIPPED, "difference") else "",
        _protocols(groups) if has("alone", "protocol", "disparity") else "",
        _selection(rows),
        _runs(groups, rows),
        _splits(rows),
        _marks(groups, intervals=shown is None or bool({*DECISIONS, SHIPPED} & {*shown}), steps=has("step")),
        _events(groups),
        _steps(rows) if has("step") else "",
        _intervals(differences, headline(groups), decision) if has("difference") else "",
        _mixtures(groups),
        _forms(groups),
        _precision(rows),
        *_warnings(groups),
    )  # fmt: skip
    return [note for note in notes if note]


def listed(names: Sequence[str], between: str = ", ", most: int = MOST_NAMES) -> str:
    """Join names, at most so many of them."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def _decisions(groups: Sequence[RunGroup], decision: str) -> str:
    """Say which decision the headline is, and what it is."""
    shipping = [group for group in groups if group.shipped]
    voting = [group for group in shipping if group.ships == "committee"]
    fused = "fused, the model's own fused prediction"
    pools = f"committee pools {_members(voting)}" if voting else ""
    if decision != SHIPPED or not voting:
        return f"Headline: {fused}." + (f" {pools[:1].upper()}{pools[1:]} and is another decision." if pools else "")
    others = [group.label for group in shipping if group.ships != "committee"]
    which = f"committee, or fused of {listed(others)}" if others else "committee"
    return (
        f"Headline: {which}, the decision by which predict, the server and an exported model answer. The {pools}; "
        f"{fused}, is another decision."
    )


def _members(groups: Sequence[RunGroup]) -> str:
    masked = [(group.protocol or "").startswith("masked") for group in groups if group.committee]
    if all(masked):
        return "the fused output and that of each modality with the others masked"
    return "the fused and uni-modal heads" if not any(masked) else "the fused output and those of the modalities"


def _protocols(groups: Sequence[RunGroup]) -> str:
    users: dict[str, list[str]] = {}
    for group in groups:
        if group.protocol:
            users.setdefault(group.protocol, []).append(group.label)
    if len(users) == 1:
        protocol = next(iter(users))
        return f"Each modality alone is measured by {protocol} ({PROTOCOLS[protocol]})."
    ways = "; ".join(f"{name} ({PROTOCOLS[name]}): {listed(labels)}" for name, labels in sorted(users.items()))
    return f"Each modality alone is measured by {ways}. Protocols do not compare with one another." if users else ""


def _selection(rows: Sequence[Row]) -> str:
    trained = [row for row in rows if dig(row, "selected", "epoch") != 0]
    if not trained:
        return ""
    rules = Counter(str(dig(row, "selected", "by") or "unknown") for row in trained)
    counted = [f"{rule} ({count} runs)" for rule, count in rules.most_common()] if len(rules) > 1 else list(rules)
    warning = " SELECTED ON THE TEST SET: these numbers are too good." if any("test" in rule for rule in rules) else ""
    return f"Epoch selected by: {', '.join(counted)}.{warning}"


def _runs(groups: Sequence[RunGroup], rows: Sequence[Row]) -> str:
    folds = {row.get("fold") for row in rows} - {None}
    seeds = {row.get("seed") for row in rows} - {None}
    draws = [*([plural(len(folds), "fold")] if folds else []), *([plural(len(seeds), "seed")] if seeds else [])]
    fixed = [group.label for group in groups if all(row.get("seed", 0) is None for row in group.rows)]
    most = max(len(group.rows) for group in groups)
    fewer = [f"{one.label} ({len(one.rows)})" for one in groups if len(one.rows) < most and one.label not in fixed]
    drawn = f" ({' × '.join(draws)})" if draws else ""
    return (
        f"{plural(len(rows), 'run')}{drawn}."
        + (f" Fewer runs: {listed(fewer)}." if fewer else "")
        + (
            f" Nothing in {listed(fixed)} is left to chance: one run{' of each fold' if folds else ''}."
            if fixed
            else ""
        )
    )


def _splits(rows: Sequence[Row]) -> str:
    splits = sorted({str(row["split"]) for row in rows if row.get("split")})
    if not splits:
        return "Split: no fingerprint recorded."
    shown = listed([split[: len("sha256:") + 12] for split in splits], most=3)
    about, protocol = (str(rows[0].get(key) or "") for key in ("about", "protocol"))
    if len(splits) > 1 and (folds := re.match(r"fold (\d+) of (\d+)", about)):  # what holds for all of them
        about = f"{folds[2]} folds{about[folds.end() :]}"
        about = re.sub(r"\d+ train, \d+ validate, \d+ test", rf"\g<0> in fold {folds[1]}", about, count=1)
    name = f"Protocol {protocol}: " if protocol else ""
    drawn = f" {name}{about[:1].upper()}{about[1:].rstrip('.')}." if about else ""
    return f"{'Splits' if len(splits) > 1 else 'Split'}: {shown}.{drawn}"


def _marks(groups: Sequence[RunGroup], *, intervals: bool, steps: bool) -> str:
    among = " among lines of one protocol" if len({group.protocol for group in groups if group.protocol}) > 1 else ""
    deviation = "± is the standard deviation over runs. " if any(len(group.rows) > 1 for group in groups) else ""
    single = [group for group in groups if any(group.interval(decision) for decision in DECISIONS)]
    if intervals and single:
        units = {str(dig(group.rows[0], "test", "interval_over") or "groups") for group in single}
        over = f"the {' or '.join(sorted(units))} of the test part"
        deviation += f"[low, high] is the 95 % interval of one run, by bootstrap over {over}. "
    timed = sum(1 for group in groups if group.step)
    fastest = " Underlined: fastest of the three best." if steps and timed > 1 else ""
    return f"{deviation}Bold: best of its column{among}.{fastest}"


def events_of(counts: tuple[float, float] | None) -> str:
    """Write behind an interval of how many samples it is, and of how many of the positive class; "" without one."""
    return "" if counts is None else f", {plural(int(counts[1]), 'event')} in {int(counts[0]):,}"


def _events(groups: Sequence[RunGroup]) -> str:
    """Say what an event is, where intervals count them."""
    if not any(group.counts for group in groups):
        return ""
    chance = f" By chance the {groups[0].metric.label} is their share." if groups[0].metric.name == "auprc" else ""
    return f"Events are samples of {groups[0].rows[0].get('positive')}.{chance}"


def _steps(rows: Sequence[Row]) -> str:
    """Say how the time of a step was measured, and beside how many other runs."""
    timed = [row for row in rows if number(row, "seconds", "step") is not None]
    known = [row for row in timed if dig(row, "timing", "step")]
    if not timed:
        return ""
    first = ", or the only one" if any("only epoch" in str(dig(row, "timing", "step")) for row in known) else ""
    counts = [number(row, "timing", "workers") for row in known]
    workers = sorted({count for count in counts if count is not None})
    beside = [" or ".join(f"{count:g}" for count in workers)] if workers else []
    beside += ["an unknown number (a cluster)"] if None in counts else []
    how = f"as trained: wall clock of the epochs after the first{first}, by their steps; runs on the machine at the "
    ways = [how + f"same time: {', '.join(beside)}"] if known else []
    old = len(timed) - len(known)
    ways += [f"of {plural(old, 'run')} of an earlier version: timed after training, as written"] if old else []
    return f"step, {'; '.join(ways)}."


def _intervals(differences: Sequence[Difference], head: Headline, decision: str) -> str:
    if not differences:
        return ""
    texts = []
    for over in dict.fromkeys(difference.over for difference in differences if difference.low is not None):
        some = [one for one in differences if one.over == over and one.low is not None]
        pairs = sorted({difference.pairs for difference in some})
        count = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
        how = {
            "folds": f"(Student's t) over {count} folds, seeds of a fold averaged",
            "seeds": f"(Student's t) over {count} seeds of one split",
        }
        drawn = f"by bootstrap over the {count} {over} of one test part ({_names(some)})"
        texts.append(f"with 95 % intervals {how.get(over, drawn)}")
    if without := [difference for difference in differences if difference.low is None]:
        texts.append("without an interval from one pair" + (f" ({_names(without)})" if texts else ""))
    baselines = listed(list(dict.fromkeys(difference.baseline for difference in differences)))
    sign = "" if head.metric.higher else " (below zero is better)"
    return f"Paired differences to {baselines}: {decision} {head.label}{sign}, {'; '.join(texts)}."


def _mixtures(groups: Sequence[RunGroup]) -> str:
    mixed = [f"{group.label} ({', '.join(names)})" for group in groups if (names := varying(group.rows))]
    return f"Settings differ between the runs of: {listed(mixed, '; ')}." if mixed else ""


def _forms(groups: Sequence[RunGroup]) -> str:
    """Say which form of a method ran, where it has several."""
    forms: dict[str, list[str]] = {}
    for group in groups:
        for form in sorted({str(form) for row in group.rows if (form := dig(row, "path", "form"))}):
            forms.setdefault(form, []).append(group.label)
    return " ".join(f"Form of {listed(labels)}: {form}." for form, labels in forms.items())


def _precision(rows: Sequence[Row]) -> str:
    """Name the precision on GPUs, and why steps were not replayed from a recording where they were not."""
    on_gpu = [row for row in rows if str(row.get("device", "")).startswith("cuda")]
    precisions = sorted({str(precision) for row in on_gpu if (precision := dig(row, "path", "precision"))})
    if not precisions:
        return ""
    reasons = Counter(str(why) for row in on_gpu if (why := dig(row, "path", "captured")) not in (None, "yes"))
    slow = [f"{plural(count, 'run')} as written, since {why}" for why, count in reasons.most_common(3)]
    replayed = f"On a GPU in {' and '.join(precisions)}, steps played back from a recording"
    return "; ".join([replayed, *slow]) + "."


def _warnings(groups: Sequence[RunGroup]) -> list[str]:
    """Write each warning of the runs once, with the runs that it was given for."""
    said: dict[str, Counter[str]] = {}
    texts: dict[str, dict[str, None]] = {}
    for label, row in ((group.label, row) for group in groups for row in group.rows):
        for warning in map(str, row.get("warnings") or ()):
            key = re.sub(r"\d+", "#", warning)  # 68 steps in one fold, 70 in the next: one sentence
            texts.setdefault(key, {})[warning] = None
            said.setdefault(key, Counter())[label] += 1
    runs = {group.label: len(group.rows) for group in groups}
    notes = []
    for key, labels in said.items():
        everywhere = labels == runs
        where = [f"{label} ({count} of {plural(runs[label], 'run')})" for label, count in labels.items()]
        alike = " (numbers differ between runs)" if len(texts[key]) > 1 else ""
        notes.append(f"Warning of {'every run' if everywhere else listed(where)}: {next(iter(texts[key]))}{alike}")
    return notes


def plural(count: int, word: str) -> str:
    """Write a number of things."""
    return f"{count} {word}{'' if count == 1 else 's'}"


# -- the answer --


def answer(groups: Sequence[RunGroup], differences: Sequence[Difference], baseline: str, measure: str) -> str:
    """State what may be claimed about one measure, from its paired differences.

    Args:
        groups: All groups of the study, the best first.
        differences: Paired differences of the measure.
        baseline: The label they are taken to.
        measure: The measure's name in a sentence, for example "fused accuracy".
    """
    head = headline(groups)
    if not differences:
        return _without_baseline(groups, baseline)
    ordered = sorted(differences, key=lambda difference: -difference.gain)
    better, same, worse, unknown = (
        [difference for difference in ordered if difference.verdict == verdict]
        for verdict in ("better", "no clear difference", "worse", "too few to tell")
    )
    parts = []
    if better:
        parts.append(f"clearly better than joint training: {_names(better)} ({_first(better, 'most', head)})")
    elif same or worse:
        parts.append("none is clearly better than joint training")
    if same:
        covers = "" if better else f" ({_first(same, 'largest', head)}, which covers zero)"
        parts.append(f"no clear difference: {_names(same)}{covers}")
    if worse:
        parts.append(f"clearly worse: {_names(worse)}")
    if unknown:
        few = f"{_names(unknown)} ({_first(unknown, 'largest', head)})"
        parts.append(f"too few runs or groups to compare with joint training: {few}")
    return f"In {measure}, {'; '.join(parts)}."


def _without_baseline(groups: Sequence[RunGroup], baseline: str) -> str:
    """State the best number where there is nothing to compare it with, and what reads no sensor beside it."""
    head, best, constant = headline(groups), groups[0], baseline_group(groups)
    if best.shipped is None:
        return "No run has a decision to ship."
    which = f"the {best.ships} decision of {best.label}"
    reached = f"reaches {head.in_words(best.shipped.mean)} {head.label} on the test part"
    if ends := best.interval(SHIPPED):
        over = str(dig(best.rows[0], "test", "interval_over") or "groups")
        count = "" if ends.groups is None else f" over {ends.groups:,.0f} {over}"
        few = ", too few to tell" if ends.groups is not None and ends.groups < FEW_GROUPS else ""
        ends_in_words = f"{head.written(ends.low)} to {head.written(ends.high)}"
        reached += f" (95 % interval {ends_in_words}, by bootstrap{count}{few}{events_of(ends.counts)})"
    elif best.shipped.deviation is not None:
        reached += (
            f" (mean of {plural(best.shipped.count, 'run')}, standard deviation {head.written(best.shipped.deviation)})"
        )
    beside = (
        f"; {constant.label}, which reads no sensor, {head.in_words(constant.shipped.mean)}"
        if constant and constant.shipped
        else ""
    )
    if len(groups) == 1:
        return f"The answer that is shipped, {which}, {reached}{beside}."
    none = f"Joint training ({baseline}) was not run beside these methods, so none can be said to beat it."
    return f"First on the test part is {which}: it {reached}{beside}. {none}"


def caution(differences: Sequence[Difference]) -> str:
    """State what the intervals do not say."""
    judged = [difference for difference in differences if difference.low is not None]
    over = {difference.over for difference in judged}
    cautions = {
        "Intervals over seeds speak of chance in training on this one split, not of other people or recordings.":
            "seeds" in over,
        "Intervals over the samples or groups of one test part leave out chance in training.":
            bool(over & {"groups", "samples"}),
        "Training sets of different folds overlap, so intervals over folds are somewhat too narrow.": "folds" in over,
        f"{len(judged)} comparisons are made, and the intervals are not widened for that.": len(judged) > 2,
    }  # fmt: skip
    return " ".join(text for text, holds in cautions.items() if holds)


def _names(differences: Sequence[Difference]) -> str:
    return listed([difference.label for difference in differences], most=MOST_ANSWERED)


def _first(differences: Sequence[Difference], word: str, head: Headline) -> str:
    """Write the first of them in numbers, named where there are others."""
    first, interval = differences[0], ""
    mean, low, high = (
        "" if value is None else head.written(value, "+").replace("-", "−")
        for value in (first.mean, first.low, first.high)
    )
    if low and high:
        interval = f", 95 % interval {low} to {high} over {first.pairs} {first.over}"
    unit = f" {head.points}" if head.metric.percent else ""
    return ("" if len(differences) == 1 else f"{word}: {first.label} ") + f"{mean}{unit}{interval}"
