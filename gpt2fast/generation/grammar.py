"""Grammars: texts of a regular expression, a JSON schema, a list of choices or a context-free grammar, by llguidance.

llguidance (the extra `gpt2fast[grammar]`) reads along with an Earley parser over a lexer of derivatives and tells which
tokens can follow; see https://github.com/guidance-ai/llguidance for what its grammars may say.  Its tokenizer is built
from ours once (0.3 s for 50,257 tokens) and kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import GrammarError, InputError, InputTypeError, MissingDependencyError, UnknownTokenError
from gpt2fast.generation.constraint import Matcher
from gpt2fast.tokenizer.encoding import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Grammar", "GrammarLimits", "compile_grammar", "read_grammar"]

# JSON as json.dumps writes it.  With all the white space that JSON allows small models write little else, and less of
# a text is forced.
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# How a line of Lark begins that GBNF does not have, where a rule may be called start, too.
_LARK_LINE = re.compile(r"%llguidance\b|start\s*:(?!:=)")

Kind = Literal["grammar", "regex", "json_schema", "choices", "lark"]


@dataclass(frozen=True)
class Grammar:
    """A grammar that was asked for: of which kind, and its source, of a schema or choices their JSON."""

    kind: Kind
    source: str


@dataclass(frozen=True, kw_only=True)
class GrammarLimits:
    """How much a grammar may take, as llguidance counts it; what takes more is refused, or ends its text with an
    error.

    >>> GrammarLimits().source
    10000000
    """

    #: Characters of the source.
    source: int = 10_000_000
    #: Symbols of the rules.
    symbols: int = 500_000
    #: Of GBNF, which is first made Lark, rules times characters, some 9,000 a millisecond.
    conversion: int = 20_000_000
    #: Work to read the grammar, some 50,000 a millisecond.
    reading: int = 1_000_000
    #: Work of the lexer for one token, some 14,000 a millisecond, and items of the parser, some 20,000 a millisecond.
    lexing: int = 200_000
    parsing: int = 50_000
    #: States of the lexer, 1 to 2 KB each.
    states: int = 250_000


def read_grammar(
    *,
    grammar: Any = None,
    regex: Any = None,
    json_schema: Any = None,
    choices: Any = None,
    lark: Any = None,
) -> Grammar | None:
    """The one grammar that is not None, None where all are; whether it makes sense shows when it is compiled.

    Raises InputError where several are given, and InputError or InputTypeError, naming the argument, where one is of
    the wrong type.

    >>> read_grammar(choices=["yes", "no"])
    Grammar(kind='choices', source='["yes", "no"]')
    """
    texts: dict[Kind, Any] = {"grammar": grammar, "regex": regex, "lark": lark}
    given: dict[Kind, Any] = {**texts, "json_schema": json_schema, "choices": choices}
    names = [kind for kind, value in given.items() if value is not None]
    if not names:
        return None
    if len(names) > 1:
        raise InputError(f"{' and '.join(names)} were given; expected one of them")
    kind, value = names[0], given[names[0]]
    if kind == "json_schema":
        return Grammar(kind, _schema(value))
    if kind == "choices":
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise InputTypeError(f"choices is {value!r}; expected a list of texts")
        if not value:
            raise InputError("choices is empty; expected at least one text")
        for i, choice in enumerate(value):
            _check_text(f"choices[{i}]", choice)
            if not choice:
                raise InputError(f"choices[{i}] is empty; there would be nothing to say")
        return Grammar(kind, json.dumps(list(value)))
    return Grammar(kind, _check_text(kind, value))


def _schema(value: Any) -> str:
    """A JSON schema as JSON, from that, what json.loads makes of it, or a class of pydantic's."""
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if isinstance(value, str):
        try:
            value = json.loads(_check_text("json_schema", value))
        except ValueError as error:
            raise GrammarError(f"json_schema is not valid JSON: {error}") from None
        except RecursionError:
            raise GrammarError("json_schema is nested too deeply") from None
    if not isinstance(value, (Mapping, bool)):
        raise InputTypeError(f"json_schema is of type {type(value).__name__}; expected a JSON schema, dict or str")
    if value is False:
        raise GrammarError("json_schema is false, which no JSON fits")
    try:
        return json.dumps({} if value is True else value)
    except RecursionError:
        raise GrammarError("json_schema is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"json_schema is no JSON: {error}") from None


def _check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputTypeError(f"{name} is of type {type(value).__name__}; expected str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} holds a lone surrogate, which is no character") from None
    return value


def compile_grammar(
    grammar: Grammar,
    tokenizer: Tokenizer,
    n_vocab: int,
    ends: frozenset[int],
    limits: GrammarLimits | None = None,
    *,
    forcing: bool = True,
) -> Callable[[], Matcher]:
    """What makes matchers of the grammar for texts of the tokenizer's first `n_vocab` ids that may end with one of
    `ends`.

    Where the grammar leaves no choice about the next bytes only the token that the tokenizer would make of them can
    follow; without `forcing` all tokens can that spell them.

    Raises GrammarError where the grammar is invalid, too large, or allows no text of these tokens, and
    MissingDependencyError where llguidance is not installed.
    """
    try:
        import llguidance
    except ModuleNotFoundError:
        raise MissingDependencyError(
            f"{grammar.kind} needs llguidance, which is not installed: pip install 'gpt2fast[grammar]'"
        ) from None
    limits = limits or GrammarLimits()
    if len(grammar.source) > limits.source:
        raise GrammarError(f"{grammar.kind} has {len(grammar.source)} characters; expected {limits.source} or less")
    if grammar.kind == "grammar" and not _is_lark(grammar.source):
        rules = grammar.source.count("::=")
        if rules * len(grammar.source) > limits.conversion:
            raise GrammarError(
                f"grammar has {rules} rules in {len(grammar.source)} characters; expected a product of "
                f"{limits.conversion} or less"
            )
    matcher = llguidance.LLMatcher(
        _tokenizer(tokenizer, n_vocab, ends),
        _definition(grammar, forcing),
        log_level=0,
        limits=llguidance.LLParserLimits(
            initial_lexer_fuel=limits.reading,
            step_lexer_fuel=limits.lexing,
            step_max_items=limits.parsing,
            max_lexer_states=limits.states,
            max_grammar_size=limits.symbols,
            verbose_errors=False,
        ),
    )
    if matcher.is_error():
        raise GrammarError(f"{grammar.kind} is not acceptable: {_told(matcher)}")
    size = n_vocab if ends else n_vocab + 1

    def make() -> Matcher:
        return _Matcher(matcher.deep_copy(), size, grammar.kind, n_vocab <= tokenizer.n_vocab <= size, bool(ends))

    words = np.zeros((size + 31) // 32, np.int32)
    first = make()
    try:
        first.fill(words)
    except GrammarError as error:
        raise GrammarError(f"{grammar.kind} allows no text of this vocabulary's tokens: {error}") from None
    if first.finished:
        raise GrammarError(f"{grammar.kind} allows nothing but the empty text, and no token ends a text here")
    return make


def _definition(grammar: Grammar, forcing: bool) -> str:
    """What llguidance takes, of the grammar."""
    from llguidance import LLMatcher

    try:
        if grammar.kind == "json_schema":
            definition = str(LLMatcher.grammar_from_json_schema(grammar.source, defaults=_LAYOUT))
            if forcing:
                return definition
            lark = f"start: %json {json.dumps(json.loads(definition)['grammars'][0]['json_schema'])}"
        elif grammar.kind == "regex":
            lark = json.loads(LLMatcher.grammar_from_regex(grammar.source))["grammars"][0]["lark_grammar"]
        elif grammar.kind == "choices":
            lark = "start: " + " | ".join(json.dumps(choice) for choice in json.loads(grammar.source))
        elif grammar.kind == "grammar" and not _is_lark(grammar.source):
            from llguidance.gbnf_to_lark import gbnf_to_lark

            lark = gbnf_to_lark(grammar.source)
        else:
            lark = grammar.source
        # Of several lines with options the last one counts.
        return str(LLMatcher.grammar_from_lark(lark if forcing else f'{lark}\n%llguidance {{"no_forcing": true}}\n'))
    except RecursionError:
        raise GrammarError(f"{grammar.kind} is nested too deeply") from None
    except Exception as error:
        raise GrammarError(f"{grammar.kind} is not acceptable: {error}") from None


def _is_lark(source: str) -> bool:
    """Whether the grammar is in Lark, not in GBNF.

    Line by line: llguidance's `is_lark_syntax` takes the square of the number of empty lines, and keeps the
    interpreter's lock all the while.
    """
    return any(_LARK_LINE.match(line.lstrip()) for line in source.split("\n"))


def _told(matcher: LLMatcher) -> str:
    """The matcher's error, as much of it as a message has room for."""
    text = " ".join(matcher.get_error().split())
    return text if len(text) <= 500 else text[:499] + "…"


class _Matcher:
    """llguidance's matcher.  It never sees the token that ends a text."""

    threaded = True

    def __init__(self, matcher: LLMatcher, size: int, kind: str, forcing: bool, ending: bool) -> None:
        self._matcher = matcher
        self.size = size
        self._kind = kind
        # Whether the tokens that llguidance makes of forced bytes are all known, and whether a token ends a text.
        self._forcing = forcing
        self._ending = ending

    def fill(self, words: npt.NDArray[np.int32]) -> None:
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            raise GrammarError(f"{self._kind}: {_told(self._matcher)}")

    def accept(self, ids: Sequence[int]) -> int:
        # What consumes an id that is not allowed is in error for ever.
        count: int = self._matcher.validate_tokens(list(ids))
        if count and not self._matcher.consume_tokens(list(ids[:count])):
            raise GrammarError(f"{self._kind}: {_told(self._matcher)}")
        return count

    def rollback(self, count: int) -> None:
        if not self._matcher.rollback(count):
            raise GrammarError(f"{self._kind}: {_told(self._matcher)}")

    def forced(self) -> int | None:
        ids = self._matcher.compute_ff_tokens() if self._forcing else ()
        return int(ids[0]) if ids else None

    @property
    def finished(self) -> bool:
        stopped: bool = self._matcher.is_stopped()
        if stopped or self._ending:
            return stopped
        words = np.zeros((self.size + 31) // 32, np.int32)
        self.fill(words)
        return not np.unpackbits(words.astype("<i4").view(np.uint8), bitorder="little", count=self.size - 1).any()


class _Vocabulary:
    """The tokenizer as llguidance wants to see it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, end: int) -> None:
        self.eos_token_id = end
        self.tokens = [_bytes(tokenizer, i) for i in range(n_vocab)]
        special = {i for i in range(n_vocab) if tokenizer.is_added_token(i) and tokenizer.is_special_token(i)}
        if end == n_vocab:
            self.tokens.append(b"<end>")
        self.special_token_ids = sorted(special | {end})
        self._n_vocab = n_vocab
        self._tokenizer = tokenizer
        self._single = {token: i for i, token in reversed(list(enumerate(self.tokens))) if len(token) == 1}

    def __call__(self, text: str) -> list[int]:
        wanted = text.encode()
        ids = self._tokenizer.encode_ordinary(wanted)
        # A tokenizer may put a space before a text, and know ids that the network does not.
        if max(ids, default=0) < self._n_vocab and self._tokenizer.decode_bytes(ids) == wanted:
            return ids
        return [self._single[wanted[i : i + 1]] for i in range(len(wanted)) if wanted[i : i + 1] in self._single]


def _bytes(tokenizer: Tokenizer, id: int) -> bytes:
    try:
        return tokenizer.decode_single_token_bytes(id)
    except UnknownTokenError:  # a gap
        return b""


_tokenizers: WeakKeyDictionary[Tokenizer, dict[tuple[int, frozenset[int]], LLTokenizer]] = WeakKeyDictionary()


def _tokenizer(tokenizer: Tokenizer, n_vocab: int, ends: frozenset[int]) -> LLTokenizer:
    """llguidance's tokenizer for ours, which is kept as long as ours."""
    from llguidance import LLTokenizer

    known = _tokenizers.setdefault(tokenizer, {})
    if (n_vocab, ends) not in known:
        every = sorted(ends) or [n_vocab]  # an id of its own where no token ends a text
        vocabulary: Any = _Vocabulary(tokenizer, n_vocab, every[0])
        known[n_vocab, ends] = LLTokenizer(vocabulary, n_vocab=n_vocab + (not ends), eos_token=every)
    return known[n_vocab, ends]
