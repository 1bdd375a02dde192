"""Degenerate text: words said twice, and loops of a phrase, as tt-metal's check_degenerate_output counts them.

Doubled words come from a decode loop that reads a stale token, position or trace input, loops also from a greedy base
model.
"""

import re
from collections import Counter
from typing import Optional, Sequence

MOST_DOUBLED, SHORTEST_DOUBLED = 0.10, 20  # share of adjacent pairs; words that tell
MOST_LOOPED, SHORTEST_LOOPED = 0.50, 50  # share of words in the commonest trigram


def degenerate(text: str) -> Optional[str]:
    """Return what is degenerate in a text, as one line; None: nothing above the thresholds."""
    words = re.findall(r"\w+", text.lower())
    if len(words) < SHORTEST_DOUBLED:
        return None
    doubled = sum(a == b for a, b in zip(words, words[1:])) / (len(words) - 1)
    if doubled > MOST_DOUBLED:
        return f"{doubled:.0%} of {len(words)} words repeat the word before"
    if len(words) < SHORTEST_LOOPED:
        return None
    [(trigram, _)] = Counter(zip(words, words[1:], words[2:])).most_common(1)
    whole, phrase = ("".join(f"<{word}>" for word in part) for part in (words, trigram))
    looped = 3 * whole.count(phrase) / len(words)  # repeats that do not overlap
    return f"{looped:.0%} of {len(words)} words are one phrase of three" if looped > MOST_LOOPED else None


def degenerate_answers(answers: Sequence[str]) -> Optional[str]:
    """Return how many answers are degenerate, with the first, as one line; None: none is."""
    found = [(i, what) for i, answer in enumerate(answers) if (what := degenerate(answer))]
    if not found:
        return None
    first, what = found[0]
    return f"{len(found)} of {len(answers)} degenerate, the first is answer {first}: {what}"
