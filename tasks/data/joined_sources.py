"""The rows of several data sets as those of one: a picture that two of them have is in one split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tasks.common.errors import AttendError
from tasks.common.wording import counted
from tasks.data.splits import divide
from tasks.datasets.base import DatasetOptions, Row
from tasks.datasets.faults import Faults


def joined(
    rows: Sequence[Row],
    digests: Mapping[str, str],
    data: DatasetOptions,
    faults: Faults,
    alike: Sequence[Sequence[str]] = (),
) -> tuple[list[Row], list[str]]:
    """Return the rows with the splits that the first source of each picture gives, and notes on what was left out.

    digests: SHA-256 of each row's picture, by its name. alike: groups of near-duplicates that are divided together. A
    later source that has the picture in another split would train on what is tested, or test on what is trained: its
    row is left out. A row about another picture than the one that now has its name is one of the `faults`.
    """
    rows = list(_about_their_pictures(rows, digests, faults))
    if len(data.parts()) == 1:
        return rows, []
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(digests[row.name], row)
    divided = divide([(row.split, digest) for digest, row in first.items()], data, alike).splits
    split_of = {digest: row.split or split for (digest, row), split in zip(first.items(), divided, strict=True)}
    kept: list[Row] = []
    left_out: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        digest = digests[row.name]
        earlier = first[digest]
        sources = data.prefix_of(earlier.name), data.prefix_of(row.name)
        if sources[0] == sources[1]:
            kept.append(row)
        elif row.split in (None, split_of[digest]):
            kept.append(replace(row, split=earlier.split))
        else:
            left_out.setdefault(sources, []).append(row.name)
    notes = [
        f"{counted(len(names), 'picture')} of {later[:-1]} left out there: in another split of {earlier[:-1]}, such as "
        f"{names[0]}"
        for (earlier, later), names in left_out.items()
    ]
    return kept, notes


def _about_their_pictures(rows: Sequence[Row], digests: Mapping[str, str], faults: Faults) -> Iterator[Row]:
    """Yield the rows without those whose picture is another one now."""
    for row in rows:
        with faults.of_row():
            if row.digest not in (None, digests[row.name]):
                raise AttendError(
                    f"{row.where}: {row.name} is another picture than the one whose caption was corrected: put that "
                    "one back, or set images to the folder that was reviewed"
                )
            yield row
