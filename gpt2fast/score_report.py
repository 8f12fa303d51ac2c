"""What `gpt2fast score` shows of a scored text: a table, JSON lines, or a page to look at."""

from __future__ import annotations

import html
import json
import math

from gpt2fast.scoring import Score, TokenScore

__all__ = ["render_html", "render_json_lines", "render_summary", "render_tsv"]

_COLUMNS = ("id", "start", "end", "token", "log_probability", "surprisal", "rank", "entropy")

_MOST_BITS = 16.0  # a surprisal from which on the page's colour grows no deeper

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1.1rem/1.8 Georgia, serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
header {{ font: 0.9rem/1.5 system-ui, sans-serif; margin-bottom: 1.5rem; }}
h1 {{ font-size: 1.2rem; }}
main {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
span {{ background: rgb(230 90 20 / var(--s)); border-radius: 2px; }}
span:hover {{ outline: 1px solid; }}
</style>
<header>
<h1>{title}</h1>
<p>{summary}</p>
<p>Surprisal: <span style="--s:0">0</span> <span style="--s:.25">4</span> <span style="--s:.5">8</span>
<span style="--s:.75">12</span> <span style="--s:1">16 bits and more</span>.
Hold the pointer over a token for its numbers.</p>
</header>
<main>{tokens}</main>
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


def render_tsv(score: Score) -> str:
    """A line of names, then a line for each token; columns are separated by tabs.

    Tabs, newlines and whatever else is not printable in a token are escaped as in Python, so every token is one field.
    """
    lines = ["\t".join(_COLUMNS)]
    for token in score.tokens:
        numbers = (f"{token.log_probability:.6f}", f"{token.surprisal:.4f}", f"{token.rank}", f"{token.entropy:.4f}")
        lines.append("\t".join([str(token.id), *map(str, token.span), _escaped(token.text), *numbers]))
    return "\n".join(lines) + "\n"


def render_json_lines(score: Score) -> str:
    """A JSON object for each token, one a line; a probability of 0 has the logarithm null."""
    lines = []
    for token in score.tokens:
        values = (
            token.id,
            *token.span,
            _decoded(token.text),
            token.log_probability if math.isfinite(token.log_probability) else None,
            token.surprisal if math.isfinite(token.surprisal) else None,
            token.rank,
            token.entropy,
        )
        lines.append(json.dumps(dict(zip(_COLUMNS, values, strict=True)), ensure_ascii=False) + "\n")
    return "".join(lines)


def render_html(score: Score, title: str) -> str:
    """A page, complete in itself, that shows the text with each token the more coloured the less probable it was."""
    spans = []
    end = 0
    for token in score.tokens:
        # A character that two tokens share is shown once, with the first of them.
        shown = score.text[max(end, token.span[0]) : token.span[1]]
        end = max(end, token.span[1])
        depth = min(token.surprisal / _MOST_BITS, 1.0)
        spans.append(f'<span style="--s:{depth:.2f}" title="{_html(_numbers(token))}">{_html(_decoded(shown))}</span>')
    return _PAGE.format(title=_html(title), summary=_html(render_summary(score)), tokens="".join(spans))


def _numbers(token: TokenScore) -> str:
    return (
        f"“{_escaped(token.text)}” id {token.id}: probability {math.exp(token.log_probability):.3g}, surprisal "
        f"{token.surprisal:.2f} bits, rank {token.rank}, entropy {token.entropy:.2f} bits"
    )


def _decoded(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "backslashreplace")


def _escaped(text: str | bytes) -> str:
    if isinstance(text, bytes):
        # Byte by byte where it is no text, so that a byte and an escape of the same look differ.
        text = text.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    else:
        text = text.replace("\\", "\\\\")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _html(text: str) -> str:
    # HTML has no place for control characters; Unicode has pictures of them.
    return html.escape("".join(chr(0x2400 + ord(c)) if c < " " and c not in "\t\n\r" else c for c in text))
