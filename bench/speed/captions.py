"""Many pictures captioned to Parquet, killed on the way: each once, and how fast beside the forward pass alone.

    python -m bench.speed.captions WORKSPACE PICTURES [--pictures 20000] [--kills 2] [--model models:/NAME@champion]

The folder is made of the photographs of PICTURES, each as often as it takes, with a number after its last byte: another
content, the same pixels. The forward pass is the backbone's, of pixels in memory, in batches as captioning makes them.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from bench.machine import describe
from models.encoded_pictures import decode
from models.photographs import as_batch
from models.resizing import resize
from tasks.datasets.base import picture_files
from tasks.registry.logged_model import load_captioner
from tasks.registry.versions import resolve

_FORWARD = 512  # pictures whose forward pass is timed
_BATCH = 32


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("workspace", type=Path)
    arguments.add_argument("read_pictures", metavar="PICTURES", type=Path)
    arguments.add_argument("--pictures", type=int, default=20_000)
    arguments.add_argument("--kills", type=int, default=2)
    arguments.add_argument("--model")
    given = arguments.parse_args()
    workspace = given.workspace.absolute()
    describe()
    uri = resolve(given.model, workspace)
    sources = picture_files(given.read_pictures)
    with tempfile.TemporaryDirectory(prefix="attend-captions-") as scratch:
        folder, out = Path(scratch) / "pictures", Path(scratch) / "captions.parquet"
        folder.mkdir()
        for number in range(given.pictures):
            source = sources[number % len(sources)]
            (folder / f"{number:06d}{source.suffix}").write_bytes(source.read_bytes() + number.to_bytes(4, "big"))
        forward = forward_rate(uri, sources)
        begins = ["caption", str(folder), "--out", str(out), "--model", uri, "--workspace", str(workspace)]
        command = [str(Path(sys.executable).parent / "attend"), *begins]
        kept = 0
        for kill in range(given.kills):
            run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            wanted = given.pictures * (kill + 1) // (given.kills + 1)
            while rows(out) < wanted:
                if run.poll() is not None:
                    raise SystemExit("it ended before it could be killed: more pictures are needed")
                time.sleep(0.05)
            time.sleep(1)
            run.send_signal(signal.SIGKILL)
            run.wait()
            print(f"killed with {rows(out):,} captions kept, {rows(out) - kept:,} of this run", flush=True)
            kept = rows(out)
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - begun
        print(done.stdout.strip().rpartition(": ")[0])
        found = pq.read_table(out).to_pylist()
        names = [row["file_name"] for row in found]
        if names != sorted(path.name for path in folder.iterdir()) or rows(out) != 0:
            raise SystemExit("not every picture is there exactly once")
        if not done.stdout.startswith(f"{given.pictures:,} captioned ({kept:,} of them earlier)"):
            raise SystemExit(f"what was kept was captioned again: {done.stdout}")
        first = {name: row["text"] for name, row in zip(names, found, strict=True)}
        for number, row in enumerate(found):
            if row["text"] != first[names[number % len(sources)]]:
                raise SystemExit(f"{row['file_name']}: is captioned otherwise than the same pixels before")
    rate = (given.pictures - kept) / seconds
    print(
        f"\n| what | pictures/s | of the forward pass |\n| --- | --- | --- |\n| forward pass alone | {forward:.0f} | |"
    )
    print(f"| `attend caption`, start-up and all | {rate:.0f} | {rate / forward:.0%} |")
    print(f"\n{given.pictures:,} pictures, each once; those with the same pixels have the same caption")


def rows(out: Path) -> int:
    """Captions that are kept in parts."""
    parts = out.with_name(f"{out.name}.parts").glob("part-*.parquet")
    return sum(int(pq.read_metadata(part).num_rows) for part in parts)


def forward_rate(uri: str, sources: list[Path]) -> float:
    """Pictures a second of the backbone alone."""
    captioner = load_captioner(uri, runtime="torch")
    spec, declared = captioner.config["backbone"], captioner.backbone.declared
    pixels = [
        resize(decode(path.read_bytes()), spec["image_size"], spec["fit"], declared.interpolation)
        for path in sources[:_FORWARD]
    ]
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        for at in range(0, len(pixels), _BATCH):
            captioner._encoder(as_batch(pixels[at : at + _BATCH]))
        best = min(best, time.perf_counter() - begun)
    return len(pixels) / best


if __name__ == "__main__":
    main()
