"""``neural-attention view`` and ``report``: their options, and what they do with them."""

from __future__ import annotations

import argparse
import sys
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


def add_report(commands: Any) -> None:
    """Add the command to the command line."""
    report = commands.add_parser(
        "report",
        help="look at comparisons: a page with tables, curves and checks",
        description="Write one HTML file of one or more finished comparisons, and beside each its "
        "plots as SVG and PNG and its table as Markdown and CSV. It opens in any browser, without "
        "a network.",
    )
    report.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="what neural-attention compare has written"
    )
    report.add_argument(
        "--out", metavar="FILE", help="the page (default: report.html in the first folder)"
    )
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from .results_page import write_files, write_report

    out = options.out
    if out is not None and (not out.strip() or Path(out).expanduser().is_dir()):
        raise ValueError(f"{out!r} is a folder: name a file with --out, such as report.html.")
    if out is not None and Path(out).suffix.lower() not in (".html", ".htm"):
        # A slip must not replace a result.json.
        raise ValueError(f"{out!r} is no name of a page: give one that ends in .html with --out.")
    page, left_out = write_report(options.folders, out)
    for why in left_out:
        print(f"neural-attention: left out: {why}", file=sys.stderr)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB; open it in a browser")
    for folder in write_files(options.folders):
        print(f"{folder}: the plots as SVG and PNG, the table as Markdown and CSV")
    return 1 if left_out else 0


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
