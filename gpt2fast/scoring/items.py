"""Items of an experiment to tables in long format: a row for each word, or each region, of each item."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

from gpt2fast._internal.arguments import each, flag
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.scoring.lens import lens
from gpt2fast.scoring.score import Score
from gpt2fast.scoring.spans import Punctuation, Span, regions, words
from gpt2fast.scoring.word_starts import BowCorrection, bow_kind

__all__ = ["Scorer", "frequency_key", "item_columns", "word_rows"]

#: The columns that are added to an item's, with the types of their values; `layer` only where layers are told apart.
_COLUMNS: dict[str, type] = {
    "region": int,
    "layer": int,
    "word": str,
    "n_tokens": int,
    "surprisal": float,
    "entropy": float,
    "rank": int,
}

#: Items whose texts are scored together.
_GROUP = 64


def item_columns(*, layers: bool) -> dict[str, type]:
    """The columns that are added to an item's, with the types of their values."""
    return {name: type for name, type in _COLUMNS.items() if layers or name != "layer"}


class Scorer(Protocol):
    """`gpt2fast.LanguageModel`, as far as it scores."""

    @property
    def score_batch(self) -> Callable[..., list[Score]]: ...


def word_rows(
    lm: Scorer,
    items: Iterable[Mapping[str, Any]],
    *,
    text: str = "text",
    separator: str | None = None,
    punctuation: Punctuation = "attached",
    bow_correction: BowCorrection = False,
    frequencies: Mapping[str, float] | None = None,
    layers: bool = False,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """For each of `items` a row for each word of its text, or for each region where a `separator` stands between them:
    the table in long format that R and pandas want, as dicts.

    A row has all that the item has but its `text`; `item`, its number from 1, where the item has no such column itself;
    `region`, the number of the word or region in its text, from 1; `word`, what it reads; `n_tokens`; `surprisal`, in
    bits; `entropy`, in bits, of the distribution that its first token came from; `rank` of its first token among all
    tokens, 1 for the likeliest.  A region without tokens has NaN and 0.  With `frequencies`, of words as
    `frequency_key` writes them, there is also `log_frequency`, the natural logarithm, NaN for a word that is not there.

    With `layers` there is a row for each word and each layer, whose number is in `layer`: what the network would say
    after so many layers, by the logit lens (`gpt2fast.interpretability.lens`): 0 for the embeddings, the last one for
    the whole network.  Then a text has to fit into the model's context, comes after the token that texts begin with,
    and neither `bow_correction` nor other options can be given.

    `punctuation` and `bow_correction` are those of `Score.by_word`; `options` are those of `LanguageModel.score`, such
    as `context`.  Items are scored some at a time, as they are asked for.

    Raises InputError where options do not go with `layers`, where an item has no `text`, or another column of a name
    that a row has; InputTypeError where it is no str; and what `LanguageModel.score` raises.

    >>> import gpt2fast
    >>> items = [{"condition": "a", "text": "the |old man| slept"}]
    >>> rows = list(word_rows(gpt2fast.load("demo"), items, separator="|"))
    >>> list(rows[0])
    ['item', 'condition', 'region', 'word', 'n_tokens', 'surprisal', 'entropy', 'rank']
    >>> [(row["region"], row["word"], row["n_tokens"], round(row["surprisal"], 1)) for row in rows]
    [(1, 'the', 1, 11.9), (2, 'old man', 2, 13.2), (3, 'slept', 1, 16.3)]
    >>> rows = word_rows(gpt2fast.load("demo"), items, separator="|", layers=True)
    >>> [round(row["surprisal"], 1) for row in rows if row["word"] == "slept"]
    [25.9, 17.2, 27.0, 25.2, 19.1, 15.9, 16.3]
    """
    if frequencies is not None and not isinstance(frequencies, Mapping):
        raise InputTypeError(f"frequencies is of type {type(frequencies).__name__}; expected numbers by words")
    bow_correction = bow_kind(bow_correction)
    numbered = enumerate(each("items", items, "mappings of columns"), 1)
    added = {*item_columns(layers=flag("layers", layers)), *(() if frequencies is None else ("log_frequency",))}
    if layers:
        _check_alone(bow_correction, options)
    while group := list(islice(numbered, _GROUP)):
        found = [_text_and_spans(item, number, text, separator, punctuation, added) for number, item in group]
        scores = lm.score_batch([whole for whole, _ in found], **options)
        for (number, item), (whole, spans), score in zip(group, found, scores, strict=True):
            moved = len(score.text) - len(whole)  # white space that came from the context
            spans = [(start + moved, end + moved) for start, end in spans]
            others = {name: value for name, value in item.items() if name != text}
            scored = _by_layer(lm, score) if layers else [score]
            parts = [one.by_spans(spans, bow_correction=bow_correction) for one in scored]
            for i, of_word in enumerate(zip(*parts, strict=True), 1):
                for layer, part in enumerate(of_word):
                    row = {
                        "item": number,
                        **others,
                        "region": i,
                        **({"layer": layer} if layers else {}),
                        "word": part.text,
                        "n_tokens": part.num_tokens,
                        "surprisal": part.surprisal if part.num_tokens else math.nan,
                        "entropy": part.entropy,
                        "rank": part.rank,
                    }
                    if frequencies is not None:
                        frequency = frequencies.get(frequency_key(str(part.text)), 0.0)
                        row["log_frequency"] = math.log(frequency) if frequency > 0 else math.nan
                    yield row


def _check_alone(bow_correction: BowCorrection, options: Mapping[str, Any]) -> None:
    """Raises InputError where more than the text itself is asked for by layer."""
    unsaid = {"context": ("", b""), "stride": (None,), "bos": (True,), "eos": (False,), "allow_special": (False,)}
    said = [name for name, value in options.items() if value not in unsaid.get(name, ())]
    if bow_correction:
        said.append("bow_correction")
    if said:
        raise InputError(f"{said[0]} does not go with layers, which are those of a text as it is")


def _by_layer(lm: Any, score: Score) -> list[Score]:
    """The score, as after each layer."""
    if not len(score):
        return [score] * (lm.model.config.n_layer + 1)
    seen = lens(lm, score.text)
    values = zip(seen.log_probabilities, seen.ranks, seen.entropies, strict=True)
    return [
        replace(score, log_probabilities=log_probabilities, ranks=ranks, entropies=entropies)
        for log_probabilities, ranks, entropies in values
    ]


def frequency_key(word: str) -> str:
    """How a word is looked up: in lower case, without punctuation at its ends.

    >>> frequency_key("“Philosopher’s,”")
    'philosopher’s'
    """
    inside = [word[slice(*span)] for span in words(word, "separate")]
    longest = max(inside, key=lambda part: (any(map(str.isalnum, part)), len(part)), default="")
    return longest.lower()


def _text_and_spans(
    item: Mapping[str, Any], number: int, name: str, separator: str | None, punctuation: Punctuation, added: set[str]
) -> tuple[str, list[Span]]:
    if not isinstance(item, Mapping):
        raise InputTypeError(f"item {number} is of type {type(item).__name__}; expected a mapping of columns")
    if name not in item:
        raise InputError(f"item {number} has no column {name!r}, but {', '.join(map(repr, item)) or 'none'}")
    taken = sorted(added.intersection(item) - {name})
    if taken:
        raise InputError(f"item {number} has a column {taken[0]!r}, which the table has, too; give it another name")
    text = item[name]
    if not isinstance(text, str):
        raise InputTypeError(f"{name!r} of item {number} is of type {type(text).__name__}; expected str")
    return (text, words(text, punctuation)) if separator is None else regions(text, separator)
