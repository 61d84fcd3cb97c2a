"""Stage `self_critical`: train the trained decoder further, with the CIDEr-D of sampled captions as the reward.

In: the inputs of `train`, that stage's decoder, and the n-grams' document frequencies. Out: the same files as for
`train`, with the mean reward in the history. A killed run resumes as for `train`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tasks.common.section import Section
from tasks.config.training import SelfCriticalConfig
from tasks.pipeline.ledger import Outcome
from tasks.pipeline.stage import Product, Work
from tasks.training.train import DecoderHooks, DecoderStage


@dataclass(frozen=True, eq=False, kw_only=True)
class SelfCritical(DecoderStage):
    """The stage `self_critical`: a decoder -> one trained further with rewards (only if `self_critical` is set)."""

    kind: ClassVar[str] = "self_critical"
    version: ClassVar[int] = 3
    memory_setting: ClassVar[str] = "self_critical.batch_pictures (machine.accumulate trains a batch in parts)"

    self_critical: SelfCriticalConfig
    trained: DecoderStage  # the stage that trains the initial decoder

    def sections(self) -> dict[str, Section]:
        return {"self_critical": self.self_critical}

    def needs(self) -> tuple[Product, ...]:
        return (*self.fitted_to(), self.captions.frequencies, self.trained.weights)

    def run(self, work: Work, hooks: DecoderHooks | None = None) -> Outcome:
        from tasks.training.reinforce_decoder import reinforce_decoder

        return reinforce_decoder(
            self.self_critical,
            self.machine,
            work.artifacts[self.trained],
            self.sources(work),
            work.out,
            (hooks or DecoderHooks()).epoch_done,
        )
