"""A small language model: word trigrams over a short text, sampled with a temperature.

What it shares with a large one is what a recording has to cope with: it samples, so that the same
prompt twice gives two answers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

__all__ = ["NgramModel", "count_tokens", "tokens"]

_TOKEN: Final = re.compile(r"\w+(?:['-]\w+)*|[^\w\s]")
_START: Final = "<s>"
_END: Final = "</s>"
_CORPUS: Final = Path(__file__).with_name("corpus.txt")


def tokens(text: str) -> list[str]:
    """The words and punctuation marks of ``text``."""
    return _TOKEN.findall(text)


def count_tokens(text: str) -> int:
    return len(tokens(text))


class NgramModel:
    """Word trigrams with back-off to bigrams; ``random`` draws from the operating system's entropy unless given."""

    def __init__(self, sentences: Iterable[str] | None = None, *, random: Random | None = None) -> None:
        if sentences is None:
            sentences = _CORPUS.read_text(encoding="utf-8").splitlines()
        self._random: Final = random or SystemRandom()
        self._after: Final[dict[tuple[str, ...], Counter[str]]] = defaultdict(Counter)
        for sentence in sentences:
            self._learn([_START, _START, *tokens(sentence), _END])

    def _learn(self, words: list[str]) -> None:
        for first, second, third in zip(words, words[1:], words[2:], strict=False):
            self._after[first, second][third] += 1
            self._after[second,][third] += 1

    def pieces(self, prompt: str, *, max_tokens: int = 60, temperature: float = 1.0) -> Iterator[str]:
        """The answer to ``prompt``, one token at a time, spaces included; joined they are the text.

        Words of the prompt are more likely than others. It ends after one to three sentences or ``max_tokens``.
        """
        topic = {word.lower() for word in tokens(prompt) if len(word) > 3}
        sentences, written = self._random.choice((1, 2, 2, 3)), 0
        context = (_START, _START)
        while written < max_tokens:
            word = self._next(context, topic, temperature)
            if word == _END:
                sentences -= 1
                if not sentences:
                    return
                context = (_START, _START)
                continue
            yield word if not written or _hugs(word) else " " + word
            written += 1
            context = (context[1], word)

    def text(self, prompt: str, *, max_tokens: int = 60, temperature: float = 1.0) -> str:
        return "".join(self.pieces(prompt, max_tokens=max_tokens, temperature=temperature))

    def _next(self, context: tuple[str, str], topic: set[str], temperature: float) -> str:
        known = self._after[context]
        if temperature > 0 and len(known) == 1 and context[0] != _START:
            known = known + self._after[context[1],]  # a lone continuation would only recite the text
        weights = {word: count * (4.0 if word.lower() in topic else 1.0) for word, count in known.items()}
        if temperature <= 0:
            return max(weights, key=lambda word: weights[word])
        scaled = [weight ** (1.0 / temperature) for weight in weights.values()]
        return self._random.choices(list(weights), scaled)[0]


def _hugs(word: str) -> bool:
    """Whether no space stands before this token."""
    return not word[0].isalnum()
