"""The commands that train: ``neural-attention compare`` and ``train``."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from neural_attention.tasks.registry import TASKS


def complain(message: str) -> None:
    """A mistake, or what went wrong, on stderr."""
    print(f"neural-attention: {message}", file=sys.stderr)


def add_compare(commands: Any) -> None:
    """``neural-attention compare``: arms, rates and seeds."""
    compare = commands.add_parser("compare", help="train models that differ in attention only")
    tasks = compare.add_subparsers(title="tasks", metavar="TASK", required=True, dest="task")
    for name in TASKS:
        _add_task(tasks, name)
    _add_expressivity(tasks)


def _add_task(tasks: Any, name: str) -> None:
    task = tasks.add_parser(
        name,
        help=TASKS[name].about,
        description=(
            f"Train models that differ in attention only, each at its own best learning rate, and "
            f"compare them: {TASKS[name].about}. Called again, it goes on where it stopped."
        ),
    )
    task.add_argument(
        "--recipe",
        metavar="FILE",
        help="a YAML file that gives options by name, such as arms and preset; those on the "
        "command line come first",
    )
    task.add_argument(
        "--arms",
        nargs="+",
        metavar="ARM",
        help="what to compare, such as: dot dot+alibi neural neural+width=8+layers=first "
        "neural:release additive hybrid projection=mlp",
    )
    task.add_argument("--seeds", type=int, metavar="N", help="seeds at the chosen learning rate")
    task.add_argument(
        "--learning-rates", nargs="+", type=float, metavar="RATE", help="the sweep of every arm"
    )
    task.add_argument(
        "--control",
        action="store_true",
        help="add a dot product with as many parameters as the largest arm",
    )
    task.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at once on this machine (default: 1)"
    )
    _add_shared(task, name)
    task.set_defaults(run=_compare, task_parser=task)


def add_train(commands: Any) -> None:
    """``neural-attention train``: one run of a comparison."""
    train = commands.add_parser("train", help="one run of a comparison, also under torchrun")
    tasks = train.add_subparsers(title="tasks", metavar="TASK", required=True, dest="task")
    for name in TASKS:
        task = tasks.add_parser(
            name,
            help=TASKS[name].about,
            description=(
                "Train one arm at one learning rate and seed, where `compare` with the same "
                "options finds it. Called again, it goes on where it stopped. Under torchrun, the "
                "processes work at it together."
            ),
        )
        task.add_argument("arm", metavar="ARM", help="such as dot or neural+width=8")
        task.add_argument(
            "--learning-rate", type=float, metavar="RATE", help="default: the middle of the sweep"
        )
        task.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
        _add_shared(task, name)
        task.set_defaults(run=_train)


def _add_shared(task: argparse.ArgumentParser, name: str) -> None:
    """Options of ``compare`` and of ``train``."""
    task.add_argument(
        "--preset", default="quick", help="smoke, quick (default), laptop or paper: sizes and steps"
    )
    task.add_argument(
        "--out", default="comparison", metavar="FOLDER", help="results (default: comparison)"
    )
    task.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:N or mps")
    task.add_argument("--quiet", action="store_true", help="no progress")
    task.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    own = task.add_argument_group("data and model")
    for option in TASKS[name].options:
        own.add_argument(option.flag, metavar=option.metavar, help=option.help)
    training = task.add_argument_group("training")
    training.add_argument("--steps", type=int, metavar="N", help="training steps of a run")
    training.add_argument(
        "--accumulation", type=int, metavar="N", help="parts into which a step's examples are cut"
    )
    training.add_argument(
        "--bf16", action="store_true", default=None, help="train in bfloat16; score in float32"
    )
    training.add_argument(
        "--patience",
        type=int,
        metavar="N",
        help="stop after N points of the curve without a better one, and keep the best weights",
    )
    training.add_argument(
        "--processes", type=int, default=1, metavar="N", help="that share a run (default: 1)"
    )
    training.add_argument(
        "--sharding",
        default="ddp",
        help="what processes share: ddp (default), gradients; fsdp, also parameters",
    )
    training.add_argument(
        "--log-to",
        metavar="LOGGER",
        help="tensorboard (default where installed; in each run's logs), trackio, wandb or none",
    )


def with_recipe(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Any:
    """The options again, with a recipe's values for those that the command does not give."""
    from neural_attention.compare.recipes import read_recipe

    options.task_parser.set_defaults(**read_recipe(options.recipe, options.task))
    again = parser.parse_args(options.arguments)
    again.arguments = options.arguments
    return again


def _add_expressivity(tasks: Any) -> None:
    expressivity = tasks.add_parser(
        "expressivity",
        help="what a dot product cannot express and a score network can",
        description=(
            "Fit dot products, score networks and both together to attention distributions, by "
            "width, with equally many parameters. Needs no data."
        ),
    )
    expressivity.add_argument(
        "--preset", default="quick", help="smoke, quick (default, minutes) or laptop"
    )
    expressivity.add_argument(
        "--out", default="expressivity", metavar="FOLDER", help="results (default: expressivity)"
    )
    expressivity.add_argument("--quiet", action="store_true", help="no progress")
    expressivity.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    expressivity.set_defaults(run=_expressivity)


def _expressivity(options: argparse.Namespace) -> int:
    from neural_attention.compare.expressivity import compare_expressivity, print_expressivity
    from neural_attention.compare.progress import Progress, progress_on

    progress = Progress() if options.quiet else progress_on(sys.stderr)
    try:
        result = compare_expressivity(options.preset, options.out, progress.say)
    finally:
        progress.close()
    if options.json:
        json.dump(result, sys.stdout, indent=1)
        print()
    else:
        print_expressivity(result, sys.stdout)
        print(f"\nFiles: {options.out}/result.json, {options.out}/expressivity.png")
    return 0


def _shared(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of ``compare`` and of ``train``."""
    from neural_attention.compare.execution import Execution

    names = ("preset", "out", "device", "steps", "accumulation", "bf16", "patience")
    own = (option.name for option in TASKS[options.task].options)
    return {name: getattr(options, name) for name in (*names, *own)} | {
        "execution": Execution(
            jobs=getattr(options, "jobs", 1),
            processes=options.processes,
            sharding=options.sharding,
            log_to=options.log_to,
        )
    }


def _compare(options: argparse.Namespace) -> int:
    from neural_attention.compare.comparing import compare
    from neural_attention.compare.progress import Progress, progress_on
    from neural_attention.compare.table import print_summary
    from neural_attention.report.results_page import write_report

    keywords = _shared(options)
    progress = Progress() if options.quiet else progress_on(sys.stderr)
    try:
        summary = compare(
            options.task,
            options.arms,
            seeds=options.seeds,
            learning_rates=options.learning_rates,
            control=options.control,
            progress=progress,
            **keywords,
        )
        files = ["result.json", "curves.png"]
        try:
            write_report([options.out])
            files.append("report.html")
        except Exception as error:  # noqa: BLE001 (the numbers are there without a page)
            progress.say(f"the report was not written: {error or type(error).__name__}")
    finally:
        progress.close()
    if options.json:
        json.dump(summary, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_summary(summary, sys.stdout, is_terminal=sys.stdout.isatty())
        print(f"\nFiles: {', '.join(f'{options.out}/{name}' for name in files)}")
    headline = summary["measures"][0]["field"]
    if all(headline not in arm["test"] for arm in summary["arms"].values()):
        complain("no arm has a result: every run failed or diverged (lower --learning-rates?).")
        return 1
    return 1 if summary["failures"] else 0


def _train(options: argparse.Namespace) -> int:
    from neural_attention.compare.progress import Progress, progress_on
    from neural_attention.compare.single import train

    keywords = _shared(options)
    progress = Progress() if options.quiet else progress_on(sys.stderr)
    try:
        result = train(
            options.task,
            options.arm,
            learning_rate=options.learning_rate,
            seed=options.seed,
            progress=progress,
            **keywords,
        )
    except ChildProcessError as error:
        complain(str(error))
        return 1
    finally:
        progress.close()
    if not result:
        return 0  # another process tells
    if options.json:
        json.dump(result, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print(f"Files: {result['folder']}/result.json, {result['folder']}/model")
    if result["diverged"]:
        found = result["divergence"]
        where = f" at step {found['step']} ({found['where']})" if found is not None else ""
        complain(f"the run diverged{where}: try a lower --learning-rate.")
        return 1
    return 0
