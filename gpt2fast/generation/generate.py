"""Generation: prompts in, texts out, any number of texts at once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.generation.batch import Batch, Drafter
from gpt2fast.generation.sequence import Continuation, FinishReason, Generation, Step
from gpt2fast.generation.settings import Settings
from gpt2fast.model.pairing import end_of_text, shared_vocabulary

__all__ = ["FinishReason", "Generation", "Settings", "Step", "continuations", "generate", "steps"]

Prompt = Sequence[int] | npt.NDArray[np.integer[Any]]


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    n: int = 1,
    on_token: Callable[[Step], object] | None = None,
    drafter: Drafter | None = None,
) -> list[list[Generation]]:
    """The `n` texts that continue each of `prompts`, lists of token ids; an empty one starts from end-of-text.

    `on_token` is called with every `Step` as it is made; a `drafter` makes it quicker and changes nothing else.  Raises
    InputError, before anything is computed, where a prompt has ids outside the vocabulary or does not fit the context,
    and where the model's logits are not finite.
    """
    texts = continuations(model, tokenizer, prompts, settings, n=n)
    for step in _run(model, texts, settings, drafter):
        if on_token is not None:
            on_token(step)
    found = iter(texts)
    return [[next(found).generation() for _ in range(n)] for _ in prompts]


def steps(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    n: int = 1,
    drafter: Drafter | None = None,
) -> Iterator[Step]:
    """The tokens of the same texts as `generate`'s, one `Step` after the other, as they are made.

    Arguments are checked at the call; errors as in `generate`.
    """
    return _run(model, continuations(model, tokenizer, prompts, settings, n=n), settings, drafter)


def continuations(
    model: Any, tokenizer: Any, prompts: Sequence[Prompt], settings: Settings, *, n: int = 1
) -> list[Continuation]:
    """The texts to be, `n` for each of `prompts`, checked and ready for a `Batch`.  Raises as `generate` does."""
    n = whole_number("n", n, least=1)
    n_vocab, eos = shared_vocabulary(model, tokenizer), end_of_text(model, tokenizer)
    settings.check_ids(n_vocab)
    seeds = _seeds(settings, len(prompts))
    checked = [
        _checked(prompt, f"prompts[{i}]" if len(prompts) > 1 else "the prompt", model.config, settings, eos)
        for i, prompt in enumerate(prompts)
    ]
    return [
        Continuation(
            tokenizer,
            ids,
            settings,
            seed=seeds[i],
            limit=_new_tokens(settings, model.config.n_ctx - len(ids) + 1),
            n_vocab=n_vocab,
            eos=eos,
            prompt=i,
            sample=sample,
        )
        for i, ids in enumerate(checked)
        for sample in range(n)
    ]


def _run(model: Any, texts: Sequence[Continuation], settings: Settings, drafter: Drafter | None) -> Iterator[Step]:
    """Generate all texts, token by token."""
    if not texts:
        return
    # The last token of a text is never fed: nothing is computed from it.
    capacity = min(model.config.n_ctx, max(text.start + text.limit - 1 for text in texts))
    batch = Batch(model, min(settings.batch_size, len(texts)), capacity, drafter)
    for text in texts:
        batch.add(text)
    while batch.running or batch.waiting:
        for text, step in batch.step():
            if step is None:
                text.generation()  # raises its error
            else:
                yield step


def _seeds(settings: Settings, count: int) -> Sequence[int]:
    seed = settings.seed
    if seed is None:
        return [secrets.randbits(32) for _ in range(count)]
    if isinstance(seed, int):
        return [seed] * count
    if len(seed) != count:
        raise InputError(f"seed has {len(seed)} seeds; there are {count} prompts")
    return seed


def _checked(prompt: Prompt, name: str, config: Any, settings: Settings, eos: int | None) -> list[int]:
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, (Sequence, np.ndarray)):
        raise InputTypeError(f"{name} is of type {type(prompt).__name__}; expected a list of token ids")
    ids = [whole_number(f"an id of {name}", i) for i in prompt]
    if not ids and eos is None:
        raise InputError(f"{name} is empty, and neither configuration nor tokenizer has an end-of-text to start from")
    ids = ids or [eos]  # type: ignore[list-item]
    if max(ids) >= config.vocab_size:
        raise InputError(f"{name} has id {max(ids)}, which is outside the vocabulary of {config.vocab_size} tokens")
    wanted = (settings.max_new_tokens or 1) if settings.overflow == "error" else 1
    # The last new token needs no position: nothing is computed from it.
    if settings.overflow != "slide" and len(ids) + wanted - 1 > config.n_ctx:
        raise InputError(
            f"{name} has {len(ids)} tokens, and {wanted} new {'is' if wanted == 1 else 'are'} wanted: that takes "
            f"a context of {len(ids) + wanted - 1} tokens; the model's limit is {config.n_ctx}"
        )
    return ids


def _new_tokens(settings: Settings, room: int) -> int:
    """How many tokens a text may have at most that has `room` left in the context."""
    wanted = settings.max_new_tokens
    if wanted is None:
        return room
    return wanted if settings.overflow == "slide" else min(wanted, room)
