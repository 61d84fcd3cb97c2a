"""The split of each picture: from the data set, else from its content; with several data sets, from the first one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tasks.common.errors import AttendError
from tasks.common.fractions import fraction
from tasks.common.wording import counted
from tasks.datasets.base import SPLITS, DatasetOptions, Row
from tasks.datasets.faults import Faults


class SplitAssignment(NamedTuple):
    """The split of each picture. note: the divided pictures, as part of a sentence; empty if there were none."""

    splits: list[str]
    note: str


def divide(
    pictures: Sequence[tuple[str | None, str]], data: DatasetOptions, alike: Sequence[Sequence[str]] = ()
) -> SplitAssignment:
    """Return the split of each picture, a function of the pictures' contents and given splits alone.

    pictures: the split that the data set gives, if any, and the digest, of each. Pictures without a split are divided
    by `data.dev_share` and `data.test_share`; if the data set gives splits but no dev, that share of train becomes dev.
    alike: groups of digests of near-duplicates; pictures of a group that are divided here get the same split.
    """
    undivided = sum(split is None for split, _ in pictures)
    splits = [split or hashed_split(digest, data) for split, digest in pictures]
    digests = [digest for _, digest in pictures]
    together = ", near-duplicates together" if alike else ""
    if undivided:
        splits = _together(splits, digests, [split is None for split, _ in pictures], alike)
        return SplitAssignment(splits, f"{counted(undivided, 'picture')} without a split, divided by content{together}")
    if not divides((split for split, _ in pictures), data):
        return SplitAssignment(splits, "")
    was_train = [split == "train" for split in splits]
    splits = [
        "dev" if movable and fraction("split", digest) < data.dev_share else split
        for split, digest, movable in zip(splits, digests, was_train, strict=True)
    ]
    splits = _together(splits, digests, was_train, alike)
    taken = splits.count("dev")
    note = f"no dev split: {counted(taken, 'picture')} of train, chosen by content{together}, became it"
    return SplitAssignment(splits, note if taken else "")


def divides(given_splits: Iterable[str | None], data: DatasetOptions) -> bool:
    """Return whether `divide` has to divide pictures. given_splits: the split that the data set gives each, if any."""
    splits = set(given_splits)
    return None in splits or ("dev" not in splits and data.dev_share > 0)


def _together(splits: list[str], digests: list[str], movable: list[bool], alike: Sequence[Sequence[str]]) -> list[str]:
    """Return the splits, with each group's movable pictures in train if one of the group is, else in dev, else in test.

    So a picture in train stays there when pictures are added, and one in dev can move only to train.
    """
    group_of = {digest: number for number, group in enumerate(alike) for digest in group}
    first: dict[int, str] = {}
    for split, digest in zip(splits, digests, strict=True):
        if (group := group_of.get(digest)) is not None:
            first[group] = min(first.get(group, split), split, key=SPLITS.index)
    return [
        first[group_of[digest]] if moves and digest in group_of else split
        for split, digest, moves in zip(splits, digests, movable, strict=True)
    ]


def hashed_split(digest: str, data: DatasetOptions) -> str:
    """Return the split of a picture, which depends only on its content: adding other pictures never changes it.

    digest: SHA-256 (hex) of the picture file. data: gives `test_share` and `dev_share`; the rest is train.
    """
    share = fraction("split", digest)
    if share < data.test_share:
        return "test"
    return "dev" if share < data.test_share + data.dev_share else "train"


def joined(
    rows: Sequence[Row],
    digests: Mapping[str, str],
    data: DatasetOptions,
    faults: Faults,
    alike: Sequence[Sequence[str]] = (),
) -> tuple[list[Row], list[str]]:
    """Return the rows with the split that the first source of each picture gives, and notes on rows left out.

    digests: SHA-256 of each row's picture, by its name. alike: groups of near-duplicates that are divided together. If
    a later source has the picture in another split, its row is left out, because it would mix training and test. A row
    about a picture that has since been replaced under its name is one of the `faults`.
    """
    rows = list(_about_their_pictures(rows, digests, faults))
    if len(data.parts()) == 1:
        return rows, []
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(digests[row.name], row)
    divided = divide([(row.split, digest) for digest, row in first.items()], data, alike).splits
    split_of = {digest: row.split or split for (digest, row), split in zip(first.items(), divided, strict=True)}
    joined_rows: list[Row] = []
    left_out: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        digest = digests[row.name]
        earlier = first[digest]
        sources = data.prefix_of(earlier.name), data.prefix_of(row.name)
        if sources[0] == sources[1]:
            joined_rows.append(row)
        elif row.split in (None, split_of[digest]):
            joined_rows.append(replace(row, split=earlier.split))
        else:
            left_out.setdefault(sources, []).append(row.name)
    notes = [
        f"{counted(len(names), 'picture')} of {later[:-1]} left out there: in another split of {earlier[:-1]}, such as "
        f"{names[0]}"
        for (earlier, later), names in left_out.items()
    ]
    return joined_rows, notes


def _about_their_pictures(rows: Sequence[Row], digests: Mapping[str, str], faults: Faults) -> Iterator[Row]:
    """Yield the rows whose picture has not been replaced; others are faults."""
    for row in rows:
        with faults.of_row():
            if row.digest not in (None, digests[row.name]):
                raise AttendError(
                    f"{row.where}: {row.name} is another picture than the one whose caption was corrected: put that "
                    "one back, or set images to the folder that was reviewed"
                )
            yield row
