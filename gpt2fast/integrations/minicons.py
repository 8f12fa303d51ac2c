"""A class like minicons' `IncrementalLMScorer`, so that scripts that use it change one import.

    from gpt2fast.integrations.minicons import IncrementalLMScorer  # was: from minicons.scorer import …

    scorer = IncrementalLMScorer("gpt2")
    scorer.token_score(["The keys to the cabinet are here."], bos_token=True, surprisal=True, base_two=True)

minicons (Misra 2022, arXiv:2203.13112) itself is not needed, nor PyTorch: where it gives tensors, this gives arrays, on
which `x.mean(0).item()` and `x.sum(0).item()` mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError
from gpt2fast.language_model import LanguageModel, load
from gpt2fast.model.pairing import beginning
from gpt2fast.scoring.score import Score
from gpt2fast.scoring.spans import Span, tokens_of_spans
from gpt2fast.scoring.word_starts import corrections

__all__ = ["IncrementalLMScorer"]

Floats = npt.NDArray[np.float64]
Texts = str | Sequence[str]
Reduction = Callable[[Floats], Any]

_LN2 = 0.6931471805599453


def _mean(values: Floats) -> float:
    return float(values.mean(0))


class IncrementalLMScorer:
    """Scores of texts by minicons' names, with minicons' numbers.

    `model` is a `gpt2fast.LanguageModel`, or what `gpt2fast.load` takes; `options` are that function's.

    As in minicons, a text's first token has no score unless `bos_token=True` puts the token before it that texts begin
    with, which itself has the score 0 and is in the lists of tokens; `eos_token=True` adds the one that ends texts.
    Scores are log-probabilities, natural logarithms; with `base_two` logarithms to base 2, with `surprisal` their
    negatives, with `prob` probabilities.  `bow_correction` moves the probability that a word ends to that word, as
    minicons does.  A batch is a text or a list of texts.  Not as in minicons, special tokens in texts are text, ranks
    count only the tokens that are more probable, and a text longer than the model's context is read in windows.

    Raises InputError for `surprisal` or `base_two` together with `prob`, and as `LanguageModel.score` does.
    """

    def __init__(self, model: str | Path | LanguageModel, device: str = "cpu", **options: Any) -> None:
        #: The model, a `gpt2fast.LanguageModel`.
        self.lm = model if isinstance(model, LanguageModel) else load(model, device=device, **options)

    def token_score(
        self,
        batch: Texts,
        surprisal: bool = False,
        prob: bool = False,
        base_two: bool = False,
        rank: bool = False,
        decode: bool = False,
        bow_correction: bool = False,
        bos_token: bool = False,
        eos_token: bool = False,
    ) -> list[list[Any]]:
        """For each text a list of (token, score), with `rank` of (token, score, rank).

        Tokens are spelled as in vocab.json, `Ġ` for a space; with `decode` as text without white space around it.

        >>> scorer = IncrementalLMScorer("demo")
        >>> [(token, round(score, 2)) for token, score in scorer.token_score("Once upon a time", bos_token=True)[0]]
        [('<|endoftext|>', 0.0), ('Once', -7.19), ('Ġupon', -0.38), ('Ġa', -0.19), ('Ġtime', -0.06)]
        """
        found = []
        for text, score in zip(_several(batch), self._scores(batch, bos_token, eos_token), strict=True):
            values = _converted(_values(score, bow_correction), surprisal, prob, base_two).tolist()
            ids = score.ids.tolist()
            ranks = score.ranks.tolist()
            first = self._unscored(text, bos_token)
            if first is not None:
                ids, values, ranks = [first, *ids], [0.0, *values], [0, *ranks]
            tokens = [self._token(id, decode) for id in ids]
            found.append(list(zip(tokens, values, ranks, strict=True) if rank else zip(tokens, values, strict=True)))
        return found

    def word_score(
        self,
        batch: Texts,
        surprisal: bool = False,
        prob: bool = False,
        base_two: bool = False,
        bow_correction: bool = False,
        bos_token: bool = False,
        eos_token: bool = False,
    ) -> list[list[tuple[str, float]]]:
        """For each text a list of (word, score), words being what white space separates: `word_score_tokenized` with
        `str.split`."""
        return self.word_score_tokenized(
            batch, str.split, bow_correction, bos_token, eos_token, surprisal, prob, base_two
        )

    def word_score_tokenized(
        self,
        batch: Texts,
        tokenize_function: Callable[[str], Sequence[str]],
        bow_correction: bool = False,
        bos_token: bool = False,
        eos_token: bool = False,
        surprisal: bool = False,
        prob: bool = False,
        base_two: bool = False,
    ) -> list[list[tuple[str, float]]]:
        """For each text a list of (word, score): the words are those that `tokenize_function` finds in it, and scores
        are sums over their tokens, with `prob` products."""
        scores = self._scores(batch, bos_token, eos_token)
        return [self._words(score, tokenize_function, bow_correction, surprisal, prob, base_two) for score in scores]

    def conditional_word_score_tokenized(
        self,
        prefix: Texts,
        stimuli: Texts,
        tokenize_function: Callable[[str], Sequence[str]],
        separator: str | Sequence[str] = " ",
        bow_correction: bool = False,
        bos_token: bool = False,
        eos_token: bool = False,
        surprisal: bool = False,
        prob: bool = False,
        base_two: bool = False,
    ) -> list[list[tuple[str, float]]]:
        """The same of the words of `stimuli`, each after its prefix and the separator."""
        scores = self._primed(prefix, stimuli, separator, bos_token, eos_token)
        return [self._words(score, tokenize_function, bow_correction, surprisal, prob, base_two) for score in scores]

    def sequence_score(
        self,
        batch: Texts,
        reduction: Reduction = _mean,
        prob: bool = False,
        base_two: bool = False,
        bow_correction: bool = False,
        bos_token: bool = False,
        eos_token: bool = False,
    ) -> list[Any]:
        """For each text what `reduction` makes of its tokens' scores, an array: by default their mean."""
        scores = self._scores(batch, bos_token, eos_token)
        return [reduction(_converted(_values(score, bow_correction), False, prob, base_two)) for score in scores]

    def conditional_score(
        self,
        prefix: Texts,
        stimuli: Texts,
        separator: str | Sequence[str] = " ",
        reduction: Reduction = _mean,
        prob: bool = False,
        base_two: bool = False,
        bow_correction: bool = False,
        bos_token: bool = False,
        eos_token: bool = False,
    ) -> list[Any]:
        """For each of `stimuli` what `reduction` makes of the scores of its tokens after its prefix and the separator.

        >>> scorer = IncrementalLMScorer("demo")
        >>> scores = scorer.conditional_score(["Once upon a"] * 2, ["time", "table"], bos_token=True)
        >>> [round(score, 2) for score in scores]
        [-0.06, -9.56]
        """
        scores = self._primed(prefix, stimuli, separator, bos_token, eos_token)
        return [reduction(_converted(_values(score, bow_correction), False, prob, base_two)) for score in scores]

    #: The former name of `conditional_score`, which minicons keeps.
    partial_score = conditional_score

    def _scores(self, batch: Texts, bos: bool, eos: bool) -> list[Score]:
        return self.lm.score_batch(_several(batch), bos=bos, eos=eos)

    def _primed(
        self, prefix: Texts, stimuli: Texts, separator: str | Sequence[str], bos: bool, eos: bool
    ) -> list[Score]:
        prefixes, texts = _several(prefix), _several(stimuli)
        separators = [separator] * len(texts) if isinstance(separator, str) else list(separator)
        if not len(prefixes) == len(texts) == len(separators):
            raise InputError(
                f"there are {len(prefixes)} prefixes, {len(texts)} stimuli and {len(separators)} separators; expected "
                "as many of each"
            )
        found = []
        for before, between, text in zip(prefixes, separators, texts, strict=True):
            # minicons cuts the whole text into tokens, and takes those behind as many as the prefix has alone.
            whole = self.lm.tokenizer.encode_ordinary(before + between + text)
            context = whole[: len(self.lm.tokenizer.encode_ordinary(before))]
            (score,) = self.lm.score_batch([whole[len(context) :]], context=context, bos=bos or not context, eos=eos)
            found.append(score)
        return found

    def _words(
        self,
        score: Score,
        tokenize: Callable[[str], Sequence[str]],
        bow_correction: bool,
        surprisal: bool,
        prob: bool,
        base_two: bool,
    ) -> list[tuple[str, float]]:
        text = str(score.text)
        spans: list[Span] = []
        end = 0
        words = list(tokenize(text))
        for word in words:
            start = text.find(word, end)
            if start < 0:
                raise InputError(f"tokenize_function gave {word!r}, which is not in the text after character {end}")
            end = start + len(word)
            spans.append((start, end))
        values = _converted(_values(score, bow_correction), surprisal, prob, base_two)
        sums = np.prod if prob else np.sum
        return [
            (word, float(sums(values[first:last])))
            for word, (first, last, _) in zip(words, tokens_of_spans(text, score.spans, spans), strict=True)
        ]

    def _unscored(self, text: str, bos: bool) -> int | None:
        """The first id of the text, which has no score."""
        if bos:
            return beginning(self.lm.model, self.lm.tokenizer)
        return next(iter(self.lm.tokenizer.encode_ordinary(text)), None)

    def _token(self, id: int, decode: bool) -> str:
        token = self.lm.tokenizer.decode_single_token_bytes(id)
        if decode:
            return token.decode("utf-8", "replace").strip()
        if self.lm.tokenizer.is_added_token(id):
            return token.decode("utf-8", "replace")
        symbols = self.lm.tokenizer.byte_symbols()
        return "".join(symbols[byte] for byte in token)


def _several(batch: Texts) -> list[str]:
    return [batch] if isinstance(batch, str) else list(batch)


def _values(score: Score, bow_correction: bool) -> Floats:
    values = score.log_probabilities
    return values + corrections(score.starts(), "minicons") if bow_correction else values


def _converted(values: Floats, surprisal: bool, prob: bool, base_two: bool) -> Floats:
    """Log-probabilities in the way that was asked for."""
    if prob and (surprisal or base_two):
        raise InputError("prob was asked for together with surprisal or base_two, which are logarithms")
    if prob:
        return np.exp(values)
    values = values / _LN2 if base_two else values
    return -values if surprisal else values
