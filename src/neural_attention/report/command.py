"""``neural-attention view``: its options, and what it does with them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch


def add_view(commands: Any) -> None:
    """Add the command to the command line."""
    view = commands.add_parser(
        "view",
        help="look at a model's attention: a page with every layer and head",
        description="Write one HTML file with the attention maps of a saved transformers model, "
        "stock, converted or of this library. It opens in any browser, without a network.",
    )
    view.add_argument("model", metavar="MODEL", help="a folder, or a name on the hub")
    view.add_argument("--text", help="what a language model reads")
    view.add_argument("--image", metavar="FILE", help="what a model of images sees")
    view.add_argument("--source", metavar="TEXT", help="what an encoder-decoder reads")
    view.add_argument("--target", metavar="TEXT", help="what its decoder writes")
    view.add_argument(
        "--against", metavar="MODEL2", help="a second model, beside the first with the difference"
    )
    view.add_argument(
        "--tokenizer", metavar="FOLDER", help="where it lies, if not beside the model"
    )
    view.add_argument(
        "--out", default="attention.html", metavar="FILE", help="(default: attention.html)"
    )
    view.set_defaults(run=_view)


def _view(options: argparse.Namespace) -> int:
    from .loading import load
    from .viewer import view

    out = Path(options.out).expanduser()
    if out.is_dir() or not options.out.strip():
        raise ValueError(f"{options.out!r} is a folder: name a file with --out, such as maps.html.")
    asked = {name: getattr(options, name) for name in ("text", "image", "source", "target")}
    first = load(options.model, **asked, tokenizer=options.tokenizer)
    title, against = f"Attention of {_name(options.model)}", None
    if options.against is not None:
        second = load(options.against, **asked, tokenizer=options.tokenizer)
        if not _same(first.inputs, second.inputs):
            raise ValueError(
                f"{options.model} and {options.against} turn this input into different tokens or "
                "pixels, so their maps cannot be compared: both need the same tokenizer or image "
                "processor."
            )
        against = second.model
        title += f" and {_name(options.against)}"
    tokens: Any = first.tokenizer
    names = [_name(options.model), _name(options.against or "")]
    if names[0] == names[1]:
        names = [options.model, options.against]
    page = view(first.model, first.inputs, tokens, against=against, names=names, title=title)
    page.save(out)
    print(f"{options.out}: {len(page.html.encode()) / 1e6:.1f} MB; open it in a browser")
    return 0


def _name(model: str) -> str:
    return Path(model).name or model


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )
