"""POST /tokenize and /detokenize, GET /tokenizer_info: text to ids and back, in the words of three kinds of clients.

This project's own say `text` and `ids`, vLLM's (lm-evaluation-harness among them) `prompt` and `tokens`, llama.cpp's
`content` and `tokens`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.types import ASGIApp

from gpt2fast.language_model import LanguageModel
from gpt2fast.model.pairing import beginning, ends
from gpt2fast.server.api_errors import ApiError, Json
from gpt2fast.server.parts import Items, JsonInParts, Pieces, slices
from gpt2fast.server.protocol import check_model, parse_ids
from gpt2fast.server.request_body import RequestBody
from gpt2fast.server.service import Service

__all__ = ["TokenRoutes", "parse_detokenize", "parse_tokenize"]

Ids = npt.NDArray[np.integer[Any]]


def parse_tokenize(body: RequestBody, name: str, allow_special: bool = False) -> tuple[str, str, bool]:
    """The name of the field that holds the text, the text, and whether special tokens in it are tokens."""
    check_model(body, name)
    given = [name for name in ("text", "prompt", "content") if body.has(name)]
    if len(given) > 1:
        raise ApiError(f"there are both {given[0]} and {given[1]}; expected one of them", param=given[1])
    texts = {name: body.text(name, "") for name in ("text", "prompt", "content")}
    if not given:
        raise ApiError("text is missing", param="text")
    special = body.flag("allow_special", allow_special)
    special = body.flag("parse_special", special)  # llama.cpp's word for it
    # Nothing is added at a text's beginning or end, and the ids say all.
    for name in ("add_special_tokens", "add_special", "with_pieces", "return_token_strs"):
        body.flag(name)
    body.end()
    return given[0], texts[given[0]], special


def parse_detokenize(body: RequestBody, lm: LanguageModel, name: str) -> tuple[str, Ids]:
    """The name of the field that holds the ids, and the ids."""
    check_model(body, name)
    field = "tokens" if body.has("tokens") else "ids"
    values = body.take(field)
    if body.take("ids" if field == "tokens" else "tokens") is not None:
        raise ApiError("there are both tokens and ids; expected one of them", param="ids")
    ids = parse_ids(values, field, lm)
    body.end()
    return field, np.fromiter(chain.from_iterable(slices(ids)), np.int32, len(ids))  # other threads run meanwhile


class TokenRoutes:
    """The three addresses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tokenizer = service.lm.tokenizer

    async def tokenize(self, request: Request) -> ASGIApp:
        """POST /tokenize."""
        service, tokenizer = self._service, self._tokenizer

        def parse(body: RequestBody) -> tuple[str, Ids, Ids | None]:
            name, text, special = parse_tokenize(body, service.name, service.allow_special)
            if name == "text" and not special:
                ids, spans = tokenizer.encode_with_offsets_flat(text)
                return name, ids, spans.astype(np.uint32)
            allowed: Any = "all" if special else ()
            return name, tokenizer.encode_to_numpy(text, allowed_special=allowed, disallowed_special=()), None

        name, ids, spans = await service.parsed(request, parse)
        request.scope["charge"].take(ids.nbytes + (0 if spans is None else spans.nbytes))
        found = Items(part.tolist() for part in slices(ids))
        if name != "text":
            return JsonInParts({"tokens": found, "count": len(ids), "max_model_len": service.lm.model.config.n_ctx})
        if spans is None:
            return JsonInParts({"ids": found, "count": len(ids)})
        pairs = Items(part.tolist() for part in slices(spans))
        return JsonInParts({"ids": found, "count": len(ids), "spans": pairs})

    async def detokenize(self, request: Request) -> ASGIApp:
        """POST /detokenize."""
        name, ids = await self._service.parsed(
            request, lambda body: parse_detokenize(body, self._service.lm, self._service.name)
        )
        request.scope["charge"].take(ids.nbytes)
        if name == "ids":
            return JsonInParts({"text": Pieces(self._text(ids))})
        return JsonInParts({"prompt": Pieces(self._text(ids)), "content": Pieces(self._text(ids))})

    async def info(self, request: Request) -> Json:
        """GET /tokenizer_info."""
        service, tokenizer = self._service, self._tokenizer
        first = beginning(service.lm.model, tokenizer)
        last = min(ends(service.lm.model, tokenizer), default=None)
        begin, end = (None if token is None else tokenizer.decode([token]) for token in (first, last))
        template = service.template
        return Json(
            {
                "tokenizer_class": "GPT2Tokenizer",
                "model_max_length": service.lm.model.config.n_ctx,
                "vocab_size": tokenizer.n_vocab,
                "bos_token": begin,
                "eos_token": end,
                "pad_token": end,
                "chat_template": None if template is None else template.source,
            }
        )

    def _text(self, ids: Ids) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for part in slices(ids):
            yield decoder.decode(self._tokenizer.decode_bytes(part.tolist()))
        yield decoder.decode(b"", final=True)
