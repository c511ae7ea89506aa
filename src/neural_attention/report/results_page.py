"""The report of comparisons, as one page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neural_attention.tasks.wording import counted

from .checks import checks_of, verdicts
from .page import asset, legible, make_page, write_page
from .plots import draw_plots, plots_of, style
from .results import differences, read_result
from .table import Table, as_csv, as_markdown, headline_table


def write_report(
    folders: Sequence[str | Path], out: str | Path | None = None
) -> tuple[Path, list[str]]:
    """Write the page of one or more comparisons.

    Args:
        folders: of ``neural-attention compare``.
        out: the page; None for ``report.html`` in the first folder that can be read.

    Returns:
        The page, and with several folders what cannot be read of them, and why.

    Raises:
        FileNotFoundError, ValueError: the only folder, or every one, cannot be read.
        OSError: the page cannot be written.
        ImportError: plotly is missing.
    """
    script = _plotly()
    found, left_out = _read(folders)
    page = Path(out if out is not None else Path(next(iter(found))) / "report.html")
    return write_page(page, page_of(found, left_out, script)), left_out


def write_files(folders: Sequence[str | Path]) -> list[Path]:
    """Write what papers need into a folder ``report`` of each comparison that can be read.

    Its plots as SVG and PNG, and its table as Markdown and, with every seed, as CSV.

    Returns:
        The folders.

    Raises:
        OSError: one of them cannot be made or written.
        ImportError: matplotlib is missing.
    """
    written = []
    for folder, result in _read(folders)[0].items():
        beside = Path(folder).expanduser() / "report"
        try:
            beside.mkdir(exist_ok=True)
        except OSError as error:
            raise OSError(f"cannot write to {legible(str(beside))}: {error.strerror}.") from error
        draw_plots(result, beside)
        write_page(beside / "table.md", as_markdown(headline_table(result)))
        write_page(beside / "table.csv", as_csv(result))
        written.append(beside)
    return written


def _read(folders: Sequence[str | Path]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Comparisons by the names of their folders, and why others cannot be read."""
    found: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    for folder in dict.fromkeys(str(Path(folder)) for folder in folders):
        try:
            found[folder] = read_result(folder)
        except (ValueError, OSError) as error:
            if len(folders) == 1:
                raise
            left_out.append(str(error))
    if not found:
        raise ValueError("; ".join(left_out))
    return found, left_out


def page_of(results: Mapping[str, dict[str, Any]], left_out: Sequence[str], plotly: str) -> str:
    """The page of comparisons, by the names of their folders."""
    titles = list(dict.fromkeys(result["title"] for result in results.values()))
    title = f"Comparison of {' and '.join(titles)}"
    several = len(results) > 1
    sections = [
        _run(number, folder, result, several=several)
        for number, (folder, result) in enumerate(results.items())
    ]
    body = f"""<div class="page">
<header class="top"><h1>{_text(title)}</h1>
{_across(results, left_out)}
</header>
<main>
{"".join(sections)}
</main>
</div>"""
    runs = [
        {
            "plots": plots_of(result),
            "arms": [
                {"name": legible(name), "style": style(index)}
                for index, name in enumerate(result["arms"])
            ],
        }
        for result in results.values()
    ]
    return make_page(
        title,
        body,
        style=asset("page.css") + asset("results.css"),
        script=asset("results.js"),
        data={"runs": _legible_values(runs)},
        blobs={},
        library=plotly,
        without_script="The plots of this page are drawn by JavaScript, which is off in this "
        "browser. The tables stand below.",
    )


def _across(results: Mapping[str, dict[str, Any]], left_out: Sequence[str]) -> str:
    """What is said of several comparisons together."""
    if len(results) == 1 and not left_out:
        return ""
    lines = [f"<p>Left out: {_text(why)}</p>" for why in left_out]
    if len(results) > 1:
        links = "".join(
            f'<li><a href="#run{number}">{_text(folder)}</a></li>'
            for number, folder in enumerate(results)
        )
        lines.append(f'<nav aria-label="Comparisons"><ul>{links}</ul></nav>')
        found = differences(list(results.values()))
        lines.append(
            f"<p><strong>These comparisons differ in {_text(', '.join(found))}</strong>: what "
            "depends on that cannot be set against one another, and each stands for itself.</p>"
            if found
            else "<p>These comparisons have the same task, data and length of training: their "
            "scores may be read side by side, though only arms of one comparison are paired.</p>"
        )
    return "".join(lines)


def _run(number: int, folder: str, result: dict[str, Any], *, several: bool) -> str:
    # Headings go down in steps of one.
    level = 3 if several else 2
    opening, closing = f"<section><h{level}>", f"</h{level}>"
    head = f"<h2>{_text(folder)}</h2>" if several else ""
    facts = [
        f"{counted(result['seeds'], 'seed')}, {counted(result['runs'], 'run')}",
        f"data: {result['data']['source']}",
        f"preset {result['preset_name']}, {counted(result['preset']['steps'], 'step')}",
        f"device: {result['device']}",
        f"finished {result['finished'][:16].replace('T', ' ')} UTC",
    ]
    listed = "".join(f"<li>{_text(fact)}</li>" for fact in facts)
    plots = f'{_arms(number, result)}<div class="plots">{_figures(number, result, level + 1)}</div>'
    again = f"""<div class="again"><pre id="run{number}-command">{_text(result["command"])}</pre>
<button class="plain" type="button" data-copies="run{number}-command">Copy the command</button>
</div>"""
    return f"""<section class="run" id="run{number}" aria-label="{_text(folder)}">{head}
<p class="lead">{_text(result["statement"])}</p>
<ul class="facts soft">{listed}</ul>
{opening}Scores and costs{closing}{_table(headline_table(result))}
<p class="verdicts">{_text(verdicts(result))}</p>
<p class="soft">Means over seeds; in brackets the 95% interval. The {_text(result["reference"])}
arm is the reference, the plain dot product that validates best; the others are paired with it by
seed. Dot products run on this library's kernels; beside them stands the speed of torch's own.</p>
</section>
{opening}Plots{closing}{plots}</section>
{opening}The protocol, and what to mind{closing}{_checks(result)}</section>
{opening}Do it again{closing}{again}</section>
<section><details><summary>Configuration, versions and hardware</summary>
{_configuration(result, level)}</details></section>
</section>
"""


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in table.head)
    rows = []
    for index, (row, marks) in enumerate(zip(table.rows, table.marks, strict=True)):
        said = "".join(f'<span class="mark">{mark}</span>' for mark in marks)
        name = f'<th scope="row">{_swatch(index)}{_name(row[0])}{said}</th>'
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in row[1:])
        rows.append(f"<tr{' class=best' if 'best' in marks else ''}>{name}{cells}</tr>")
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Scores and costs of every arm">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _swatch(index: int) -> str:
    """The line and the marker of an arm in the plots."""
    look = style(index)
    return (
        '<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true" '
        f'style="--light:{look["light"]};--dark:{look["dark"]}">'
        f'<path class="line" d="M0 6h28" stroke-dasharray="{_DASHES[look["dash"]]}"/>'
        f'<path d="{_MARKERS[look["marker"]]}"/></svg>'
    )


_DASHES = {"solid": "none", "dash": "7 3.5", "dashdot": "6 2.5 1.5 2.5", "dot": "1.5 2.5"}
_MARKERS = {
    "circle": "M18 6a4 4 0 1 1-8 0a4 4 0 1 1 8 0z",
    "square": "M10.5 2.5h7v7h-7z",
    "diamond": "M14 1l5 5l-5 5l-5-5z",
    "triangle-up": "M14 1l5 9h-10z",
    "cross": "M12.5 1h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
    "x": "M9.4 3.5l2.1-2.1l2.5 2.5l2.5-2.5l2.1 2.1l-2.5 2.5l2.5 2.5l-2.1 2.1l-2.5-2.5l-2.5 2.5"
    "l-2.1-2.1l2.5-2.5z",
    "star": "M14 0.5l1.5 3.8l4 .3l-3.1 2.6l1 3.9l-3.4-2.1l-3.4 2.1l1-3.9l-3.1-2.6l4-.3z",
}


def _name(arm: str) -> str:
    """An arm's name, which breaks between its parts where it must."""
    return _text(arm).replace("+", "+<wbr>")


def _arms(number: int, result: dict[str, Any]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" data-run="{number}" value="{index}" checked>'
        f"{_swatch(index)}<span>{_name(name)}</span></label>"
        for index, name in enumerate(result["arms"])
    )
    legend = '<legend class="soft">Show in all plots</legend>'
    return f'<fieldset class="arms">{legend}{boxes}</fieldset>'


def _figures(number: int, result: dict[str, Any], level: int) -> str:
    figures = []
    for plot in plots_of(result):
        name = f"run{number}-{plot['name']}"
        choice = ""
        if len(plot["axes"]) > 1:
            options = "".join(
                f'<option value="{index}">{_text(axis["label"])}</option>'
                for index, axis in enumerate(plot["axes"])
            )
            choice = f'<label>over <select id="{name}-axis">{options}</select></label>'
        figures.append(
            f'<figure><div class="bar"><h{level}>{_text(plot["title"])}</h{level}>{choice}'
            f'<label><input type="checkbox" id="{name}-log">log scale</label></div>'
            f'<div class="plot" id="{name}" role="group" '
            f'aria-label="{_text(_spoken(plot, result))}"></div>'
            f'<figcaption class="soft">{_text(plot["note"])}</figcaption></figure>'
        )
    return "".join(figures)


def _spoken(plot: dict[str, Any], result: dict[str, Any]) -> str:
    """What a plot shows, for those who do not see it; the numbers stand in the table."""
    names = list(result["arms"])
    last = {names[one["arm"]]: one["y"][-1] for one in plot["series"] if one["y"]}
    ends = "; ".join(f"{name} {value:.4g}" for name, value in last.items())
    return f"{plot['title']}: {plot['y']}, last points: {ends or 'none'}"


def _checks(result: dict[str, Any]) -> str:
    lines = "".join(
        f'<li class="{"held" if word == "held" else "minded"}"><b>{word}</b>'
        f"<span>{_text(text)}</span></li>"
        for word, text in checks_of(result)
    )
    return f'<ul class="checks">{lines}</ul>'


def _configuration(result: dict[str, Any], level: int) -> str:
    parts = {
        "Preset": result["preset"],
        "Data": result["data"],
        "Environment": result["environment"],
        "Machine": result["machine"],
    }
    return "".join(
        f"<h{level}>{name}</h{level}><dl>"
        + "".join(f"<dt>{_text(key)}</dt><dd>{_text(value)}</dd>" for key, value in _flat(values))
        + "</dl>"
        for name, values in parts.items()
    )


def _flat(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(values, dict):
        return [pair for key, value in values.items()
                for pair in _flat(value, f"{prefix} · {key}" if prefix else str(key))]  # fmt: skip
    if isinstance(values, list):
        return [(prefix, ", ".join(map(str, values)) or "none")]
    if values is None:
        return [(prefix, "runs here" if prefix.startswith(_MAY_BE_MISSING) else "none")]
    return [(prefix, str(values))]


# Here None is no reason why not.
_MAY_BE_MISSING = ("backends · ", "kernels · instruction_sets · ")


def _legible_values(value: Any) -> Any:
    if isinstance(value, str):
        return legible(value)
    if isinstance(value, dict):
        return {key: _legible_values(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_legible_values(one) for one in value]
    return value


def _text(text: str) -> str:
    return html.escape(legible(text))


def _plotly() -> str:
    """Plotly's script, which the page carries with it.

    Raises:
        ImportError: plotly is missing.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(
            'the report needs plotly: pip install "neural-attention[report]"'
        ) from error
    return str(get_plotlyjs())
