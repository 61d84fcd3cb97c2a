"""Stage `train`: grids and captions -> a decoder's weights, fitted by teacher forcing.

In: the grids of the train and dev splits, the token ids of the train split, dev's captions. Out: weights.safetensors
(best on dev), last.safetensors, decoder.json, and history.parquet with one row per epoch; epoch 0 is the captioner that
training starts from, if there is one. A killed run resumes from its last checkpoint (see loop.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tasks.common.log import log
from tasks.common.section import Section
from tasks.config.decoder import DecoderConfig
from tasks.config.presets import CHAMPION
from tasks.config.starting_point import StartingPoint
from tasks.config.training import TrainingConfig
from tasks.data.tensorise import Tensorise
from tasks.grids.extract import Extract
from tasks.pipeline.ledger import Outcome
from tasks.pipeline.stage import Product, Stage, Work

if TYPE_CHECKING:
    from tasks.training.fit_decoder import DecoderInputs

_NO_CHAMPION = (
    "training.start_from: the model has no champion that can be read here, so training starts from the beginning: "
    "`attend models list` shows its versions, and `attend models promote VERSION --force` makes one champion"
)


@dataclass(frozen=True)
class DecoderHooks:
    """The callbacks of a stage that trains a decoder.

    epoch_done: called with each new row of the training history, and with the file of its epoch's weights if they are
    the best so far; a resumed stage calls it for earlier rows too. champion: returns the folder of the champion's
    bundle for torch; None if the model has no champion yet.
    """

    epoch_done: Callable[[dict[str, float], Path | None], None] = lambda _row, _weights: None
    champion: Callable[[], Path | None] = lambda: None


@dataclass(frozen=True, eq=False, kw_only=True)
class DecoderStage(Stage):
    """A stage that trains a decoder on cached grids, and keeps the weights with the best free-running dev scores."""

    resumable: ClassVar[bool] = True
    distributed: ClassVar[bool] = True
    memory_setting: ClassVar[str] = "training.batch_pictures (machine.accumulate trains a batch in parts)"

    decoder: DecoderConfig
    grids: Extract
    captions: Tensorise

    @property
    def weights(self) -> Product:
        """Return the product `weights`: the best weights and the decoder's shape."""
        return Product(self, "weights")

    def sources(self, work: Work) -> DecoderInputs:
        """Return the artifacts on which the decoder is trained and validated."""
        from tasks.training.fit_decoder import DecoderInputs

        manifest, captions = work.artifacts[self.captions.manifest], work.artifacts[self.captions]
        return DecoderInputs(manifest, captions, work.artifacts[self.grids])

    def fitted_to(self) -> tuple[Product, ...]:
        """Return the products on which every such stage trains and validates."""
        return (
            self.grids.identity,
            self.grids.failed("train", "dev"),
            self.captions.vocabulary,
            self.captions.train,
            self.captions.manifest.split("dev"),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Train(DecoderStage):
    """The stage `train`: grids and captions -> a decoder's weights, with each epoch logged to MLflow."""

    kind: ClassVar[str] = "train"
    version: ClassVar[int] = 4

    training: TrainingConfig
    start: StartingPoint | None = None

    def sections(self) -> dict[str, Section]:
        return {"decoder": self.decoder, "training": self.training}

    def needs(self) -> tuple[Product, ...]:
        return self.fitted_to()

    def inputs(self) -> dict[str, str]:
        return {} if self.start is None else {"start_from": self.start.digest}

    def run(self, work: Work, hooks: DecoderHooks | None = None) -> Outcome:
        from tasks.training.fit_decoder import Start, fit_decoder
        from tasks.training.warm_start import check_backbone

        hooks, sources, start, notes = hooks or DecoderHooks(), self.sources(work), None, []
        if self.start is not None:
            start = Start(self.start.folder, self.start.address)
        elif self.training.start_from == CHAMPION:
            champion = hooks.champion()
            if champion is not None:
                start = Start(champion, "the champion")
            else:
                notes = [_NO_CHAMPION]
                log.warning(_NO_CHAMPION)
        if start is not None:
            check_backbone(start.folder, self.grids.grids, start.name)
        outcome = fit_decoder(self.decoder, self.training, self.machine, sources, work.out, hooks.epoch_done, start)
        return replace(outcome, notes=[*notes, *outcome.notes])
