"""Laws of the decoders: step = forward, alphas are a distribution over the grid, NULL changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.attention import AdditiveAttention, ScaledDotAttention
from models.decoders import DECODERS
from models.decoders.base import Decoder, make
from models.search import greedy
from models.vocabulary import END, NULL, START
from tasks.training import attention_penalty

CHANNELS, VOCABULARY = 6, 12
VARIANTS = [(name, deep) for name in DECODERS for deep in (False, True)]


def decoder_of(name: str, deep: bool = False, **options: object) -> Decoder:
    torch.manual_seed(3)
    sizes = {"embedding": 5, "hidden": 8, "dropout_words": 0.0, "dropout_output": 0.0, "deep_output": deep}
    return make(name, CHANNELS, VOCABULARY, {**sizes, **options}).eval()


def captions(*rows: list[int]) -> Tensor:
    length = max(map(len, rows))
    return torch.tensor([[*row, *[NULL] * (length - len(row))] for row in rows])


def example() -> tuple[Tensor, Tensor]:
    """Two pictures of three captions of different lengths, one of them a row of padding."""
    torch.manual_seed(5)
    grid = torch.randn(2, 2, 3, CHANNELS)
    first = captions([START, 4, 5, 6, END], [START, 7, END], [START, 5, 5, 8, END])
    second = captions([START, 9, 4, 7, END], [START, 10, 11, 4, END], [])
    return grid, torch.stack([first, second])


@pytest.mark.parametrize(("name", "deep"), VARIANTS)
def test_step_is_forward(name: str, deep: bool) -> None:
    decoder = decoder_of(name, deep)
    grid, tokens = example()
    words = tokens[:, :, :-1]
    everywhere = torch.ones_like(words, dtype=torch.bool)
    logits, alphas = decoder(grid, words, everywhere)
    logits = logits.view(*words.shape, VOCABULARY)
    state = decoder.start(grid).expand(words.shape[1])
    for time in range(words.shape[2]):
        stepped, state = decoder.step(state, words[:, :, time])
        torch.testing.assert_close(stepped, logits[:, :, time], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(state.alphas, alphas[:, :, time], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "deep"), VARIANTS)
def test_rows_of_a_picture_are_independent(name: str, deep: bool) -> None:
    decoder = decoder_of(name, deep)
    grid, tokens = example()
    valid = tokens[:, :, 1:] != NULL
    together, _ = decoder(grid, tokens[:, :, :-1], valid)
    alone = [
        decoder(grid[n : n + 1], tokens[n : n + 1, r : r + 1, :-1], valid[n : n + 1, r : r + 1])[0]
        for n in range(2)
        for r in range(3)
    ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_alphas_sum_to_one_over_the_grid(name: str) -> None:
    decoder = decoder_of(name)
    grid, tokens = example()
    _, alphas = decoder(grid, tokens[:, :, :-1], tokens[:, :, 1:] != NULL)
    assert alphas.shape == (2, 3, 4, 6)
    torch.testing.assert_close(alphas.sum(dim=-1), torch.ones(2, 3, 4))
    # Over any other axis they do not, so a softmax over the wrong one fails here.
    for axis in (0, 1, 2):
        assert (alphas.sum(dim=axis) - 1).abs().min() > 0.05
    assert (alphas >= 0).all()


@pytest.mark.parametrize("kind", ["additive", "scaled dot"])
def test_attention_weighs_positions(kind: str) -> None:
    """The context is the alphas' mean of the annotation vectors of the same picture: computed here by loops."""
    torch.manual_seed(0)
    annotations, hidden = torch.randn(2, 5, 4), torch.randn(2, 3, 4)
    if kind == "additive":
        additive = AdditiveAttention(4, 4, 7)
        context, alphas = additive(annotations, additive.keys(annotations), hidden)
    else:
        context, alphas = ScaledDotAttention()(annotations, hidden)
    for n in range(2):
        for r in range(3):
            if kind == "additive":
                scores = [
                    additive.score(torch.tanh(additive.key(annotations[n, p]) + additive.query(hidden[n, r])))[0]
                    for p in range(5)
                ]
            else:
                scores = [annotations[n, p] @ hidden[n, r] / 2.0 for p in range(5)]
            weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
            torch.testing.assert_close(alphas[n, r], weights)
            torch.testing.assert_close(context[n, r], (weights.unsqueeze(-1) * annotations[n]).sum(0))


@pytest.mark.parametrize("name", DECODERS)
def test_null_positions_change_nothing(name: str) -> None:
    decoder = decoder_of(name)
    grid, tokens = example()
    longer = functional.pad(tokens, (0, 4), value=NULL)
    results = []
    for ids in (tokens, longer):
        decoder.zero_grad()
        valid = ids[:, :, 1:] != NULL
        logits, alphas = decoder(grid, ids[:, :, :-1], valid)
        loss = functional.cross_entropy(logits, ids[:, :, 1:][valid]) + attention_penalty(alphas, valid)
        loss.backward()
        results.append([loss.detach(), *[p.grad.clone() for p in decoder.parameters() if p.grad is not None]])
    for short, padded in zip(*results, strict=True):
        torch.testing.assert_close(short, padded)


@pytest.mark.parametrize("name", DECODERS)
def test_overfits_eight_captions_exactly(name: str) -> None:
    torch.manual_seed(1)
    decoder = make(name, 16, 20, {"embedding": 16, "hidden": 32, "dropout_output": 0.0})
    grid = torch.randn(8, 2, 2, 16)
    texts = [[START, *torch.randint(4, 20, (3 + n % 4,)).tolist(), END] for n in range(8)]
    tokens = captions(*texts).unsqueeze(1)
    valid = tokens[:, :, 1:] != NULL
    optimiser = torch.optim.Adam(decoder.parameters(), 0.01)
    for _ in range(250):
        logits, _ = decoder(grid, tokens[:, :, :-1], valid)
        loss = functional.cross_entropy(logits, tokens[:, :, 1:][valid])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = [caption.tokens for caption in greedy(decoder.eval(), grid)]
    assert found == [text[1:-1] for text in texts]


@pytest.mark.parametrize("name", DECODERS)
def test_the_grid_matters(name: str) -> None:
    """A decoder that ignored its picture would pass most laws above."""
    decoder = decoder_of(name)
    grid, tokens = example()
    valid = tokens[:, :, 1:] != NULL
    first, _ = decoder(grid, tokens[:, :, :-1], valid)
    other, _ = decoder(grid.flip(0), tokens[:, :, :-1], valid)
    assert not torch.allclose(first, other)


def test_attention_penalty_is_equation_14() -> None:
    alphas = torch.tensor([[[[0.5, 0.5], [1.0, 0.0], [0.3, 0.7]]]])
    valid = torch.tensor([[[True, True, False]]])
    # Attended: 1.5 and 0.5; (1 - 1.5)^2 = (1 - 0.5)^2 = 0.25.
    assert attention_penalty(alphas, valid).item() == pytest.approx(0.25)
