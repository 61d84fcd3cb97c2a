"""Record with strace the calls with which a program changes files in a folder, and read the record.

The record covers only the calls that this module knows. Callers must compare the files that it reproduces with the real
ones.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.soak.disk import Call, Disk, Kind

_REMOVING = ("unlink", "unlinkat", "rmdir")
_RENAMING = ("rename", "renameat", "renameat2")
_MAKING = ("mkdir", "mkdirat")
_LINKING = ("link", "linkat")
_FLUSHING: Mapping[str, Kind] = {"fsync": "fsync", "fdatasync": "fdatasync"}
_OTHERS = ("openat", "write", "pwrite64", "writev", "pwritev", "pwritev2", "lseek", "sendfile", "ftruncate", "truncate")
# Calls that would have to be followed too: where one of them is made, the record is refused. Symbolic links are not
# followed: the program makes one in a temporary folder only, and strace names the file that an open one leads to.
_UNKNOWN = ("open", "creat", "copy_file_range", "splice", "fallocate")
TRACED = (*_REMOVING, *_RENAMING, *_MAKING, *_LINKING, *_FLUSHING, *_OTHERS, *_UNKNOWN)

_CALL = re.compile(r"(\w+)\((.*)\)\s+= (.*)")
_FILE = re.compile(r"(\d+)<([^>]*)>(\(deleted\))?")
_STRING = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_PATH = re.compile(r"(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?" + _STRING)
_DATA = re.compile(_STRING)


def record(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command, and write its calls and those of all processes that it starts to `log`."""
    tracer = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-s",
        "1000000000",
        "-o",
        str(log),
        "-e",
        f"trace={','.join(TRACED)}",
    ]
    return subprocess.run([*tracer, *command], capture_output=True, text=True, check=False, env=environment)


def read(log: Path, root: Path) -> tuple[list[Call], Disk]:
    """Return the calls that changed files below `root`, in order, and the disk after the last.

    Files that are mapped into memory and created again when they are missing (`-shm`, of SQLite) are left out.
    """
    reader = _Reader(root)
    for name, arguments, result in _lines(log, str(root)):
        for call in reader.calls(name, arguments, result):
            reader.disk.apply(call)
            reader.all.append(call)
    return reader.all, reader.disk


def _lines(log: Path, root: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, arguments and result of each successful call that names a file below `root`, when it ends."""
    begun: dict[str, str] = {}
    with log.open(encoding="latin-1") as lines:
        for line in lines:
            process, text = line.rstrip("\n").split(maxsplit=1)
            if text.endswith("<unfinished ...>"):
                begun[process] = text.removesuffix("<unfinished ...>")
                continue
            if text.startswith("<... "):
                text = begun.pop(process, "") + text.partition(" resumed>")[2]
            match = _CALL.match(text) if root in text else None
            if match and not match[3].startswith(("-1", "?")):
                yield match[1], match[2], match[3]


class _Reader:
    """The state while reading a record: the files so far, and the position of the next `write` to each open file."""

    def __init__(self, root: Path) -> None:
        self.root, self.disk = f"{root}/", Disk()
        self.all: list[Call] = []
        self._offsets: dict[tuple[str, str], int] = {}  # (number, path) of an open file; those that append are missing

    def calls(self, name: str, arguments: str, result: str) -> list[Call]:
        """Return the effect of a call on files below the root."""
        if name in _UNKNOWN:
            raise SystemExit(f"{name}({arguments[:200]}: is not known to this bench")
        calls_of_line = self._by_name(name, arguments, result)
        return [call for call in calls_of_line if call.path.startswith(self.root) and not call.path.endswith("-shm")]

    def _by_name(self, name: str, arguments: str, result: str) -> list[Call]:
        if name == "openat":
            return self._open(arguments, result)
        if name in (*_REMOVING, *_RENAMING, *_MAKING, *_LINKING, "truncate"):
            paths = [os.path.join(folder, _bytes(text).decode()) for folder, text in _PATH.findall(arguments)]  # noqa: PTH118
            if name in _RENAMING:
                return [Call("rename", paths[0], target=paths[1])]
            if name in _LINKING:
                return [Call("link", paths[1], target=paths[0])]
            if name == "truncate":
                return [Call("truncate", paths[0], int(arguments.rpartition(",")[2]))]
            return [Call("mkdir" if name in _MAKING else "remove", paths[0])]
        return self._change(name, arguments, result)

    def _change(self, name: str, arguments: str, result: str) -> list[Call]:
        """Return the effect of a call on an open file."""
        opened = _FILE.match(arguments)
        if opened is None or opened[3]:
            return []
        if name in _FLUSHING:
            return [Call(_FLUSHING[name], opened[2])]
        if name == "ftruncate":
            return [Call("truncate", opened[2], int(arguments.rpartition(",")[2]))]
        if name == "lseek":
            self._offsets[opened[1], opened[2]] = int(result.split(maxsplit=1)[0])
            return []
        return [self._write(name, (opened[1], opened[2]), arguments, int(result.split(maxsplit=1)[0]))]

    def _open(self, arguments: str, result: str) -> list[Call]:
        opened = _FILE.match(result)
        if opened is None or opened[3]:
            return []
        self._offsets.pop((opened[1], opened[2]), None)
        if "O_APPEND" not in arguments:
            self._offsets[opened[1], opened[2]] = 0
        calls = [Call("create", opened[2])] if "O_CREAT" in arguments else []
        return [*calls, Call("truncate", opened[2], 0)] if "O_TRUNC" in arguments else calls

    def _write(self, name: str, file: tuple[str, str], arguments: str, size: int) -> Call:
        if name == "sendfile":
            data = self._copied(arguments, size)
        else:
            data = b"".join(_bytes(text) for text in _DATA.findall(arguments))[:size]
        if name.startswith("pwrite"):
            return Call("write", file[1], int(arguments.split(", ")[-2 if name == "pwritev2" else -1]), data)
        at = self._offsets.get(file)
        if at is not None:
            self._offsets[file] = at + size
        return Call("write", file[1], at, data)

    def _copied(self, arguments: str, size: int) -> bytes:
        """Return the data that `sendfile` copied, from the current state of a file below the root or another file."""
        _, source, offset, _ = arguments.split(", ")
        opened = _FILE.match(source)
        assert opened is not None
        at = int(offset.strip("[]").partition("]")[0]) if offset != "NULL" else self._offsets[opened[1], opened[2]]
        node = self.disk.names.get(opened[2])
        whole = bytes(node.data) if node is not None else Path(opened[2]).read_bytes()
        return whole[at : at + size]


def _bytes(text: str) -> bytes:
    """Return the bytes that strace writes as a C string."""
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")
