"""The page of a `Look`: one file with its style, its script, and arrays, deflated and in base64.

Attention takes most of it: L · H · T² / 2 numbers, each a byte.  A row of them adds up to 255, so most are small and
repeat, and deflate leaves less than half.  Where that is still too much, as for gpt2-xl's 1,200 heads, they are kept in
fewer steps than 255.
"""

from __future__ import annotations

import base64
import html
import json
import math
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.pages import as_html, base_style, decoded, escaped
from gpt2fast.interpretability.look_arrays import LookArrays

__all__ = ["page_file", "render_data", "render_frame", "render_page", "render_shell"]

# Deflated bytes for attention, for each token; for 200 tokens 1.2 MB, 1.6 MB in base64.
_BYTES_PER_TOKEN = 6000
_FEWEST_TOKENS = 200
# Steps from no attention to all of it; the first of these that is small enough is taken.
_STEPS = (255, 127, 63, 31, 15, 7)
# Shares are kept in hundredths of a logit.
_SHARE = 0.01


def render_page(look: LookArrays, title: str) -> str:
    """The page as one file."""
    data = json.dumps(render_data(look, title), ensure_ascii=False, separators=(",", ":"))
    return _filled(
        title=title,
        style=f"<style>\n{base_style()}{page_file('page.css')}</style>",
        # Nothing within may end the element.
        data=f'<script type="application/json" id="data">{data.replace("<", chr(92) + "u003c")}</script>',
        script=f'<script type="module">\n{page_file("page.js")}</script>',
    )


def render_shell(folder: str) -> str:
    """The page without a text, for a server that has style and script in `folder` and makes looks of posted texts."""
    return _filled(
        title="Look inside",
        style=f'<link rel="stylesheet" href="{folder}base.css">\n<link rel="stylesheet" href="{folder}page.css">',
        data="",
        script=f'<script type="module" src="{folder}page.js"></script>',
    )


def render_frame(look: LookArrays, title: str) -> str:
    """The page as notebooks show it: in a frame of its own, whose style and script touch nothing else."""
    source = html.escape(render_page(look, title))
    return (
        f'<iframe title="{as_html(title)}" sandbox="allow-scripts" srcdoc="{source}" '
        'style="width:100%;height:46rem;border:1px solid #8888;border-radius:4px"></iframe>'
    )


def render_data(look: LookArrays, title: str) -> dict[str, Any]:
    """What the page shows, as JSON's values: texts as they are shown, and arrays."""
    steps, patterns = _packed_patterns(look)
    scored = look.surprisal[1:]
    known = list(look.texts)
    position = {id: i for i, id in enumerate(known)}
    lens = np.array([position[id] for id in look.lens_ids.ravel().tolist()], np.uint32).reshape(look.lens_ids.shape)
    return {
        "title": title,
        "summary": _summary(scored.astype(np.float64)),
        "heads": look.head_shares.shape[:2],
        "steps": steps,
        # What a token shows in the text, and its name, in one line.
        "tokens": [
            {"id": id, "shown": shown, "name": escaped(text)}
            for id, shown, text in zip(look.ids.tolist(), _shown(look.tokens), look.tokens, strict=True)
        ],
        "names": [escaped(look.texts[id]) for id in known],
        "ranks": look.ranks.tolist(),
        "surprisal": _array(np.concatenate([[0], scored]), "float32"),
        "patterns": patterns,
        "lens": _array(lens, "uint32"),
        "lensProbability": _array(look.lens_probabilities, "float32"),
        "lensNext": _array(look.lens_log_probabilities, "float32"),
        "headShare": _array(_hundredths(look.head_shares), "int16"),
        "mlpShare": _array(_hundredths(look.mlp_shares), "int16"),
        "otherShare": _array(_hundredths(look.other_shares), "int16"),
    }


@cache
def page_file(name: str) -> str:
    """A file of the page: page.html, page.css or page.js."""
    return (files("gpt2fast.interpretability") / "page" / name).read_text(encoding="utf-8")


def _filled(title: str, **parts: str) -> str:
    return Template(page_file("page.html")).substitute(title=as_html(title), **parts)


def _shown(tokens: Sequence[str | bytes]) -> list[str]:
    """What the tokens show in the text: of those that share a character, the first one shows it and the others ·."""
    shown: list[str] = []
    group = b""
    first = 0
    for i, token in enumerate(tokens):
        if isinstance(token, str):
            group = b""
            shown.append(token)
            continue
        first, group = (first, group + token) if group else (i, token)
        shown.append(decoded(token))
        try:
            whole = group.decode()
        except UnicodeDecodeError:
            continue
        shown[first:] = [whole, *["·"] * (i - first)]
        group = b""
    return shown


def _summary(bits: npt.NDArray[np.float64]) -> str:
    if not len(bits):
        return "no token that comes after another"
    mean = math.fsum(bits.tolist()) / len(bits)
    return f"{len(bits):,} token{'' if len(bits) == 1 else 's'}, {mean:.2f} bits each, perplexity {2**mean:.2f}"


def _packed_patterns(look: LookArrays) -> tuple[int, dict[str, Any]]:
    """How many steps attention is kept in, and the rows up to the diagonal, head after head."""
    rows, columns = np.tril_indices(len(look))
    below = look.patterns[:, :, rows, columns]
    most = _BYTES_PER_TOKEN * max(len(look), _FEWEST_TOKENS)
    for steps in _STEPS:
        values = below if steps == 255 else np.rint(below * np.float32(steps / 255)).astype(np.uint8)
        deflated = zlib.compress(values.tobytes())
        if len(deflated) <= most:
            break
    return steps, {"type": "uint8", "data": base64.b64encode(deflated).decode()}


def _hundredths(shares: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    limits = np.iinfo(np.int16)
    hundredths: npt.NDArray[np.float32] = np.clip(np.rint(shares / _SHARE), limits.min, limits.max)
    return hundredths


def _array(values: npt.NDArray[Any], dtype: str) -> dict[str, Any]:
    """An array that the script reads, little-endian."""
    content = np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<")).tobytes()
    return {"type": dtype, "data": base64.b64encode(zlib.compress(content)).decode()}
