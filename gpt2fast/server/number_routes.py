"""POST /v1/embeddings and /score: what the network makes of texts that are there."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.types import ASGIApp

from gpt2fast.errors import Error
from gpt2fast.scoring.score import Score, score_texts
from gpt2fast.server.api_errors import Failed
from gpt2fast.server.engine import Network
from gpt2fast.server.parts import Items, JsonInParts, slices
from gpt2fast.server.protocol import parse_embedding, parse_scoring
from gpt2fast.server.service import Service
from gpt2fast.server.work import embeddings

__all__ = ["NumberRoutes", "computed"]

# Bytes that a scored token takes, of which there may be as many as bytes of text, and a text besides its tokens.
_TOKEN, _TEXT = 48, 1000

T = TypeVar("T")


async def computed(service: Service, work: Callable[[Network], T]) -> T:
    """The result of `work`, which uses the network beside the texts that grow.  Raises Failed where it does not work,
    as what was asked was checked."""
    try:
        return await service.engine.compute(work)
    except Error as error:
        raise Failed(str(error)) from None


class NumberRoutes:
    """The two addresses."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def embeddings(self, request: Request) -> ASGIApp:
        """POST /v1/embeddings."""
        service = self._service
        asked = await service.parsed(
            request, lambda body: parse_embedding(body, service.lm, service.name, service.allow_special)
        )
        inputs = [text.ids for text in asked.inputs]
        count = sum(map(len, inputs))
        request.scope["charge"].take(len(inputs) * (_TEXT + 4 * service.lm.model.config.n_embd))
        service.metrics.tokens.labels("embedded").inc(count)
        vectors = await service.attended(request, computed(service, lambda network: embeddings(network, inputs)))
        data = (
            [{"object": "embedding", "index": i, "embedding": _embedding(vector, asked.base64)}]
            for i, vector in enumerate(vectors)
        )
        usage = {"prompt_tokens": count, "total_tokens": count}
        request.scope["usage"] = lambda: usage
        return JsonInParts({"object": "list", "data": Items(data), "model": service.name, "usage": usage})

    async def score(self, request: Request) -> ASGIApp:
        """POST /score."""
        service = self._service
        tokenizer = service.lm.tokenizer
        asked = await service.parsed(request, lambda body: parse_scoring(body, service.lm, service.name))
        request.scope["charge"].take(sum(_TEXT + _TOKEN * len(text) for text in asked.texts))

        def work(network: Network) -> list[Score]:
            return score_texts(network, tokenizer, asked.texts, context=asked.context, stride=asked.stride)

        scores = await service.attended(request, computed(service, work))
        count = sum(map(len, scores))
        service.metrics.tokens.labels("scored").inc(count)
        request.scope["usage"] = lambda: {"prompt_tokens": count, "total_tokens": count}
        data = Items([_score(score)] for score in scores)
        return JsonInParts({"object": "list", "data": data, "model": service.name})


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
