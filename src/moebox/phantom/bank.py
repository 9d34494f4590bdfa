"""The plain questions: phrasings, the answer the phantom gives, and the words any good answer holds.

`needs` is a list of groups; a reply must hold at least one word of each group (case does not matter).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One thing to ask about."""

    asks: tuple[str, ...]
    answer: str
    needs: tuple[tuple[str, ...], ...]
    min_words: int = 1


def _short(topic: str, answer: str, *needs: str) -> Fact:
    asks = (
        f"What is {topic}?",
        f"Please tell me: what is {topic}?",
        f"What is {topic}? Answer in one sentence.",
        f"I would like to know what {topic} is.",
    )
    return Fact(asks=asks, answer=answer, needs=tuple(tuple(n.split("|")) for n in needs))


def _long(topic: str, answer: str, *needs: str) -> Fact:
    asks = (
        f"Tell me about {topic}.",
        f"Tell me about {topic} in a few sentences.",
        f"Write a short paragraph about {topic}.",
        f"Describe {topic} in a few sentences.",
    )
    return Fact(asks=asks, answer=answer, needs=tuple(tuple(n.split("|")) for n in needs), min_words=20)


def _ask(answer: str, needs: tuple[str, ...], *asks: str) -> Fact:
    return Fact(asks=asks, answer=answer, needs=tuple(tuple(n.split("|")) for n in needs))


FACTS: tuple[Fact, ...] = (
    _short("the capital of France", "The capital of France is Paris.", "paris"),
    _short("the capital of Japan", "The capital of Japan is Tokyo.", "tokyo"),
    _short("the capital of Italy", "The capital of Italy is Rome.", "rome"),
    _short("the capital of Egypt", "The capital of Egypt is Cairo.", "cairo"),
    _short("the capital of Norway", "The capital of Norway is Oslo.", "oslo"),
    _short("the capital of Spain", "The capital of Spain is Madrid.", "madrid"),
    _short("the capital of Germany", "The capital of Germany is Berlin.", "berlin"),
    _short("the largest planet in the solar system", "The largest planet in the solar system is Jupiter.", "jupiter"),
    _short("the planet closest to the sun", "The planet closest to the sun is Mercury.", "mercury"),
    _short("the opposite of hot", "The opposite of hot is cold.", "cold|cool"),
    _short("the opposite of up", "The opposite of up is down.", "down"),
    _short("the chemical symbol for water", "The chemical formula of water is H2O.", "h2o|h₂o"),
    _short("the first month of the year", "The first month of the year is January.", "january"),
    _short("the last month of the year", "The last month of the year is December.", "december"),
    _short("the day after Monday", "The day after Monday is Tuesday.", "tuesday"),
    _short("the freezing point of water in Celsius", "Water freezes at 0 degrees Celsius.", "0|zero"),
    _short("the boiling point of water in Celsius", "At sea level water boils at 100 degrees Celsius.", "100|hundred"),
    _ask(
        "A week has seven days.",
        ("seven|7",),
        "How many days are in a week?",
        "How many days does a week have?",
        "How many days are there in one week?",
    ),
    _ask(
        "A year has twelve months.",
        ("twelve|12",),
        "How many months are in a year?",
        "How many months does a year have?",
        "How many months are there in one year?",
    ),
    _ask(
        "A spider has eight legs.",
        ("eight|8",),
        "How many legs does a spider have?",
        "How many legs are on a spider?",
    ),
    _ask(
        "The sky looks blue because the air scatters blue light more than red light.",
        ("blue", "scatter|light"),
        "Why is the sky blue?",
        "Can you explain why the sky is blue?",
        "Why does the sky look blue?",
    ),
    _ask(
        "Grass is green because it contains chlorophyll.",
        ("chlorophyll|green",),
        "Why is grass green?",
        "What makes grass green?",
    ),
    _ask(
        "Bees make honey.",
        ("bee|bees",),
        "Which insects make honey?",
        "What insects make honey?",
    ),
    _ask(
        "Hello! How can I help you today?",
        ("hello|hi|hey|help",),
        "Hello!",
        "Hi there.",
        "Good morning!",
        "Say hello.",
    ),
    _ask(
        "I am doing well, thank you. How can I help you?",
        ("well|good|fine|great|help|thank|thanks",),
        "How are you?",
        "How are you today?",
    ),
    _ask(
        "You are welcome.",
        ("welcome|glad|happy|problem|pleasure|anytime|help",),
        "Thank you!",
        "Thanks for your help.",
    ),
    _long(
        "the sea",
        "The sea is a great body of salt water that covers most of the earth. It is home to fish, whales and "
        "countless other living things. Its waves and currents shape the coasts and carry warmth around the world.",
        "sea|ocean|water|salt|waves",
    ),
    _long(
        "the moon",
        "The moon is the natural satellite of the earth. It travels around our planet in about one month and "
        "always shows us the same side. Its gravity pulls on the sea and makes the tides rise and fall.",
        "moon|earth|satellite|orbit",
    ),
    _long(
        "the sun",
        "The sun is a star at the centre of the solar system. It gives light and warmth to the earth and makes "
        "life possible. Light from the sun needs about eight minutes to reach us.",
        "sun|star|light|solar",
    ),
    _long(
        "trees",
        "Trees are tall plants with a trunk of wood. Their leaves take in sunlight and air and give us oxygen. "
        "Birds and many small animals live in their branches, and people use their wood and their fruit.",
        "tree|trees|leaves|wood|oxygen",
    ),
    _long(
        "cats",
        "Cats are small animals that many people keep as pets. They have soft fur, sharp claws and very good "
        "eyes for the night. A cat sleeps for most of the day and likes to hunt, play and sit in the sun.",
        "cat|cats|pet|pets|fur",
    ),
    _long(
        "bread",
        "Bread is a food made from flour, water and salt. The dough is mixed, left to rise with yeast and then "
        "baked in a hot oven. People all over the world have eaten bread for thousands of years.",
        "bread|flour|dough|yeast",
    ),
    _long(
        "winter",
        "Winter is the coldest season of the year. The days are short, the nights are long and in many places "
        "snow covers the ground. People wear warm clothes, light a fire and wait for the spring.",
        "winter|cold|snow|season",
    ),
    _long(
        "music",
        "Music is the art of putting sounds together in time. It has rhythm, melody and harmony, and it can make "
        "us happy, sad or calm. People in every part of the world sing, dance and play instruments.",
        "music|sound|sounds|rhythm|melody",
    ),
    _long(
        "rivers",
        "Rivers carry fresh water from the mountains to the sea. They begin as small springs and grow as streams "
        "join them. Many old cities stand beside a river, because it gives water, food and a way to travel.",
        "river|rivers|water|stream",
    ),
    _long(
        "computers",
        "Computers are machines that follow instructions very quickly. They store numbers, work with them and show "
        "us the result. Today they help people to write, to calculate, to learn and to talk with each other.",
        "computer|computers|machine|machines|data",
    ),
)
