"""The language model: a tokenizer and a network together, text in and text out."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

from gpt2fast._internal.arguments import listed, whole_number
from gpt2fast.checkpoint.heads import LabelHead, read_head
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.generation.beam import Beam, beam_searches
from gpt2fast.generation.generate import Generation, Prompt, Settings, Step, generate, steps
from gpt2fast.generation.processors import AllowedTokens, LogitsProcessor, StoppingCriterion
from gpt2fast.generation.sequence import GeneratedSequence
from gpt2fast.generation.speculation import ModelDrafter, PromptLookup
from gpt2fast.hub.models import resolve
from gpt2fast.model.backend import CacheDType, DType, Gemm
from gpt2fast.model.gpt2 import GPT2
from gpt2fast.model.hooks.steering import Steering
from gpt2fast.model.pairing import warn_of_ends
from gpt2fast.scheduler import Drafter
from gpt2fast.scoring.classify import Classification, TokenLabel, classify
from gpt2fast.scoring.pairs import Comparison, compare
from gpt2fast.scoring.score import Score, score_choices, score_texts
from gpt2fast.scoring.texts import Scorable
from gpt2fast.tokenizer.encoding import Tokenizer
from gpt2fast.tokenizer.names import named_tokenizer
from gpt2fast.tokenizer.special import allowed_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from gpt2fast.interpretability.look import Look
    from gpt2fast.model.hooks.steering import Steer

__all__ = ["GenerateOptions", "LanguageModel", "load"]

_STEER = "a Steering, or a list with one for each prompt"


class ConstraintOptions(TypedDict, total=False):
    """The fields of `gpt2fast.generation.Settings` by which a caller takes part in the choice of tokens."""

    logits_processor: LogitsProcessor | Sequence[LogitsProcessor]
    prefix_allowed_tokens_fn: AllowedTokens | None
    stopping_criteria: StoppingCriterion | Sequence[StoppingCriterion]
    regex: str | None
    json_schema: str | Mapping[str, Any] | bool | type | None
    choices: Sequence[str] | None
    lark: str | None
    grammar: str | None
    token_mask: Callable[[], Any] | None


class GenerateOptions(ConstraintOptions, total=False):
    """What `generate`, `stream` and `generate_batch` take as keywords: the fields of `gpt2fast.generation.Settings`,
    where each one is explained, those of `LanguageModel.drafter`, `steer` and `allow_special`."""

    max_new_tokens: int | None
    min_new_tokens: int
    ignore_eos: bool
    stop_token_ids: Sequence[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: Mapping[int, float]
    banned_ids: Sequence[int]
    banned_sequences: Sequence[Sequence[int]]
    stop: str | Sequence[str] | None
    seed: int | Sequence[int] | None
    logprobs: int | None
    overflow: Literal["stop", "error", "slide"]
    batch_size: int
    speculate: Literal["int4", "int8", "lookup", "off"] | None
    draft: LanguageModel | GPT2 | None
    steer: Steering | Sequence[Steering | Sequence[Steering] | None] | None
    allow_special: bool


def load(
    name_or_path: str | Path = "demo",
    *,
    adapter: str | Path | None = None,
    dtype: DType | None = None,
    device: Literal["cpu", "cuda"] | str = "cpu",
    num_threads: int | None = None,
    gemm: Gemm = "panel",
    cache_dtype: CacheDType | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
) -> LanguageModel:
    """The language model of that name.

    "demo" is the small teller of fairy tales that comes with the package.  A directory has config.json,
    model.safetensors (or its shards and their index) and vocab.json with merges.txt, or tokenizer.json.  Other names
    ("gpt2", "gpt2-xl", "distilgpt2", "org/name") are downloaded once, which takes the extra `gpt2fast[hub]`.
    `tokenizer` is another one than the directory's, for a checkpoint without one: a `Tokenizer`, "gpt2" for the one
    that comes with the package, a directory or a name.

    `adapter` is a directory with a LoRA adapter for that model, which is merged into it.

    Raises MissingFileError, InputError, DownloadError or MissingDependencyError; see `GPT2.from_pretrained` for the
    keywords.

    >>> lm = load("demo")
    >>> lm.generate("Once upon a time", max_new_tokens=6, temperature=0).text
    ', and the old man was'
    """
    directory = resolve(name_or_path, tokenizer=tokenizer is None)
    if not isinstance(tokenizer, Tokenizer):  # the quick half first: damage there is told at once
        tokenizer = Tokenizer.from_pretrained(directory) if tokenizer is None else named_tokenizer(tokenizer)
    model = GPT2.from_pretrained(
        directory,
        adapter=adapter,
        dtype=dtype,
        device=device,
        num_threads=num_threads,
        gemm=gemm,
        cache_dtype=cache_dtype,
    )
    warn_of_ends(model, tokenizer)
    return LanguageModel(model, tokenizer, head=read_head(directory, model.config.n_embd))


def _signature(method: Callable[..., Any]) -> inspect.Signature:
    """The method's signature with the options by name and default instead of `**options`, for completion and help."""
    signature = inspect.signature(method)
    defaults = {field.name: field.default for field in dataclasses.fields(Settings) if field.init} | {
        "allow_special": False
    }
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name),
            annotation=getattr(annotation, "__forward_arg__", annotation),
        )
        for name, annotation in GenerateOptions.__annotations__.items()
    ]
    options = [o.replace(default={}) if o.default is dataclasses.MISSING else o for o in options]
    own = [o for o in signature.parameters.values() if o.kind is not inspect.Parameter.VAR_KEYWORD]
    return signature.replace(parameters=own + options)


class LanguageModel:
    """A tokenizer and a network: text in, text out.  Made by `gpt2fast.load`.

    Every prompt is a text, str or bytes, or a sequence of token ids.  In a text `<|endoftext|>` and other special
    tokens are text like any other; `allow_special=True`, or a prompt of ids, makes them tokens.  Added tokens that are
    not special are found wherever they stand.  An empty prompt starts from the token that texts begin with: the
    configuration's bos, else the tokenizer's, else end-of-text.  A text ends with any token that config.json or
    generation_config.json names as eos, else with the tokenizer's.
    """

    #: What gives labels, where the checkpoint is a classifier's.
    head: LabelHead | None = None

    def __init__(self, model: GPT2, tokenizer: Tokenizer, *, head: LabelHead | None = None) -> None:
        #: The network, a `gpt2fast.GPT2`.
        self.model = model
        #: The tokenizer, a `gpt2fast.Tokenizer`.
        self.tokenizer = tokenizer
        self.head = head
        self._drafts: dict[str, GPT2] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_drafts": {}}  # made again where they are needed

    def __repr__(self) -> str:
        return f"<LanguageModel {self.model!r} with {self.tokenizer!r}>"

    @overload
    def generate(
        self,
        prompt: str | bytes | Prompt,
        *,
        n: Literal[1] = 1,
        on_token: Callable[[Step], object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: str | bytes | Prompt,
        *,
        n: int,
        on_token: Callable[[Step], object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation | list[Generation]: ...

    def generate(
        self,
        prompt: str | bytes | Prompt,
        *,
        n: int = 1,
        on_token: Callable[[Step], object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation | list[Generation]:
        """The continuation of `prompt`, a `Generation`; with `n` above 1 a list of `n` samples.

        The options, explained at `gpt2fast.generation.Settings`, are max_new_tokens (60), min_new_tokens, temperature
        (0.8; 0 is greedy), top_k (40; 0 is off), top_p, min_p, repetition_penalty, presence_penalty,
        frequency_penalty, no_repeat_ngram_size, logit_bias, banned_ids, banned_sequences, stop, seed, logprobs,
        overflow, batch_size, logits_processor, prefix_allowed_tokens_fn and stopping_criteria; and one of regex,
        json_schema, choices, lark, grammar and token_mask, which say what the text is like.  With `allow_special`
        special tokens in the prompt, such as `<|endoftext|>`, are these tokens; else they are text.
        `on_token` is called with a `Step` for every new token; where it returns True the text ends with that token.
        `speculate` or `draft` makes it quicker and changes nothing else; see `drafter`.  `steer`, a
        `gpt2fast.interpretability.Steering` or a list of them, adds vectors to activations of every pass.

        Raises InputError or InputTypeError, naming the argument, before anything is computed, among them GrammarError
        for a grammar that is invalid or impossible; InputError, too, where the model's logits are not finite.  Where a
        processor, a criterion or the grammar fails on the way its ProcessorError or GrammarError is raised; of several
        texts its own has it as `Generation.error`, and the others go on.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> lm.generate("Once upon a time", temperature=0, stop=".").text
        ', and the old man was very fond of his own, and he was very fond of his own'
        """
        n = whole_number("n", n, least=1)
        prompts = [self._ids(prompt, options)]
        steer = [cast("Steer", options.pop("steer", None))]
        settings, drafter = self._split(options, n)
        (found,) = generate(
            self.model, self.tokenizer, prompts, settings, n=n, on_token=on_token, drafter=drafter, steer=steer
        )
        return found if n > 1 else found[0]

    def generate_batch(
        self,
        prompts: Sequence[str | bytes | Prompt],
        *,
        on_token: Callable[[Step], object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Generation]:
        """The continuations of `prompts`, in their order: each is what `generate` gives for that prompt alone.

        Options and errors are those of `generate`; `seed` may be a sequence with one for each prompt.  `steer` may be a
        list with an entry for each prompt, None or what `generate` takes; a prompt's text is not touched by what others
        are steered with.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> found = lm.generate_batch(["Once upon a time", "The king said"], temperature=0, max_new_tokens=4)
        >>> [generation.text for generation in found]
        [', and the old', ', "I am']
        """
        if isinstance(prompts, (str, bytes)):
            raise InputTypeError(f"prompts is one {type(prompts).__name__}; expected a list of prompts")
        ids = [self._ids(prompt, options) for prompt in listed("prompts", prompts, "a list of prompts")]
        steer = options.pop("steer", None)
        each = [steer] * len(ids) if steer is None or isinstance(steer, Steering) else listed("steer", steer, _STEER)
        settings, drafter = self._split(options, len(ids))
        found = generate(self.model, self.tokenizer, ids, settings, on_token=on_token, drafter=drafter, steer=each)
        return [samples[0] for samples in found]

    def stream(self, prompt: str | bytes | Prompt, **options: Unpack[GenerateOptions]) -> Iterator[str]:
        """The same text as `generate`'s, in pieces as it comes: whole characters, never a part of a stop string.

        Options and errors are those of `generate`; arguments are checked at the call.

        >>> import gpt2fast
        >>> list(gpt2fast.load("demo").stream("Once upon a time", max_new_tokens=4, temperature=0))
        [',', ' and', ' the', ' old']
        """
        ids, steer = self._ids(prompt, options), cast("Steer", options.pop("steer", None))
        settings, drafter = self._split(options, 1)
        made = steps(self.model, self.tokenizer, [ids], settings, drafter=drafter, steer=[steer])
        return (step.text for step in made if step.text)

    def beam_search(
        self,
        prompt: str | bytes | Prompt,
        *,
        num_beams: int = 4,
        num_return_sequences: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        max_new_tokens: int | None = 60,
        min_new_tokens: int = 0,
        stop: str | Sequence[str] | None = None,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        banned_ids: Sequence[int] = (),
        banned_sequences: Sequence[Sequence[int]] = (),
        overflow: Literal["stop", "error"] = "stop",
        allow_special: bool = False,
        **constraints: Unpack[ConstraintOptions],
    ) -> list[Beam]:
        r"""The `num_return_sequences` most probable continuations that a beam search finds, each a `Beam`, best first.

        At every step the `num_beams` most probable texts are kept, so more beams find more probable texts, for as many
        times the work.  Finished texts are ranked by their log-probability over their number of tokens to the power of
        `length_penalty`: above 0 it favours long texts, below 0 short ones.  `early_stopping` says when the search
        ends, once `num_beams` texts are finished: False, when those under way look no better as they are; True, at
        once; "never", when none can become better.  The other options are those of `generate`.  All is as in Hugging
        Face's `generate(num_beams=…, do_sample=False)`.

        Raises InputError or InputTypeError, naming the argument, before anything is computed; InputError, too, where
        the model's logits are not finite or every token is banned.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> for beam in lm.beam_search("Once upon a time", num_return_sequences=2, max_new_tokens=8):
        ...     print(f"{beam.log_likelihood:.2f} {beam.text!r}")
        -11.05 '.\n\n"What is the matter'
        -11.40 '.\n\n"What is it?"'
        """
        return self.beam_search_batch(
            [prompt],
            num_beams=num_beams,
            num_return_sequences=num_return_sequences,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            stop=stop,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
            banned_ids=banned_ids,
            banned_sequences=banned_sequences,
            overflow=overflow,
            allow_special=allow_special,
            **constraints,
        )[0]

    def beam_search_batch(
        self,
        prompts: Sequence[str | bytes | Prompt],
        *,
        num_beams: int = 4,
        num_return_sequences: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        max_new_tokens: int | None = 60,
        min_new_tokens: int = 0,
        stop: str | Sequence[str] | None = None,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        banned_ids: Sequence[int] = (),
        banned_sequences: Sequence[Sequence[int]] = (),
        overflow: Literal["stop", "error"] = "stop",
        batch_size: int = 16,
        allow_special: bool = False,
        **constraints: Unpack[ConstraintOptions],
    ) -> list[list[Beam]]:
        r"""For each of `prompts`, in their order, what `beam_search` finds for it alone.

        As many prompts are searched for at the same time as have `batch_size` beams together, at least one.  The other
        options and the errors are those of `beam_search`.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> found = lm.beam_search_batch(["Once upon a time", "The king said"], max_new_tokens=4)
        >>> [beams[0].text for beams in found]
        ['.\n\n"', ':\n\n"']
        """
        if isinstance(prompts, (str, bytes)):
            raise InputTypeError(f"prompts is one {type(prompts).__name__}; expected a list of prompts")
        settings = Settings(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            stop=stop,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
            banned_ids=banned_ids,
            banned_sequences=banned_sequences,
            overflow=overflow,
            batch_size=batch_size,
            **constraints,
        )
        return beam_searches(
            self.model,
            self.tokenizer,
            [
                self._ids(prompt, {"allow_special": allow_special})
                for prompt in listed("prompts", prompts, "a list of prompts")
            ],
            settings,
            num_beams=num_beams,
            num_return_sequences=num_return_sequences,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )

    def score(
        self,
        text: Scorable,
        *,
        context: Scorable = "",
        stride: int | None = None,
        bos: bool = True,
        eos: bool = False,
        allow_special: bool = False,
    ) -> Score:
        """How probable `text` is, token by token: a `Score` with ids, character spans, log-probabilities, ranks and
        entropies, and with .perplexity, .surprisal and .bits_per_byte.

        The first token comes after `context`, and that after the token that texts begin with: the model's bos, or
        end-of-text.  `bos=False` leaves that out; where there is no context either, the text's first token has no
        probability and is not among the score's tokens, as in Hugging Face's loss.  White space at the context's end
        goes to the text (and into `Score.text`), because GPT-2's tokens carry the space before a word.  With `eos` the
        token that ends texts comes after the text and is scored, too, as a token without characters, so that its
        surprisal tells how probable it is that the text ends there.  Text and context may also be token ids; then
        `Score.text` is what they decode to, str where that is UTF-8, else bytes.  With `allow_special` special tokens
        in the text, such as `<|endoftext|>`, are these tokens; else they are text.  A text longer than the model's
        context is read in windows that go on by `stride` tokens (default: half the context), so that every token sees
        at least the context less `stride` tokens before it.  Of bytes, which need not be UTF-8, spans count bytes.

        Raises InputTypeError for what is no text; InputError for a stride over the context, a str with a lone
        surrogate, a model without end-of-text, and logits that are not finite.

        >>> import gpt2fast
        >>> score = gpt2fast.load("demo").score("Once upon a time")
        >>> [(token.text, token.rank, round(token.surprisal, 1)) for token in score.tokens]
        [('Once', 59, 10.4), (' upon', 1, 0.5), (' a', 1, 0.3), (' time', 1, 0.1)]
        >>> round(score.perplexity, 2)
        7.07
        """
        return score_texts(
            self.model,
            self.tokenizer,
            [text],
            context=context,
            stride=stride,
            bos=bos,
            eos=eos,
            allow_special=allow_special,
        )[0]

    def score_batch(
        self,
        texts: Sequence[Scorable],
        *,
        context: Scorable = "",
        stride: int | None = None,
        bos: bool = True,
        eos: bool = False,
        allow_special: bool = False,
    ) -> list[Score]:
        """The scores of `texts`, in their order: each is what `score` gives for that text alone.

        Short texts go through the model together, many times quicker than one by one.  Raises as `score` does.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> texts = ["There was once a poor woodcutter.", "click here >>> FREE $$$ xx 4839"]
        >>> [round(score.perplexity) for score in lm.score_batch(texts)]
        [28, 11959]
        """
        if isinstance(texts, (str, bytes)):
            raise InputTypeError(f"texts is one {type(texts).__name__}; expected a list of texts")
        return score_texts(
            self.model,
            self.tokenizer,
            texts,
            context=context,
            stride=stride,
            bos=bos,
            eos=eos,
            allow_special=allow_special,
        )

    def look(self, text: str | bytes, *, bos: bool = True, allow_special: bool = False) -> Look:
        """What the model does with `text`, a `Look`: attention, the likeliest tokens after each layer, and what each
        head adds to each token's logit.  A notebook shows it as a page; `html()` gives that page.

        The text comes after the token that texts begin with, unless `bos` is False.  With `allow_special` special
        tokens in it, such as `<|endoftext|>`, are these tokens; else they are text.  Raises InputTypeError for what is
        no text, and InputError where there is no token at all, or more than the model's context.

        >>> import gpt2fast
        >>> gpt2fast.load("demo").look("Once upon a time")
        <Look at 5 tokens: 6 layers of 8 heads>
        """
        from gpt2fast.interpretability.look import look

        return look(self.model, self.tokenizer, text, bos=bos, allow_special=allow_special)

    def save_pretrained(
        self, directory: str | Path, *, max_shard_size: int | str = "5GB", packed: bool = False
    ) -> None:
        """Write the model, a classifier's with its head, and the tokenizer into `directory`, for `load` to take; see
        `GPT2.save_pretrained`."""
        self.tokenizer.check_saving(directory)  # before anything is written
        self.model.save_pretrained(directory, max_shard_size=max_shard_size, packed=packed, head=self.head)
        self.tokenizer.save_pretrained(directory)

    def score_choices(
        self,
        context: str | bytes,
        choices: Sequence[str | bytes],
        *,
        bos: bool = True,
        allow_special: bool = False,
    ) -> list[Score]:
        """How probable each of `choices` is as the continuation of `context`: multiple choice.  The scores come in the
        order of the choices; the context is read once.

        `log_likelihood` compares the choices as they are, `log_likelihood / num_characters` (or `num_bytes`) without
        the advantage of short ones; `is_greedy` tells whether the model itself would have said so.

        Each choice is cut into tokens on its own, so a token border lies before it, as people mean it: begin choices
        with a space where the context ends with a word.  White space at the context's end goes to the choices (and into
        their `text`), because GPT-2's tokens carry the space before a word: "Answer: " with "yes" scores " yes".
        The context comes after the token that texts begin with, as texts in training did; `bos=False` leaves that out,
        as lm-evaluation-harness does by default.  `allow_special` is as in `score`.

        Raises InputTypeError for what is no text, or where texts and bytes are mixed; InputError for an empty choice,
        and as `score` does.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> choices = [" king.", " the.", " grandmother."]
        >>> scores = lm.score_choices("Once upon a time there was a", choices)
        >>> choices[max(range(3), key=lambda i: scores[i].log_likelihood)]
        ' king.'
        """
        if isinstance(choices, (str, bytes)):
            raise InputTypeError(f"choices is one {type(choices).__name__}; expected a list of texts")
        return score_choices(self.model, self.tokenizer, context, choices, bos=bos, allow_special=allow_special)

    def compare(
        self,
        pairs: Iterable[tuple[str, str] | Mapping[str, Any]],
        *,
        by: str = "UID",
        context: Scorable = "",
        bos: bool = True,
        eos: bool = False,
    ) -> Comparison:
        """How often the good sentence of a pair is more probable than the bad one: a `Comparison`, with .accuracy,
        .interval(), .by_paradigm() and .rows(); printed it is a table.

        A pair is (good, bad), or a mapping as in BLiMP (Warstadt et al. 2020, arXiv:1912.00582), with "sentence_good"
        and "sentence_bad", and with its paradigm under the name that `by` says.  Sentences are compared by the
        log-likelihood of all their tokens; the other arguments are those of `score`.  Where both are equally probable,
        the model is wrong.

        Raises InputError or InputTypeError, naming the pair, for what is no pair, and as `score` does.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> print(lm.compare([("The king was dead.", "The king were dead."), ("She saw him.", "She saw he.")]))
        all      2 of     2  100.0%  [34.2%, 100.0%]
        """
        return compare(self, pairs, by=by, context=context, bos=bos, eos=eos)

    def classify(
        self, texts: Sequence[Scorable], *, truncate: bool = False, allow_special: bool = False
    ) -> list[Classification] | list[list[TokenLabel]]:
        """The labels of `texts`, in their order, by a checkpoint of GPT2ForSequenceClassification or
        GPT2ForTokenClassification, as transformers gives them.

        The first has one `Classification` for each text, made after its last token that is no padding; the second a
        list with one `TokenLabel` for each token.  Each has .label, .probability, .probabilities and .logits.  Texts
        may also be token ids.  Nothing is put before a text.  With `truncate` a text beyond the model's context is
        labelled by its beginning.  `allow_special` is as in `score`.

        Raises InputError where the checkpoint is no classifier's, and for a text that is empty or too long;
        InputTypeError for what is no text.
        """
        if isinstance(texts, (str, bytes)):
            raise InputTypeError(f"texts is one {type(texts).__name__}; expected a list of texts")
        if self.head is None:
            raise InputError(
                "the checkpoint has no head for labels: expected config.json with the architecture "
                "GPT2ForSequenceClassification or GPT2ForTokenClassification"
            )
        return classify(self.model, self.tokenizer, self.head, texts, truncate=truncate, allow_special=allow_special)

    def drafter(
        self, *, speculate: str | None = None, draft: LanguageModel | GPT2 | None = None, size: int = 1
    ) -> Drafter[GeneratedSequence] | None:
        """What proposes tokens in speculative decoding of up to `size` texts at once; None where nothing does.

        `speculate` is "lookup", which looks for what followed when the text's last tokens came before; "int8" or
        "int4", a copy of this model in fewer bits, made at the first call and kept; or "off".  `draft` is a smaller
        model with the same tokens.  The texts are those that would come without, token by token, only sooner, if the
        proposals are good; `Generation.drafted` and `Generation.accepted` tell how good they were.

        With neither it is "lookup" where logits are the same bit for bit however many tokens a pass takes: on a CPU,
        with `gemm="panel"`.  Elsewhere it is "off", and within `GPT2.hooks`, whose functions would see proposals, too.

        Raises InputError or InputTypeError where both are given, or one that cannot draft for this model.
        """
        if speculate is not None and draft is not None:
            raise InputError("speculate and draft were given; expected one of them")
        if draft is not None:
            model = draft.model if isinstance(draft, LanguageModel) else draft
            if not isinstance(model, GPT2):
                raise InputTypeError(f"draft is of type {type(draft).__name__}; expected a LanguageModel or a GPT2")
            return ModelDrafter(self.model, model, size)
        if speculate is None:
            speculate = "lookup" if self.model.gemm == "panel" and not self.model.has_hooks else "off"
        if not isinstance(speculate, str) or speculate not in ("int4", "int8", "lookup", "off"):
            raise InputError(f"speculate is {speculate!r}; expected 'int4', 'int8', 'lookup' or 'off'")
        if speculate == "off":
            return None
        if speculate == "lookup":
            return PromptLookup()
        if speculate == self.model.dtype:
            raise InputError(f"speculate is {speculate!r}, but the model itself is kept so; nothing would be quicker")
        if speculate not in self._drafts:
            self._drafts[speculate] = self.model.with_dtype(speculate)
        return ModelDrafter(self.model, self._drafts[speculate], size)

    def _ids(self, prompt: str | bytes | Prompt, options: GenerateOptions) -> Prompt:
        allowed = allowed_by(options.get("allow_special", False))
        if not isinstance(prompt, (str, bytes)):
            return prompt
        return self.tokenizer.encode(prompt, allowed_special=allowed, disallowed_special=())

    def _split(self, options: GenerateOptions, texts: int) -> tuple[Settings, Drafter[GeneratedSequence] | None]:
        """The settings and the drafter that the options of a call for so many texts name."""
        known = [field.name for field in dataclasses.fields(Settings) if field.init]
        for name in options:
            if name not in (*known, "speculate", "draft", "allow_special"):
                close = get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise InputTypeError(f"there is no option {name!r}{hint}")
        speculate, draft = options.pop("speculate", None), options.pop("draft", None)
        options.pop("allow_special", None)
        settings = Settings(**options)  # type: ignore[misc]
        rows = max(min(settings.batch_size, texts), 1)
        return settings, self.drafter(speculate=speculate, draft=draft, size=rows)


_methods: tuple[Callable[..., Any], ...] = (LanguageModel.generate, LanguageModel.generate_batch, LanguageModel.stream)
for _method in _methods:
    setattr(_method, "__signature__", _signature(_method))  # noqa: B010
