"""Simulate a disk that loses power: what remains of a program's files when data that was not flushed is lost.

Data is safe once its file is flushed (fsync). Name changes (files created, renamed and removed) are kept in order, as
in the journal of ext4: a flush of any file makes all earlier name changes safe. Of the later ones, the first few
remain. So a file can have its new name and none of its data. If a file is overwritten in place, each page is old or
new.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["create", "mkdir", "link", "rename", "remove", "write", "truncate", "fsync", "fdatasync"]
NAMING = ("create", "mkdir", "link", "rename", "remove")
_PAGE = 4096


@dataclass(frozen=True)
class Call:
    """A call that a program made.

    at: the offset of a write, None for the end of the file; or the size to which a file is truncated. target: the new
    name in a rename, or the file that gets another name in a link.
    """

    kind: Kind
    path: str
    at: int | None = None
    data: bytes = b""
    target: str = ""


@dataclass(eq=False)
class Node:
    """A file: the data that the program reads, and the data that is safe. folder: it is a folder and has no data.

    fresh: all data is newer than the last flush, so none of the safe data has to remain.
    """

    folder: bool = False
    data: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    dirty: bool = False
    fresh: bool = True


@dataclass(frozen=True)
class Naming:
    """A name change that is not safe yet. node: the file that is created."""

    call: Call
    node: Node | None = None


@dataclass(frozen=True)
class Left:
    """The result of a power cut: path -> data, None for a folder; and the paths with other data than the program's."""

    files: dict[str, bytes | None]
    damaged: set[str]


class Disk:
    """The files below a folder, as the program sees them and as a power cut would leave them."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self._safe_names: dict[str, Node] = {}
        self._unsafe: list[Naming] = []

    def apply(self, call: Call) -> None:
        """Apply a call of the program. A file that exists is not created again, and a missing file is not written."""
        if call.kind in NAMING:
            exists = call.path in self.names
            if exists == (call.kind in ("create", "mkdir", "link")):
                return
            node = None if exists else self.names.get(call.target) or Node(folder=call.kind == "mkdir")
            naming = Naming(call, node)
            _rename(self.names, naming)
            self._unsafe.append(naming)
        elif call.path in self.names:
            self._change(self.names[call.path], call)

    def _change(self, node: Node, call: Call) -> None:
        if call.kind == "write":
            at = len(node.data) if call.at is None else call.at
            node.data.extend(bytes(max(0, at - len(node.data))))
            node.data[at : at + len(call.data)] = call.data
            node.dirty = True
        elif call.kind == "truncate":
            size = call.at or 0
            if size == len(node.data):
                return
            node.data.extend(bytes(max(0, size - len(node.data))))
            del node.data[size:]
            node.dirty, node.fresh = True, node.fresh or not size
        else:
            # fdatasync leaves out what is not needed to read the data: names, where the size is as it was.
            if call.kind == "fsync" or node.fresh or len(node.data) != len(node.safe):
                for naming in self._unsafe:
                    _rename(self._safe_names, naming)
                self._unsafe.clear()
            node.safe, node.dirty, node.fresh = bytes(node.data), False, False

    def cut(self, chance: random.Random) -> Left:
        """Return what remains after a power cut at this moment, chosen at random."""
        names = dict(self._safe_names)
        count = len(self._unsafe) if chance.random() < 0.5 else chance.randint(0, len(self._unsafe))
        for naming in self._unsafe[:count]:
            _rename(names, naming)
        files: dict[str, bytes | None] = {}
        damaged = set()
        for path, node in sorted(names.items()):
            data = _left_of(node, chance)
            files[path] = None if node.folder else data
            if data != node.data:
                damaged.add(path)
        return Left(files, damaged)


def _rename(names: dict[str, Node], naming: Naming) -> None:
    """Apply a name change. The contents of a renamed folder move with it."""
    call = naming.call
    if naming.node is not None:
        names[call.path] = naming.node
    elif call.kind == "remove":
        names.pop(call.path, None)
    else:
        for path in [path for path in names if path == call.path or path.startswith(f"{call.path}/")]:
            names[call.target + path[len(call.path) :]] = names.pop(path)


def _left_of(node: Node, chance: random.Random) -> bytes:
    """Return what remains of a file's data: all, the old data, nothing, zeros, or some pages."""
    new = bytes(node.data)
    if not node.dirty:
        return new
    old = b"" if node.fresh else node.safe
    size = chance.choice((len(old), len(new)))
    kinds = ("whole", "old", "torn", "empty", "zeros") if node.fresh else ("whole", "old", "torn")
    kind = chance.choice(kinds)
    if kind == "torn":
        old, new = old.ljust(size, b"\0")[:size], new.ljust(size, b"\0")[:size]
        return b"".join(chance.choice((old, new))[at : at + _PAGE] for at in range(0, size, _PAGE))
    return {"whole": new, "old": node.safe, "empty": b"", "zeros": bytes(len(new))}[kind]


def write_out(files: Mapping[str, bytes | None], root: Path) -> None:
    """Write what remains after a power cut. root: the folder that contains all paths; it is created."""
    root.mkdir(parents=True)
    for name, data in files.items():
        path = Path(name)
        if data is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
