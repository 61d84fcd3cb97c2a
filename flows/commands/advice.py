"""What would make captions better, which `attend run` says at the end where there are few captions to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow.parquet as pq

from flows.commands.options import program
from tasks.common.wording import counted
from tasks.config.schema import Config
from tasks.config.training import FitConfig
from tasks.data.caption_files import CAPTIONS
from tasks.pipeline.ledger import Artifact
from tasks.training.outputs import HISTORY

PAGE = "docs/few-photographs.md"  # has the figures
_FEW = 1_000  # training captions, below which a start from a captioner is worth more than all else
_SOME = 5_000  # above which nothing is said
_SMALL_BACKBONES = ("mobilenet_v2", "tiny", "googlenet", "regnet_x_400mf")


def advice(config: Config, made: Mapping[str, Artifact]) -> Iterator[str]:
    """Yield a line for each thing that would help, the most helpful first; none where there are many captions.

    made: the artifacts of a run, by kind.
    """
    if config.data.adapter == "scenes" or "train" not in made:
        return
    captions = pq.read_table(made["tensorise"].path / CAPTIONS, columns=[], filters=[("split", "=", "train")]).num_rows
    if captions >= _SOME:
        return
    yield _ending(config, made["train"])
    if captions < _FEW and config.starting_point is None:
        yield (
            f"with {counted(captions, 'caption')} to learn from, start from a captioner that has seen more pictures, "
            f"which helps most: {program()} init PHOTOS --from models:/NAME@champion"
        )
    if config.starting_point is None and config.grids.backbone in _SMALL_BACKBONES:
        yield f"a better backbone than {config.grids.backbone}, such as EfficientNet-Lite2 of the preset best"
    yield f"more pictures with captions; {PAGE} says what each of these is worth"


def _ending(config: Config, trained: Artifact) -> str:
    """Return what ended the training, and whether more epochs may help.

    trained: the decoder, whose history is that of its tuning where there is one.
    """
    training: FitConfig = config.tuning or config.training
    section = "training" if config.tuning is None else "tuning"
    history = pq.read_table(trained.path / HISTORY).to_pylist()
    selected = f"dev_{training.select}"
    best = int(max(history, key=lambda row: (float(row[selected]), row["epoch"]))["epoch"])  # of equals, the later
    last = int(history[-1]["epoch"])
    if not best:
        return "no epoch was better on dev than the captioner that training started from, which is kept as it was"
    if last < training.epochs:
        return (
            f"training ended because {counted(training.patience, 'epoch')} after epoch {best} were no better on dev: "
            "more epochs would not help"
        )
    if best == last:
        return f"the last of {counted(best, 'epoch')} was the best on dev: more of them may help ({section}.epochs)"
    return f"epoch {best} of {last} was the best on dev: more epochs would not help"
