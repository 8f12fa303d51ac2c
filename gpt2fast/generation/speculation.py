"""Speculative decoding (Leviathan et al. 2022, arXiv:2211.17192): several tokens are proposed, the network checks them
in one pass, and those that it would have chosen itself are taken.

Decoding reads every weight once a pass, whether the pass looks at one token or at eight.  The text is the same as
without: a token counts only where it is what the text's own settings and draws choose from the network's own logits.
The draft chooses with the same settings and the same draws, so the nearer its probabilities are, the more
often it is right, sampled or greedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gpt2fast.errors import InputError
from gpt2fast.generation.sequence import Continuation

__all__ = ["ModelDrafter", "PromptLookup", "RunIndex"]

# Ids of a run that is looked up (30 November 2026, the demo model's texts).  Pairs are found oftener but foretell
# little: of what they propose for sampled texts 22 % are right, which in int8 costs more than it brings.  Looking for
# four or six ids first makes greedy texts 0 to 3 % quicker.
_RUN = 3


class PromptLookup:
    """Proposes what followed when the text's last ids came before: for texts that quote their prompt or repeat.

    The idea is A. Saxena's prompt lookup decoding (2023).  It costs next to nothing where it finds nothing.
    """

    def __init__(self) -> None:
        self._indices: WeakKeyDictionary[Continuation, RunIndex] = WeakKeyDictionary()

    def propose(self, texts: Sequence[tuple[int, int, Continuation]], most: Sequence[int]) -> list[list[int]]:
        """At most `most` ids for each text; none where nothing like its end came before."""
        proposals = []
        for (_, _, text), count in zip(texts, most, strict=True):
            index = self._indices.get(text)
            if index is None:
                index = self._indices[text] = RunIndex()
            proposals.append(index.following(text.ids, count))
        return proposals


class RunIndex:
    """What came after each run of three ids in one text that grows."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._read = _RUN

    def following(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` ids that followed the last time that the last three of `ids` came before; none where they did
        not.  A text that repeats itself goes on to do so.  `ids` are those of the call before, and more.

        >>> RunIndex().following([1, 2, 3, 4, 1, 2, 3], 6)
        [4, 1, 2, 3, 4, 1]
        """
        for end in range(self._read, len(ids)):
            self._after[tuple(ids[end - _RUN : end])] = end
        self._read = max(len(ids), _RUN)
        place = self._after.get(tuple(ids[-_RUN:]))
        if place is None:
            return []
        period = len(ids) - place
        return [ids[place + i % period] for i in range(count)]


class ModelDrafter:
    """Proposes what a quicker network chooses: the same weights in fewer bits, or a smaller model of the same ids.

    Raises InputError where the two models' vocabularies have different sizes.
    """

    def __init__(self, model: Any, draft: Any, size: int) -> None:
        if draft.config.vocab_size != model.config.vocab_size:
            raise InputError(
                f"the draft model has a vocabulary of {draft.config.vocab_size} tokens, the model one of "
                f"{model.config.vocab_size}; they must have the same tokens"
            )
        self._draft = draft
        self._n_ctx: int = draft.config.n_ctx
        self._cache = draft.new_cache(size)
        # What each row of the draft's cache holds: a text, from which of its ids on.
        self._tenants: list[tuple[Continuation, int] | None] = [None] * size

    def propose(self, texts: Sequence[tuple[int, int, Continuation]], most: Sequence[int]) -> list[list[int]]:
        """At most `most` ids for each text, drafted for all texts together."""
        pending: dict[int, list[int]] = {}  # row → ids to feed next
        ends: dict[int, int] = {}
        drafts: dict[int, tuple[Continuation, list[int]]] = {}
        lengths = self._cache.lengths
        for (row, dropped, text), count in zip(texts, most, strict=True):
            kept = min(int(lengths[row]), len(text.ids) - 1 - dropped)
            if self._tenants[row] != (text, dropped):
                self._tenants[row], kept = (text, dropped), 0
            # What the network did not choose leaves the draft's cache, too.
            self._cache.truncate(row, kept)
            count = min(count, self._n_ctx - (len(text.ids) - dropped) + 1)
            if count > 0:
                pending[row] = text.ids[dropped + kept :]
                ends[row] = len(text.ids) + count
                drafts[row] = text, list(text.ids)
        while pending:
            rows = sorted(pending)
            ids = [np.array(pending[row], np.int32) for row in rows]
            draws = [drafts[row][0].draws(len(drafts[row][1]), 1)[0] for row in rows]
            for row, after in zip(rows, self._draft.choose(self._cache, rows, ids, None, draws), strict=True):
                text, drafted = drafts[row]
                try:
                    token = after if isinstance(after, int) else text.choose(after, drafted)
                except InputError:
                    token = None
                if token is not None:
                    drafted.append(token)
                if token is None or token == text.eos or len(drafted) >= ends[row]:
                    del pending[row]
                else:
                    pending[row] = [token]
        return [drafts[row][1][len(text.ids) :] if row in drafts else [] for row, _, text in texts]
