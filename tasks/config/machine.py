"""The config section of this machine, which is part of no key."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tasks.common.files import check_path
from tasks.common.object_storage import Remote, set_cache
from tasks.common.section import Section


class MachineConfig(Section):
    """Settings of this machine. They are not part of any key, because they do not change results."""

    workspace: Annotated[str, AfterValidator(check_path)] = Field(
        default_factory=lambda: os.environ.get("ATTEND_WORKSPACE") or "workspace",
        description="folder of the workspace, which holds all results, or its URL in object storage "
        "(s3://bucket/name); default: ATTEND_WORKSPACE, else ./workspace",
    )
    cache: Path = Field(
        default_factory=lambda: Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "attend",
        description="folder for local copies of files from workspaces in object storage; default: `attend` in "
        "XDG_CACHE_HOME, else in ~/.cache",
    )
    cache_gib: float | None = Field(
        None,
        gt=0,
        description="maximum size of the grids in the cache, in GiB; default: the last value set, initially 100",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device to compute on; `auto`: a GPU if torch can use one, else the CPU"
    )
    threads: int = Field(
        0,
        ge=0,
        description="number of threads for computation; 0 for torch's choice within CPU affinity and the container's "
        "quota",
    )
    dask: str | None = Field(
        None,
        pattern=r"^[a-z]+://",
        description="address of a Dask scheduler whose workers extract the grids; default: this process extracts them",
    )
    dask_resources: dict[str, float] = Field(
        {},
        description="resources that making a shard occupies on a Dask worker, named as in the worker's --resources: "
        "{GPU: 1}",
    )
    extract_batch: int = Field(64, ge=1, description="pictures that are decoded and then encoded at once in extraction")
    decode_batch: int = Field(
        0, ge=0, description="pictures captioned at once; 0 for as many as fit in 512 MiB of memory, at most 256"
    )
    shard_rows: int = Field(512, ge=1, description="pictures per shard of grids")
    resident: bool = Field(False, description="keep the grids for training in GPU memory")
    checkpoint_seconds: float = Field(120.0, ge=0, description="seconds between checkpoints in training")
    accumulate: int = Field(
        1,
        ge=1,
        description="parts into which a training step splits its pictures, processed one after another to save memory",
    )
    compile: bool = Field(
        False,
        description="compile the backbone for extraction and the decoder's training step, on a GPU in torch's mode "
        "reduce-overhead; takes seconds, which pays off in long runs",
    )

    @property
    def address(self) -> str:
        """Return the workspace's URL or absolute path, which is the same from every folder."""
        if "://" in self.workspace:
            return self.workspace
        remote = Remote.for_cache(self.folder)  # the config may name a folder that is the cache of a URL
        return str(self.folder) if remote is None else remote.url

    @property
    def folder(self) -> Path:
        """Return the workspace's folder; for a workspace in object storage, the folder that is its cache."""
        if "://" not in self.workspace:
            return Path(self.workspace).expanduser().absolute()
        url = self.workspace.rstrip("/")
        name = f"{url.rpartition('/')[2]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        folder = self.cache.expanduser().absolute() / name
        set_cache(folder, url, None if self.cache_gib is None else int(self.cache_gib * 2**30))
        return folder
