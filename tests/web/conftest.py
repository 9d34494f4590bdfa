"""One browser for all tests of pages, and the local page served for real."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moebox.report.files import find_browser as browser_path
from moebox.web.serve import prepare_server
from tests.web.chromium import NO_BROWSER, Chromium, Tab, chromium
from tests.web.entry import remember


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a Chromium the tests of pages are skipped, with one line a file."""
    if browser_path():
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    """The browser."""
    with chromium() as made:
        yield made


@pytest.fixture
def tab(browser: Chromium) -> Iterator[Tab]:
    """A fresh page of it, closed after the test: a page that stays open goes on asking its server."""
    browser.asked.clear()
    page = browser.tab()
    yield page
    browser.call("Target.closeTarget", targetId=page.target)


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves the local page on a free port until the test ends; gives its address, without the token."""
    with ExitStack() as stack:

        def start(runs: Path | None = None, host: str = "127.0.0.1", file: Path | None = None) -> str:
            server, listening, printed = prepare_server(host, 0, exact_port=True, runs=runs, file=file)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
            thread.start()
            while not server.started:
                time.sleep(0.01)

            def stop() -> None:
                server.should_exit = True
                thread.join(10)

            stack.callback(stop)
            return remember(printed)

        yield start
