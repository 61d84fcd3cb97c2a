"""`machine.resident`: grids of 1.6 GB and of 32 GB in the GPU's memory, and the refusal where they do not fit.

python -m bench.gpu.memory [--device cpu]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.gpu.machine import begin, head, row
from tasks.common.errors import AttendError
from tasks.common.progress import Stopwatch
from tasks.data.caption_files import CaptionedPicture
from tasks.training.batches import ResidentBatches

GRID = (14, 14, 2048)
_BYTES = 2 * 14 * 14 * 2048


class _Grids:
    """A reader of grids that are all the same, so that no disk is needed for them."""

    shape = GRID

    def __init__(self) -> None:
        self._grid = np.ones((64, *GRID), dtype=np.float16)

    def __contains__(self, digest: str) -> bool:
        return True

    def read(self, digests: list[str]) -> Any:
        """Return a grid for each digest."""
        return self._grid[: len(digests)]


def main() -> None:
    device = begin(__doc__)
    gpu = device.type == "cuda"
    head(("grids", "pictures", "seconds to copy", "GiB of the device's memory", "how it ended"))
    sizes = {"1.6 GB": 1.6e9, "32 GB": 32e9} if gpu else {"64 MB": 6.4e7}
    if gpu:
        sizes["more than there is"] = torch.cuda.mem_get_info(device)[1] * 1.2
    for name, size in sizes.items():
        pictures = int(size / _BYTES)
        tokens = np.array([[1, 5, 2]], dtype=np.int32)
        captioned = [CaptionedPicture(str(index), tokens) for index in range(pictures)]
        watch = Stopwatch()
        try:
            batches = ResidentBatches(captioned, _Grids(), 16, 0, device=device)
            shown = batches.shown(next(batches.epoch(0)).pictures.to(device))
            ended = "ready" if float(shown.mean()) == 1.0 else "**wrong values**"
            del batches, shown
        except AttendError as error:
            ended = f"refused: {error}"
        used = torch.cuda.max_memory_allocated(device) / 2**30 if gpu else 0.0
        row(name, f"{pictures:,}", f"{watch.seconds():.1f}", f"{used:.1f}", ended)
        if ("refused" in ended) != (name == "more than there is") or "wrong" in ended:
            raise SystemExit(f"{name}: {ended}")
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)


if __name__ == "__main__":
    main()
