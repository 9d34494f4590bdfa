"""The way into the local page: addresses with their token, for browsers and for plain requests."""

import urllib.parse
import urllib.request

_printed: dict[str, str] = {}  # address without the token -> as it was printed
_cookies: dict[str, str] = {}


def remember(printed: str) -> str:
    """Keep an address as `moebox ui` prints it; return it without its token."""
    bare = printed.partition("?")[0]
    _printed[bare] = printed
    _cookies.pop(bare, None)  # of a server that had this port before
    return bare


def with_token(url: str) -> str:
    """The URL as the owner opens it; others, such as file:, stay as they are."""
    printed = _printed.get(_root(url))
    if printed is None:
        return url
    return f"{url}{'&' if '?' in url else '?'}{printed.partition('?')[2]}"


def cookie(url: str) -> str:
    """The cookie that the page at this address gives to its owner, as a header; "" for one that is not known."""
    root = _root(url)
    if root in _printed and root not in _cookies:
        jar = urllib.request.HTTPCookieProcessor()
        with urllib.request.build_opener(jar).open(_printed[root].replace("/?", "/ui.js?")):
            _cookies[root] = "; ".join(f"{each.name}={each.value}" for each in jar.cookiejar)
    return _cookies.get(root, "")


def _root(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"
