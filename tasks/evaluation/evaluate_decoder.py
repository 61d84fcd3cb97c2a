"""The work of stage `evaluate`: captions, their confidence and their scores, each read from what was written before."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from models.confidence import FEATURES, TrainingPictures
from tasks.config.machine import MachineConfig
from tasks.config.stages import EvaluationConfig
from tasks.data.caption_files import read_vocabulary
from tasks.data.manifest import read_pictures
from tasks.evaluation import calibration
from tasks.evaluation.caption_and_score import FITTED_TO, PREDICTIONS, ScoreInputs, predict, read_predictions, score
from tasks.evaluation.score_record import JudgedConfidence, write_scores
from tasks.grids.index import open_grids
from tasks.pipeline.ledger import Outcome, digest_of


def evaluate_decoder(evaluation: EvaluationConfig, machine: MachineConfig, sources: ScoreInputs, out: Path) -> Outcome:
    """Caption the pictures of `evaluation.split`, and score the captions against all references of each picture.

    Write predictions.parquet, scores.json and, where one could be fitted, the confidence to `out`. The outcome's
    products are digests of the scores and of the decoding settings.
    """
    vocabulary = read_vocabulary(sources.captions.path)
    pictures = read_pictures(sources.manifest.path, evaluation.split)
    trained_on = read_pictures(sources.manifest.path, "train")
    grids = open_grids(sources.grids, machine)
    training = calibration.read_training_pictures(grids, [picture.digest for picture in trained_on])
    predict(pictures, training, vocabulary, evaluation, machine, sources, out / PREDICTIONS)
    if evaluation.split != "dev":
        dev = read_pictures(sources.manifest.path, "dev")
        drawn = random.Random(0).sample(dev, min(len(dev), calibration.FITTED_TO))
        predict(drawn, training, vocabulary, evaluation, machine, sources, out / FITTED_TO)
    judged = _add_confidence(out, training, evaluation.acceptable)
    scores = score(out / PREDICTIONS, pictures, trained_on, vocabulary, evaluation, evaluation.decoding())
    scores["confidence"] = judged
    write_scores(scores, out)
    counts: dict[str, int | float] = {"captions": scores["pictures"]}
    counts |= {name: round(value, 2) for name, value in scores["scores"].items()}
    notes = [f"the captions have no confidence: {judged}"] if isinstance(judged, str) else []
    # The confidence's figures differ by rounding from machine to machine: what it was fitted by stands for them.
    settings = [vars(evaluation.decoding()), evaluation.ensemble, evaluation.acceptable]
    products = {
        "scores": digest_of({name: value for name, value in scores.items() if name != "confidence"}),
        "decoding": digest_of(settings),
    }
    return Outcome(products, counts, notes)


def _add_confidence(out: Path, training: TrainingPictures, acceptable: float) -> JudgedConfidence | str:
    """Fit a confidence, write it to `out`, and add it to the rows of predictions.parquet.

    Return how well it tells acceptable captions from others, or why none can be fitted: see calibration.py.
    """
    paths = [path for path in (out / PREDICTIONS, out / FITTED_TO) if path.exists()]
    scored, *others = _Captions.read(paths, acceptable)
    if others:
        (dev,) = others
        folds = [(dev, np.ones(len(scored.flags), np.bool_))]
    else:
        dev = scored
        first = calibration.halves(scored.digests)
        folds = [(scored.select(~half), half) for half in (first, ~first)]
    whys = [why for part in (dev, *(part for part, _ in folds)) if (why := calibration.why_not(part.flags)) is not None]
    if whys:
        return whys[0]
    confidence = np.empty(len(scored.flags))
    for part, judged in folds:
        fitted = calibration.fit(training, part.features, part.flags)
        confidence[judged] = calibration.confidences(fitted, scored.features[judged])
    table = pq.read_table(out / PREDICTIONS)
    column = table.schema.get_field_index("confidence")
    pq.write_table(table.set_column(column, "confidence", pa.array(confidence)), out / PREDICTIONS)
    whole = calibration.fit(training, dev.features, dev.flags)
    whole.save(out)
    return calibration.judge(confidence, scored.log_probabilities, scored.flags, scored.definition)


@dataclass(frozen=True)
class _Captions:
    """Hold the captions of a predictions file.

    features (N, F). log_probabilities (N,). flags (N,): which are acceptable. definition: of that, in words.
    """

    digests: list[str]
    features: calibration.Values
    log_probabilities: calibration.Values
    flags: calibration.Flags
    definition: str

    @classmethod
    def read(cls, paths: list[Path], acceptable: float) -> list[_Captions]:
        """Return the captions of files. All are judged with the document frequencies of all."""
        corpora = [list(read_predictions(path).values()) for path in paths]
        together = [item for corpus in corpora for item in corpus]
        flags = np.split(calibration.is_acceptable(together, acceptable), np.cumsum([len(c) for c in corpora])[:-1])
        definition = calibration.describe_acceptable(together, acceptable)
        found = []
        for path, own in zip(paths, flags, strict=True):
            table = pq.read_table(path, columns=["digest", *FEATURES])
            features = np.stack([table[name].to_numpy() for name in FEATURES], axis=1)
            log_probabilities = features[:, FEATURES.index("log_probability")]
            found.append(cls(table["digest"].to_pylist(), features, log_probabilities, own, definition))
        return found

    def select(self, which: calibration.Flags) -> _Captions:
        digests = [digest for digest, is_one in zip(self.digests, which, strict=True) if is_one]
        return replace(
            self,
            digests=digests,
            features=self.features[which],
            log_probabilities=self.log_probabilities[which],
            flags=self.flags[which],
        )
