"""The unknown tool's other end: a store with shelves and a trolley, driven by a small language of its own."""

import json
import re

STATE_FILE = ".store.json"  # where checks find how the store ended; no tool of the agent's reaches it
TROLLEY_CAPACITY = 9
_LOAD = re.compile(r"([\^v])(\d{1,4}):(\w+)")


class GadgetStore:
    """Shelves, and the trolley that goes between them."""

    def __init__(self, goods: str) -> None:
        self.shelves: dict[str, dict[str, int]] = json.loads(goods)
        self.trolley: dict[str, int] = {}
        self.at = ""

    def run_command(self, line: str) -> str:
        """Do one command; the answer begins with ok or no."""
        line = line.strip()
        if line.startswith("?"):
            return self._look(line[1:])
        if line.startswith("@"):
            return self._go(line[1:])
        match = _LOAD.fullmatch(line)
        if not match:
            return "no: not a command"
        if not self.at:
            return "no: the trolley stands nowhere"
        amount, thing = int(match[2]), match[3]
        source, target = self.shelves[self.at], self.trolley
        if match[1] == "v":
            source, target = target, source
        return self._move(amount, thing, source, target)

    def _go(self, shelf: str) -> str:
        if shelf not in self.shelves:
            return f"no: there is no shelf {shelf[:20]}"
        self.at = shelf
        return f"ok: at {self.at}"

    def _look(self, what: str) -> str:
        if what == "*":
            return f"ok: {' '.join(self.shelves)}"
        if what not in self.shelves:
            return f"no: there is no shelf {what[:20]}"
        return f"ok: {what} holds {_listed(self.shelves[what])}"

    def _move(self, amount: int, thing: str, source: dict[str, int], target: dict[str, int]) -> str:
        if source.get(thing, 0) < amount or amount < 1:
            return f"no: there are {source.get(thing, 0)} {thing[:20]} to take"
        if target is self.trolley and sum(target.values()) + amount > TROLLEY_CAPACITY:
            return f"no: the trolley holds {TROLLEY_CAPACITY}"
        source[thing] -= amount
        if not source[thing]:
            del source[thing]
        target[thing] = target.get(thing, 0) + amount
        return f"ok: the trolley holds {_listed(self.trolley)}"

    def state_json(self) -> str:
        """The shelves as JSON, for the checks."""
        return json.dumps(self.shelves, sort_keys=True)


def _listed(stock: dict[str, int]) -> str:
    return ", ".join(f"{count} {thing}" for thing, count in sorted(stock.items())) or "nothing"
