"""The recurrent decoder: one step of its cell, whole captions under teacher forcing, and inference."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention import pooling
from ..options import RecurrentOptions
from ..output_features import make_output
from .base import SAME_FOR_ALL, SAME_FOR_PICTURE, AttentionState, Decoder, padded_rows, select_tokens
from .teacher_forcing import Reading, defer_gradient, longest_first


@dataclass(frozen=True)
class LSTMState(AttentionState):
    """The state of a recurrent cell.

    annotations (N, P, D) and keys (N, P', A). hidden, cell (N, R, H), float32; an RNN does not use `cell`. context
    (N, R, D'), float32: the context vector of the last step; zeros before the first. pool (P', P): see attention.py.
    """

    annotations: Tensor = field(metadata=SAME_FOR_PICTURE)
    keys: Tensor = field(metadata=SAME_FOR_PICTURE)
    hidden: Tensor
    cell: Tensor
    context: Tensor
    pool: Tensor | None = field(default=None, kw_only=True, metadata=SAME_FOR_ALL)


@dataclass(frozen=True)
class StepWeights:
    """The weights of a step; those that read the hidden state are joined into one matrix.

    hidden (A + G, H): the weights of all query layers, A outputs together, then of the cell's G gates. context (G, D'):
    the weights of the cell's gates; None without attention.
    """

    hidden: Tensor
    context: Tensor | None


class RecurrentDecoder(Decoder):
    """A recurrent cell that may attend to the grid before each word.

    This class has a cell that reads [word, context], and an output (see output_features.py). A subclass defines how the
    grid becomes annotation vectors, keys and the first state (`init_state`), which layers compute queries from the
    hidden state (`query_layers`), and the context that these queries give (`attend`). Without attention, the context
    has size 0.

    The cell's input weights are stored in two parts, for the word and for the context, so that the words' part is one
    product for a whole caption under teacher forcing.
    """

    def __init__(
        self,
        channels: int,
        vocabulary: int,
        options: RecurrentOptions,
        context: int = 0,
        cell: Literal["rnn", "lstm"] = "lstm",
        attention_grid: int | None = None,
    ) -> None:
        """Create the layers.

        channels: C of the grid. vocabulary: V. context: size D' of the context vector; 0 without attention.
        attention_grid: the side of the attended positions; None for the grid's own.
        """
        super().__init__(channels, vocabulary, options)
        embedding, hidden = options.embedding, options.hidden
        gates = {"rnn": 1, "lstm": 4}[cell]
        self.cell_type, self.attention_grid = cell, attention_grid
        self.first_state = options.first_state
        self.word_gates = nn.Linear(embedding, gates * hidden)
        self.context_gates = nn.Linear(context, gates * hidden, bias=False) if context else None
        self.hidden_gates = nn.Linear(hidden, gates * hidden, bias=False)
        self.output = make_output(
            options.output, embedding, hidden, context, options.output_size, options.dropout_output
        )
        self._compiled_step: Callable[..., LSTMState] | None = None
        self._compiled_for = (0, 0)  # pictures and rows
        if cell == "lstm":
            # The forget gate starts open, so that the cell remembers by default (Jozefowicz et al. 2015).
            with torch.no_grad():
                self.word_gates.bias[hidden : 2 * hidden] = 1.0

    @abstractmethod
    def init_state(self, annotations: Tensor, pool: Tensor | None) -> LSTMState:
        """Return the state before the first word, R = 1.

        annotations (N, P, D): annotation vectors, floating point. pool (P', P).
        """

    def query_layers(self) -> dict[str, nn.Linear]:
        """Return the layers that compute queries from the previous word's hidden state, by name."""
        return {}

    @abstractmethod
    def attend(self, state: LSTMState, queries: Mapping[str, Tensor]) -> LSTMState:
        """Return the state with the context and the alphas that its hidden state attends to in the grid.

        queries: the outputs of the query layers, (N, R, A) each, by the names of `query_layers`.
        """

    def cell_step(self, state: LSTMState, gates: Tensor) -> LSTMState:
        """Return the state after one step of the cell.

        gates (N, R, 4H), or (N, R, H) for an RNN: W_x x + W_h h + W_z z + b. LSTM: see `lstm_cell`. RNN: Elman 1990,
        h = tanh(W_x x + W_h h + b).
        """
        if self.cell_type == "rnn":
            return replace(state, hidden=torch.tanh(gates.float()))
        hidden, cell = lstm_cell(gates, state.cell)
        return replace(state, hidden=hidden, cell=cell)

    def start(self, grid: Tensor) -> LSTMState:
        sides, attended = (grid.shape[1], grid.shape[2]), self.attention_grid
        pool = None if attended is None or sides == (attended, attended) else pooling(sides, attended, grid.device)
        state = replace(self.init_state(self.annotations_of(grid), pool), pool=pool)
        if self.first_state == "zeros":
            return replace(state, hidden=torch.zeros_like(state.hidden), cell=torch.zeros_like(state.cell))
        return state

    def step(self, state: LSTMState, tokens: Tensor) -> tuple[Tensor, LSTMState]:
        words = self.drop_words(self.embed(tokens))
        gates = self.word_gates(words) + self.hidden_gates(state.hidden)
        state = self.attend(state, {name: layer(state.hidden) for name, layer in self.query_layers().items()})
        if self.context_gates is not None:
            gates = gates + self.context_gates(state.context)
        state = self.cell_step(state, gates)
        return self.logits(words, state.hidden, state.context), state

    def logits(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Return the logits (..., V) of the next word.

        words (..., E): embeddings of the words just read. hidden (..., H), context (..., D'): of the state after them.
        """
        logits: Tensor = self.head(self.output(words, hidden, context))
        return logits

    def forward(self, grid: Tensor, words: Tensor, token_indices: Tensor) -> tuple[Tensor, LSTMState]:
        state = self.start(self.drop_grid(grid)).expand(words.shape[1])
        embedded = self.drop_words(self.embed(words))
        compiled = self._compiled_step if words.shape[:2] == self._compiled_for else None
        if compiled is not None or words.device.type != "cpu":  # a GPU's host cannot know which captions have ended
            gates = self.word_gates(embedded)
            states = LSTMState.stack(self._teacher_force(state, gates, compiled or self.fused_step))
        else:
            reading = longest_first(token_indices, words.shape)
            of_read = self.word_gates(embedded.flatten(0, 2).index_select(0, reading.words))
            gates = of_read.new_zeros(words.numel(), of_read.shape[1]).index_copy(0, reading.reordered, of_read)
            steps = self._teacher_force(state, gates.unflatten(0, words.shape), self.fused_step, reading)
            states = LSTMState.stack(steps).select(reading.order.argsort(dim=1))
        read = [select_tokens(values, token_indices) for values in (embedded, states.hidden, states.context)]
        return self.logits(*read), states

    def for_inference(self) -> InferenceStepper:
        return InferenceStepper(self)

    def compile_step(self, pictures: int, rows: int) -> None:
        """Compile the step for batches of N pictures by R rows; `forward` runs other batches uncompiled."""
        # The step is compiled, not the loop over words, so that captions may have any length.
        self._compiled_step = torch.compile(self.fused_step, dynamic=False, mode=self.compile_mode)
        self._compiled_for = (pictures, rows)

    def step_weights(self) -> StepWeights:
        """Return the weights of a step, through which gradients flow."""
        layers = [*self.query_layers().values(), self.hidden_gates]
        context = None if self.context_gates is None else self.context_gates.weight
        return StepWeights(torch.cat([layer.weight for layer in layers]), context)

    def query_biases(self) -> Tensor:
        """Return the biases of all query layers together, (A,); zeros if a layer has none."""
        zeros = self.hidden_gates.weight.new_zeros
        layers = self.query_layers().values()
        biases = [zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
        return torch.cat([zeros(0), *biases])  # zeros(0), because there may be no query layer

    def fused_step(self, state: LSTMState, biases: Tensor, word_gates: Tensor, weights: StepWeights) -> LSTMState:
        """Return the state after a word, as `step` does, with one product for all layers that read the hidden state.

        biases (..., A): of the query layers. word_gates (N, R, G): the word's part of the gates.
        """
        layers = self.query_layers()
        sizes = [layer.out_features for layer in layers.values()]
        product = functional.linear(state.hidden, weights.hidden)
        queries, hidden_gates = torch.split(product, [sum(sizes), word_gates.shape[-1]], dim=-1)
        query_parts = torch.split(queries + biases, sizes, dim=-1) if sizes else ()
        state = self.attend(state, dict(zip(layers, query_parts, strict=True)))
        gates = word_gates + hidden_gates
        if weights.context is not None:
            gates = gates + functional.linear(state.context, weights.context)
        return self.cell_step(state, gates)

    def _teacher_force(
        self,
        state: LSTMState,
        word_gates: Tensor,
        step: Callable[..., LSTMState],
        reading: Reading | None = None,
    ) -> list[LSTMState]:
        """Return the states after each of T true words, by T calls of `step`, with the weights' gradients deferred.

        state: before the first word, R rows. word_gates (N, R, T, G): the words' part of the gates, with rows in the
        order of `reading`. reading: which rows to compute at each word, the states of the others are zeros; None for
        all rows.
        """
        all_rows = word_gates.shape[1]
        rows = [all_rows] * word_gates.shape[2] if reading is None else reading.rows
        read = None if reading is None else reading.reordered
        dtype, weights = word_gates.dtype, self.step_weights()
        hiddens: list[Tensor] = []
        contexts: list[Tensor] = []
        queries = self.query_biases().to(dtype).expand(*word_gates.shape[:3], -1)
        joined = defer_gradient(torch.cat([queries, word_gates], dim=-1), weights.hidden, hiddens, read)
        biases, gates = torch.split(joined, [queries.shape[-1], word_gates.shape[-1]], dim=-1)
        if weights.context is not None:
            gates = defer_gradient(gates, weights.context, contexts, read)
        # Cast once, not at every step.
        detached = StepWeights(
            weights.hidden.detach().to(dtype), None if weights.context is None else weights.context.detach().to(dtype)
        )
        states = []
        for step_rows, step_biases, step_gates in zip(rows, biases.unbind(2), gates.unbind(2), strict=True):
            state = state.first(step_rows)
            hiddens.append(padded_rows(state.hidden.detach().to(dtype), all_rows))
            state = step(state, step_biases[:, :step_rows], step_gates[:, :step_rows], detached)
            states.append(state.padded(all_rows))
            contexts.append(states[-1].context.detach().to(dtype))
        return states


class InferenceStepper:
    """A recurrent decoder's `start` and `step` in evaluation mode, with the weights it had when this was created.

    The words' part of the gates is a table (V, G), one row per word, and all layers that read the hidden state are one
    product. For a single picture it is no faster than the decoder, because the table costs as much as V steps of one
    hypothesis.
    """

    @torch.no_grad()
    def __init__(self, decoder: RecurrentDecoder) -> None:
        """Compute the table and the joined weights of a decoder in evaluation mode."""
        assert not decoder.training
        self._decoder = decoder
        self._word_gates = decoder.word_gates(decoder.embed.weight)
        self._weights, self._biases = decoder.step_weights(), decoder.query_biases()

    def start(self, grid: Tensor) -> LSTMState:
        """Return the state before the first word, R = 1, for grid (N, h, w, C), floating point."""
        return self._decoder.start(grid)

    @torch.no_grad()
    def step(self, state: LSTMState, tokens: Tensor) -> tuple[Tensor, LSTMState]:
        """Return the logits (N, R, V) of the next word, and the state after the words just read, tokens (N, R)."""
        word_gates = functional.embedding(tokens, self._word_gates)
        state = self._decoder.fused_step(state, self._biases, word_gates, self._weights)
        return self._decoder.logits(self._decoder.embed(tokens), state.hidden, state.context), state


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden state and the cell, (..., H) each, float32, of an LSTM: Xu et al. 2015, equations 1 to 3.

    gates (..., 4H): input, forget and output gate, then candidate, before their activations. cell (..., H).
    """
    # The cell accumulates over time, so it stays in float32 under autocast.
    input_gate, forget_gate, output_gate, candidate = gates.float().chunk(4, dim=-1)
    cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(candidate)
    return torch.sigmoid(output_gate) * torch.tanh(cell), cell
