"""What has to be said below a table so that its numbers can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from equipoise.report.aggregate import PROTOCOLS, Row, RunGroup, dig, number, varying
from equipoise.report.paired import Difference

MOST_NAMES = 100


def notes_below(lines: Sequence[RunGroup], differences: Sequence[Difference]) -> list[str]:
    """One sentence each on decision, protocol, selection, runs, split, marks, times and intervals."""
    return [
        each
        for each in (
            _decisions(lines),
            _protocols(lines),
            _selection(lines),
            _runs(lines),
            _splits(lines),
            _marks(lines),
            _steps(lines),
            _intervals(differences),
            _mixtures(lines),
            _forms(lines),
            _paths(lines),
        )
        if each
    ]


def _decisions(lines: Sequence[RunGroup]) -> str:
    headline = "Headline: fused, the model's own fused prediction."
    pool = " committee pools the fused and uni-modal heads and is another decision."
    return headline + (pool if any(line.committee for line in lines) else "")


def _protocols(lines: Sequence[RunGroup]) -> str:
    users: dict[str, list[str]] = {}
    for line in lines:
        if line.protocol:
            users.setdefault(line.protocol, []).append(line.label)
    if len(users) == 1:
        protocol = next(iter(users))
        return f"Each modality alone is measured by {protocol} ({PROTOCOLS[protocol]})."
    ways = "; ".join(f"{name} ({PROTOCOLS[name]}): {listed(labels)}" for name, labels in sorted(users.items()))
    return f"Each modality alone is measured by {ways}. Protocols do not compare with one another." if users else ""


def _selection(lines: Sequence[RunGroup]) -> str:
    rules = Counter(str(dig(row, "selected", "by") or "unknown") for line in lines for row in line.rows)
    if len(rules) == 1:
        text = f"Epoch selected by: {next(iter(rules))}."
    else:
        text = "Epoch selected by: " + ", ".join(f"{rule} ({count} runs)" for rule, count in rules.most_common()) + "."
    warning = " SELECTED ON THE TEST SET: these numbers are too good." if any("test" in rule for rule in rules) else ""
    return text + warning


def _runs(lines: Sequence[RunGroup]) -> str:
    rows = [row for line in lines for row in line.rows]
    seeds = {row.get("seed") for row in rows}
    folds = {row.get("fold") for row in rows} - {None}
    each = _plural(len(seeds), "seed")
    if folds:
        each = f"{_plural(len(folds), 'fold')} × {each}"
    most = max(len(line.rows) for line in lines)
    fewer = [f"{line.label} ({len(line.rows)})" for line in lines if len(line.rows) < most]
    return f"{_plural(len(rows), 'run')} ({each})." + (f" Fewer runs: {listed(fewer)}." if fewer else "")


def _splits(lines: Sequence[RunGroup]) -> str:
    found = sorted({str(row["split"]) for line in lines for row in line.rows if row.get("split")})
    if not found:
        return "Split: no fingerprint recorded."
    shown = ", ".join(each[: len("sha256:") + 12] for each in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    ways = dict.fromkeys(_way(row) for line in lines for row in line.rows)
    said = " ".join(way for way in list(ways)[:1] if way)
    return f"{'Splits' if len(found) > 1 else 'Split'}: {shown}{more}. {said}".strip()


def _way(row: Row) -> str:
    """How the parts were drawn, where the row says it."""
    about, protocol = str(row.get("about") or ""), str(row.get("protocol") or "")
    name = f"Protocol {protocol}: " if protocol else ""
    return f"{name}{about[:1].upper()}{about[1:].rstrip('.')}." if about else ""


def _marks(lines: Sequence[RunGroup]) -> str:
    among = " among lines of one protocol" if len({line.protocol for line in lines if line.protocol}) > 1 else ""
    deviation = "± is the standard deviation over runs. " if any(len(line.rows) > 1 for line in lines) else ""
    return f"{deviation}Bold: best of its column{among}. Underlined: fastest of the three best by fused."


def _steps(lines: Sequence[RunGroup]) -> str:
    """Say how the time of a step was measured, and beside how many other runs."""
    timed = [row for line in lines for row in line.rows if number(row, "seconds", "step") is not None]
    known = [row for row in timed if dig(row, "timing", "step")]
    if not timed:
        return ""
    once = any("only epoch" in str(dig(row, "timing", "step")) for row in known)
    first = ", or the only one" if once else ""
    counts = [number(row, "timing", "workers") for row in known]
    side = sorted({count for count in counts if count is not None})
    beside = [" or ".join(f"{count:g}" for count in side)] if side else []
    beside += ["an unknown number (a cluster)"] if None in counts else []
    how = f"as trained: wall clock of the epochs after the first{first}, by their steps; runs on the machine at the "
    told = [how + f"same time: {', '.join(beside)}"] if known else []
    old = len(timed) - len(known)
    told += [f"of {_plural(old, 'run')} of an earlier version: timed after training, as written"] if old else []
    return f"step, {'; '.join(told)}."


def _intervals(differences: Sequence[Difference]) -> str:
    if not differences:
        return ""
    texts = []
    for over in dict.fromkeys(each.over for each in differences):
        pairs = sorted({each.pairs for each in differences if each.over == over})
        count = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
        if pairs == [1]:
            texts.append("from one pair, so without an interval")
        elif over == "folds":
            texts.append(f"with 95 % intervals (Student's t) over {count} folds, seeds of a fold averaged")
        else:
            texts.append(f"with 95 % intervals (Student's t) over {count} seeds of one split")
    baselines = listed(list(dict.fromkeys(each.baseline for each in differences)))
    return f"Paired differences to {baselines}: fused accuracy, {'; '.join(texts)}."


def _mixtures(lines: Sequence[RunGroup]) -> str:
    mixed = [f"{line.label} ({', '.join(names)})" for line in lines if (names := varying(line.rows))]
    return f"Settings differ between the runs of: {listed(mixed, '; ')}." if mixed else ""


def _forms(lines: Sequence[RunGroup]) -> str:
    """Say which form of a method ran, where it has several."""
    forms: dict[str, list[str]] = {}
    for line in lines:
        for form in sorted({str(form) for row in line.rows if (form := dig(row, "path", "form"))}):
            forms.setdefault(form, []).append(line.label)
    return " ".join(f"Form of {listed(labels)}: {form}." for form, labels in forms.items())


def _paths(lines: Sequence[RunGroup]) -> str:
    """On GPUs: the precision, and why steps were not played back where they were not."""
    there = [row for line in lines for row in line.rows if str(row.get("device", "")).startswith("cuda")]
    precisions = sorted({str(each) for row in there if (each := dig(row, "path", "precision"))})
    if not precisions:
        return ""
    reasons = Counter(str(why) for row in there if (why := dig(row, "path", "captured")) not in (None, "yes"))
    slow = "; ".join(f"{_plural(count, 'run')} as written, since {why}" for why, count in reasons.most_common(3))
    return f"On a GPU in {' and '.join(precisions)}, steps played back from a recording" + (
        f"; {slow}." if slow else "."
    )


def listed(names: Sequence[str], between: str = ", ") -> str:
    """Names, as many of them as anybody reads."""
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return between.join(names[:MOST_NAMES]) + more


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
