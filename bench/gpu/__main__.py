"""Run the parts one after another, each in a process of its own, and keep what each printed as JSON.

    python -m bench.gpu [--device cpu] [--out FOLDER] [--seconds 480] [PART ...]

Nothing is installed: a part whose packages this machine lacks is named with what it lacks. `--device cpu` rehearses the
parts on a processor, with sizes that take seconds: its figures say nothing. The exit code is 1 where a part failed or
took too long.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.run import RESULTS, result_of

# Part -> the packages that it needs, beside torch.
PARTS = {
    "laws": ("pydantic", "simplejpeg", "torchvision", "h5py", "pyarrow", "filelock", "safetensors", "rich"),
    "extraction": ("pydantic", "simplejpeg", "torchvision", "h5py", "pyarrow", "filelock", "PIL"),
    "steps": ("pydantic", "pyarrow", "h5py", "safetensors", "rich"),
    "epoch": ("pydantic", "pyarrow", "h5py", "safetensors", "rich"),
    "search": (),
    "memory": ("pydantic", "pyarrow", "h5py", "rich"),
}


def main() -> None:
    """Run the parts that are named, or all."""
    given = _arguments()
    ended = {part: _run(part, given) for part in given.parts or PARTS}
    print("\n| part | how it ended | seconds |\n| --- | --- | --- |")
    for part, (how, seconds) in ended.items():
        print(f"| {part} | {how} | {seconds:.0f} |")
    sys.exit(any(how not in ("done",) and not how.startswith("not run") for how, _ in ended.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=480, help="after which a part is stopped")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    return given


def _run(part: str, given: argparse.Namespace) -> tuple[str, float]:
    """Return how a part ended, and the seconds that it took."""
    lacking = [package for package in PARTS[part] if importlib.util.find_spec(package) is None]
    if lacking:
        return f"not run: this machine lacks {', '.join(lacking)}", 0.0
    print(f"\n== {part}", flush=True)
    command = [sys.executable, "-u", "-m", f"bench.gpu.{part}", "--device", given.device]
    start, lines = time.monotonic(), []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TQDM_DISABLE": "1"}
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
                if time.monotonic() - start > given.seconds:
                    raise TimeoutError
            process.wait(max(given.seconds - (time.monotonic() - start), 1))
        except (TimeoutError, subprocess.TimeoutExpired):
            process.kill()
            return "stopped: it took too long", time.monotonic() - start
    seconds = time.monotonic() - start
    if process.returncode:
        return f"failed with exit code {process.returncode}", seconds
    given.out.mkdir(parents=True, exist_ok=True)
    result = result_of(f"gpu.{part}", ["--device", given.device], lines)
    path = given.out / f"gpu.{part}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return "done", seconds


if __name__ == "__main__":
    main()
