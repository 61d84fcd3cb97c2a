"""The changes in a data set since its manifest was written, in words."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.common.wording import counted
from tasks.config.machine import MachineConfig
from tasks.data.manifest import MANIFEST, captions_of, valid_rows
from tasks.data.splits import joined
from tasks.datasets.base import DatasetOptions, paths_of, pictures_of
from tasks.datasets.corrections import Corrections
from tasks.datasets.faults import Faults
from tasks.pipeline.file_digests import Digests


def describe_changes(manifest: Path, data: DatasetOptions, machine: MachineConfig) -> str:
    """Return the changes, such as `10 pictures added, 5 gone, 1 renamed`.

    manifest: the folder of the last `ingest` artifact. If the data set cannot be read now, return why.
    """
    if data.unpacks or not (manifest / MANIFEST).is_file():
        return "the data set's files changed"
    old = {row["name"]: row for row in pq.read_table(manifest / MANIFEST).to_pylist()}
    try:
        faults = Faults(gather=True)
        pictures = pictures_of(data, Path())
        rows = valid_rows(list(data.rows(Path(), faults)), data, Path(), pictures, faults)
        paths = paths_of(data, [row.name for row in rows], Path())
    except AttendError as error:
        return str(error)
    digests = Digests(machine.folder / "digests.sqlite").of(paths.values())
    new = {name: digests[path] for name, path in paths.items()}
    rows, notes = joined(rows, new, data, faults)
    new = {row.name: new[row.name] for row in rows}
    removed_names, added = old.keys() - new.keys(), new.keys() - old.keys()
    answers = tuple(prefix for prefix, source in data.parts().items() if isinstance(source, Corrections))
    answered = {name for name in added if name.startswith(answers)}
    added -= answered
    # A picture that is missing under one name and present under another, with the same content, is renamed.
    names_gone = {old[name]["digest"] for name in removed_names}
    names_added = {new[name] for name in added}
    renamed = sum(new[name] in names_gone for name in added)
    both = [row for row in rows if row.name in old]
    counts = {
        "added": len(added) - renamed,
        "gone": sum(old[name]["digest"] not in names_added for name in removed_names),
        "changed": sum(new[row.name] != old[row.name]["digest"] for row in both),
        "renamed": renamed,
        "with other captions": sum(
            captions_of(row, old[row.name]["split"], data) != old[row.name]["captions"] for row in both
        ),
        "in another split": sum(row.split is not None and row.split != old[row.name]["split"] for row in both),
    }
    nonzero = [(number, change) for change, number in counts.items() if number]
    parts = [f"{number:,} {change}" for number, change in nonzero]
    if nonzero:
        parts[0] = f"{counted(nonzero[0][0], 'picture')} {nonzero[0][1]}"
    if answered:
        parts += [counted(len(answered), "new answer"), *notes]
    if faults.found:
        parts.append(f"{counted(len(faults.found), 'row')} not valid: {faults.found[0]}")
    return ", ".join(parts) or "the data set's files changed, but no captioned picture"
