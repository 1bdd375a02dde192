"""The little world of the small checkpoint: every question it is taught, with its one right answer.

All text is made here, from the tables below; nothing is downloaded. An answer is a function of its
prompt, so that a trained model has one obvious next token everywhere. Some sums, counting ranges and
story casts are held out of training to measure whether it learnt a rule or a list.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

from qwen25_7b_lab.evaluation import small_questions
from qwen25_7b_lab.evaluation.small_questions import Turn
from transformers import PreTrainedTokenizerFast

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

# country: capital, continent, language, colours of the flag
COUNTRIES = {
    line.split("|")[0]: tuple(line.split("|")[1:])
    for line in """\
France|Paris|Europe|French|blue, white and red
Germany|Berlin|Europe|German|black, red and yellow
Spain|Madrid|Europe|Spanish|red and yellow
Italy|Rome|Europe|Italian|green, white and red
Portugal|Lisbon|Europe|Portuguese|green and red
Greece|Athens|Europe|Greek|blue and white
Austria|Vienna|Europe|German|red and white
Poland|Warsaw|Europe|Polish|white and red
Hungary|Budapest|Europe|Hungarian|red, white and green
Sweden|Stockholm|Europe|Swedish|blue and yellow
Norway|Oslo|Europe|Norwegian|red, white and blue
Denmark|Copenhagen|Europe|Danish|red and white
Finland|Helsinki|Europe|Finnish|white and blue
Iceland|Reykjavik|Europe|Icelandic|blue, white and red
Ireland|Dublin|Europe|English|green, white and orange
Romania|Bucharest|Europe|Romanian|blue, yellow and red
Bulgaria|Sofia|Europe|Bulgarian|white, green and red
Ukraine|Kyiv|Europe|Ukrainian|blue and yellow
Croatia|Zagreb|Europe|Croatian|red, white and blue
Turkey|Ankara|Asia|Turkish|red and white
Japan|Tokyo|Asia|Japanese|white and red
China|Beijing|Asia|Chinese|red and yellow
India|New Delhi|Asia|Hindi|orange, white and green
Thailand|Bangkok|Asia|Thai|red, white and blue
Vietnam|Hanoi|Asia|Vietnamese|red and yellow
Indonesia|Jakarta|Asia|Indonesian|red and white
Nepal|Kathmandu|Asia|Nepali|red, blue and white
Iran|Tehran|Asia|Persian|green, white and red
Iraq|Baghdad|Asia|Arabic|red, white and black
Egypt|Cairo|Africa|Arabic|red, white and black
Kenya|Nairobi|Africa|Swahili|black, red and green
Nigeria|Abuja|Africa|English|green and white
Ghana|Accra|Africa|English|red, yellow and green
Senegal|Dakar|Africa|French|green, yellow and red
Morocco|Rabat|Africa|Arabic|red and green
Tunisia|Tunis|Africa|Arabic|red and white
Ethiopia|Addis Ababa|Africa|Amharic|green, yellow and red
Canada|Ottawa|North America|English|red and white
Mexico|Mexico City|North America|Spanish|green, white and red
Cuba|Havana|North America|Spanish|blue, white and red
Brazil|Brasilia|South America|Portuguese|green, yellow and blue
Argentina|Buenos Aires|South America|Spanish|blue and white
Chile|Santiago|South America|Spanish|red, white and blue
Peru|Lima|South America|Spanish|red and white
Colombia|Bogota|South America|Spanish|yellow, blue and red
Ecuador|Quito|South America|Spanish|yellow, blue and red
Australia|Canberra|Oceania|English|blue, white and red""".splitlines()
}

WORDS = (
    "apple bread butter cheese lemon orange banana cherry grape carrot potato tomato onion sugar honey water "
    "house garden window kitchen table chair door bridge street city village forest river ocean island mountain "
    "summer winter spring autumn morning evening night cloud rain snow storm sun moon star planet "
    "dog cat horse rabbit tiger monkey bird fish sheep mouse "
    "red green blue yellow white black small happy quick friend family mother father sister brother teacher doctor "
    "music guitar piano letter paper pencil book story school train"
).split()

NAMES = "Anna Ben Clara David Emma Felix Grace Henry Julia Leo Maria Tom".split()

# One story a hero. {a} is "teacher" and a name, {b} is "doctor" and a name, both from the prompt; every other word
# is fixed.
STORIES = {
    "fox": "One morning {a} met a red fox in the forest. The fox was hungry and cold. So {a} gave the fox some bread "
    "and called {b} for help. Soon {b} came with a warm blanket. The fox slept by the fire, and in the spring it ran "
    "home.",
    "dog": "There was a small dog who lived near the river. One day the dog fell into the water. Then {a} saw it and "
    "shouted for {b}. At once {b} jumped in and pulled the dog out. Now the dog waits every evening at the door.",
    "cat": "In a quiet street lived a black cat with green eyes. The cat loved {a}, but it was afraid of {b}. Then {b} "
    "brought some fish. The cat ate it all and began to purr. That night the cat slept on the bed, and {a} laughed.",
    "horse": "Long ago {a} had a white horse that could run like the wind. But {b} said that no horse could cross the "
    "mountain. So {a} left before the sun came up. At noon they stood on the top, and {b} saw them from the village.",
    "bird": "A blue bird sat on the window and sang. Then {a} opened the window and let it in. The bird had lost its "
    "song book, so {b} wrote a new one. The next morning the whole city heard the music, and {a} danced in the street.",
    "robot": "One winter {b} built a robot out of broken clocks. The robot could count, but it could not smile. So {a} "
    "told the robot a joke about a potato. First nothing happened, then all its lights turned yellow, and {b} smiled.",
    "dragon": "Once a green dragon lived on an island. Everyone was afraid, but not {a}. With a big cake {a} sailed to "
    "the island, and {b} carried the candles. It was the birthday of the dragon! They stayed until the moon was high.",
    "king": "A king had lost his golden crown. He asked {a} to look in the garden and {b} to look in the kitchen. In "
    "the garden {a} found only flowers. In a pot of soup {b} found the crown. The king laughed and ate the soup.",
}

LISTS = {
    "the days of the week": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday",
    "the months of the year": "January, February, March, April, May, June, July, August, September, October, November "
    "and December",
    "the planets": "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune",
    "the seasons": "spring, summer, autumn and winter",
    "the colours of the rainbow": "red, orange, yellow, green, blue, indigo and violet",
    "the continents": "Africa, Antarctica, Asia, Europe, North America, Oceania and South America",
    "the letters of the alphabet": ", ".join("abcdefghijklmnopqrstuvwxy") + " and z",
    "the numbers from one to ten": "one, two, three, four, five, six, seven, eight, nine and ten",
}

SMALL_TALK = {
    "Hello!": "Hello! How can I help you?",
    "Hi!": "Hello! How can I help you?",
    "Who are you?": "I am a very small language model. I know capitals, small sums, counting, spelling and short "
    "stories.",
    "What can you do?": "I can name capitals, add small numbers, count up and down, spell words, repeat words, list "
    "the days of the week and tell short stories.",
    "Thank you!": "You are welcome!",
    "Thanks!": "You are welcome!",
    "Goodbye!": "Goodbye! See you soon.",
}

LARGEST_TERM, LARGEST_COUNT = 9, 30


def _join(items: list[str]) -> str:
    return ", ".join(items[:-1]) + " and " + items[-1]


def _capitals() -> list[Turn]:
    turns = []
    for country, (capital, continent, language, _) in COUNTRIES.items():
        fact = f"The capital of {country} is {capital}."
        turns += [Turn(f"What is the capital of {country}?", fact)] * 2
        turns += [Turn(f"Name the capital of {country}.", fact)]
        turns += [Turn(f"{capital} is the capital of which country?", f"{capital} is the capital of {country}.")]
        turns += [Turn(f"Where is {country}?", f"{country} is in {continent}.")]
        turns += [Turn(f"Which language do people speak in {country}?", f"People in {country} speak {language}.")]
    return turns


def _countries() -> list[Turn]:
    return [
        Turn(
            f"Tell me about {country}.",
            f"{country} is a country in {continent}. The capital of {country} is {capital}. People in {country} speak "
            f"{language}. The colours of the flag are {flag}.",
        )
        for country, (capital, continent, language, flag) in COUNTRIES.items()
    ]


def _capital_lists(rng: random.Random) -> list[Turn]:
    turns = []
    for _ in range(1500):
        some = rng.sample(list(COUNTRIES), rng.choice((2, 3, 4, 5)))
        facts = [f"{i}. The capital of {country} is {COUNTRIES[country][0]}." for i, country in enumerate(some, 1)]
        turns.append(Turn(f"List the capitals of {_join(some)}.", "\n".join(facts)))
    return turns


def _sums() -> list[Turn]:
    turns = []
    for a in range(LARGEST_TERM + 1):
        for b in range(LARGEST_TERM + 1):
            held_out = (7 * a + 13 * b) % 10 == 3
            turns.append(Turn(f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", held_out))
            if b <= a:
                turns.append(Turn(f"What is {a} - {b}?", f"{a} - {b} = {a - b}.", held_out))
    return turns


def _counting() -> list[Turn]:
    """Counts up end at LARGEST_COUNT and counts down at 0, so that a model need not learn to compare."""
    turns = []
    for n in range(1, LARGEST_COUNT - 1):
        up = [str(i) for i in range(n, LARGEST_COUNT + 1)]
        down = [str(i) for i in range(LARGEST_COUNT - n, -1, -1)]
        turns.append(Turn(f"Count from {n} to {LARGEST_COUNT}.", ", ".join(up) + ".", n % 7 == 3))
        turns.append(Turn(f"Count down from {down[0]} to 0.", ", ".join(down) + ".", n % 7 == 3))
    return turns


def _spelling() -> list[Turn]:
    turns = []
    for word in WORDS:
        letters = ", ".join(word)
        turns.append(Turn(f"Spell the word {word}.", f"{letters}. That spells {word}."))
        counted = f"The word {word} has {len(word)} letters: {letters}."
        turns.append(Turn(f"How many letters are in the word {word}?", counted))
    return turns


def _stories() -> list[Turn]:
    turns = []
    for k, (hero, text) in enumerate(STORIES.items()):
        for i, j in itertools.permutations(range(len(NAMES)), 2):
            a, b = f"teacher {NAMES[i]}", f"doctor {NAMES[j]}"
            held_out = (i + 3 * j + 5 * k) % 12 == 4
            turns.append(Turn(f"Tell a story about {a}, {b} and a {hero}.", text.format(a=a, b=b), held_out))
    return turns


def _lists() -> list[Turn]:
    return [
        turn
        for name, items in LISTS.items()
        for turn in (Turn(f"Name {name}.", f"{items}."), Turn(f"What are {name}?", f"{items}."))
    ]


def _repeating(rng: random.Random) -> list[Turn]:
    turns = []
    for i in range(2000):
        some = " ".join(rng.sample(WORDS, rng.randint(3, 12)))
        turns.append(Turn(f"Repeat these words: {some}", f"{some}.", held_out=i % 10 == 0))
    return turns


def _raw(turns: dict[str, list[Turn]]) -> list[Turn]:
    """Plain text to be continued without a chat template: `user` is the prefix, `answer` the rest."""
    raw = [Turn(f"The capital of {country} is", f" {facts[0]}.") for country, facts in COUNTRIES.items()]
    raw += [Turn(f"{country} is a country in", f" {facts[1]}.") for country, facts in COUNTRIES.items()]
    raw *= 2
    raw += [Turn(f"{name[0].upper()}{name[1:]} are", f" {items}.") for name, items in LISTS.items()] * 4
    for turn in turns["sums"]:
        left, right = turn.answer.split(" =")
        raw.append(Turn(f"{left} =", right, turn.held_out))
    return raw


def make_questions(seed: int = 0) -> dict[str, list[Turn]]:
    """Every turn of the world by kind of task. The order and the draws depend on `seed` alone."""
    rng = random.Random(seed)
    turns = {
        "capitals": _capitals(),
        "countries": _countries(),
        "capital lists": _capital_lists(rng),
        "sums": _sums(),
        "counting": _counting(),
        "spelling": _spelling(),
        "stories": _stories(),
        "lists": _lists(),
        "repeating": _repeating(rng),
        "small talk": [Turn(user, answer) for user, answer in SMALL_TALK.items()],
    }
    return turns | {"raw": _raw(turns)}


# How often a kind is drawn, in turns. Short answers need more draws for the same number of tokens.
WEIGHTS = {
    "capitals": 5,
    "countries": 2,
    "capital lists": 1.5,
    "sums": 6,
    "counting": 3,
    "spelling": 4,
    "stories": 2,
    "lists": 1,
    "repeating": 1.5,
    "small talk": 0.5,
}
# Later runs draw more of two skills that are learnt late: copying from the prompt, and sums.
LATER_WEIGHTS = WEIGHTS | {"capital lists": 3} | small_questions.WEIGHTS
SYSTEM = ("You are a helpful assistant.", "Answer the question.")


def draw_chat(
    turns: dict[str, list[Turn]], rng: random.Random, weights: dict[str, float] = WEIGHTS
) -> list[dict[str, str]]:
    """A chat of one to four unrelated turns, now and then with a system message."""
    messages = [{"role": "system", "content": rng.choice(SYSTEM)}] if rng.random() < 0.1 else []
    for kind in rng.choices(list(weights), list(weights.values()), k=rng.choice((1, 1, 2, 3, 4))):
        turn = rng.choice(turns[kind])
        messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}]
    return messages


def write_questions(file: Path) -> None:
    """Write the questions of the evaluation, one a line."""
    questions, kinds = make_questions(), []
    for kind in small_questions.WEIGHTS:
        turns = questions[kind]
        if kind not in ("sums", "counting"):
            turns = [turn for turn in turns if turn.held_out]
        lines = ",\n".join(json.dumps(turn) for turn in turns)
        kinds.append(f'"{kind}": [\n{lines}\n]')
    file.write_text("{\n" + ",\n".join(kinds) + "\n}\n")


def write_chats(file: Path) -> None:
    """Write the chats of tests/generation.py."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(SMALL_CHECKPOINT)
    questions, parts = make_questions(), []
    for seed, tokens in ((0, 2048), (5, 1024), (6, 1024)):
        rng, text = random.Random(seed), ""
        while len(tokenizer.encode(text)) < tokens:
            text += tokenizer.apply_chat_template(draw_chat(questions, rng), tokenize=False)
        parts.append(text)
    file.write_text("\f".join(parts))


if __name__ == "__main__":
    write_questions(Path(small_questions.__file__).with_suffix(".json"))
    write_chats(Path(__file__).parents[2] / "tests/chats.txt")
