"""The tools that tasks offer: their schemas, how people ask for them, what they return and how that is told."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moebox.phantom import vocabulary as words

Draw = Callable[[random.Random], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleTool:
    """One tool. `asks` and `tells` are filled with the arguments; `tells` also with the result."""

    name: str
    about: str
    params: Mapping[str, tuple[str, str]]
    arguments: Mapping[str, Draw]
    prompts: tuple[str, ...]
    result: Mapping[str, Draw]
    answer: str
    informs: bool = True  # False: it acts, and a fair answer need not repeat what it returned

    def schema(self) -> dict[str, Any]:
        """The tool as the chat API wants it."""
        properties = {key: {"type": kind, "description": note} for key, (kind, note) in self.params.items()}
        parameters = {"type": "object", "properties": properties, "required": list(self.params)}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.about, "parameters": parameters},
        }


def _of(pool: list[str]) -> Draw:
    return lambda rng: rng.choice(pool)


def _int(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


_SKIES = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy"]
_CITY = {"city": ("string", "The name of the city")}

TOOLS: tuple[ExampleTool, ...] = (
    ExampleTool(
        name="get_weather",
        about="Get the current weather in a city.",
        params=_CITY,
        arguments={"city": words.draw_city},
        prompts=(
            "What is the weather in {city}?",
            "How is the weather in {city} today?",
            "Tell me the current weather in {city}.",
        ),
        result={"temperature": _int(-20, 40), "condition": _of(_SKIES)},
        answer="It is {temperature} degrees and {condition} in {city}.",
    ),
    ExampleTool(
        name="get_time",
        about="Get the current local time in a city.",
        params=_CITY,
        arguments={"city": words.draw_city},
        prompts=("What time is it in {city}?", "Tell me the current time in {city}.", "What is the time in {city}?"),
        result={"time": lambda rng: f"{rng.randrange(24):02}:{rng.randrange(60):02}"},
        answer="It is {time} in {city}.",
    ),
    ExampleTool(
        name="get_stock_price",
        about="Get the latest price of a stock by its symbol.",
        params={"symbol": ("string", "The stock symbol")},
        arguments={
            "symbol": lambda rng: "".join(rng.choice("ABCDEFGHKLMNPRSTVXYZ") for _ in range(rng.choice((3, 4))))
        },
        prompts=("What is the stock price of {symbol}?", "How much is one share of {symbol}?"),
        result={"price": _int(1, 999)},
        answer="One share of {symbol} costs {price} dollars.",
    ),
    ExampleTool(
        name="lookup_order",
        about="Look up the status of an order by its number.",
        params={"order_id": ("string", "The order number")},
        arguments={"order_id": words.draw_code},
        prompts=("Where is my order {order_id}?", "What is the status of order {order_id}?"),
        result={"status": _of(["packed", "shipped", "delayed", "waiting"]), "days_left": _int(1, 30)},
        answer="Order {order_id} is {status}, with {days_left} days left.",
    ),
    ExampleTool(
        name="send_email",
        about="Send an email to a person.",
        params={"to": ("string", "The name of the person"), "subject": ("string", "The subject line")},
        arguments={"to": words.draw_name, "subject": lambda rng: f"{words.draw_word(rng)} {words.draw_word(rng)}"},
        prompts=(
            'Send an email to {to} with the subject "{subject}".',
            'Write an email to {to}. The subject is "{subject}".',
        ),
        result={"message_id": words.draw_code},
        answer="The email to {to} was sent with the id {message_id}.",
        informs=False,
    ),
    ExampleTool(
        name="set_timer",
        about="Start a timer for a number of minutes.",
        params={"minutes": ("integer", "How many minutes")},
        arguments={"minutes": _int(1, 180)},
        prompts=("Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes."),
        result={"timer_id": words.draw_code},
        answer="The timer {timer_id} for {minutes} minutes is running.",
        informs=False,
    ),
    ExampleTool(
        name="convert_currency",
        about="Convert an amount of money from one currency to another.",
        params={
            "amount": ("integer", "The amount of money"),
            "source": ("string", "The currency to convert from"),
            "target": ("string", "The currency to convert to"),
        },
        arguments={
            "amount": words.draw_number,
            "source": _of(["USD", "EUR", "GBP"]),
            "target": _of(["JPY", "CHF", "SEK", "INR"]),
        },
        prompts=("Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?"),
        result={"value": words.draw_number},
        answer="{amount} {source} is {value} {target}.",
    ),
    ExampleTool(
        name="add_event",
        about="Add an event to the calendar.",
        params={
            "title": ("string", "What the event is called"),
            "day": ("string", "The day of the week"),
            "hour": ("integer", "The hour of the day"),
        },
        arguments={
            "title": lambda rng: f"{words.draw_word(rng)} {words.draw_word(rng)}",
            "day": _of(words.DAYS),
            "hour": _int(7, 22),
        },
        prompts=(
            'Add the event "{title}" to my calendar on {day} at {hour} o\'clock.',
            'Put "{title}" in my calendar for {day} at {hour} o\'clock.',
        ),
        result={"event_id": words.draw_code},
        answer='The event "{title}" on {day} at {hour} has the id {event_id}.',
        informs=False,
    ),
    ExampleTool(
        name="get_distance",
        about="Get the distance in kilometres between two cities.",
        params={"origin": ("string", "Where the trip starts"), "destination": ("string", "Where the trip ends")},
        arguments={"origin": words.draw_city, "destination": words.draw_city},
        prompts=(
            "How far is it from {origin} to {destination}?",
            "What is the distance from {origin} to {destination}?",
        ),
        result={"kilometres": _int(10, 9999)},
        answer="It is {kilometres} kilometres from {origin} to {destination}.",
    ),
    ExampleTool(
        name="set_light",
        about="Set the brightness of the light in a room.",
        params={"room": ("string", "The room"), "brightness": ("integer", "Brightness in percent")},
        arguments={"room": _of(words.ROOMS), "brightness": _int(0, 100)},
        prompts=(
            "Set the light in the {room} to {brightness} percent.",
            "Dim the {room} light to {brightness} percent.",
        ),
        result={"status": _of(["on", "changed", "done"])},
        answer="The light in the {room} is set to {brightness} percent: {status}.",
        informs=False,
    ),
    ExampleTool(
        name="translate_text",
        about="Translate a text into another language.",
        params={"text": ("string", "The text to translate"), "language": ("string", "The language to translate into")},
        arguments={
            "text": lambda rng: " ".join(words.draw_word(rng) for _ in range(rng.randint(1, 4))),
            "language": _of(words.LANGUAGES),
        },
        prompts=('Translate "{text}" into {language}.', 'How do you say "{text}" in {language}?'),
        result={"translation": lambda rng: f"{words.invent_word(rng)} {words.invent_word(rng)}"},
        answer='In {language} that is "{translation}".',
    ),
    ExampleTool(
        name="search_books",
        about="Search the library for books by an author.",
        params={"author": ("string", "The name of the author")},
        arguments={"author": words.draw_name},
        prompts=("Which books by {author} does the library have?", "Search the library for books by {author}."),
        result={"found": _int(1, 40), "newest": lambda rng: f"{words.draw_word(rng)} {words.draw_word(rng)}"},
        answer='The library has {found} books by {author}, the newest is "{newest}".',
    ),
)
INFORMING = tuple(tool for tool in TOOLS if tool.informs)
