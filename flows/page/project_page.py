"""The page itself: one HTML file, written by each run, that needs no server and no network."""

from __future__ import annotations

import html
import importlib.resources
import os
import random
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.page.history import PAGES, RunRecord, page_path, read_history
from models.encoded_pictures import decode
from tasks.common.errors import AttendError
from tasks.common.files import write_atomically
from tasks.common.progress import duration
from tasks.common.wording import counted, minute
from tasks.config.schema import Config
from tasks.data.manifest import files_by_digest, sizes_in_words
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions
from tasks.evaluation.cards import thumbnail
from tasks.evaluation.page_files import filled
from tasks.evaluation.report import REPORT, as_svg, plot
from tasks.grids.photographs import read_photograph
from tasks.inspection.record import PAGE as INSPECTION_PAGE
from tasks.metrics import ScoredCaption
from tasks.mlflow_store.registration_record import read_registration
from tasks.mlflow_store.versions import aliases_of
from tasks.pipeline.plan import Status
from tasks.pipeline.stage import Stage

_SHOWN = 8  # pictures with captions
_COLOURS = {"train": "#8c867c", "dev": "#d9a441", "test": "#b3411e"}
_STATES = {"fresh": "up to date", "stale": "out of date", "missing": "not made yet"}
_PLOT = (6.4, 2.8)  # inches
_NODE, _GAP = (132, 44), (44, 18)  # width and height of a stage in the graph, and of the gaps, in pixels


def last_page(workspace: Path) -> Path:
    """Return the page of a workspace that was written last. Raises AttendError if there is none."""
    pages = sorted((workspace / PAGES).glob("*.html"), key=lambda path: path.stat().st_mtime)
    if not pages:
        raise AttendError(f"{workspace}: has no page yet: name the preset or YAML file of a run, or give --workspace")
    return pages[-1]


def write_page(config: Config, statuses: Sequence[Status]) -> Path:
    """Write the page of a config, and return its path. statuses: the current plan."""
    history = read_history(config)
    path = page_path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = filled(
        (importlib.resources.files("flows.page") / "page.html").read_text(encoding="utf-8"),
        config.name,
        at=minute(time.time()),
        about=html.escape(f"{config.about}. " if config.about else ""),
        captions=_captions(config, statuses),
        pictures=_pictures(statuses, history),
        growth=_figure(_growth(history), "Pictures by split, run by run") if len(history) > 1 else "",
        versions=_versions(history, config, statuses, path.parent),
        graph=_graph([status.stage for status in statuses], {s.stage: s.state for s in statuses}),
        stages=_stages(statuses),
        next_run=_next_run(statuses),
        runs=_runs(history),
    )
    write_atomically(path, text)
    return path


def _captions(config: Config, statuses: Sequence[Status]) -> str:
    """Return some held-out pictures, drawn at random, with the captions of the latest evaluation and a person's."""
    artifacts = {status.stage.kind: status.artifact for status in statuses if status.artifact is not None}
    if not {"ingest", "evaluate"} <= artifacts.keys():
        return "<p>There are no captions of the data as it is now: the next run makes them.</p>"
    try:
        corpus = read_predictions(artifacts["evaluate"].path / PREDICTIONS)
        chosen = random.Random(0).sample(sorted(corpus), min(_SHOWN, len(corpus)))
        files = files_by_digest(artifacts["ingest"].path, config.data, chosen)
    except (AttendError, OSError) as error:  # the run itself has succeeded
        return f"<p>The captions cannot be shown: {html.escape(str(error))}</p>"
    cards = [_card(corpus[digest], digest, files[digest]) for digest in chosen if digest in files]
    about = "Held-out pictures, drawn at random, with the captions of the latest evaluation."
    return f'<p class="quiet">{about}</p><ul class="pictures">{"".join(cards)}</ul>'


def _card(item: ScoredCaption, digest: str, path: Path) -> str:
    """Return a picture with its caption and a person's; without the picture if it is a grid or cannot be read."""
    caption, person = (html.escape(" ".join(words)) for words in (item.caption, item.references[0]))
    try:
        jpeg, width, height = thumbnail(decode(read_photograph(digest, path)))
    except (AttendError, ValueError):
        image = ""
    else:
        image = f'<img src="data:image/jpeg;base64,{jpeg}" width="{width}" height="{height}" alt="{person}">'
    return f'<li>{image}<p>{caption or "no caption"}</p><p class="quiet">a person: {person}</p></li>'


def _pictures(statuses: Sequence[Status], history: Sequence[RunRecord]) -> str:
    """Return a sentence about the data set, from the manifest."""
    artifact = next((status.artifact for status in statuses if status.stage.kind == "ingest"), None)
    counts = artifact.ledger.counts if artifact is not None else history[-1].counts if history else {}
    if not counts:
        return "<p>No run has read the pictures yet.</p>"
    then = "" if artifact is not None else " when the last run ended; they have changed since"
    left = counted(int(counts["left out"]), "row") + " left out. " if counts.get("left out") else ""
    return f"<p>{sizes_in_words(counts)}{then}. {left}</p>"


def _growth(history: Sequence[RunRecord]) -> str:
    """Return a plot of the number of pictures of each split over time, as SVG."""
    figure, axis = plot(_PLOT, title="pictures")
    times: Any = [datetime.fromtimestamp(run.time, UTC) for run in history]
    for split, colour in _COLOURS.items():
        axis.plot(
            times, [run.counts.get(split, 0) for run in history], marker="o", markersize=3, color=colour, label=split
        )
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
    figure.autofmt_xdate()
    return as_svg(figure)


def _versions(history: Sequence[RunRecord], config: Config, statuses: Sequence[Status], folder: Path) -> str:
    """Return the registered versions over time: a plot of the score with its intervals, and a table."""
    score = config.registry.promote_on
    first = {run.version: run for run in reversed(history) if run.version}
    runs = [run for run in history if first.get(run.version) is run]
    if not runs:
        return "<p>No version is registered yet.</p>"
    try:
        aliases, unknown = aliases_of(config.workspace, config.registry.model), ""
    except AttendError as error:
        aliases, unknown = {}, f"<p>Which version is champion now is not known: {html.escape(str(error))}</p>"
    scored = [run for run in runs if score in run.scores]
    figure = ""
    if scored:
        scores = _score_plot(scored, score, aliases.get("champion"))
        figure = _figure(scores, f"{score} of each version, with its 95 % interval")
    rows = [
        (
            run.version,
            ", ".join(sorted(alias for alias, version in aliases.items() if version == run.version)),
            minute(run.time),
            _score_text(run, score),
            run.why,
        )
        for run in reversed(runs)
    ]
    registered = next((status.artifact for status in statuses if status.stage.kind == "register"), None)
    link = ""
    if registered is not None:
        version = read_registration(registered.path)["version"]
        pages = {REPORT: f"The report of version {version}", INSPECTION_PAGE: "Data that is worth a look"}
        link = "".join(
            f'<p><a href="{html.escape(os.path.relpath(registered.path / page, folder))}">{title}</a></p>'
            for page, title in pages.items()
            if (registered.path / page).is_file()
        )
    columns = ("version", "now", "registered", f"{score}, 95 % interval", "when it was registered")
    return figure + unknown + _table(columns, rows) + link


def _score_plot(runs: Sequence[RunRecord], score: str, champion: str | None) -> str:
    """Return a plot of the versions' scores, as SVG. champion: the current champion's version."""
    figure, axis = plot(_PLOT, title=f"{score} (diamond: champion)")
    for index, run in enumerate(runs):
        value, low, high = run.scores[score]
        is_champion = run.version == champion
        axis.errorbar(
            index, value, yerr=[[max(value - low, 0)], [max(high - value, 0)]], fmt="D" if is_champion else "o",
            color="#b3411e" if is_champion else "#8c867c", capsize=3,
        )  # fmt: skip
    axis.set_xticks(range(len(runs)), [f"v{run.version}" for run in runs])
    return as_svg(figure)


def _score_text(run: RunRecord, score: str) -> str:
    if score not in run.scores:
        return ""
    value, low, high = run.scores[score]
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def _stages(statuses: Sequence[Status]) -> str:
    """Return a table of the stages: state, reason, time, and upstream artifacts, from the ledgers."""
    rows = []
    for status in statuses:
        ledger = status.artifact.ledger if status.artifact is not None else None
        made_from = ", ".join(f"{kind} {key[:8]}" for kind, key in ledger.made_from.items()) if ledger else ""
        rows.append(
            (
                status.stage.name,
                _STATES.get(status.state, status.state),
                "; ".join(status.why),
                duration(ledger.seconds) if ledger else "",
                f"{ledger.key[:8]}" if ledger else "",
                made_from,
            )
        )
    return _table(("stage", "state", "what it holds, or why it runs", "took", "key", "made from"), rows)


def _graph(stages: Sequence[Stage], states: dict[Stage, str]) -> str:
    """Return the graph of the stages as SVG, with an arrow from each stage to the stages that need it."""
    depth: dict[Stage, int] = {}
    for stage in stages:
        depth[stage] = 1 + max((depth[item] for item in stage.upstream() if item in depth), default=-1)
    rows = [[stage for stage in stages if depth[stage] == level] for level in range(max(depth.values(), default=0) + 1)]
    places = {
        stage: (level * (_NODE[0] + _GAP[0]), number * (_NODE[1] + _GAP[1]))
        for level, group in enumerate(rows)
        for number, stage in enumerate(group)
    }
    width = len(rows) * (_NODE[0] + _GAP[0]) - _GAP[0] + 2
    height = max(map(len, rows), default=1) * (_NODE[1] + _GAP[1]) - _GAP[1] + 2
    drawn = []
    for stage, (x, y) in places.items():
        for source in stage.upstream():
            if source in places:
                from_x, from_y = places[source][0] + _NODE[0], places[source][1] + _NODE[1] / 2
                middle = (from_x + x) / 2
                drawn.append(
                    f'<path class="edge" d="M{from_x} {from_y} C{middle} {from_y} {middle} {y + _NODE[1] / 2} '
                    f'{x} {y + _NODE[1] / 2}"/>'
                )
    for stage, (x, y) in places.items():
        kind = "fresh" if states[stage] == "fresh" else "stale"
        drawn.append(
            f'<rect class="{kind}" x="{x + 1}" y="{y + 1}" width="{_NODE[0]}" height="{_NODE[1]}" rx="8"/>'
            f'<text x="{x + _NODE[0] / 2}" y="{y + _NODE[1] / 2 + 5}" text-anchor="middle">'
            f"{html.escape(stage.name)}</text>"
        )
    names = ", ".join(f"{s.name} needs {' and '.join(u.name for u in s.upstream())}" for s in stages if s.upstream())
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{html.escape(names)}">{"".join(drawn)}</svg>'
    )


def _next_run(statuses: Sequence[Status]) -> str:
    """Return the stages that the next run would run, with the reasons."""
    stale = [status for status in statuses if not status.fresh]
    if not stale:
        return "<p>Nothing: every stage is up to date.</p>"
    items = "".join(f"<li>{html.escape(s.stage.name)}: {html.escape('; '.join(s.why))}</li>" for s in stale)
    return f"<ul>{items}</ul>"


def _runs(history: Sequence[RunRecord]) -> str:
    """Return a table of the last runs in which a stage ran."""
    rows = [
        (minute(run.time), ", ".join(run.ran), f"{int(run.counts.get('pictures', 0)):,}") for run in history[:-21:-1]
    ]
    return _table(("ended", "stages that ran", "pictures"), rows) if rows else "<p>None yet.</p>"


def _figure(svg: str, about: str) -> str:
    return f'<figure role="img" aria-label="{html.escape(about)}">{svg}</figure>'


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
