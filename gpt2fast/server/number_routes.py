"""POST /v1/embeddings and /score: what the network makes of texts that are there."""

from __future__ import annotations

import base64
import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.types import ASGIApp

from gpt2fast.scoring.score import Score, ScoredText, score_sequences
from gpt2fast.server.parts import Items, JsonInParts, slices
from gpt2fast.server.protocol import Embedding, parse_embedding, parse_scoring
from gpt2fast.server.request_body import RequestBody
from gpt2fast.server.service import Service
from gpt2fast.server.work import EmbeddedSequence

__all__ = ["NumberRoutes"]

# Bytes that a scored token takes, of which there may be as many as bytes of text, and a text besides its tokens.
_TOKEN, _TEXT = 48, 1000


class NumberRoutes:
    """The two addresses."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def embeddings(self, request: Request) -> ASGIApp:
        """POST /v1/embeddings."""
        service = self._service
        n_embd = service.lm.model.config.n_embd

        def parse(body: RequestBody) -> tuple[Embedding, list[EmbeddedSequence]]:
            asked = parse_embedding(body, service.lm, service.name, service.allow_special)
            return asked, [EmbeddedSequence(text.ids, n_embd) for text in asked.inputs]

        asked, sequences = await service.parsed(request, parse)
        count = sum(len(text.ids) for text in asked.inputs)
        request.scope["charge"].take(len(asked.inputs) * (_TEXT + 8 * n_embd))
        service.metrics.tokens.labels("embedded").inc(count)

        async def read() -> None:
            with service.engine.enter(1) as places:
                await places.read(sequences)

        await service.attended(request, read())
        data = (
            [{"object": "embedding", "index": i, "embedding": _embedding(sequence.embedding, asked.base64)}]
            for i, sequence in enumerate(sequences)
        )
        usage = {"prompt_tokens": count, "total_tokens": count}
        request.scope["usage"] = lambda: usage
        return JsonInParts({"object": "list", "data": Items(data), "model": service.name, "usage": usage})

    async def score(self, request: Request) -> ASGIApp:
        """POST /score."""
        service = self._service
        asked = await service.parsed(
            request, lambda body: parse_scoring(body, service.lm, service.name, service.allow_special)
        )
        request.scope["charge"].take(sum(_TEXT + _TOKEN * (len(text) + len(asked.context)) for text in asked.texts))
        model, tokenizer = service.lm.model, service.lm.tokenizer
        options: Any = {"context": asked.context, "stride": asked.stride, "allow_special": asked.allow_special}
        prepare = partial(score_sequences, model, tokenizer, asked.texts, **options)

        async def read() -> list[Score]:
            with service.engine.enter(1) as places:
                scored = await service.apart(request, prepare)
                await places.read([text.sequence for text in scored])
                return await service.apart(request, lambda: [_summed(text) for text in scored])

        scores = await service.attended(request, read())
        count = sum(map(len, scores))
        service.metrics.tokens.labels("scored").inc(count)
        request.scope["usage"] = lambda: {"prompt_tokens": count, "total_tokens": count}
        data = Items([_score(score)] for score in scores)
        return JsonInParts({"object": "list", "data": data, "model": service.name})


def _summed(text: ScoredText) -> Score:
    """The score, whose sum, which it keeps, takes a while, too."""
    score = text.score()
    _ = score.log_likelihood, score.num_bytes
    return score


def _embedding(vector: npt.NDArray[np.float32], as_base64: bool) -> str | list[float]:
    """As base64 it is little-endian float32."""
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values


def _score(score: Score) -> dict[str, Any]:
    """A score as JSON; what is not finite is null."""
    return {
        "tokens": Items(_tokens(score, part) for part in slices(range(len(score)), 64)),
        "log_likelihood": _finite(score.log_likelihood),
        "perplexity": _finite(score.perplexity),
        "bits_per_byte": _finite(score.bits_per_byte),
    }


def _tokens(score: Score, part: range) -> list[Any]:
    return [
        {
            "id": int(score.ids[i]),
            "start": int(score.spans[i, 0]),
            "end": int(score.spans[i, 1]),
            "token": score.text[score.spans[i, 0] : score.spans[i, 1]],
            "log_probability": _finite(float(score.log_probabilities[i])),
            "surprisal": _finite(float(-score.log_probabilities[i] / math.log(2))),
            "rank": int(score.ranks[i]),
            "entropy": float(score.entropies[i]),
        }
        for i in part
    ]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
