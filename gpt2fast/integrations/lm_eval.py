"""EleutherAI's lm-evaluation-harness: gpt2fast as one of its models, without PyTorch.

    $ gpt2fast lm-eval --model gpt2fast --model_args pretrained=gpt2,dtype=int8 --tasks lambada_openai

or in Python:

    import lm_eval
    from gpt2fast.integrations.lm_eval import GPT2FastLM

    results = lm_eval.simple_evaluate(model=GPT2FastLM("gpt2"), tasks=["lambada_openai"])
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from gpt2fast._internal.arguments import flag, whole_number
from gpt2fast._internal.numerics import numerics_version
from gpt2fast.errors import InputError, MissingDependencyError
from gpt2fast.generation.generate import Generation, Step
from gpt2fast.language_model import GenerateOptions, LanguageModel, load
from gpt2fast.model.pairing import beginning, ends, shared_vocabulary
from gpt2fast.scoring.score import ScoredSequence, measured

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import model_registry
    from tqdm import tqdm
except ImportError:
    raise MissingDependencyError("this needs the package lm_eval: pip install 'gpt2fast[lm-eval]'") from None

__all__ = ["GPT2FastLM", "register"]

#: Prompts that go on together; what they give is in the harness's cache before the next begin.
_PROMPTS = 64

#: What the harness's command line asks for where it is told nothing.
_DEFAULT_DEVICE = "cuda:0"

#: What the harness's `gen_kwargs` may name besides until, max_gen_toks, do_sample and temperature.
_OPTIONS = frozenset({"min_new_tokens", "min_p", "no_repeat_ngram_size", "repetition_penalty", "top_k", "top_p"})

#: The names by which tasks say how long a text may be; the first that is there counts.
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")

#: A request for a log-likelihood: its cache key, or None; the ids of the context; those of the continuation.
Request = tuple[tuple[str, str] | None, list[int], list[int]]


def register() -> None:
    """Let the harness know the model's name, "gpt2fast".

    Versions of the harness that read entry points find it by themselves; then this does nothing.
    """
    import lm_eval.models  # noqa: F401  # the harness's own names first

    if "gpt2fast" not in model_registry:
        model_registry.register("gpt2fast", target=f"{__name__}:{GPT2FastLM.__name__}")


class GPT2FastLM(LM):  # type: ignore[misc]
    """A model for lm-evaluation-harness: log-likelihoods of continuations and of whole texts, and greedy or sampled
    texts, with the numbers of the harness's `hf` models.

    `pretrained` is a `gpt2fast.LanguageModel`, or what `gpt2fast.load` takes, and so are `adapter`, `dtype`, `device`,
    `num_threads`, `gemm`, `cache_dtype` and `tokenizer`.  `max_length` is the context (default: the model's),
    `max_gen_toks` the length of texts where a task says none, `seed` where sampling starts, and `add_bos_token` whether
    the token that texts begin with stands before every context, or as by default only before an empty one, where
    `prefix_token_id` may be another.  Requests are batched by what they have in common, not by number: `batch_size` and
    `max_batch_size`, which the harness always gives, change nothing.  The harness's command line asks for the device
    "cuda:0" where it is told none: without CuPy that is the CPU.

    Texts become tokens as Hugging Face's tokenizers cut them: special tokens such as `<|endoftext|>` are these tokens.
    A continuation's tokens are those that context and continuation together have after as many as the context has
    alone.  What does not fit loses its beginning.  A text for `loglikelihood_rolling` is read in windows of
    `max_length` tokens, each of which goes on where the last one ended: the first comes after the token that texts
    begin with, every other after the last token of the window before it; the last window, where it is shorter, sees as
    many tokens before it as fit.

    Raises InputError or InputTypeError for arguments that make no sense, and what `gpt2fast.load` raises.
    """

    def __init__(
        self,
        pretrained: str | Path | LanguageModel = "demo",
        *,
        adapter: str | Path | None = None,
        dtype: Any = None,
        device: str | None = None,
        num_threads: int | None = None,
        gemm: Any = "panel",
        cache_dtype: Any = None,
        tokenizer: Any = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool = False,
        prefix_token_id: int | None = None,
        seed: int = 1234,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        if others:
            raise InputError(f"gpt2fast takes no model argument {', '.join(map(repr, sorted(others)))}")
        if isinstance(pretrained, LanguageModel):
            self._lm = pretrained
        else:
            self._lm = load(
                pretrained,
                adapter=adapter,
                dtype=None if dtype == "auto" else dtype,
                device=_device(device),
                num_threads=num_threads,
                gemm=gemm,
                cache_dtype=cache_dtype,
                tokenizer=tokenizer,
            )
        n_ctx = self._lm.model.config.n_ctx
        self._max_length = n_ctx if max_length is None else whole_number("max_length", max_length, least=1)
        if self._max_length > n_ctx:
            raise InputError(f"max_length is {max_length}; the model's context is {n_ctx} tokens")
        self._max_gen_toks = whole_number("max_gen_toks", max_gen_toks, least=1)
        self._n_vocab = shared_vocabulary(self._lm.model, self._lm.tokenizer)
        first = beginning(self._lm.model, self._lm.tokenizer)
        if prefix_token_id is not None:
            first = whole_number("prefix_token_id", prefix_token_id)
        if first is None or first >= self._n_vocab:
            raise InputError(
                f"prefix_token_id is {first}; the model and its tokenizer have {self._n_vocab} tokens, and none that "
                "texts begin with"
            )
        self._first = first
        self._add_bos_token = flag("add_bos_token", add_bos_token)
        self._end_text = self._lm.tokenizer.decode([self.eot_token_id])
        self._seed = whole_number("seed", seed)
        #: What the harness reports as the batch size.
        self.batch_size = batch_size

    @property
    def max_length(self) -> int:
        """The context that is used, in tokens."""
        return self._max_length

    @property
    def max_gen_toks(self) -> int:
        """How many tokens a text has at most where its task says nothing."""
        return self._max_gen_toks

    @property
    def prefix_token_id(self) -> int:
        """The token that an empty context stands for."""
        return self._first

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return min(ends(self._lm.model, self._lm.tokenizer), default=self._first)

    @property
    def tokenizer_name(self) -> str:
        """What tells the tokenizers of cached requests apart."""
        return self._lm.tokenizer.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What the harness's results say of the model."""
        model = self._lm.model
        same_bits = {"model_numerics_version": numerics_version} if model.same_bits else {}
        return {
            "model_num_parameters": model.num_parameters,
            "model_dtype": model.dtype,
            "model_device": model.device,
            **same_bits,
        }

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For each request, a context and a continuation, the log-likelihood of the continuation, and whether it is
        what greedy generation would write."""
        pairs = [request.args for request in requests]
        stems = [context.rstrip() for context, _ in pairs]
        contexts = self._encode(stems)
        both = self._encode([context + continuation for context, continuation in pairs])
        asked: list[Request] = []
        for pair, stem, context, ids in zip(pairs, stems, contexts, both, strict=True):
            if not stem:  # after the token that texts begin with, which the continuation may have already
                context = [self._first]
                ids = ids if ids[:1] == context else context + ids
            asked.append((pair, context, ids[len(context) :]))
        return self._measure(asked, disable_tqdm)

    def _measure(self, requests: Sequence[Request], disable_tqdm: bool) -> list[tuple[float, bool]]:
        """What `loglikelihood` says of requests in ids."""
        n_ctx, most = self._lm.model.config.n_ctx, self._max_length
        sequences = []
        for _key, context, continuation in requests:
            if not 0 < len(continuation) <= most:
                raise InputError(f"a continuation has {len(continuation)} tokens; expected 1 to {most}")
            ids = (context + continuation)[-most - 1 :]
            sequences.append(ScoredSequence(ids, len(ids) - len(continuation), n_ctx=n_ctx, stride=n_ctx))
        # Neighbours begin alike; a group has one context.
        order = sorted(range(len(requests)), key=lambda i: (requests[i][1], requests[i][2]))
        groups = [[sequences[i] for i in group] for _, group in groupby(order, key=lambda i: requests[i][1])]
        number = {sequence: i for i, sequence in enumerate(sequences)}
        found: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests") as bar:
            for sequence in measured(self._lm.model, self._n_vocab, groups):
                i = number[sequence]
                found[i] = (math.fsum(sequence.log_probabilities), bool((sequence.ranks == 1).all()))
                key = requests[i][0]
                if key is not None:
                    self.cache_hook.add_partial("loglikelihood", key, found[i])
                bar.update()
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """For each request the log-likelihood of its whole text."""
        windows: list[Request] = []
        owners: list[int] = []
        for i, ids in enumerate(self._encode([request.args[0] for request in requests])):
            for context, continuation in _windows(ids, self._first, self._max_length):
                windows.append((None, context, continuation))
                owners.append(i)
        totals = [0.0] * len(requests)
        for i, (value, _) in zip(owners, self._measure(windows, disable_tqdm), strict=True):
            totals[i] += value
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """For each request the text that goes on from its context, up to the first of its stop strings."""
        found = [""] * len(requests)
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests") as bar:

            def tell(step: Step) -> None:
                bar.update(step.finish_reason is not None)

            for numbers, options in self._jobs(requests):
                room = self._max_length - (options["max_new_tokens"] or 0)
                if room < 1:
                    raise InputError(
                        f"max_gen_toks is {options['max_new_tokens']}; the context of {self._max_length} tokens has no "
                        "room for that and something to go on from"
                    )
                prompts = [ids[-room:] for ids in self._encode([requests[i].args[0] for i in numbers])]
                # Requests that repeat another one are to have another sample.
                options["seed"] = [self._seed + i for i in numbers]
                texts: list[Generation] = self._lm.generate_batch(prompts, on_token=tell, **options)
                for i, text in zip(numbers, texts, strict=True):
                    found[i] = text.text
                    self.cache_hook.add_partial("generate_until", requests[i].args, text.text)
        return found

    def _jobs(self, requests: Sequence[Any]) -> Iterator[tuple[list[int], GenerateOptions]]:
        """The numbers of requests that go on together, and how."""
        kinds: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            kinds.setdefault(repr(request.args[1]), []).append(i)
        for numbers in kinds.values():
            options = self._options(requests[numbers[0]].args[1])
            for first in range(0, len(numbers), _PROMPTS):
                yield numbers[first : first + _PROMPTS], {**options}

    def _options(self, given: dict[str, Any]) -> GenerateOptions:
        """The options of `generate` that a task's `gen_kwargs` mean."""
        kwargs = dict(given)
        lengths = [kwargs.pop(name, None) for name in _LENGTHS]
        temperature = kwargs.pop("temperature", None)
        do_sample = kwargs.pop("do_sample", None)
        if do_sample is None:
            do_sample = bool(temperature)
        until = kwargs.pop("until", None) or []
        unknown = sorted(kwargs.keys() - _OPTIONS)
        if unknown:
            known = ", ".join(sorted(_OPTIONS))
            raise InputError(f"gpt2fast knows no generation argument {unknown[0]!r}; those it knows are {known}")
        return {
            # End-of-text that is written as text ends it, too.
            "stop": [one for one in [*([until] if isinstance(until, str) else until), self._end_text] if one],
            "max_new_tokens": next((length for length in lengths if length is not None), self._max_gen_toks),
            "temperature": (1.0 if temperature is None else temperature) if do_sample else 0.0,
            "top_k": 50,  # as transformers where nothing is said
            **kwargs,  # type: ignore[typeddict-item]
        }

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, after the token that texts begin with where the model was made so."""
        found = self._lm.tokenizer.encode_batch(texts, allowed_special="all")
        if self._add_bos_token:
            found = [ids if ids[:1] == [self._first] else [self._first, *ids] for ids in found]
        return found


def _device(device: str | None) -> str:
    """The device that is meant."""
    if device == _DEFAULT_DEVICE and find_spec("cupy") is None:
        return "cpu"
    return device or "cpu"


def _windows(ids: list[int], first: int, length: int) -> Iterator[tuple[list[int], list[int]]]:
    """The windows of a text of up to `length` tokens to measure: what each comes after, and its tokens.

    >>> list(_windows([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], -1, 4))
    [([-1], [0, 1, 2, 3]), ([3], [4, 5, 6, 7]), ([5, 6, 7], [8, 9])]
    """
    for start in range(0, len(ids), length):
        stop = min(start + length, len(ids))
        yield ids[max(stop - length - 1, 0) : start] if start else [first], ids[start:stop]
