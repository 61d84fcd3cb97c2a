"""The threads a process takes: those that affinity and its cgroups leave it, and none that spin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from tasks.common.cores import available_cores
from tasks.config.devices import prepare_compiler
from tasks.config.machine import MachineConfig
from tasks.grids.photographs import decoders

SAYS = "import tasks, torch; print(torch.get_num_threads())"


def printed(code: str, *before: str, **environment: str) -> str:
    hidden = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    kept = {name: value for name, value in os.environ.items() if name not in hidden} | environment
    command = [*before, sys.executable, "-c", code]
    return subprocess.run(command, env=kept, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 1),  # the parent's holds too
        ("0::/gone\n", {"cpu.max": "10000 100000"}, 1),  # a container that sees its own cgroup as the root
        ("3:cpu,cpuacct:/a\n", {"cpu,cpuacct/a/cpu.cfs_quota_us": "100000"}, 1),
        ("3:cpu:/a\n0::/\n", {"cpu/a/cpu.cfs_quota_us": "-1"}, None),
        ("3:cpu:/a\n", {"cpu/cpu.cfs_quota_us": "20000"}, 1),
        ("3:memory:/a\n", {"memory/a/cpu.max": "10000 100000"}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
    ],
)
def test_quotas_of_both_versions_and_of_all_levels_hold(
    tmp_path: Path, membership: str, files: dict[str, str], cores: int | None
) -> None:
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        if name.endswith("quota_us"):
            path.with_name("cpu.cfs_period_us").write_text("100000\n")
    nobody = available_cores(tmp_path / "none", tmp_path)
    assert available_cores(tmp_path / "cgroup", tmp_path / "mounted") == (cores or nobody)


def test_a_quota_is_rounded_up(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("110000 100000\n")
    nobody = available_cores(tmp_path / "none", tmp_path)
    assert available_cores(tmp_path / "cgroup", tmp_path) == min(2, nobody)


@pytest.mark.slow
def test_torch_takes_the_cores_of_this_process_unless_told_otherwise() -> None:
    one = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
    assert printed(one + SAYS) == "1"
    asked = "from tasks.config.devices import device_of; from tasks.config.schema import MachineConfig as M; "
    setting = f"{SAYS}; {asked}device_of(M(threads=2, device='cpu')); print(torch.get_num_threads())"
    assert printed(setting, OMP_NUM_THREADS="1") == "1\n2"
    assert 1 <= int(printed(SAYS)) <= available_cores()


def test_decoding_takes_as_many_threads_as_computing() -> None:
    assert decoders(MachineConfig(threads=3))._max_workers == 3


def test_compiled_kernels_are_kept_by_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was compiled for AVX2 gives wrong numbers, or corrupts memory, where AVX-512 is used."""

    def folder(given: str | None = None, capability: str = "AVX512", limit: str = "") -> str:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        if given is not None:
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", given)
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        prepare_compiler()
        return os.environ["TORCHINDUCTOR_CACHE_DIR"]

    assert folder() == folder(default_cache_dir())  # as torch sets it when torchvision is imported
    assert len({folder(), folder(capability="AVX2"), folder(limit="AVX2"), default_cache_dir()}) == 4
    assert folder("/mine") == "/mine"
