"""Micro-batching: pictures that wait while the model is busy are captioned together.

Nobody waits for a batch to fill: when the model is free, it takes what is there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from flows.serving.limits import RefusedError

Predict = Callable[[list[bytes], dict[str, Any]], list[dict[str, Any]]]
_LOG = logging.getLogger("attend.serve")
_LAST_SECONDS = 30.0


def failed(why: str) -> dict[str, Any]:
    """The row of a picture without a caption."""
    return {
        "caption": "",
        "tokens": [],
        "log_probability": 0.0,
        "alternatives": [],
        "attention": [],
        "error": why,
    }


class _Waiting(NamedTuple):
    picture: bytes
    params: dict[str, Any]
    answer: Future[dict[str, Any]]


class Batcher:
    """One thread that captions what is asked of it, pictures with the same parameters at once.

    predict: pictures and parameters -> rows; RefusedError for what is wrong with the parameters. most: pictures a
    batch. waiting: pictures that may wait. told: called with the size of each batch.
    """

    def __init__(self, predict: Predict, most: int, waiting: int, told: Callable[[int], None] = lambda _: None) -> None:
        self._predict, self._most, self._room, self._told = predict, most, waiting, told
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="captions", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Pictures that wait."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether anything is captioned at all."""
        return self._thread.is_alive()

    async def caption(self, pictures: Sequence[bytes], params: dict[str, Any]) -> list[dict[str, Any]]:
        """A row for each picture; RefusedError where too many wait. Cancelled, what has not begun is not done."""
        items = [_Waiting(picture, params, Future()) for picture in pictures]
        with self._changed:
            if len(self._queue) + len(items) > self._room:
                raise RefusedError(503, "the server is busy: try again in a moment")
            self._queue.extend(items)
            self._changed.notify()
        try:
            return await asyncio.gather(*(asyncio.wrap_future(item.answer) for item in items))
        finally:
            for item in items:
                item.answer.cancel()

    def close(self) -> None:
        """Finish what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST_SECONDS)  # a daemon: it does not keep the process

    def _work(self) -> None:
        while batch := self._next():
            self._told(len(batch))
            self._answer(batch)

    def _next(self) -> list[_Waiting]:
        """The picture that waits longest and others that are asked for alike; none when closed."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return []
                first = self._queue[0].params
                batch: list[_Waiting] = []
                others: deque[_Waiting] = deque()
                for item in self._queue:
                    if item.params != first or len(batch) == self._most:
                        if not item.answer.cancelled():
                            others.append(item)
                    elif item.answer.set_running_or_notify_cancel():
                        batch.append(item)
                self._queue = others
                if batch:
                    return batch

    def _answer(self, batch: list[_Waiting]) -> None:
        try:
            rows = self._predict([item.picture for item in batch], batch[0].params)
            answered = list(zip(batch, rows, strict=True))
        except RefusedError as error:
            for item in batch:
                item.answer.set_exception(error)
        except Exception:
            if len(batch) > 1:  # one of them may be at fault: the others are not to suffer from it
                for item in batch:
                    self._answer([item])
                return
            _LOG.exception("a picture of %d bytes could not be captioned", len(batch[0].picture))
            batch[0].answer.set_result(failed("could not be captioned: the server's log says why"))
        else:
            for item, row in answered:
                item.answer.set_result(row)
