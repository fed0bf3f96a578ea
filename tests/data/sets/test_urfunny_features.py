"""UR-FUNNY from the publisher's own six files: sentences put together, and everything that does not fit."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.sets.checks import check_arrays, check_listing, counts
from data.sets.pickled import check_broken_pickles, check_nothing_runs, write_pickle
from equipoise.data.sets.urfunny import SIX, URFunny
from equipoise.util.errors import Unreadable


def entry(width: int, first: float, what: str) -> dict[str, Any]:
    """Three sentences of context, of two, one and no words, then three: word w holds `first` + w everywhere."""
    rows = [[first + word] * width for word in range(6)] if width > 1 else [int(first) + word for word in range(6)]
    return {f"context_{what}": [rows[:2], rows[2:3], []], f"punchline_{what}": rows[3:]}


def six(source: Path, ids: dict[str, list[int]] | None = None) -> dict[str, Any]:
    ids = ids or {"train": [7, 8], "dev": [9], "test": [10]}
    every = [each for several in ids.values() for each in several]
    content: dict[str, Any] = {
        "folds": ids,
        "words": {each: entry(1, 10 * each - 69, "embedding_indexes") for each in every},
        "vision": {each: entry(371, 100 * each, "features") for each in every},
        "audio": {each: entry(81, 200 * each, "features") for each in every},
        "labels": {each: each % 2 for each in every},
        "vectors": [np.full(300, index / 4) for index in range(50)],
    }
    for part, file in SIX.items():
        write_pickle(source / file, content[part])
    return content


def test_the_publishers_own_files(tmp_path: Path) -> None:
    six(tmp_path)
    clips = URFunny().open(tmp_path)
    check_listing(URFunny(), clips)
    assert [(clip.id, clip.label) for clip in clips.listed] == [("7", 1), ("8", 0), ("9", 1), ("10", 0)]
    assert counts(clips.listed, "official") == {"train": 2, "validation": 1, "test": 1}
    assert counts(clips.listed, "agm-valid") == {"train": 2, "validation": 0, "test": 1}
    arrays = clips.read(2)
    check_arrays(URFunny(), arrays)
    assert arrays["vision"][:, 0].tolist() == [900, 901, 902, 903, 904, 905]
    assert arrays["audio"][:, 80].tolist() == [1800, 1801, 1802, 1803, 1804, 1805]
    assert arrays["text"][:, 299].tolist() == [index / 4 for index in range(21, 27)]


def test_of_the_publishers_words_the_last_are_kept(tmp_path: Path) -> None:
    six(tmp_path)
    assert URFunny(context=False).open(tmp_path).read(2)["vision"][:, 0].tolist() == [903, 904, 905]
    assert URFunny(steps=4).open(tmp_path).read(2)["vision"][:, 0].tolist() == [902, 903, 904, 905]


def test_what_does_not_fit_together_is_skipped_with_its_reason(tmp_path: Path) -> None:
    content = six(tmp_path, {"train": [1, 2, 3, 4], "dev": [5], "test": [6]})
    content["words"] = {each: entry(1, 1, "embedding_indexes") for each in range(1, 7)}
    content["audio"][1]["punchline_features"].pop()
    del content["vision"][2]
    del content["labels"][2]
    content["words"][3]["punchline_embedding_indexes"] = [999]
    content["words"][4] = {"punchline": [1]}
    content["words"][5] = {"context_embedding_indexes": [], "punchline_embedding_indexes": []}
    content["vision"][6]["punchline_features"] = [[1.0] * 370] * 3
    for part, file in SIX.items():
        write_pickle(tmp_path / file, content[part])
    clips = URFunny().open(tmp_path)
    for number, reason in enumerate(
        [
            r"id 1: expected as many words in every modality, found .*'audio': 5",
            r"id 2: expected it in every file, found none in openface_features_sdk\.pkl, humor_label_sdk\.pkl",
            r"id 3: not laid out as the publisher says: IndexError",
            r"id 4: not laid out as the publisher says: KeyError",
            r"id 5: expected words, found none",
            r"id 6: not laid out as the publisher says",  # rows of two widths do not join
        ]
    ):
        with pytest.raises(Unreadable, match=reason):
            clips.read(number)


def test_everything_wrong_with_the_six_is_said_at_once(tmp_path: Path) -> None:
    content = six(tmp_path)
    content["folds"]["dev"] = [7, 9]
    content["labels"][8] = "funny"
    write_pickle(tmp_path / SIX["folds"], content["folds"])
    write_pickle(tmp_path / SIX["labels"], content["labels"])
    write_pickle(tmp_path / SIX["words"], [1])
    (tmp_path / SIX["audio"]).unlink()
    with pytest.raises(ValueError, match="cannot be read as urfunny") as caught:
        URFunny().open(tmp_path)
    for expected in (
        r"expected every id once, found 1 in train and in dev: 7",
        r"humor_label_sdk\.pkl: expected 0 or 1 for each id, found something else for 8",
        r"language_sdk\.pkl: expected a dictionary by id, found list",
        r"covarep_features_sdk\.pkl: there is no such file",
    ):
        assert re.search(expected, str(caught.value)), expected
    write_pickle(tmp_path / SIX["folds"], {"train": [[1]], "dev": [], "test": []})
    with pytest.raises(ValueError, match=r"expected ids that are texts or numbers, found \[1\]"):
        URFunny().open(tmp_path)
    write_pickle(tmp_path / SIX["folds"], {"train": [1]})
    with pytest.raises(ValueError, match=r"called train, dev, test; found none called dev, test"):
        URFunny().open(tmp_path)


@pytest.mark.parametrize("file", SIX.values())
def test_none_of_the_six_runs(file: str, tmp_path: Path) -> None:
    six(tmp_path)
    check_nothing_runs(tmp_path / file, lambda: URFunny().open(tmp_path))
    check_broken_pickles(tmp_path / file, lambda: URFunny().open(tmp_path))
