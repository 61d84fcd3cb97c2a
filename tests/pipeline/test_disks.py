"""A disk that is full, a cache that may not be written: told in a line, nothing lost, and the next run goes on.

The disks are real: mounts in a namespace of the command's own, which needs no rights of the system's administrator.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.pipeline.workspace import Workspace
from tests.support import artifacts, plan, run_stage, small

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
RUN = f"{sys.executable} -m flows.commands.cli run"


def _mounts() -> bool:
    return shutil.which("unshare") is not None and not subprocess.run([*UNSHARE, "true"], check=False).returncode


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not _mounts(), reason="this system grants no mounts of one's own")]


def inside(script: str) -> str:
    """What a shell script says that may mount what it likes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    done = subprocess.run(
        [*UNSHARE, "sh", "-euc", script], capture_output=True, text=True, check=False, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def written(folder: Path, name: str, **changes: object) -> Path:
    """The config of `small` on the workspace of this folder, as a YAML file beside it."""
    config = small(folder / "workspace", **changes).model_dump(mode="json", exclude={"data": {"path"}})
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({**config, "name": "small"}), encoding="utf-8")
    return path


def products(workspace: Path) -> dict[str, dict[str, str]]:
    found = artifacts(small(workspace), until="evaluate")
    return {stage: artifact.ledger.products for stage, artifact in found.items()}


def test_a_disk_that_is_full_again_and_again(tmp_path: Path, finished: Path) -> None:
    """Full before it begins and in the middle of stages: every run ends in one line, the last one ends well."""
    workspace, kept = tmp_path / "workspace", tmp_path / "kept"
    workspace.mkdir()
    config = written(tmp_path, "small")
    told = inside(f"""
        mount -t tmpfs -o size=64m tmpfs {workspace}
        free() {{ df --output=avail -k {workspace} | tail -1; }}
        fill() {{  # again where the run took what was free in the meantime
            until fallocate -l $(($(free) - 40))K {workspace}/ballast 2>{tmp_path}/refused; do sleep 0.01; done
        }}
        ended() {{
            if wait $!; then echo "not full in $1"; else grep -o 'attend: .*' {tmp_path}/log | tail -1; fi
            rm {workspace}/ballast
        }}
        fill; {RUN} {config} >{tmp_path}/log 2>&1 & ended before
        for stage in extract train register; do
            {RUN} {config} >{tmp_path}/log 2>&1 &
            until ls {workspace}/artifacts/$stage/*.partial >{tmp_path}/seen 2>&1; do sleep 0.01; done
            fill; ended $stage
        done
        {RUN} {config}
        cp -a {workspace} {kept}
    """)
    print(told)
    lines = [line for line in told.splitlines() if "the disk is full" in line or line.startswith("not full")]
    assert len(lines) == 4 and sum(line.startswith(f"attend: {workspace}") for line in lines) >= 3
    assert all(status.fresh for status in plan(small(kept), read="all")[:-1])  # its model is where the disk was
    assert products(kept) == products(finished)
    for pattern in (".*.tmp", "*.partial", "*.damaged"):
        assert not list(kept.rglob(pattern))


def test_a_cache_that_may_not_be_written(tmp_path: Path, finished_copy: Path) -> None:
    """It is read; new grids are refused in a line, and made once it may be written."""
    grids = Workspace(finished_copy).grids
    before = {path: path.read_bytes() for path in grids.rglob("*") if path.is_file()}
    other, more = written(tmp_path, "other", training__learning_rate=0.01), written(tmp_path, "more", data__pictures=70)
    told = inside(f"""
        mount --bind {grids} {grids} && mount -o remount,bind,ro {grids}
        {RUN} {other} 2>&1
        if {RUN} {more} >{tmp_path}/log 2>&1; then exit 1; fi
        if grep Traceback {tmp_path}/log; then exit 1; fi
        tail -1 {tmp_path}/log
    """)
    print(told)
    assert "register: version 1 is champion" in told
    assert told.splitlines()[-1].startswith(f"attend: {grids}") and "Read-only file system" in told.splitlines()[-1]
    assert {path: path.read_bytes() for path in grids.rglob("*") if path.is_file()} == before
    config = small(finished_copy, data__pictures=70)
    for stage in ("ingest", "extract"):
        run_stage(config, stage)
    assert all(path.read_bytes() == data for path, data in before.items())
