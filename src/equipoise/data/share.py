"""A share of the training samples, for curves over the size of the training set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from equipoise.data.splits import Splits


@final
@dataclass(frozen=True)
class TrainShare:
    """Loads some data with a share of its training samples. A class, so that it can be sent to another process.

    Args:
        whole: Loads all of it.
        share: Above 0, at most 1.
    """

    whole: Callable[[int | None], Splits]
    share: float

    def __call__(self, fold: int | None) -> Splits:
        """Load a fold, and keep the share of its training part."""
        return with_train_share(self.whole(fold), self.share)


def with_train_share(splits: Splits, share: float, seed: int = 0) -> Splits:
    """Return splits with a random share of the training samples; validation and test part are the same.

    Of classes the share of each is kept, one sample at least. A smaller share is a part of a larger one. Inputs stay
    scaled by the whole training part: the other parts would not be the same otherwise.

    Args:
        splits: The data.
        share: Above 0, at most 1.
        seed: Of the draw.
    """
    train, count = splits.train, len(splits.train)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    if splits.task.kind == "classes":
        drawn = train.label.cpu()[order]
        strata = [order[drawn == label] for label in drawn.unique()]
    else:
        strata = [order]
    kept = torch.cat([_first(rows, share) for rows in strata]).sort().values
    if train.rows is None:
        part = train.take(kept)
    else:  # of prepared data: its arrays stay where they are
        group, index = (None if one is None else one[kept] for one in (train.group, train.index))
        part = replace(train, label=train.label[kept], group=group, rows=train.rows[kept], index=index)
    about = f"{splits.about}; {len(part):,} of {count:,} training samples".removeprefix("; ")
    return replace(splits, train=part, about=about)


def _first(rows: Tensor, share: float) -> Tensor:
    return rows[: max(1, round(share * len(rows)))]
