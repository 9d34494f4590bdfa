"""The store behind the unknown tool: shelves and a trolley, with a small command language of its own."""

import json
import re

STATE_FILE = ".store.json"  # where checks find the store's final state; no tool of the agent reaches it
TROLLEY_CAPACITY = 9
_LOAD = re.compile(r"([\^v])(\d{1,4}):(\w+)")


class GadgetStore:
    """Shelves, and the trolley that moves goods between them."""

    def __init__(self, goods: str) -> None:
        self.shelves: dict[str, dict[str, int]] = json.loads(goods)
        self.trolley: dict[str, int] = {}
        self.at = ""

    def run_command(self, line: str) -> str:
        """Run one command; the answer begins with ok or no."""
        line = line.strip()
        shelf = line[1:]
        if line == "?*":
            return f"ok: {' '.join(self.shelves)}"
        if line.startswith(("?", "@")) and shelf not in self.shelves:
            return f"no: there is no shelf {shelf[:20]}"
        if line.startswith("?"):
            return f"ok: {shelf} holds {list_stock(self.shelves[shelf])}"
        if line.startswith("@"):
            self.at = shelf
            return f"ok: at {self.at}"
        match = _LOAD.fullmatch(line)
        if not match:
            return "no: not a command"
        if not self.at:
            return "no: the trolley stands nowhere"
        amount, thing = int(match[2]), match[3]
        source, target = self.shelves[self.at], self.trolley
        if match[1] == "v":
            source, target = target, source
        if source.get(thing, 0) < amount or amount < 1:
            return f"no: there are {source.get(thing, 0)} {thing[:20]} to take"
        if target is self.trolley and sum(target.values()) + amount > TROLLEY_CAPACITY:
            return f"no: the trolley holds {TROLLEY_CAPACITY}"
        source[thing] -= amount
        if not source[thing]:
            del source[thing]
        target[thing] = target.get(thing, 0) + amount
        return f"ok: the trolley holds {list_stock(self.trolley)}"

    def state_json(self) -> str:
        """The shelves as JSON, for the checks."""
        return json.dumps(self.shelves, sort_keys=True)


def list_stock(stock: dict[str, int]) -> str:
    """Goods in words, such as "3 anchor, 2 wheel"."""
    return ", ".join(f"{count} {thing}" for thing, count in sorted(stock.items())) or "nothing"
