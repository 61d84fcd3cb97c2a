"""Preflight checks: all problems that would stop or spoil a run, in seconds, without Prefect, MLflow or training."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flows.configs import refusals
from tasks.common.errors import AttendError
from tasks.common.files import write_atomically
from tasks.common.wording import counted, counted_by_split, minute, shortened
from tasks.config.schema import Config, data_section
from tasks.config.stages import CaptionsConfig, EvaluationConfig, GridsConfig
from tasks.data.inputs import digests_of
from tasks.data.splits import divides
from tasks.datasets.base import SPLITS, DatasetOptions
from tasks.grids.weights import backbone_fault, check_needs_torch
from tasks.metrics import METRICS, is_latin
from tasks.pipeline.ledger import digest_of

if TYPE_CHECKING:
    from tasks.data.survey import Compare, Survey

VERDICTS = "checks"  # the workspace's folder of the last verdicts
_UNKNOWN = 0.1  # warn above this share of the captions' words that are not in the vocabulary
_NEW = 0.5  # the same, for held-out captions
_CUT = 0.1  # warn above this share of captions that are cut
_LOST = 0.05  # warn above this number of words per caption that lose their symbols
_SAME, _LONG = 0.3, 5  # share of held-out pictures with captions from train, and the words of such a caption
_WORDY = 100  # a text with more words is not a caption
_COMMON = 0.02  # warn above this share of pictures with the same caption
_FREE = 1 << 30  # bytes
_SAMPLE = 200  # rows whose captions determine the script
_GROUPS = 3  # groups of near-duplicates to show
_FEW, _SAMPLED = 2_000, 300  # up to `_FEW` pictures, the pixels of all are read; otherwise those of `_SAMPLED`

Kind = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """A problem that stops a run (error), or makes its model worse than necessary (warning)."""

    kind: Kind
    about: str
    message: str


@dataclass
class Verdict:
    """The findings of a check, and its extent.

    pixels: the number of pictures whose pixels were read. compared: the number of pictures searched for
    near-duplicates; None if there is nothing to compare. grid_bytes: the size of a picture's grid; None if the backbone
    was not built. listed: the file that lists all findings; None if there is no workspace yet.
    """

    findings: list[Problem] = field(default_factory=list)
    pictures: int = 0
    captions: int = 0
    splits: dict[str, int] = field(default_factory=dict)
    pixels: int = 0
    compared: int | None = None
    grid_bytes: int | None = None
    seconds: float = 0.0
    listed: str | None = None

    def add(self, kind: Kind, about: str, messages: Iterable[str]) -> None:
        """Add findings of a kind."""
        self.findings += [Problem(kind, about, message) for message in messages]

    def count(self, kind: Kind) -> int:
        return sum(finding.kind == kind for finding in self.findings)


def verdict_of(
    preset: str, overrides: list[str], sample: int | None = None, near_duplicates: bool | None = None
) -> Verdict:
    """Return the problems of a config and its data.

    sample: the number of pictures whose pixels are read; None for all if they are few, else some. near_duplicates:
    whether to search for them; None to search if that takes minutes at most.
    """
    begun = time.monotonic()
    errors, config = refusals(preset, overrides)
    verdict = Verdict()
    verdict.add("error", "settings", errors)
    data = config.data if config is not None else data_section(preset, overrides)
    with contextlib.ExitStack() as stack:
        backbone = None if config is None else _start_backbone_check(config, stack)
        if config is not None:
            verdict.add("error", "workspace", _workspace_faults(config))
        if data is not None:
            _check_data(verdict, data, config, sample, near_duplicates)
        if backbone is not None and config is not None:
            fault, verdict.grid_bytes = backbone.result()
            verdict.add("error", "backbone", filter(None, [fault]))
            verdict.add("warning", "workspace", _lacking_space(config, verdict))
    verdict.seconds = time.monotonic() - begun
    if config is not None:
        _keep(verdict, config)
    return verdict


def _check_data(
    verdict: Verdict, data: DatasetOptions, config: Config | None, sample: int | None, near_duplicates: bool | None
) -> None:
    """Add the problems of a data set. config: None if its other sections are not valid."""
    from tasks.data.survey import survey  # loads pyarrow, while the weights are already being checked

    captions = config.captions if config is not None else CaptionsConfig()
    evaluation = config.evaluation if config is not None else EvaluationConfig()
    with tempfile.TemporaryDirectory(prefix="attend-check-") as folder:
        database = Path(folder) / "digests.sqlite"
        if config is not None and not verdict.count("error") and config.workspace.is_dir():
            database = config.workspace / "digests.sqlite"
        try:
            found = survey(data, Path(folder) / "pictures", database, _compared(data, near_duplicates))
        except AttendError as error:
            verdict.add("error", "data", [str(error)])
            return
        verdict.pictures, verdict.captions, verdict.splits = found.distinct, found.captions, found.sizes
        skips = data.on_error == "skip"
        verdict.add("warning" if skips else "error", "data", found.faults)
        verdict.add("warning", "data", found.left_out)
        if sample is None:
            sample = len(found.rows) if len(found.rows) <= _FEW else _SAMPLED
        if not data.has_grids:
            allowed = config.grids.max_failed if config is not None else GridsConfig.model_fields["max_failed"].default
            _check_pictures(verdict, found, sample, allowed)
        verdict.pixels = min(sample, len(found.rows))
        if _is_photographs(data):
            verdict.compared = found.distinct if found.alike is not None else 0
    verdict.add("warning", "pictures", _duplicates(found, data))
    verdict.add("warning", "pictures", _near_duplicates(found, data))
    verdict.add("warning", "captions", _caption_faults(found, captions))
    verdict.add("warning", "captions", _lost_text(found, captions))
    if found.splits is not None and not data.has_facts:
        verdict.add("warning", "splits", _same_captions(found))
    verdict.add("warning", "captions", _metric_faults(found, evaluation))
    for kind, message in _split_faults(found, evaluation, config):
        verdict.add(kind, "splits", [message])


def _check_pictures(verdict: Verdict, survey: Survey, sample: int, allowed: float) -> None:
    """Add the faulty pictures; unreadable ones are errors if a run would not leave so many out (grids.max_failed)."""
    from tasks.data.picture_files import picture_faults

    headers, pixels, one_colour = picture_faults([survey.paths[row.name] for row in survey.rows], sample)
    rows = len(survey.rows)
    share = len(headers) / max(rows, 1) + len(pixels) / max(min(sample, rows), 1)
    kind: Kind = "warning" if share <= allowed else "error"
    faults = {**headers, **pixels}
    verdict.add(kind, "pictures", (f"{path}: {reason}" for path, reason in faults.items()))
    if faults and share <= allowed:
        message = f"{counted(len(faults), 'unreadable picture')}: left out by a run (grids.max_failed={allowed:g})"
        verdict.add("warning", "pictures", [message])
    verdict.add("warning", "pictures", (f"{path}: {reason}" for path, reason in one_colour.items()))


def _duplicates(survey: Survey, data: DatasetOptions) -> Iterator[str]:
    """Yield pictures with the same content, those across splits first, and pictures without captions.

    The same picture in two sources is intended: it counts once.
    """
    from tasks.data.survey import uncaptioned

    names: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(survey.rows):
        if row.name in survey.digests:
            names.setdefault((data.prefix_of(row.name), survey.digests[row.name]), []).append(number)
    splits = survey.splits or [""] * len(survey.rows)
    groups = [numbers for numbers in names.values() if len(numbers) > 1]
    for numbers in sorted(groups, key=lambda numbers: len({splits[number] for number in numbers}) == 1):
        shown = " = ".join(f"{survey.rows[number].name} ({splits[number]})" for number in numbers[:5])
        leak = len({splits[number] for number in numbers}) > 1
        advice = "a model is then tested on what it was trained on: keep them in one split" if leak else "keep one"
        yield f"the same file several times: {shown}: {advice}"
    without = uncaptioned(survey, data)
    if without and survey.whole:
        more = ", ..." if len(without) > 1 else ""
        yield f"{counted(len(without), 'picture')} of the data set without a caption, not used: {without[0]}{more}"


def _is_photographs(data: DatasetOptions) -> bool:
    """Return whether near-duplicates are meaningful: generated scenes look alike, and grids are not pictures."""
    return not data.has_grids and not data.has_facts


def _compared(data: DatasetOptions, near_duplicates: bool | None) -> Compare:
    """Return when to search for near-duplicates. near_duplicates: the command's option; None if it is not given."""
    if near_duplicates and not data.has_grids:
        return "all"
    return "few" if near_duplicates is None and _is_photographs(data) else "to divide"


def _near_duplicates(survey: Survey, data: DatasetOptions) -> Iterator[str]:
    """Yield the number of near-duplicates across splits, which is more serious, and within them, with the first few."""
    rows: dict[str, tuple[str, str]] = {}  # the first row of each content; `_duplicates` reports identical files
    for row, split in zip(survey.rows, survey.splits or [""] * len(survey.rows), strict=True):
        rows.setdefault(survey.digests.get(row.name, ""), (row.name, split))
    across: list[list[tuple[str, str]]] = []
    within: list[list[tuple[str, str]]] = []
    for group in survey.alike or []:
        members = sorted(rows[digest] for digest in group)
        (across if len({split for _, split in members}) > 1 else within).append(members)
    if across:
        held_out = [member for members in across for member in members if member[1] not in ("train", "")]
        advice = "keep each group in one of the data set's splits, or remove its held-out pictures"
        if data.near_duplicates is None and divides((row.split for row in survey.rows), data):
            advice = "set data.near_duplicates=together"
        yield (
            f"{counted(sum(map(len, across)), 'near-duplicate')} in {counted(len(across), 'group')} across splits, "
            f"{len(held_out):,} of them held out: {_shown(across, with_splits=True)}: a model is tested on what it was "
            f"trained on, and its scores are too good: {advice}"
        )
    if within:
        yield (
            f"{counted(sum(map(len, within)), 'near-duplicate')} in {counted(len(within), 'group')} within a split: "
            f"{_shown(within, with_splits=False)}: they count more than once in training and scores: keep one of each, "
            "unless their captions differ"
        )


def _shown(groups: list[list[tuple[str, str]]], with_splits: bool) -> str:
    """Return the first groups of (name, split), with `~` between the names of a group."""
    shown = [
        " ~ ".join(f"{name} ({split})" if with_splits else name for name, split in _ends(members))
        for members in groups[:_GROUPS]
    ]
    return "; ".join(shown) + ("; ..." if len(groups) > _GROUPS else "")


def _ends(members: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return two members of a group, of different splits if it has them."""
    first = members[0]
    return [first, next((member for member in members if member[1] != first[1]), members[1])]


def _caption_faults(survey: Survey, captions: CaptionsConfig) -> Iterator[str]:
    """Yield captions that are unusable or repeated, and settings that lose much of the captions."""
    from tasks.data.caption_text import unknown_share
    from tasks.data.survey import approximate_words

    words_of = functools.cache(str.split if captions.tokeniser == "whitespace" else approximate_words)
    pictures_by_caption: Counter[str] = Counter()
    lengths: list[int] = []
    for row in survey.rows:
        for caption, times in Counter(row.captions).items():
            pictures_by_caption[caption] += 1
            words = len(words_of(caption))
            lengths.append(words)
            if times > 1:
                yield f"{row.where}: {row.name} has the caption {_short(caption)} {times} times"
            if words == 0:
                yield f"{row.where}: {row.name}: the caption {_short(caption)} has no word"
            if words > _WORDY:
                yield f"{row.where}: {row.name}: a caption has {words} words: it begins {_short(caption)}"
    for caption, pictures in pictures_by_caption.most_common(5):
        if pictures > max(3, _COMMON * len(survey.rows)):
            yield f"{counted(pictures, 'picture')} with the caption {_short(caption)}: a model learns to say it often"
    if lengths and captions.units == "words":
        cut = sum(length > captions.max_tokens for length in lengths) / len(lengths)
        if cut > _CUT:
            yield f"captions.max_tokens={captions.max_tokens} cuts about {cut:.0%} of the captions: raise it"
        texts = {split: [text for row in survey.of_split(split) for text in row.captions] for split in SPLITS}
        for split in SPLITS if survey.splits is not None else ("train",):
            unknown = unknown_share(texts["train"], texts[split], captions.min_count, words_of)
            if unknown > (_UNKNOWN if split == "train" else _NEW):
                advice = "lower it" if captions.min_count > 1 else "these words are in no caption of train"
                yield (
                    f"captions.min_count={captions.min_count} leaves about {unknown:.0%} of the words of the captions "
                    f"of {split} out of the vocabulary: {advice}"
                )
                break


def _lost_text(survey: Survey, captions: CaptionsConfig) -> Iterator[str]:
    """Yield words that the tokeniser drops, markup, and texts that may be several captions."""
    from tasks.data.caption_text import KEEPS_ALL, lost_words, markup, repeated, several_in_one

    texts = [text for row in survey.rows for text in row.captions]
    lost, tags = lost_words(texts, captions.tokeniser), markup(texts)
    if lost.total() > _LOST * len(texts):
        yield (
            f"the tokeniser {captions.tokeniser} drops {counted(lost.total(), 'word')} of the captions with all "
            f"symbols: {_most(lost)}: captions.tokeniser={KEEPS_ALL} keeps them"
        )
    if tags:
        yield f"{counted(tags.total(), 'part')} of captions that are not language: {_most(tags)}: remove them"
    yield from (*several_in_one(survey.rows), *repeated(survey.rows))


def _most(counts: Counter[str]) -> str:
    """Return the three most frequent items."""
    return ", ".join(f"{shortened(item, 20)!r} ({times:,} times)" for item, times in counts.most_common(3))


def _same_captions(survey: Survey) -> Iterator[str]:
    """Yield a message if many held-out pictures have captions of train, as several views of one thing do."""
    trained = {text for row in survey.of_split("train") for text in row.captions}
    held_out = [row for split in ("dev", "test") for row in survey.of_split(split)]
    same = [row for row in held_out if all(text in trained and len(text.split()) >= _LONG for text in row.captions)]
    if len(same) > _SAME * len(held_out):
        yield (
            f"{len(same):,} of {counted(len(held_out), 'held-out picture')} have the very captions of pictures in "
            f"train, such as {same[0].name}: if these show the same thing, keep it in one split, by a column or folders"
        )


def _metric_faults(survey: Survey, evaluation: EvaluationConfig) -> Iterator[str]:
    """Yield the metrics that do not support the language of the captions."""
    if not is_latin(caption for row in survey.rows[:_SAMPLE] for caption in row.captions):
        for name in evaluation.metrics:
            if METRICS[name].only_latin:
                yield f"evaluation.metrics: {name} knows only languages in Latin letters, and is left out: remove it"


def _split_faults(survey: Survey, evaluation: EvaluationConfig, config: Config | None) -> Iterator[tuple[Kind, str]]:
    """Yield splits that are empty, or too small to compare models on."""
    if survey.splits is None:
        return
    for split, use in (("train", "train on"), ("dev", "validate on"), (evaluation.split, "evaluate on")):
        if split not in survey.sizes:
            has = counted_by_split(survey.sizes)
            yield "error", f"the split {split} is empty, and there is nothing to {use} (the data set has {has})"
    size = survey.sizes.get(evaluation.split, 0)
    if config is not None and 0 < size < config.registry.min_pictures:
        yield (
            "warning",
            f"{counted(size, 'picture')} to evaluate on, and a version needs {config.registry.min_pictures} to replace "
            "the champion (registry.min_pictures): add pictures, or decide by `attend models promote --force`",
        )


def _start_backbone_check(config: Config, stack: contextlib.ExitStack) -> Future[tuple[str, int | None]]:
    """Start the check of the backbone, in a subprocess if it loads torch, which takes as long as all other checks.

    stack: ends the process.
    """
    first_block = None if config.tuning is None else config.tuning.first_block
    needs_torch = check_needs_torch(config.grids)
    checker: Executor = ProcessPoolExecutor(1, get_context("spawn")) if needs_torch else ThreadPoolExecutor(1)
    return stack.enter_context(checker).submit(backbone_fault, config.grids, first_block)


def _workspace_faults(config: Config) -> Iterator[str]:
    """Yield why a run cannot write to the workspace; a missing workspace is not created."""
    folder = config.workspace
    try:
        folder = _existing(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield (
            f"machine.workspace: {config.workspace}: {folder} cannot be written ({error.strerror}): use another "
            "folder, or change its permissions"
        )
        return
    free = shutil.disk_usage(folder).free
    if free < _FREE:
        yield f"machine.workspace: {folder}: {free >> 20} MiB are free on its disk: make room, or use another disk"


def _existing(folder: Path) -> Path:
    """Return a folder, or its closest existing parent, where a run would create it. Raises OSError as `exists` does."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _lacking_space(config: Config, verdict: Verdict) -> Iterator[str]:
    """Yield a line if the grids missing in the workspace need more space than is free on its disk."""
    from tasks.grids.store import folder_size

    grids = config.workspace / "grids"
    if verdict.grid_bytes is None or "://" in config.machine.address:
        return
    try:
        free = shutil.disk_usage(_existing(grids)).free
        needed = verdict.pictures * verdict.grid_bytes - folder_size(grids)
    except OSError:  # `_workspace_faults` reports it
        return
    if needed > free:
        yield (
            f"machine.workspace: the grids need {needed / 1e9:,.1f} GB more, and {free / 1e9:,.1f} GB are free on the "
            "disk: make room, use another disk, or pool the grids (grids.grid)"
        )


def _keep(verdict: Verdict, config: Config) -> None:
    """Save a verdict in the workspace, for `attend status`, if there is a writable one."""
    if not config.workspace.is_dir():
        return
    is_read = not verdict.count("error") and not config.data.unpacks  # tars were not read completely
    record = {
        "data": digest_of(digests_of(config.data, config.machine)) if is_read else "",
        "errors": verdict.count("error"),
        "warnings": verdict.count("warning"),
        "time": time.time(),
        "config": _digest(config),
    }
    path = config.workspace / VERDICTS / f"{config.name}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record))
        lines = [f"{finding.kind}: {finding.about}: {finding.message}\n" for finding in verdict.findings]
        write_atomically(path.with_suffix(".txt"), "".join(lines))
        verdict.listed = str(path.with_suffix(".txt"))
    except OSError:
        return  # the verdict reports it


def last_verdict(config: Config) -> str:
    """Return the last verdict on a config in one line; empty if it was not checked."""
    try:
        record = json.loads((config.workspace / VERDICTS / f"{config.name}.json").read_text(encoding="utf-8"))
        at = minute(record["time"])
        counts = f"{counted(record['errors'], 'error')}, {counted(record['warnings'], 'warning')}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    since = "" if record.get("config") == _digest(config) else " with other settings"
    if record.get("data") and record["data"] != digest_of(digests_of(config.data, config.machine)):
        since += ", before the data changed"
    return f"checked {at}{since}: {counts}"


def _digest(config: Config) -> str:
    """Return a digest of all settings."""
    return digest_of(config.model_dump(mode="json"))


def _short(caption: str) -> str:
    return repr(shortened(caption, 40))
