"""Show, Attend and Tell with stochastic ('hard') attention (Xu et al. 2015, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from ..options import ShowAttendTellOptions
from .recurrent import LSTMState
from .show_attend_tell import ShowAttendTell


@dataclass(frozen=True)
class HardState(LSTMState):
    """The state of hard attention.

    log_drawn (N, R, 1): log-probability of the position drawn at the last step; 0 if none was drawn. soft (N, R, 1)
    bool: whether the context is the expected one instead of a drawn one; the same for all rows of a picture.
    """

    log_drawn: Tensor
    soft: Tensor


class HardAttention(ShowAttendTell):
    """A decoder that attends to one position per word: drawn from the alphas in training, else the likeliest one.

    The alphas are trained by REINFORCE with the caption's log-likelihood as the reward (equations 11 and 12), a moving
    average of it as the baseline (section 4.1), and the alphas' entropy; for a share of the pictures, half of them in
    the paper, the position drawn is replaced by its expected value, which gives the soft context.

    reinforce, entropy: lambda_r and lambda_e of equation 12. baseline_decay: decay of the moving average of rewards.
    expected_share: probability that the soft context replaces a drawn one.
    """

    reinforce, entropy, baseline_decay, expected_share = 1.0, 0.002, 0.9, 0.5

    def __init__(self, channels: int, vocabulary: int, options: ShowAttendTellOptions) -> None:
        """Create the layers; channels: C of the grid. vocabulary: V."""
        super().__init__(channels, vocabulary, options)
        self.baseline: Tensor
        self.register_buffer("baseline", torch.zeros(()))

    def init_state(self, annotations: Tensor, pool: Tensor | None) -> LSTMState:
        state = super().init_state(annotations, pool)
        zeros = torch.zeros_like(state.hidden[..., :1])
        soft = torch.rand_like(zeros) < self.expected_share if self.training else zeros.bool()
        return HardState(**vars(state), log_drawn=zeros, soft=soft)

    def attend(self, state: LSTMState, queries: Mapping[str, Tensor]) -> LSTMState:
        assert isinstance(state, HardState)
        query = queries.get("query", state.hidden)
        expected, alphas = self.attention(state.annotations, state.keys, query, state.pool)
        position = self._draw(alphas) if self.training else alphas.argmax(dim=-1, keepdim=True)
        if state.pool is None:
            drawn = state.annotations.gather(1, position.expand(-1, -1, state.annotations.shape[-1]))
        else:
            drawn = state.pool[position.squeeze(-1)].to(state.annotations.dtype) @ state.annotations
        context = torch.where(state.soft, expected, drawn)
        log_drawn = alphas.gather(-1, position).clamp_min(1e-20).log().masked_fill(state.soft, 0.0)
        return replace(state, context=self.gated(context, queries), alphas=alphas, log_drawn=log_drawn)

    @staticmethod
    @torch.no_grad()
    def _draw(alphas: Tensor) -> Tensor:
        """Return a position drawn from each of alphas (N, R, P), (N, R, 1)."""
        drawn: Tensor = torch.multinomial(alphas.flatten(0, 1), 1).unflatten(0, alphas.shape[:2])
        return drawn

    def penalty(self, states: LSTMState, logits: Tensor, targets: Tensor, token_indices: Tensor) -> Tensor:
        """Return the REINFORCE and entropy terms of equation 12, negated to be minimised, per token."""
        assert isinstance(states, HardState)
        log_likelihood = -functional.cross_entropy(logits.detach().float(), targets, reduction="none")
        by_token = torch.zeros_like(states.log_drawn).flatten()
        valid = by_token.bool().index_fill(0, token_indices, True).view(states.alphas.shape[:3])
        reward = by_token.index_copy(0, token_indices, log_likelihood).view(valid.shape).sum(dim=2)  # (N, R)
        has_caption = valid.any(dim=2)
        advantage = (reward - self.baseline).masked_fill(~has_caption, 0.0)
        log_drawn = states.log_drawn.squeeze(-1).masked_fill(~valid, 0.0).sum(dim=2)
        entropy = torch.special.entr(states.alphas.clamp_min(1e-20)).sum(dim=-1).masked_fill(~valid, 0.0)
        if self.training:
            mean_reward = reward.masked_fill(~has_caption, 0.0).sum() / has_caption.sum()
            self.baseline.lerp_(mean_reward, 1 - self.baseline_decay)
        objective = self.reinforce * (advantage * log_drawn).sum() + self.entropy * entropy.sum()
        loss: Tensor = -objective / valid.sum()
        return loss
