"""The output of `attend run`: its data, and at the end its scores, version, pages, and the next commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import typer

from flows.commands.options import program, short
from flows.page.history import page_path
from tasks.common.errors import AttendError
from tasks.common.wording import counted
from tasks.config.schema import Config
from tasks.config.training import FitConfig
from tasks.data.caption_files import CAPTIONS
from tasks.data.manifest import LEFT_OUT, sizes_in_words
from tasks.evaluation.report import REPORT
from tasks.evaluation.score_record import read_scores
from tasks.grids.photographs import FAILED
from tasks.inspection.record import PAGE as INSPECTION_PAGE
from tasks.inspection.record import describe_counts, describe_drift, read_inspection
from tasks.metrics import NAMES
from tasks.mlflow_store.registration_record import RegistrationRecord, read_registration
from tasks.mlflow_store.versions import aliases_of
from tasks.pipeline.ledger import Artifact
from tasks.training.outputs import HISTORY

_DIVERGED_LOSS = 12.0  # nats a token, more than for words drawn at random
_POOR_BLEU4 = 5.0  # BLEU-4, in percent, below which captions hardly share a phrase with the references
_SHOWN = ("bleu4", "meteor", "rouge_l", "cider", "truth")
_PAGE = "docs/few-photographs.md"  # has the measurements
_FEW_CAPTIONS = 1_000  # training captions below which starting from a captioner helps the most
_ENOUGH_CAPTIONS = 5_000  # training captions from which there is no advice
_SMALL_BACKBONES = ("mobilenet_v2", "tiny", "googlenet", "regnet_x_400mf")


def print_beginning(config: Config, fresh: Mapping[str, Artifact]) -> None:
    """Print what a run reads. fresh: the artifacts that already exist, by kind."""
    location = "generated pictures" if config.data.adapter == "scenes" else config.data.place
    sizes = f": {_data(fresh)}" if "ingest" in fresh else ""
    typer.echo(f"{config.name} reads {location}{sizes}")


def _data(artifacts: Mapping[str, Artifact]) -> str:
    """Return a line with the sizes of the data set and its vocabulary."""
    counts = artifacts["ingest"].ledger.counts
    line = sizes_in_words(counts)
    if "tensorise" in artifacts:
        words = artifacts["tensorise"].ledger.counts.get("words")
        line += f", a vocabulary of {int(words):,}" if words is not None else ""
    return line


def print_end(config: Config, artifacts: Mapping[str, Artifact], run_again: str) -> None:
    """Print the results of a run: the data, the scores, the version, the pages, and the next commands.

    artifacts: the artifacts that now exist, by kind. run_again: the command that runs the remaining stages.
    """
    for line in _end(config, artifacts, run_again):
        typer.echo(line)


def _end(config: Config, artifacts: Mapping[str, Artifact], run_again: str) -> Iterator[str]:
    if "ingest" in artifacts:
        yield f"data:    {_data(artifacts)}"
        if artifacts["ingest"].ledger.counts.get("left out"):
            left_out = artifacts["ingest"].path / LEFT_OUT
            number = int(artifacts["ingest"].ledger.counts["left out"])
            yield f"         {counted(number, 'row')} left out, listed in {short(left_out)}"
    if "extract" in artifacts and artifacts["extract"].ledger.counts.get("failed"):
        failed = artifacts["extract"].path / FAILED
        number = int(artifacts["extract"].ledger.counts["failed"])
        yield f"         {counted(number, 'picture')} that cannot be read left out, listed in {short(failed)}"
    if "evaluate" in artifacts:
        yield from _scores(config, artifacts)
    if "register" in artifacts:
        registration = read_registration(artifacts["register"].path)
        report = artifacts["register"].path / REPORT
        if report.is_file():
            yield f"report:  {short(report)}"
        else:
            yield f"report:  {program()} models report {registration['uri']}"
        yield from _inspection(artifacts["register"])
        yield from _version(config, registration)
    page = page_path(config)
    if page.is_file():
        yield f"page:    {short(page)}"
    option = workspace_option(config)
    if "register" in artifacts:
        picture = "GRID.npy" if config.encoding is None else "PICTURE"
        commands = (f"{program()} {command}{option}" for command in (f"caption {picture}", "serve", "ui"))
        yield f"next:    {'; '.join(commands)}"
    else:
        yield f"next:    {run_again}"


def _scores(config: Config, artifacts: Mapping[str, Artifact]) -> Iterator[str]:
    """Yield the lines about a run's scores, and how to improve them."""
    record = read_scores(artifacts["evaluate"].path)
    shown = [name for name in _SHOWN if name in record["scores"]]
    scores = ", ".join(
        f"{NAMES[name]} {record['scores'][name]:.1f} ({record['intervals'][name][0]:.1f} to "
        f"{record['intervals'][name][1]:.1f})"
        for name in shown
    )
    pictures = f"{counted(record['pictures'], 'picture')} of {config.evaluation.split}"
    yield f"scores:  {scores}; {pictures}, 95 % intervals"
    loss = artifacts["train"].ledger.counts.get("dev_loss", 0.0) if "train" in artifacts else 0.0
    if loss > _DIVERGED_LOSS:
        yield f"note:    training diverged, its dev loss is {loss:.3g}: lower training.learning_rate"
    elif record["scores"].get("bleu4", _POOR_BLEU4) < _POOR_BLEU4:
        yield "note:    these captions are poor: look at some in the report"
    for number, line in enumerate(advice(config, artifacts)):
        yield f"{'' if number else 'better: ':<9}{line}"


def advice(config: Config, artifacts: Mapping[str, Artifact]) -> Iterator[str]:
    """Yield a line for each thing that would help, the most helpful first; none if there are many captions.

    artifacts: the artifacts of a run, by kind.
    """
    if config.data.adapter == "scenes" or "train" not in artifacts:
        return
    path = artifacts["tensorise"].path / CAPTIONS
    number = pq.read_table(path, columns=[], filters=[("split", "=", "train")]).num_rows
    if number >= _ENOUGH_CAPTIONS:
        return
    yield _how_training_ended(config, artifacts["train"])
    if number < _FEW_CAPTIONS and config.starting_point is None:
        yield (
            f"with {counted(number, 'caption')} to learn from, start from a captioner that has seen more pictures, "
            f"which helps most: {program()} init PHOTOS --from models:/NAME@champion"
        )
    if config.starting_point is None and config.grids.backbone in _SMALL_BACKBONES:
        yield f"a better backbone than {config.grids.backbone}: {program()} init PHOTOS --backbone lite2"
    yield f"more pictures with captions; {_PAGE} says what each of these is worth"


def _how_training_ended(config: Config, trained: Artifact) -> str:
    """Return why training ended, and whether more epochs may help.

    trained: the decoder's artifact, with the history of its tuning if there is one.
    """
    training: FitConfig = config.tuning or config.training
    section = "training" if config.tuning is None else "tuning"
    history = pq.read_table(trained.path / HISTORY).to_pylist()
    selected = f"dev_{training.select}"
    best = int(max(history, key=lambda row: (float(row[selected]), row["epoch"]))["epoch"])  # the later one of a tie
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


def _version(config: Config, registration: RegistrationRecord) -> Iterator[str]:
    """Yield the lines about a registered version: its address, and whether it is champion now."""
    was_champion = is_champion = registration["alias"] == "champion"
    now = unknown = ""
    try:
        champion = aliases_of(config.workspace, registration["model"]).get("champion")
        is_champion = champion == registration["version"]
        now = "champion" if is_champion else f"version {champion} is champion" if champion else "no version is champion"
    except AttendError as error:
        unknown = str(error)
    changed = "" if is_champion == was_champion else f"{now} now; when it was registered: "
    yield f"version: {registration['uri']}; {changed}{registration['why']}"
    if unknown:
        yield f"         that was when it was registered: {unknown}"
    if not is_champion:
        yield (
            f"         `attend caption` and `attend serve` use the champion; to use this one instead: {program()} "
            f"models promote {registration['uri']} --force"
        )


def _inspection(registered: Artifact) -> Iterator[str]:
    """Yield the lines about the pictures and captions to check, and about drift."""
    inspection = read_inspection(registered.path)
    yield f"look at: {describe_counts(inspection)}: {short(registered.path / INSPECTION_PAGE)}"
    drift = inspection["drift"]
    if not isinstance(drift, str) and drift["alarm"]:
        yield f"drift:   {describe_drift(drift)}"


def workspace_option(config: Config) -> str:
    """Return ` --workspace FOLDER`, which a command needs to find the config's workspace; empty for the default one."""
    return "" if config.workspace == Path("workspace").absolute() else f" --workspace {short(config.workspace)}"
