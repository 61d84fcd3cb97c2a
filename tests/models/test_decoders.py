"""Laws of the decoders: step = forward, alphas are a distribution over the grid, NULL changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.attention import make_attention
from models.decoders import DECODERS
from models.decoders.base import Decoder, make, valid_indices
from models.decoders.transformer import plain_attention
from models.options import Decoding
from models.torch_steps import decode
from models.vocabulary import END, NULL, START
from tasks.config.devices import prepare_compiler
from tasks.training.objectives import attention_penalty
from tests.decoding import (
    ATTENDING,
    CHANNELS,
    HIDDEN,
    LOOKING,
    RECURRENT,
    SMALL,
    VOCABULARY,
    captions,
    decoder_of,
    example,
)

# Every decoder, then every option across the decoders it stands on.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in DECODERS),
    *((name, {"output": "deep"}) for name in RECURRENT),
    *((name, {"output": "mlp", "output_size": 7}) for name in RECURRENT),
    *((name, {"first_state": "zeros", "pca_dim": 4}) for name in LOOKING),
    *((name, {"attention_grid": 4}) for name in LOOKING),
    ("transformer", {"encoder_layers": 0, "layers": 1, "pca_dim": 4}),
    ("transformer", {"embedding": HIDDEN, "tie_weights": True}),
    ("attention_lstm", {"attention": "additive", "attention_size": 4}),
    ("attention_lstm", {"attention": "dot"}),
    ("show_attend_tell", {"attention": "general", "gate": False}),
    ("show_attend_tell", {"attention": "scaled_general"}),
    ("show_attend_tell", {"attention": "scaled_dot", "hidden": CHANNELS}),
    ("show_attend_tell", {"output": "deep", "tie_weights": True}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_step_is_forward(name: str, options: dict[str, Any]) -> None:
    decoder = decoder_of(name, options)
    grid, tokens = example()
    words = tokens[:, :, :-1]
    everywhere = torch.arange(words.numel())
    logits, read = decoder(grid, words, everywhere)
    logits = logits.view(*words.shape, VOCABULARY)
    state = decoder.start(grid).expand(words.shape[1])
    for time in range(words.shape[2]):
        stepped, state = decoder.step(state, words[:, :, time])
        torch.testing.assert_close(stepped, logits[:, :, time], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(state.alphas, read.alphas[:, :, time], atol=1e-5, rtol=1e-5)


def gradients(decoder: Decoder, logits: Tensor, alphas: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Of a loss over logits (M, V) of the valid places and alphas (N, R, T, P)."""
    targets, valid = tokens[:, :, 1:], tokens[:, :, 1:] != NULL
    decoder.zero_grad()
    loss = functional.cross_entropy(logits, targets[valid]) + (alphas[valid] ** 2).sum()
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in decoder.named_parameters() if weight.grad is not None}
    return {"loss": loss.detach(), **found}


def by_steps(decoder: Decoder, grid: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, R, T, V) and alphas (N, R, T, P) as `step` gives them, word after word."""
    state = decoder.start(grid).expand(words.shape[1])
    logits, alphas = [], []
    for time in range(words.shape[2]):
        stepped, state = decoder.step(state, words[:, :, time])
        logits.append(stepped)
        alphas.append(state.alphas)
    return torch.stack(logits, dim=2), torch.stack(alphas, dim=2)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_gradients_are_those_of_the_steps(name: str, options: dict[str, Any]) -> None:
    """`forward` is arranged for speed: its loss and gradients are those of `step`."""
    decoder = decoder_of(name, options)
    grid, tokens = example()
    words, valid = tokens[:, :, :-1], tokens[:, :, 1:] != NULL
    logits, read = decoder(grid, words, valid_indices(valid))
    fast = gradients(decoder, logits, read.alphas, tokens)
    stepped, alphas = by_steps(decoder, grid, words)
    plain = gradients(decoder, stepped[valid], alphas, tokens)
    assert fast.keys() == plain.keys() and len(fast) > 5
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_speaking_takes_the_decoders_steps(name: str, options: dict[str, Any]) -> None:
    decoder = decoder_of(name, options).eval()
    grid, tokens = example()
    speaking = decoder.for_inference()
    states = [each.start(grid).expand(tokens.shape[1]) for each in (decoder, speaking)]
    for time in range(tokens.shape[2] - 1):
        with torch.no_grad():
            true, states[0] = decoder.step(states[0], tokens[:, :, time])
        logits, states[1] = speaking.step(states[1], tokens[:, :, time])
        torch.testing.assert_close(logits, true, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(states[1].alphas, states[0].alphas, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOOKING)
@pytest.mark.parametrize("attention", ["additive", "scaled_dot", "general"])
def test_a_grid_presented_larger_is_the_pooled_grid(name: str, attention: str) -> None:
    """Kept 3x3 and presented 4x4: loss, gradients and alphas of the grid that was pooled to 4x4 and kept so."""
    options = {"attention": attention, "hidden": CHANNELS}
    tokens = example()[1]
    words, valid = tokens[:, :, :-1], tokens[:, :, 1:] != NULL
    grid = torch.randn(2, 3, 3, CHANNELS)
    stored = functional.adaptive_avg_pool2d(grid.permute(0, 3, 1, 2), 4).permute(0, 2, 3, 1)
    found = []
    for presented, kept in ((4, grid), (None, stored)):
        decoder = decoder_of(name, options | {"attention_grid": presented})
        logits, read = decoder(kept, words, valid_indices(valid))
        assert read.alphas.shape[-1] == 16
        found.append({"alphas": read.alphas.detach(), **gradients(decoder, logits, read.alphas, tokens)})
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["show_attend_tell", "hard_attention", "up_down", "transformer"])
def test_a_compiled_step_is_the_step(name: str) -> None:
    decoder = decoder_of(name)
    grid, tokens = example()
    words, valid = tokens[:, :, :-1], tokens[:, :, 1:] != NULL
    logits, read = decoder(grid, words, valid_indices(valid))
    plain = gradients(decoder, logits, read.alphas, tokens)
    prepare_compiler()
    decoder.compile_step(2, 3)
    logits, read = decoder(grid, words, valid_indices(valid))
    torch.testing.assert_close(gradients(decoder, logits, read.alphas, tokens), plain, rtol=1e-4, atol=1e-6)
    # A batch of another shape is not compiled anew, and is right too.
    alone, _ = decoder(grid[:1], words[:1], valid_indices(valid[:1]))
    torch.testing.assert_close(alone, logits[: len(alone)], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_rows_of_a_picture_are_independent(name: str, options: dict[str, Any]) -> None:
    decoder = decoder_of(name, options)
    grid, tokens = example()
    valid = tokens[:, :, 1:] != NULL
    together, _ = decoder(grid, tokens[:, :, :-1], valid_indices(valid))
    alone = [
        decoder(grid[n : n + 1], tokens[n : n + 1, r : r + 1, :-1], valid_indices(valid[n : n + 1, r : r + 1]))[0]
        for n in range(2)
        for r in range(3)
    ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ATTENDING)
def test_alphas_sum_to_one_over_the_grid(name: str) -> None:
    decoder = decoder_of(name)
    grid, tokens = example()
    valid = tokens[:, :, 1:] != NULL
    _, read = decoder(grid, tokens[:, :, :-1], valid_indices(valid))
    assert read.alphas.shape == (2, 3, 4, 6)
    sums = read.alphas.sum(dim=-1)
    torch.testing.assert_close(sums[valid], torch.ones_like(sums[valid]))
    # Over any other axis they do not, so a softmax over the wrong one fails here.
    for axis in (0, 1, 2):
        assert (read.alphas.sum(dim=axis) - 1).abs().min() > 0.05
    assert (read.alphas >= 0).all()


@pytest.mark.parametrize("kind", ["additive", "dot", "scaled_dot", "general", "scaled_general"])
def test_attention_weighs_positions(kind: Any) -> None:
    """The context is the alphas' mean of the annotation vectors of the same picture: computed here by loops."""
    torch.manual_seed(0)
    annotations, hidden = torch.randn(2, 5, 4), torch.randn(2, 3, 4)
    attention: Any = make_attention(kind, 4, 4, 7)
    query = hidden if attention.query is None else attention.query(hidden)
    context, alphas = attention(annotations, attention.keys(annotations), query)
    for n in range(2):
        for r in range(3):
            scores = []
            for p in range(5):
                a, h = annotations[n, p], hidden[n, r]
                if kind == "additive":
                    mixed = attention.key.weight @ a + attention.key.bias + attention.query.weight @ h
                    scores.append(attention.score.weight[0] @ torch.tanh(mixed))
                    continue
                key = attention.key.weight @ a + attention.key.bias if "general" in kind else a
                scores.append(h @ key / (2.0 if "scaled" in kind else 1.0))
            weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
            torch.testing.assert_close(alphas[n, r], weights)
            torch.testing.assert_close(context[n, r], (weights.unsqueeze(-1) * annotations[n]).sum(0))


@pytest.mark.parametrize("causal", [False, True])
def test_plain_attention_is_torchs(causal: bool) -> None:
    torch.manual_seed(3)
    queries, keys, values = (torch.randn(2, 4, words, 8) for words in (5, 6, 6))
    torch.testing.assert_close(
        plain_attention(queries, keys, values, is_causal=causal),
        functional.scaled_dot_product_attention(queries, keys, values, is_causal=causal),
    )


def test_keys_are_made_once_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOOKING:
        decoder = decoder_of(name)
        calls: list[int] = []
        attention: Any = decoder.attention
        made = attention.keys
        monkeypatch.setattr(attention, "keys", lambda a, made=made, calls=calls: (calls.append(1), made(a))[1])
        grid, tokens = example()
        decoder(grid, tokens[:, :, :-1], valid_indices(tokens[:, :, 1:] != NULL))
        assert calls == [1]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("show_attend_tell", {"attention": "dot"}, "set decoder.hidden=6, or decoder.attention=general"),
        ("lstm", {"tie_weights": True}, "set decoder.embedding=8"),
        ("show_attend_tell", {"pca_dim": 7}, "a grid of 6 channels cannot be reduced to 7"),
    ],
)
def test_sizes_that_clash_are_reported(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        decoder_of(name, options)


@pytest.mark.parametrize("name", DECODERS)
def test_null_positions_change_nothing(name: str) -> None:
    decoder = decoder_of(name)
    grid, tokens = example()
    longer = functional.pad(tokens, (0, 4), value=NULL)
    results = []
    for ids in (tokens, longer):
        decoder.zero_grad()
        valid = ids[:, :, 1:] != NULL
        targets = ids[:, :, 1:][valid]
        logits, read = decoder(grid, ids[:, :, :-1], valid_indices(valid))
        loss = functional.cross_entropy(logits, targets)
        if decoder.attends:
            loss = loss + attention_penalty(read.alphas, valid)
        own = decoder.penalty(read, logits, targets, valid_indices(valid))
        loss = loss if own is None else loss + own
        loss.backward()
        results.append([loss.detach(), *[p.grad.clone() for p in decoder.parameters() if p.grad is not None]])
    for short, padded in zip(*results, strict=True):
        torch.testing.assert_close(short, padded)


OVERFITTED: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in DECODERS),
    ("lstm", {"output": "mlp"}),
]


@pytest.mark.parametrize(("name", "options"), OVERFITTED)
def test_overfits_eight_captions_exactly(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    decoder = make(
        name, 16, 20, {"embedding": 16, "hidden": 32, "dropout_output": 0.0, **SMALL.get(name, {}), **options}
    )
    grid = torch.randn(8, 2, 2, 16)
    texts = [[START, *torch.randint(4, 20, (3 + n % 4,)).tolist(), END] for n in range(8)]
    tokens = captions(*texts).unsqueeze(1)
    valid = tokens[:, :, 1:] != NULL
    targets = tokens[:, :, 1:][valid]
    optimiser = torch.optim.Adam(decoder.parameters(), 0.02)
    for _ in range(160):
        logits, read = decoder(grid, tokens[:, :, :-1], valid_indices(valid))
        loss = functional.cross_entropy(logits, targets)
        own = decoder.penalty(read, logits, targets, valid_indices(valid))
        optimiser.zero_grad()
        (loss if own is None else loss + own).backward()
        optimiser.step()
    found = [caption.tokens for (caption,) in decode(decoder.eval(), grid, Decoding(beam=1))]
    assert found == [text[1:-1] for text in texts]


@pytest.mark.parametrize("name", DECODERS)
def test_the_grid_matters(name: str) -> None:
    """A decoder that ignored its picture would pass most laws above."""
    decoder = decoder_of(name)
    grid, tokens = example()
    valid = tokens[:, :, 1:] != NULL
    first, _ = decoder(grid, tokens[:, :, :-1], valid_indices(valid))
    other, _ = decoder(grid.flip(0), tokens[:, :, :-1], valid_indices(valid))
    assert not torch.allclose(first, other)


def test_the_basis_loses_least_of_the_annotation_vectors() -> None:
    torch.manual_seed(2)
    vectors = torch.randn(200, 3, dtype=torch.float64) @ torch.randn(3, CHANNELS, dtype=torch.float64)
    vectors += 0.01 * torch.randn(200, CHANNELS, dtype=torch.float64)
    decoder = decoder_of("show_attend_tell", {"pca_dim": 3})
    decoder.fit_basis(vectors.T @ vectors)
    assert decoder.basis is not None
    basis = decoder.basis.double()
    torch.testing.assert_close(basis @ basis.T, torch.eye(3, dtype=torch.float64), atol=1e-6, rtol=0)
    lost = float(((vectors - vectors @ basis.T @ basis) ** 2).sum())
    singular = torch.linalg.svdvals(vectors)
    assert lost == pytest.approx(float((singular[3:] ** 2).sum()), rel=1e-4)


def test_attention_penalty_is_equation_14() -> None:
    alphas = torch.tensor([[[[0.5, 0.5], [1.0, 0.0], [0.3, 0.7]]]])
    valid = torch.tensor([[[True, True, False]]])
    # Attended: 1.5 and 0.5; (1 - 1.5)^2 = (1 - 0.5)^2 = 0.25.
    assert attention_penalty(alphas, valid).item() == pytest.approx(0.25)


def test_hard_attention_looks_at_one_place() -> None:
    decoder: Any = decoder_of("hard_attention", {"gate": False})
    grid, tokens = example()
    annotations = grid.flatten(1, 2)
    valid = tokens[:, :, 1:] != NULL
    _, read = decoder(grid, tokens[:, :, :-1], valid_indices(valid))
    for n, r, t in valid.nonzero().tolist():
        torch.testing.assert_close(read.context[n, r, t], annotations[n, read.alphas[n, r, t].argmax()])


def test_hard_attention_estimates_the_gradient_of_the_expected_likelihood() -> None:
    """REINFORCE is unbiased: over many draws its mean gradient is that of the exactly enumerated expectation."""
    torch.manual_seed(0)
    options = {"gate": False, "embedding": 3, "hidden": 4, "dropout_output": 0.0}
    decoder: Any = make("hard_attention", 3, 6, options)
    decoder.expected_share = decoder.entropy = 0.0
    grid = torch.randn(1, 1, 3, 3) * 2
    tokens = torch.tensor([[[START, 4]]])
    words, valid, targets = tokens[:, :, :1], torch.ones(1, 1, 1, dtype=torch.bool), torch.tensor([4])
    weight = decoder.attention.query.weight

    state = decoder.start(grid)
    alphas = decoder.attention(state.annotations, state.keys, decoder.attention.query(state.hidden))[1][0, 0]
    likelihoods = []
    for place in range(3):
        context = state.annotations[:, place : place + 1]
        gates = decoder.word_gates(decoder.embed(words[:, :, 0])) + decoder.hidden_gates(state.hidden)
        take, forget, give, new = (gates + decoder.context_gates(context)).chunk(4, dim=-1)
        cell = forget.sigmoid() * state.cell + take.sigmoid() * new.tanh()
        logits = decoder.logits(decoder.embed(words[:, :, 0]), give.sigmoid() * cell.tanh(), context)
        likelihoods.append(torch.log_softmax(logits[0, 0], dim=-1)[4].detach())
    (expected,) = torch.autograd.grad(-(alphas * torch.stack(likelihoods)).sum(), weight)

    decoder.train()
    total = torch.zeros_like(weight)
    draws, rounds = 60, 100  # of one picture, side by side: the penalty is their mean
    many = [tensor.expand(draws, *tensor.shape[1:]) for tensor in (grid, words, valid)]
    many[2] = valid_indices(many[2])
    for _ in range(rounds):
        logits, read = decoder(*many)
        penalty = decoder.penalty(read, logits, targets.expand(draws), many[2])
        (estimate,) = torch.autograd.grad(penalty, weight)
        total += estimate
    assert float((total / rounds - expected).norm() / expected.norm()) < 0.15
