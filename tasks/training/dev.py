"""The dev pictures, on which each epoch of a training is validated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.decoders.base import Decoder
from models.decoders.ensemble import Ensemble, members_of
from models.options import Decoding
from models.torch_steps import decode
from models.vocabulary import END, Vocabulary
from tasks.config.machine import MachineConfig
from tasks.data.caption_files import CaptionedPicture, read_captions, read_vocabulary
from tasks.data.manifest import Picture
from tasks.grids.reader import GridReader
from tasks.metrics import ScoredCaption, measure
from tasks.metrics.ptb import tokenize
from tasks.pipeline import distributed as processes
from tasks.training.batches import Batch, decode_batch_size, grids_in_order, padded

DEV_SCORES = ("dev_bleu4", "dev_meteor", "dev_cider", "dev_mean", "dev_likelihood")
_ROWS = 160  # captions whose logits are computed at once: about 60 MB with a large vocabulary


class DevEvaluator(ABC):
    """The dev pictures. After each epoch, the model captions them, and predicts their own captions."""

    def __init__(self, pictures: list[Picture], captions: Path, machine: MachineConfig) -> None:
        """pictures: those with a grid. captions: the folder of the artifact of `tensorise`."""
        self.pictures, self.local_pictures = pictures, processes.share_of(pictures)
        self.machine = machine
        self._references = [[tokenize(text) for text in picture.captions] for picture in pictures]
        self._vocabulary: Vocabulary = read_vocabulary(captions)
        by_digest = {picture.digest: picture for picture in read_captions(captions, "dev")}
        self._local_captions = [by_digest[picture.digest] for picture in self.local_pictures]
        # A decoder that has learnt little yet never predicts END: limit captions to the length of people's longest.
        self._longest = max(int((picture.tokens > END).sum(axis=1).max()) for picture in by_digest.values())

    @abstractmethod
    def decoder_and_grids(self, model: nn.Module) -> tuple[Decoder | Ensemble, Iterator[Tensor]]:
        """Return the model's decoder, and an iterator over the grids of `local_pictures`, in order.

        The iterator gives a batch of grids (n, h, w, C) float32 at a time, on the model's device.
        """

    def scores(self, model: nn.Module) -> dict[str, float]:
        """Return the scores of all dev pictures.

        The first three of `DEV_SCORES` are of greedy captions, free-running; `dev_mean` is their mean. `dev_loss` is
        the cross-entropy of the pictures' own captions under teacher forcing, in nats per token, without penalties;
        `dev_perplexity` is its exponential, and `dev_likelihood` the inverse of that, in percent.
        """
        model.eval()
        local_captions: list[list[str]] = []
        loss = tokens = 0.0
        decoding = Decoding(beam=1, max_length=self._longest + 1)
        decoder, grids = self.decoder_and_grids(model)
        inference_decoder = decoder.for_inference()
        for grid in grids:
            captioned = self._local_captions[len(local_captions) :][: len(grid)]
            for (caption,) in decode(inference_decoder, grid, decoding):
                local_captions.append(tokenize(self._vocabulary.text(caption.tokens)))
            total, number = _forced(decoder, grid, captioned)
            loss, tokens = loss + total, tokens + number
        captions = processes.all_gather(local_captions, len(self.pictures))
        scored = [
            ScoredCaption(caption, references) for caption, references in zip(captions, self._references, strict=True)
        ]
        loss, tokens = processes.all_reduce_sum([loss, tokens])
        measured = {
            "dev_bleu4": measure("bleu", scored)["bleu4"],
            "dev_meteor": measure("meteor", scored)["meteor"],
            "dev_cider": measure("cider", scored)["cider"],
        }
        return {
            **measured,
            "dev_mean": sum(measured.values()) / len(measured),
            "dev_loss": loss / tokens,
            "dev_perplexity": math.exp(min(loss / tokens, 700.0)),  # floats overflow above
            "dev_likelihood": 100 * math.exp(-loss / tokens),
        }


@torch.no_grad()
def _forced(decoder: Decoder | Ensemble, grid: Tensor, captioned: Sequence[CaptionedPicture]) -> tuple[float, int]:
    """Return the cross-entropy of the pictures' captions, summed over their tokens, and the number of tokens.

    grid: (N, h, w, C). captioned: the N pictures.
    """
    total, number, first = torch.zeros((), device=grid.device), 0, 0
    while first < len(captioned):
        part = captioned[first : first + max(1, _ROWS // max(len(picture.tokens) for picture in captioned))]
        batch = Batch.of(
            grid[first : first + len(part)], torch.from_numpy(padded([picture.tokens for picture in part]))
        )
        words, token_indices, targets = (
            tensor.to(grid.device) for tensor in (batch.words, batch.token_indices, batch.next_words)
        )
        logits, _ = decoder(batch.pictures, words, token_indices)
        total += functional.cross_entropy(logits.float(), targets, reduction="sum")
        number += len(token_indices)
        first += len(part)
    return float(total), number


class GridDevEvaluator(DevEvaluator):
    """The dev pictures that have a cached grid, read from the cache."""

    def __init__(self, pictures: list[Picture], grids: GridReader, captions: Path, machine: MachineConfig) -> None:
        super().__init__([picture for picture in pictures if picture.digest in grids], captions, machine)
        self._grids = grids

    def decoder_and_grids(self, model: nn.Module) -> tuple[Decoder | Ensemble, Iterator[Tensor]]:
        assert isinstance(model, Decoder | Ensemble)
        device, digests = next(model.parameters()).device, [picture.digest for picture in self.local_pictures]
        size = decode_batch_size(self.machine, self._grids.shape, rows=1, members=len(members_of(model)))
        batches = grids_in_order(digests, self._grids, size)
        return model, (grid.to(device) for _, grid in batches)
