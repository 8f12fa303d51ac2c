"""What a model does with a text, to look at: attention, the logit lens, and which heads made a token likely.

The residual stream is a sum: embeddings, then what each attention head and each MLP adds.  The last LayerNorm and the
head of the network read logits from it.  Two readings follow from that, and both are here:

- the logit lens reads logits from the stream after every layer, not only after the last one (nostalgebraist 2020,
  "interpreting GPT: the logit lens");
- direct logit attribution divides a token's logit into the shares of what was added, with the scale of the last
  LayerNorm taken as it is (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits").

A share is of the logit less the mean logit of the vocabulary, as only differences between logits make probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import flag
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.interpretability.look_arrays import LookArrays
from gpt2fast.interpretability.look_page import render_frame, render_page
from gpt2fast.model.pairing import beginning, shared_vocabulary
from gpt2fast.tokenizer.special import allowed_by

if TYPE_CHECKING:
    from gpt2fast.model.gpt2 import GPT2
    from gpt2fast.model.hooks import HookPoint
    from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["Look", "look"]

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

#: How many of the likeliest tokens the lens keeps.
_LIKELIEST = 3
# Positions whose logits are made at once: of the full vocabulary they take 13 MB.
_ROWS = 64


@dataclass(frozen=True, eq=False, repr=False)
class Look(LookArrays):
    """A text as the model reads it: the arrays of `LookArrays`, and a page to look at them.

    In a notebook it shows itself; `html()` is the page.
    """

    def __repr__(self) -> str:
        n_layer, n_head = self.patterns.shape[:2]
        return f"<Look at {len(self)} tokens: {n_layer} layers of {n_head} heads>"

    def html(self, title: str = "Look inside") -> str:
        """The page: one file that asks nothing of any other, at most 2 MB for 200 tokens of GPT-2 small."""
        return render_page(self, title)

    def _repr_html_(self) -> str:
        return render_frame(self, "Look inside")


def look(
    model: GPT2,
    tokenizer: Tokenizer,
    text: str | bytes,
    *,
    bos: bool = True,
    allow_special: bool = False,
) -> Look:
    """What the model does with `text`, which comes after the token that texts begin with, unless `bos` is False.

    Special tokens in the text, such as `<|endoftext|>`, are these tokens with `allow_special`, else text.  Raises
    InputTypeError for what is no text, and InputError where there is no token at all, or more than the model's context.

    >>> import gpt2fast
    >>> lm = gpt2fast.load("demo")
    >>> found = look(lm.model, lm.tokenizer, "The old king")
    >>> found.tokens, found.patterns.shape
    (['<|endoftext|>', 'The', ' old', ' king'], (6, 8, 4, 4))
    >>> layer, head = divmod(int(found.head_shares[:, :, 2].argmax()), 8)  # most for " king"
    """
    if not isinstance(text, (str, bytes)):
        raise InputTypeError(f"text is of type {type(text).__name__}; expected str or bytes")
    ids = tokenizer.encode(text, allowed_special=allowed_by(allow_special), disallowed_special=())
    first = beginning(model, tokenizer) if flag("bos", bos) else None
    ids = ids if first is None else [first, *ids]
    if not ids:
        raise InputError("text is empty, and nothing comes before it; expected at least one token")
    if len(ids) > model.config.n_ctx:
        raise InputError(f"text has {len(ids)} tokens; the model's context is {model.config.n_ctx} tokens")
    highest = max(ids)
    if highest >= shared_vocabulary(model, tokenizer):
        raise InputError(f"text has token {highest}; the model's vocabulary has {model.config.vocab_size} tokens")
    return _Reading(model, tokenizer, ids).look(text)


class _Reading:
    """One text under one model."""

    def __init__(self, model: GPT2, tokenizer: Tokenizer, ids: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = np.array(ids, np.int64)
        self._config = model.config
        self._tensor = tensor = model._parameters.tensor
        # Rows of a padded table that the tokenizer does not know stand for no text.
        head = "wte.weight" if model.config.tie_word_embeddings else "lm_head.weight"
        self._head = tensor(head)[: shared_vocabulary(model, tokenizer)]  # (V, E)
        self._norm = tensor("ln_f.weight"), tensor("ln_f.bias")
        self._patterns = np.empty((model.config.n_layer, model.config.n_head, len(ids), len(ids)), np.uint8)
        self._activations: dict[str, Floats] = {}
        model.run_with_hooks(self._ids, [(_is_kept, self._keep)], last_only=True)

    def _keep(self, activation: Floats, *, hook: HookPoint) -> None:
        """Keep an activation of the one text; attention as bytes, as its float32 would take most of the memory."""
        if hook.name.endswith("hook_pattern"):
            self._patterns[hook.layer()] = np.rint(activation[0] * 255)
        else:
            self._activations[hook.name] = activation[0]

    def look(self, text: str | bytes) -> Look:
        """The look at all of it."""
        found, layers = self._activations, [f"blocks.{i}" for i in range(self._config.n_layer)]
        stream = [found["blocks.0.hook_resid_pre"], *(found[f"{layer}.hook_resid_post"] for layer in layers)]  # (T, E)
        lens = [self._lens(states) for states in stream]
        best, probabilities, chosen, ranks = (np.stack(parts) for parts in zip(*lens, strict=True))
        towards = self._directions(found["ln_final.hook_scale"])
        surprisal = np.concatenate([[np.nan], -chosen[-1] / np.log(2)]).astype(np.float32)
        return Look(
            text=text,
            ids=self._ids,
            tokens=[self._text(id) for id in self._ids.tolist()],
            surprisal=surprisal,
            ranks=np.concatenate([[0], ranks[-1]]),
            patterns=self._patterns,
            lens_ids=best,
            lens_probabilities=probabilities,
            lens_log_probabilities=chosen,
            head_shares=np.stack(
                [self._head_shares(i, found[f"{layer}.attn.hook_z"][:-1], towards) for i, layer in enumerate(layers)]
            ),
            mlp_shares=np.stack([_products(found[f"{layer}.hook_mlp_out"], towards) for layer in layers]),
            other_shares=np.stack(
                [
                    _products(found["hook_embed"], towards),
                    _products(found["hook_pos_embed"], towards),
                    self._bias_shares(towards),
                ]
            ),
            texts={id: self._text(id) for id in np.unique(best).tolist()},
        )

    def _lens(self, stream: Floats) -> tuple[Integers, Floats, Floats, Integers]:
        """Of a residual stream (T, E) the likeliest next ids and their probabilities (T, K), and the log-probabilities
        and ranks of the text's own next ids (T - 1,)."""
        states = _layer_norm(stream, *self._norm, self._config.layer_norm_epsilon)
        following = self._ids[1:]
        parts = []
        for start in range(0, len(states), _ROWS):
            logits = states[start : start + _ROWS] @ self._head.T
            logits -= logits.max(axis=1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
            count = min(_LIKELIEST, logits.shape[1])
            best = np.argpartition(-logits, count - 1, axis=1)[:, :count]
            best = np.take_along_axis(best, np.argsort(-np.take_along_axis(logits, best, 1), axis=1, kind="stable"), 1)
            here = following[start : start + len(logits)]
            chosen = logits[np.arange(len(here)), here]
            ranks = 1 + (logits[: len(chosen)] > chosen[:, None]).sum(axis=1)
            parts.append((best, np.exp(np.take_along_axis(logits, best, 1)), chosen, ranks))
        best, probabilities, chosen, ranks = (np.concatenate(column) for column in zip(*parts, strict=True))
        return best, probabilities, chosen, ranks

    def _directions(self, scale: Floats) -> Floats:
        """What a vector that is added to the stream at a position is multiplied with for its share of the logit of the
        text's next token: (T - 1, E), for the divisors of the last LayerNorm (T, 1)."""
        towards = self._unembedding() * self._norm[0]
        # LayerNorm takes the mean away from what is added: the direction without its mean does the same.
        directions: Floats = (towards - towards.mean(axis=1, keepdims=True)) / scale[:-1]
        return directions

    def _unembedding(self) -> Floats:
        """The head's rows of the text's next tokens, less the mean row: (T - 1, E)."""
        rows: Floats = self._head[self._ids[1:]] - self._head.mean(axis=0)
        return rows

    def _head_shares(self, layer: int, z: Floats, towards: Floats) -> Floats:
        """The shares of a layer's heads (H, T - 1), for what they read (T - 1, H, E / H)."""
        back = (towards @ self._tensor(f"h.{layer}.attn.c_proj.weight")).reshape(z.shape)
        shares: Floats = np.einsum("thd,thd->ht", z, back)
        return shares

    def _bias_shares(self, towards: Floats) -> Floats:
        """The shares of the biases of attention's outputs and of the last LayerNorm (T - 1,)."""
        biases = np.sum([self._tensor(f"h.{i}.attn.c_proj.bias") for i in range(self._config.n_layer)], axis=0)
        shares: Floats = towards @ biases + self._unembedding() @ self._norm[1]
        return shares

    def _text(self, id: int) -> str | bytes:
        """The token's text, or its bytes where they are no UTF-8 by themselves."""
        content = self._tokenizer.decode_single_token_bytes(id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content


def _is_kept(name: str) -> bool:
    """Whether the activation of that name is needed."""
    within = ("hook_pattern", "hook_z", "hook_mlp_out", "hook_resid_post")
    once = ("hook_embed", "hook_pos_embed", "blocks.0.hook_resid_pre", "ln_final.hook_scale")
    return name in once or name.endswith(within)


def _products(added: Floats, towards: Floats) -> Floats:
    """The share of what is added to the stream (T, E): (T - 1,)."""
    shares: Floats = np.einsum("te,te->t", added[:-1], towards)
    return shares


def _layer_norm(x: Floats, weight: Floats, bias: Floats, epsilon: float) -> Floats:
    """LayerNorm of the rows of x (T, E)."""
    centred = x - x.mean(axis=1, keepdims=True)
    normed: Floats = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon) * weight + bias
    return normed
