"""Speculative decoding (Leviathan et al. 2022, arXiv:2211.17192): several tokens are proposed, the network checks them
in one pass, and those that it would have chosen itself are taken.

Decoding reads every weight once a pass, whether the pass looks at one token or at eight.  The text is the same as
without: a token counts only where it is what the text's own settings and draws choose from the network's own logits.
The draft chooses with the same settings and the same draws, so the nearer its probabilities are, the more
often it is right, sampled or greedy.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any

from gpt2fast.errors import InputError, ProcessorError
from gpt2fast.generation.sequence import GeneratedSequence
from gpt2fast.scheduler import Drafter, Model, Need, Scheduler, Sequence

__all__ = ["Drafter", "ModelDrafter", "PromptLookup", "RunIndex"]

# Ids of a run that is looked up (30 November 2026, the demo model's texts).  Pairs are found oftener but foretell
# little: of what they propose for sampled texts 22 % are right, which in int8 costs more than it brings.  Looking for
# four or six ids first makes greedy texts 0 to 3 % quicker.
_RUN = 3


class PromptLookup:
    """Proposes what followed when the text's last ids came before: for texts that quote their prompt or repeat.

    The idea is A. Saxena's prompt lookup decoding (2023).  It costs next to nothing where it finds nothing.
    """

    def __init__(self) -> None:
        self._indices: dict[GeneratedSequence, RunIndex] = {}

    def propose(self, sequences: List[GeneratedSequence], most: List[int]) -> list[list[int]]:
        """At most `most` ids for each text; none where nothing like its end came before."""
        indices = [self._indices.setdefault(text, RunIndex()) for text in sequences]
        return [
            text.possible(index.following(text.ids, count))
            for index, text, count in zip(indices, sequences, most, strict=True)
        ]

    def forget(self, sequence: GeneratedSequence) -> None:
        """The text has left."""
        self._indices.pop(sequence, None)


class RunIndex:
    """What came after each run of three ids in one text that grows."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._read = _RUN

    def following(self, ids: List[int], count: int) -> list[int]:
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
    """Proposes what a quicker network chooses for up to `size` texts: the same weights in fewer bits, or a smaller
    model of the same ids.  Its drafts are sequences of a scheduler of their own, and stay there as long as their texts.

    Raises InputError where the two models' vocabularies have different sizes.
    """

    def __init__(self, model: Model, draft: Model, size: int) -> None:
        if draft.config.vocab_size != model.config.vocab_size:
            raise InputError(
                f"the draft model has a vocabulary of {draft.config.vocab_size} tokens, the model one of "
                f"{model.config.vocab_size}; they must have the same tokens"
            )
        self._n_ctx = draft.config.n_ctx
        self._n_vocab = draft.config.vocab_size
        self._scheduler: Scheduler[_Draft] = Scheduler(draft, n_vocab=self._n_vocab, slots=size)
        self._drafts: dict[GeneratedSequence, _Draft] = {}

    def propose(self, sequences: List[GeneratedSequence], most: List[int]) -> list[list[int]]:
        """At most `most` ids for each text, drafted for all texts together."""
        drafts = []
        for text, count in zip(sequences, most, strict=True):
            draft = self._drafts.get(text)
            if draft is None:
                draft = self._drafts[text] = _Draft(text)
                self._scheduler.add(draft)
            count = min(count, self._n_ctx - (len(text.ids) - text.dropped) + 1)
            # What the network did not choose leaves the draft's cache, too.
            self._scheduler.truncate(draft, draft.follow(count))
            drafts.append(draft)
        while any(draft.open for draft in drafts):
            self._scheduler.step()
        return [draft.drafted for draft in drafts]

    def forget(self, sequence: GeneratedSequence) -> None:
        """The text has left."""
        draft = self._drafts.pop(sequence, None)
        if draft is not None:
            self._scheduler.remove(draft)


class _Draft(Sequence):
    """What a draft model would make of a text: the text's own choices from other logits."""

    def __init__(self, text: GeneratedSequence) -> None:
        super().__init__([])
        self._text = text
        #: The ids drafted since the text was followed.
        self.drafted: list[int] = []
        self._wanted = 0
        self._agreed = 0  # so many of the first ids are the text's

    @property
    def open(self) -> bool:
        """Whether it is to be drafted further."""
        return len(self.drafted) < self._wanted

    @property
    def next_output(self) -> int:
        return len(self.ids) - 1 if self.open else len(self.ids)

    @property
    def complete(self) -> bool:
        return False  # it stays as long as the text

    def follow(self, count: int) -> int:
        """Be as the text is now, to draft `count` ids more, if any; from which place on the ids are new."""
        self.drafted, self._wanted = [], max(count, 0)
        if not self._wanted:
            return len(self.ids)
        text, old = self._text.ids, self.ids
        # The last id is always read again, for what comes after it.
        same = min(self._agreed, len(text) - 1)
        while same < min(len(old), len(text) - 1) and old[same] == text[same]:
            same += 1
        old[same:] = text[same:]
        self._agreed, self.dropped = len(text), self._text.dropped
        return same

    def need(self, start: int, stop: int) -> Need:
        return self._text.need(start, stop)

    def take(self, values: Any) -> None:
        value = values[-1]
        try:
            token = value if isinstance(value, int) else self._text.choose(value, self.ids)
        except (InputError, ProcessorError):  # which the text will meet itself, if it goes there
            token = -1
        if token >= 0:
            self.drafted.append(token)
        if token < 0 or token in self._text.ends:
            self._wanted = 0
        elif self.open:
            self.ids.append(token)
