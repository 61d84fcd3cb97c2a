"""Fine-tuning: train the backbone's later blocks and the decoder together, from photographs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance
from torch import Tensor, nn

from models.backbones.base import Backbone
from models.backbones.encoder import Encoder
from models.captioner import save_tensors
from models.decoders.base import Decoder
from models.encoded_pictures import Pixels, decode, resize
from models.end_to_end import EndToEnd
from models.photographs import as_batch
from models.picture_formats import Interpolation
from models.vocabulary import Vocabulary
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.config.devices import device_of
from tasks.config.machine import MachineConfig
from tasks.config.stages import GridsConfig
from tasks.config.training import TuningConfig
from tasks.data.caption_files import CaptionedPicture, read_captions, read_vocabulary
from tasks.data.manifest import Picture, files_by_digest, read_pictures
from tasks.datasets.base import DatasetOptions
from tasks.grids.index import open_grids
from tasks.grids.photographs import decoders, read_photograph
from tasks.grids.weights import TUNED, load_backbone
from tasks.pipeline import distributed as processes
from tasks.pipeline.ledger import Artifact, Outcome
from tasks.training.batches import Batches
from tasks.training.best_weights import save_weights
from tasks.training.crops import mentions_side, random_crop
from tasks.training.dev import DevEvaluator
from tasks.training.fit_decoder import DecoderInputs
from tasks.training.loop import TrainingLoop, WeightGroup
from tasks.training.objectives import CrossEntropy
from tasks.training.outputs import LAST, WEIGHTS, decoder_digest, load_decoder, write_shape
from tasks.training.precision import precision_by_epoch, with_precision

_LEAST_KEPT = 0.85  # smallest share of a photograph's height and of its width that a random crop keeps


def fine_tune_backbone(
    grids: GridsConfig,
    tuning: TuningConfig,
    machine: MachineConfig,
    trained: Artifact,
    sources: DecoderInputs,
    data: DatasetOptions,
    out: Path,
) -> Outcome:
    """Fine-tune the backbone and the decoder together, and write the best backbone and the history to `out`.

    trained: the artifact of the stage that trained the decoder. data: the data set, which locates the photographs. The
    outcome's products are the digests of the backbone's and the decoder's weights. Raises AttendError if the block
    `tuning.first_block` cannot be tuned.
    """
    captions, manifest = sources.captions.path, sources.manifest.path
    tuning = with_precision(tuning, device_of(machine))
    frozen_grids = open_grids(sources.grids, machine)
    vocabulary = read_vocabulary(captions)
    files = files_by_digest(manifest, data)
    backbone = load_backbone(grids)
    decoder, shape = load_decoder(trained.path)
    assert isinstance(decoder, Decoder)  # a config with `tuning` has one member
    try:
        blocks = backbone.unfreeze(tuning.first_block, grids.image_size)
    except ValueError as error:
        raise AttendError(f"tuning.first_block: {grids.backbone} {error}") from None
    captioned = [picture for picture in read_captions(captions, "train") if picture.digest in frozen_grids]
    dev = [picture for picture in read_pictures(manifest, "dev") if picture.digest in frozen_grids]
    groups = [*backbone_groups(blocks, tuning), WeightGroup(tuning.learning_rate, decoder.parameters())]
    with decoders(machine) as pool:
        views = Views(grids, backbone.declared.interpolation, files, pool)
        batches = PhotographBatches(captioned, tuning, vocabulary, views)
        fit = TrainingLoop(
            EndToEnd(backbone, decoder), groups, tuning, machine, batches, out, CrossEntropy(tuning), "tune"
        )
        fit.run(PhotographDevEvaluator(dev, captions, machine, views))
    if processes.rank():
        return Outcome({})
    fit.write_history()
    best = fit.best()
    save_tensors(_of("backbone", best), out / TUNED)
    save_tensors(_of("decoder", best), out / WEIGHTS)
    save_weights(_of("decoder", fit.weights()), out / LAST)
    write_shape(shape, out)
    score = max(row[fit.selected] for row in fit.history)
    counts: dict[str, int | float] = {"epochs": len(fit.history), fit.selected: round(score, 3)}
    notes = [f"computed in {precision_by_epoch(fit.history)}"]
    frozen = trained.ledger.counts.get(fit.selected)
    if frozen is not None and counts[fit.selected] <= frozen:
        notes.append(
            f"no epoch is better on dev than the frozen backbone with its decoder ({fit.selected} {frozen:.2f}): lower "
            "tuning.backbone_learning_rate, or leave tuning out"
        )
    return Outcome({"backbone": digest_of_file(out / TUNED), "decoder": decoder_digest(out)}, counts, notes)


def backbone_groups(blocks: Sequence[Sequence[nn.Parameter]], tuning: TuningConfig) -> list[WeightGroup]:
    """Return the weights of the backbone's blocks, with their learning rates; the first block comes first.

    The last block has `backbone_learning_rate`, and each earlier one `layer_decay` times the rate of the next: the
    early layers of a ViT need to change least (Bao et al. 2022, "BEiT", appendix).
    """
    if tuning.layer_decay == 1.0:
        return [WeightGroup(tuning.backbone_learning_rate, [weight for block in blocks for weight in block])]
    rates = [tuning.backbone_learning_rate * tuning.layer_decay**depth for depth in range(len(blocks))]
    return [WeightGroup(rate, block) for rate, block in zip(reversed(rates), blocks, strict=True) if block]


def _of(part: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the `backbone` or the `decoder`, without that prefix in their names."""
    return {name.removeprefix(f"{part}."): value for name, value in weights.items() if name.startswith(f"{part}.")}


class Views:
    """Photographs as uint8 tensors (N, 3, S, S), decoded by a pool of threads: whole, or cropped and mirrored."""

    def __init__(
        self, grids: GridsConfig, interpolation: Interpolation, files: dict[str, Path], pool: ThreadPoolExecutor
    ) -> None:
        self._files, self._pool, self.precision = files, pool, grids.precision
        self._resize = partial(resize, size=grids.image_size, fit=grids.fit, interpolation=interpolation)

    def whole(self, digests: Sequence[str]) -> Tensor:
        """Return whole photographs, preprocessed as in the stage `extract`."""
        return as_batch(list(self._pool.map(lambda digest: self._resize(self._decode(digest)), digests)))

    def varied(
        self,
        digests: Sequence[str],
        seeds: Sequence[str],
        crop: float,
        mirrored: Sequence[bool],
        jitter: float | None = None,
    ) -> Tensor:
        """Return photographs cropped at random to at least `crop` of each side, and mirrored with probability 1/2.

        Only photographs whose `mirrored` is true may be mirrored. jitter: see `jittered`; None for none. The result is
        a function of the photograph and its seed.
        """

        def view(digest: str, seed: str, may_mirror: bool) -> Pixels:
            generator = random.Random(seed)
            pixels = self._resize(random_crop(self._decode(digest), generator, crop))
            pixels = pixels[:, ::-1] if generator.random() < 0.5 and may_mirror else pixels
            return pixels if jitter is None else jittered(pixels, generator, jitter)

        return as_batch(list(self._pool.map(view, digests, seeds, mirrored)))

    def _decode(self, digest: str) -> Pixels:
        """Return the photograph's pixels, uint8 (H, W, 3); raise AttendError if it cannot be read or decoded."""
        path = self._files[digest]
        data = read_photograph(digest, path)
        try:
            return decode(data)
        except ValueError as error:
            raise AttendError(f"{path}: {error}") from None


def jittered(pixels: Pixels, generator: random.Random, share: float) -> Pixels:
    """Return a photograph, uint8 (H, W, 3), with another brightness, contrast and saturation.

    Each is multiplied by a factor from 1 - share to 1 + share. Hues do not change, because captions name colours.
    """
    image = Image.fromarray(pixels)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhance(image).enhance(generator.uniform(1 - share, 1 + share))
    return np.asarray(image)


class PhotographBatches(Batches):
    """Batches of photographs of the train split, cropped and mirrored at random."""

    def __init__(
        self, pictures: Sequence[CaptionedPicture], tuning: TuningConfig, vocabulary: Vocabulary, views: Views
    ) -> None:
        super().__init__(pictures, tuning.batch_pictures, tuning.seed)
        self._tuning, self._views = tuning, views
        self._may_mirror = {picture.digest: not mentions_side(picture, vocabulary) for picture in pictures}

    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        digests = [picture.digest for picture in captioned]
        seeds = [f"{self.seed} {epoch} {digest}" for digest in digests]
        mirrored = [self._may_mirror[digest] for digest in digests]
        return self._views.varied(digests, seeds, _LEAST_KEPT, mirrored, self._tuning.jitter)


class PhotographDevEvaluator(DevEvaluator):
    """The dev pictures, encoded by the backbone in its current state."""

    def __init__(self, pictures: list[Picture], captions: Path, machine: MachineConfig, views: Views) -> None:
        super().__init__(pictures, captions, machine)
        self._views = views

    def decoder_and_grids(self, model: nn.Module) -> tuple[Decoder, Iterator[Tensor]]:
        assert isinstance(model, EndToEnd)
        return model.decoder, self._grids(model.backbone)

    def _grids(self, backbone: Backbone) -> Iterator[Tensor]:
        """Yield the grids of this process's pictures, (n, h, w, C) float32, in order, a batch at a time."""
        digests, size = [picture.digest for picture in self.local_pictures], self.machine.extract_batch
        encoder = Encoder(backbone, self._views.precision, next(backbone.parameters()).device)
        for start in range(0, len(digests), size):
            pixels = self._views.whole(digests[start : start + size])
            yield encoder(pixels).float()
