"""Generation: prompts in, texts out, any number of texts at once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import whole_number
from gpt2fast.checkpoint.config import Config
from gpt2fast.errors import GrammarError, InputError, InputTypeError, ProcessorError
from gpt2fast.generation.constraint import Constraint, Matcher, foreign_matcher
from gpt2fast.generation.grammar import GrammarLimits, compile_grammar
from gpt2fast.generation.sequence import FinishReason, GeneratedSequence, Generation, Step
from gpt2fast.generation.settings import Settings
from gpt2fast.model.hooks.steering import Steer, Steering, checked_steer
from gpt2fast.model.pairing import Configured, beginning, ends, shared_vocabulary
from gpt2fast.scheduler import Drafter, Model, Scheduler
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["FinishReason", "Generation", "Settings", "Step"]
__all__ += ["generate", "generated_sequences", "matchers_of", "steps"]

#: Texts of a call at most, and so rows of a cache.
MOST_TEXTS = 2**31 - 1

Prompt = Sequence[int] | npt.NDArray[np.integer[Any]]


def generate(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    n: int = 1,
    on_token: Callable[[Step], object] | None = None,
    drafter: Drafter[GeneratedSequence] | None = None,
    steer: Sequence[Steer] | None = None,
) -> list[list[Generation]]:
    """The `n` texts that continue each of `prompts`, lists of token ids; an empty one starts from the token
    that texts come after.

    `on_token` is called with every `Step` as it is made, and ends that text with it where it returns True; a `drafter`
    makes it quicker and changes nothing else.  `steer` has for each prompt what its texts are steered with; drafts are
    not.  Raises InputError, before anything is computed, where a prompt has ids outside the vocabulary or does not fit
    the context, or a vector does not fit the model; GrammarError where the grammar is invalid or impossible; and
    InputError where the model's logits are not finite.  A processor or grammar that fails on the way ends its text
    alone, with the finish reason "error"; where there is only one text its error is raised.
    """
    texts = generated_sequences(model, tokenizer, prompts, settings, n=n, steer=steer)
    told = [0] * len(texts)
    for step in _run(model, shared_vocabulary(model, tokenizer), texts, settings, drafter):
        number = step.prompt * n + step.sample
        told[number] += 1
        if on_token is not None and on_token(step) is True:
            texts[number].end_after(told[number])
    found = iter(texts)
    return [[next(found).generation() for _ in range(n)] for _ in prompts]


def steps(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    n: int = 1,
    drafter: Drafter[GeneratedSequence] | None = None,
    steer: Sequence[Steer] | None = None,
) -> Iterator[Step]:
    """The tokens of the same texts as `generate`'s, one `Step` after the other, as they are made.

    Arguments are checked at the call; errors as in `generate`.
    """
    texts = generated_sequences(model, tokenizer, prompts, settings, n=n, steer=steer)
    return _run(model, shared_vocabulary(model, tokenizer), texts, settings, drafter)


def generated_sequences(
    model: Configured,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    n: int = 1,
    matchers: Callable[[], Matcher] | None = None,
    steer: Sequence[Steer] | None = None,
) -> list[GeneratedSequence]:
    """The texts to be, `n` for each of `prompts`, checked and ready for a `Scheduler`.  Raises as `generate` does.

    `matchers` is what `matchers_of` has found for the settings, where that was done before.
    """
    n = whole_number("n", n, least=1, most=MOST_TEXTS)
    n_vocab, bos = shared_vocabulary(model, tokenizer), beginning(model, tokenizer)
    settings.check_ids(n_vocab)
    seeds = _seeds(settings, len(prompts))
    checked = [
        _checked(prompt, f"prompts[{i}]" if len(prompts) > 1 else "the prompt", model.config, settings, bos)
        for i, prompt in enumerate(prompts)
    ]
    if matchers is None and checked:
        matchers = matchers_of(model, tokenizer, settings)
    steered = _steered(steer, model, len(prompts))
    return [
        GeneratedSequence(
            tokenizer,
            ids,
            settings,
            seed=seeds[i],
            limit=_new_tokens(settings, model.config.n_ctx - len(ids) + 1),
            n_vocab=n_vocab,
            n_ctx=model.config.n_ctx,
            ends=ends(model, tokenizer),
            prompt=i,
            sample=sample,
            constraint=None if matchers is None else Constraint(matchers, n_vocab),
            steer=steered[i],
        )
        for i, ids in enumerate(checked)
        for sample in range(n)
    ]


def matchers_of(
    model: Configured, tokenizer: Tokenizer, settings: Settings, limits: GrammarLimits | None = None
) -> Callable[[], Matcher] | None:
    """What makes matchers of the grammar or token mask that the settings ask for; None where they ask for neither.

    Raises GrammarError where a grammar is invalid, impossible or beyond `limits`, and MissingDependencyError.
    """
    n_vocab = shared_vocabulary(model, tokenizer)
    if settings.asked_grammar is not None:
        return compile_grammar(
            settings.asked_grammar, tokenizer, n_vocab, ends(model, tokenizer), limits, forcing=settings.forcing
        )
    make = settings.token_mask
    return None if make is None else lambda: foreign_matcher(make, n_vocab)


def _run(
    model: Model,
    n_vocab: int,
    texts: Sequence[GeneratedSequence],
    settings: Settings,
    drafter: Drafter[GeneratedSequence] | None,
) -> Iterator[Step]:
    """Generate all texts, token by token."""
    if not texts:
        return
    # The last token of a text is never fed: nothing is computed from it.
    capacity = min(model.config.n_ctx, max(text.start + text.limit - 1 for text in texts))
    slots = min(settings.batch_size, len(texts))
    scheduler = Scheduler(model, n_vocab=n_vocab, slots=slots, capacity=capacity, drafter=drafter)
    told = dict.fromkeys(texts, 0)
    for text in scheduler.run(*texts, failing=True):
        # A failure of the caller's function ends a text; a failure of the network's ends all.
        if text.error is not None and (len(texts) == 1 or not isinstance(text.error, (ProcessorError, GrammarError))):
            raise text.error
        while told[text] < len(text.steps):  # whoever takes a step may end the text with it
            told[text] += 1
            yield text.steps[told[text] - 1]


def _seeds(settings: Settings, count: int) -> Sequence[int]:
    seed = settings.seed
    if seed is None:
        return [secrets.randbits(32) for _ in range(count)]
    if isinstance(seed, int):
        return [seed] * count
    if len(seed) != count:
        raise InputError(f"seed has {len(seed)} seeds; there are {count} prompts")
    return seed


def _steered(steer: Sequence[Steer] | None, model: Configured, count: int) -> list[tuple[Steering, ...]]:
    """What each of `count` prompts is steered with."""
    if steer is None:
        return [()] * count
    if len(steer) != count:
        raise InputError(f"steer has {len(steer)} entries; there are {count} prompts")
    found = [checked_steer(f"steer[{i}]" if count > 1 else "steer", one, model.config) for i, one in enumerate(steer)]
    device = getattr(model, "device", "cpu")
    if any(found) and device != "cpu":
        raise InputError(f"steer was given, and the model is on {device}; texts are steered on a CPU only")
    return found


def _checked(prompt: Prompt, name: str, config: Config, settings: Settings, bos: int | None) -> list[int]:
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, (Sequence, np.ndarray)):
        raise InputTypeError(f"{name} is of type {type(prompt).__name__}; expected a list of token ids")
    ids = [whole_number(f"an id of {name}", i) for i in prompt]
    if not ids and bos is None:
        raise InputError(f"{name} is empty, and neither configuration nor tokenizer has a token to start from")
    ids = ids or [bos]  # type: ignore[list-item]
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
