"""Self-contained HTML pages: escaping, embedded data, and a policy that forbids any network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import tempfile
import unicodedata
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any


def asset(name: str) -> str:
    """A style sheet or script of this package."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def make_page(
    title: str,
    body: str,
    *,
    style: str,
    script: str,
    data: Any,
    blobs: Mapping[str, bytes],
    without_script: str,
    library: str = "",
) -> str:
    """One HTML document that needs nothing else and can reach nothing else.

    Args:
        title: plain text.
        body: markup of ours; whatever comes from a user stands in ``data``, and the script shows
            it as text.
        style: CSS.
        script: JavaScript, a module.
        data: for the script, as JSON in the element with the id ``data``.
        blobs: bytes for the script, base64 in elements with the ids ``blob-NAME``.
        without_script: what is said where scripts are off.
        library: a script that stands before ``script`` and may add styles to the page.
    """
    sources = " ".join(_source(one) for one in (library, script) if one)
    styles = "'unsafe-inline'" if library else _source(style)
    policy = (
        f"default-src 'none'; script-src {sources}; style-src {styles}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    before = f"<script>{library}</script>\n" if library else ""
    encoded = "\n".join(
        f'<script type="application/octet-stream" id="blob-{html.escape(name)}">'
        f"{base64.b64encode(blob).decode()}</script>"
        for name, blob in blobs.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{html.escape(legible(title))}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<noscript>{html.escape(without_script)}</noscript>
{body}
<script type="application/json" id="data">{json_in_html(data)}</script>
{encoded}
{before}<script type="module">{script}</script>
</body>
</html>
"""


def json_in_html(data: Any) -> str:
    r"""JSON that no content can end or turn into markup.

    >>> json_in_html(["</script>"])
    '["\\u003c/script>"]'
    """
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def legible(text: str) -> str:
    r"""Text without characters that cannot be seen, change the direction of others, or be encoded.

    Line breaks and tabs stay.

    >>> legible("a\x00b\u202ec\udcff")
    'a␀b\\u202ec\\udcff'
    """
    return "".join(_legible(character) for character in text)


def _legible(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    if unicodedata.category(character) in ("Cc", "Cs") or character in _DIRECTIONS:
        return f"\\u{code:04x}"
    return character


# Marks that turn the direction of what follows, beyond their own text.
_DIRECTIONS = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def write_page(path: str | Path, text: str) -> Path:
    """Write a page whole or not at all.

    Raises:
        OSError: the folder cannot be made or written.
    """
    path = Path(path).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}.") from error
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path
