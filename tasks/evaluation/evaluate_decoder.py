"""The work of stage `evaluate`: captions, how neighbours rank them, their confidence and their scores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from models.confidence import FEATURES
from models.neighbours import Memory
from models.options import Neighbours
from models.ranking import Ranked
from models.vocabulary import Vocabulary
from tasks.config.machine import MachineConfig
from tasks.config.stages import EvaluationConfig
from tasks.data.caption_files import read_vocabulary
from tasks.data.manifest import read_pictures
from tasks.evaluation import calibration
from tasks.evaluation.caption_and_score import (
    FITTED_TO,
    PREDICTIONS,
    read_predictions,
    rows_of,
    score,
    write_predictions,
)
from tasks.evaluation.picture_search import PictureSearch, SearchResult
from tasks.evaluation.score_record import ConfidenceScores, write_scores
from tasks.neighbours.fit import FITTED_TO as MOST_FITTED_TO
from tasks.neighbours.fit import Candidates, copied
from tasks.pipeline.ledger import Artifact, Outcome, digest_of
from tasks.training.fit_decoder import DecoderInputs
from tasks.training.outputs import load_decoder


def evaluate_decoder(
    evaluation: EvaluationConfig,
    machine: MachineConfig,
    trained: Artifact,
    remembered: Artifact,
    sources: DecoderInputs,
    out: Path,
) -> Outcome:
    """Caption the pictures of `evaluation.split`, and score the captions against all references of each picture.

    trained, remembered: the artifacts of the decoder and of the memory of its training pictures. Write
    predictions.parquet, scores.json and, if one could be fitted, the confidence to `out`. The outcome's products are
    digests of the scores and of the decoding settings.
    """
    vocabulary = read_vocabulary(sources.captions.path)
    pictures = read_pictures(sources.manifest.path, evaluation.split)
    memory = Memory.load(remembered.path)
    decoder, _ = load_decoder(trained.path)
    search = PictureSearch(evaluation, machine, sources.grids, decoder, memory)
    scored = search.find(pictures)
    dev = None
    if evaluation.split != "dev":
        dev_pictures = read_pictures(sources.manifest.path, "dev")
        dev = search.find(random.Random(0).sample(dev_pictures, min(len(dev_pictures), MOST_FITTED_TO)))
    choice = choose_neighbours(evaluation, scored if dev is None else dev, memory, vocabulary, dev is None)

    def write(result: SearchResult, ranked: Sequence[Ranked], copies: Sequence[str | None], path: Path) -> None:
        rows = rows_of(result, ranked, search.features(result, ranked), copies, vocabulary, evaluation)
        write_predictions(rows, result.pictures, path)

    write(scored, choice.rank(search, scored), copied(memory, scored.near, vocabulary), out / PREDICTIONS)
    if dev is not None:
        write(dev, search.ranked(dev, choice.whole), [None] * len(dev.pictures), out / FITTED_TO)  # none are scored
    confidence = _add_confidence(out, evaluation.acceptable)
    trained_on = read_pictures(sources.manifest.path, "train")
    scores = score(out / PREDICTIONS, pictures, trained_on, vocabulary, evaluation, evaluation.decoding())
    scores["neighbours"] = choice.why if choice.whole is None else asdict(choice.whole)
    scores["confidence"] = confidence
    write_scores(scores, out)
    counts: dict[str, int | float] = {"captions": scores["pictures"]}
    counts |= {name: round(value, 2) for name, value in scores["scores"].items()}
    notes = [choice.note]
    notes += [f"the captions have no confidence: {confidence}"] if isinstance(confidence, str) else []
    # The confidence's numbers differ between machines by rounding, so the digest has the settings of its fit instead.
    settings = [vars(evaluation.decoding()), evaluation.acceptable, scores["neighbours"]]
    products = {
        "scores": digest_of({name: value for name, value in scores.items() if name != "confidence"}),
        "decoding": digest_of(settings),
    }
    return Outcome(products, counts, notes)


@dataclass(frozen=True)
class Choice:
    """How neighbours rank captions.

    whole: the settings fitted to all pictures of dev, or configured; None if neighbours do not rank, and `why` says
    why. halves: if dev is the scored split, for each half, its pictures and the settings fitted to the other half.
    note: the choice in words.
    """

    whole: Neighbours | None
    why: str
    note: str
    halves: tuple[tuple[calibration.Flags, Neighbours | None], ...] = ()

    def rank(self, search: PictureSearch, scored: SearchResult) -> list[Ranked]:
        """Return the ranked captions of the scored pictures; each half is ranked by settings fitted to the other."""
        if not self.halves:
            return search.ranked(scored, self.whole)
        ranked: dict[int, Ranked] = {}
        for half, neighbours in self.halves:
            numbers = np.flatnonzero(half).tolist()
            ranked |= zip(numbers, search.ranked(scored.select(numbers), neighbours), strict=True)
        return [ranked[number] for number in range(len(scored.pictures))]


def choose_neighbours(
    evaluation: EvaluationConfig, dev: SearchResult, memory: Memory, vocabulary: Vocabulary, is_scored: bool
) -> Choice:
    """Return how neighbours rank captions. dev: the pictures to fit to. is_scored: whether they are scored too."""
    if evaluation.neighbours == "off" or evaluation.search == "sample":
        why = "evaluation.neighbours is off" if evaluation.neighbours == "off" else "the captions are drawn at random"
        return Choice(None, why, f"neighbours rank no captions: {why}")
    if evaluation.neighbours != "fitted":
        fixed = Neighbours(**evaluation.neighbours.model_dump())
        note = "neighbours rank captions as they are set to"
        if memory.matcher is None:
            fixed = replace(fixed, match=0.0)
            note += ", but without a matcher"
        return Choice(fixed, "", note)
    lengths = evaluation.decoding().lengths
    candidates = Candidates(dev.captions, dev.near, dev.pictures, memory, vocabulary, lengths)
    fitted = candidates.fit(np.ones(len(dev.pictures), np.bool_))
    halves: tuple[tuple[calibration.Flags, Neighbours | None], ...] = ()
    if is_scored:
        first = calibration.halves([picture.digest for picture in dev.pictures])
        halves = tuple((half, candidates.fit(~half).neighbours) for half in (first, ~first))
    quality = f"{candidates.measure} of {len(dev.pictures):,} pictures of dev {100 * fitted.gain:+.1f}"
    if fitted.neighbours is None:
        why = f"that does not help ({quality})"
        return Choice(None, why, f"neighbours rank no captions: {why}", halves)
    doubt = "" if fitted.gain > 0 else ", too few to say that it does not help"
    return Choice(fitted.neighbours, "", f"neighbours rank captions: {quality}{doubt}", halves)


def _add_confidence(out: Path, acceptable: float) -> ConfidenceScores | str:
    """Fit a confidence, write it to `out`, and add it to the rows of predictions.parquet.

    Return how well it separates acceptable captions from others, or why none can be fitted: see calibration.py.
    """
    paths = [path for path in (out / PREDICTIONS, out / FITTED_TO) if path.exists()]
    scored, *fitted_to = _Captions.read(paths, acceptable)
    if fitted_to:
        (dev,) = fitted_to
        folds = [(dev.features, dev.flags, np.ones(len(scored.flags), np.bool_))]
    else:
        dev = scored
        first = calibration.halves(scored.digests)
        folds = [(scored.features[~half], scored.flags[~half], half) for half in (first, ~first)]
    for flags in (dev.flags, *(flags for _, flags, _ in folds)):
        if (why := calibration.why_not(flags)) is not None:
            return why
    confidence = np.empty(len(scored.flags))
    for features, flags, held_out in folds:
        confidence[held_out] = calibration.fit(features, flags)(scored.features[held_out].astype(np.float32))
    table = pq.read_table(out / PREDICTIONS)
    column = table.schema.get_field_index("confidence")
    pq.write_table(table.set_column(column, "confidence", pa.array(confidence)), out / PREDICTIONS)
    calibration.fit(dev.features, dev.flags).save(out)
    log_probabilities = scored.features[:, FEATURES.index("log_probability")]
    return calibration.evaluate_confidence(confidence, log_probabilities, scored.flags, scored.definition)


@dataclass(frozen=True)
class _Captions:
    """The captions of a predictions file.

    features (N, F). flags (N,): which are acceptable. definition: of acceptable, in words.
    """

    digests: list[str]
    features: calibration.Values
    flags: calibration.Flags
    definition: str

    @classmethod
    def read(cls, paths: list[Path], acceptable: float) -> list[_Captions]:
        """Return the captions of files; `flags` use the document frequencies of all files together."""
        corpora = [list(read_predictions(path).values()) for path in paths]
        together = [item for corpus in corpora for item in corpus]
        flags = np.split(calibration.is_acceptable(together, acceptable), np.cumsum([len(c) for c in corpora])[:-1])
        definition = calibration.describe_acceptable(together, acceptable)
        tables = []
        for path, file_flags in zip(paths, flags, strict=True):
            table = pq.read_table(path, columns=["digest", *FEATURES])
            features = np.stack([table[name].to_numpy() for name in FEATURES], axis=1)
            tables.append(cls(table["digest"].to_pylist(), features, file_flags, definition))
        return tables
