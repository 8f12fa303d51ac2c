"""What `gpt2fast score` shows of a scored text: a table, JSON lines, or a page to look at."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from gpt2fast._internal.delimited import delimited_line
from gpt2fast._internal.pages import as_html, base_style, decoded, escaped
from gpt2fast.scoring.score import Score, TokenScore

__all__ = ["render_delimited", "render_html", "render_json_lines", "render_summary"]

_COLUMNS = ("id", "start", "end", "token", "log_probability", "surprisal", "rank", "entropy")
_WORD_COLUMNS = ("start", "end", "word", "log_probability", "surprisal", "num_tokens", "exact", "entropy", "rank")

#: The borders of GLTR's buckets.
_RANKS = (10, 100, 1000)
_MOST_BITS = 16.0  # a surprisal from which on the page's colour grows no deeper

# No script: the numbers of the token under the pointer, or in the keyboard's focus, are its `data-numbers`, which CSS
# shows at the foot of the window, where nothing cuts them off.  Paper has no pointer: there the surprisal stands behind
# each token.  Which of the two colourings is on is what the radio buttons say, also without a script.
_STYLE = """
:root { --top-10: 60 170 90; --top-100: 235 190 40; --top-1000: 235 90 90; --beyond: 170 120 220; }
@media (prefers-color-scheme: dark) {
  :root { --top-10: 20 95 45; --top-100: 120 90 0; --top-1000: 150 40 40; --beyond: 100 55 150; }
}
input { margin: 0 0.3rem 0 0; }
.choice { margin-right: 1.2rem; font-size: 0.9rem; }
header { margin-top: 0.8rem; }
.ranks, #by-rank:checked ~ header .bits { display: none; }
#by-rank:checked ~ header .ranks { display: block; }
.ranks .t, #by-rank:checked ~ main .t { background: rgb(var(--beyond) / 0.7); }
.ranks .r10, #by-rank:checked ~ main .r10 { background: rgb(var(--top-10) / 0.7); }
.ranks .r100, #by-rank:checked ~ main .r100 { background: rgb(var(--top-100) / 0.7); }
.ranks .r1000, #by-rank:checked ~ main .r1000 { background: rgb(var(--top-1000) / 0.7); }
.paper { display: none; }
@media screen {
  main .t:hover, main .t:focus { outline: 2px solid; outline-offset: 1px; }
  main .t:hover::after, main .t:focus::after { content: attr(data-numbers); }
  main .t:hover::after { z-index: 2; }
}
@media print {
  :root { --hot: 230 90 20; --paper: #fff; --ink: #000; }
  body { font-size: 11pt; max-width: none; margin: 0; }
  main { line-height: 2; }
  main .t:focus { outline: none; }
  main .t::after { content: attr(data-bits); font: 6pt system-ui, sans-serif; vertical-align: sub; }
  main .line::before { content: "↵" attr(data-bits); font: 6pt system-ui, sans-serif; opacity: 1; }
  main .line::after { content: none; }
  .paper { display: inline; }
  .screen, input, .choice { display: none; }
}
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
<input type="radio" name="colours" id="by-surprisal" checked><label class="choice" for="by-surprisal">surprisal</label>
<input type="radio" name="colours" id="by-rank"><label class="choice" for="by-rank">rank, as in GLTR</label>
<header>
<h1>{title}</h1>
<p>{summary}</p>
<p class="ranks">Rank among all tokens: <span class="t r10">1 to 10</span> <span class="t r100">to 100</span>
<span class="t r1000">to 1000</span> <span class="t">beyond</span>. {shares}</p>
<p class="bits">Surprisal in bits: <span class="t" style="--s:0">0</span> <span class="t" style="--s:.25">4</span>
<span class="t" style="--s:.5">8</span> <span class="t" style="--s:.75">12</span>
<span class="t" style="--s:1">16 and more</span>.</p>
<p><i class="screen">Hold the pointer over a token for its numbers, or step through the tokens with the Tab key.</i>
<i class="paper">The small number behind each token is its surprisal.</i></p>
</header>
<main class="text bars">{tokens}</main>
</html>
"""


def render_summary(score: Score) -> str:
    """One line: the number of tokens, and what they amount to."""
    count = f"{len(score):,} token{'' if len(score) == 1 else 's'}"
    if not len(score):
        return count
    return (
        f"{count}, perplexity {score.perplexity:.2f}, {score.bits_per_byte:.3f} bits per byte, "
        f"log-likelihood {score.log_likelihood:.2f}"
    )


def render_delimited(
    score: Score, *, by_word: bool = False, bow_correction: bool = False, delimiter: str = "\t"
) -> str:
    """A line of names, then a row for each token, or each word, with a tab or another character between columns.

    Texts are as they are, quoted as RFC 4180 has it where they hold quotation marks, line ends or the delimiter; a byte
    that is not UTF-8 is `\\xNN`.
    """
    lines = [delimited_line(_WORD_COLUMNS if by_word else _COLUMNS, delimiter)]
    for row in _rows(score, by_word, bow_correction):
        shown = (
            decoded(value)
            if isinstance(value, (str, bytes))
            else f"{value:.{6 if name == 'log_probability' else 4}f}"
            if isinstance(value, float)
            else f"{value}"
            for name, value in row.items()
        )
        lines.append(delimited_line(shown, delimiter))
    return "".join(lines)


def render_json_lines(score: Score, *, by_word: bool = False, bow_correction: bool = False) -> str:
    """A JSON object for each token, or each word, one a line; a probability of 0 has the logarithm null."""
    lines = []
    for row in _rows(score, by_word, bow_correction):
        values = {
            name: decoded(value)
            if isinstance(value, (str, bytes))
            else None
            if isinstance(value, float) and not math.isfinite(value)
            else value
            for name, value in row.items()
        }
        lines.append(json.dumps(values, ensure_ascii=False) + "\n")
    return "".join(lines)


def _rows(score: Score, by_word: bool, bow_correction: bool) -> Iterator[dict[str, Any]]:
    """The tokens or the words of a text, each with its columns by name."""
    if by_word:
        for word in score.by_word(bow_correction=bow_correction):
            numbers = (word.log_probability, word.surprisal, word.num_tokens, word.exact, word.entropy, word.rank)
            yield dict(zip(_WORD_COLUMNS, (*word.span, word.text, *numbers), strict=True))
        return
    for token in score.tokens:
        measures = (token.log_probability, token.surprisal, token.rank, token.entropy)
        yield dict(zip(_COLUMNS, (token.id, *token.span, token.text, *measures), strict=True))


def render_html(score: Score, title: str) -> str:
    """A page, complete in itself, that shows the text with each token the more coloured the less probable it was.

    A character that is several tokens is one, with the numbers of all of them and their surprisal together.  A second
    colouring, to which the page's reader changes, is by rank: the buckets of GLTR (Gehrmann et al. 2019,
    arXiv:1906.04043), among the 10, 100 or 1000 likeliest tokens or beyond; of several tokens the worst one counts.
    """
    spans = []
    for tokens in _groups(score.tokens):
        shown = score.text[tokens[0].span[0] : tokens[-1].span[1]]
        bits = sum(token.surprisal for token in tokens)
        numbers = [_numbers(token) for token in tokens]
        if len(tokens) > 1:
            numbers.insert(0, f"“{escaped(shown)}” is {len(tokens)} tokens, surprisal together {bits:.2f} bits")
        kind = "t line" if shown in ("\n", "\r\n", b"\n", b"\r\n") else "t"
        kind += _bucket(max(token.rank for token in tokens))
        spans.append(
            f'<span class="{kind}" tabindex="0" style="--s:{min(bits / _MOST_BITS, 1.0):.2f}" data-bits="{bits:.1f}" '
            f'data-numbers="{_attribute(chr(10).join(numbers))}">{as_html(decoded(shown))}</span>'
        )
    return _PAGE.format(
        title=as_html(title),
        summary=as_html(render_summary(score)),
        shares=_shares(score),
        style=base_style() + _STYLE,
        tokens="".join(spans),
    )


def _bucket(rank: int) -> str:
    """The class of a rank, with a space before it; none beyond the last border."""
    return next((f" r{border}" for border in _RANKS if rank <= border), "")


def _shares(score: Score) -> str:
    if not len(score):
        return ""
    shares = ", ".join(f"{score.share_within(border):.1%} to {border}" for border in _RANKS)
    return f"Of all tokens {shares}."


def _groups(tokens: Sequence[TokenScore]) -> Iterator[list[TokenScore]]:
    """The tokens one by one, but those together that share a character."""
    group: list[TokenScore] = []
    for token in tokens:
        if group and token.span[0] >= group[-1].span[1]:
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def _numbers(token: TokenScore) -> str:
    return (
        f"“{escaped(token.text)}” id {token.id}: probability {math.exp(token.log_probability):.3g}, surprisal "
        f"{token.surprisal:.2f} bits, rank {token.rank}, entropy {token.entropy:.2f} bits"
    )


def _attribute(text: str) -> str:
    return as_html(text).replace("\n", "&#10;")
