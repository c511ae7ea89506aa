"""The command line: ``neural-attention``."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from neural_attention import __version__
from neural_attention.bench.command import add_bench
from neural_attention.cli_compare import add_compare, add_train, complain, with_recipe
from neural_attention.cli_translate import add_translate
from neural_attention.report.command import add_report, add_view

FIRST_STEPS = """\
Attention whose scores and projections are small neural networks.

Compare it with dot-product attention, on your own machine:

  neural-attention compare lm                  a first look, minutes on 2 cores
  neural-attention compare lm --preset smoke   in seconds, to see that it works
  neural-attention compare lm --data book.txt --seeds 3
  neural-attention compare --help              translation, images, masked-lm

Look at what came of it, in a browser; and at a model's attention:

  neural-attention report comparison
  neural-attention view comparison/runs/RUN/model --text "To be, or not to be" \\
    --tokenizer comparison/data/DATA/tokenizer

Measure its speed; see what this machine has, and what is missing:

  neural-attention bench                       beside torch's own kernel
  neural-attention doctor

Put it into a transformers model:

  neural-attention convert MODEL OUT --score hybrid --init preserve

In Python:

  import neural_attention as na
  layer = na.NeuralAttention(512, 8, score="neural")
  y = layer(x, is_causal=True)
"""

EXTRA = 'pip install "neural-attention[compare]"'
INTERRUPTED = 130
STOPPED = "stopped. What is finished is kept; the same command goes on from there."
NOTHING_KEPT = "stopped. Nothing was written."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: those behind the command's name; None for the process's own.

    Returns:
        0 when it did what was asked; 1 when a run failed; 2 for a mistake of the user's, told in
        one message on stderr; 130 after Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As stderr does: a letter that the terminal lacks must not cost the rest.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Read when transformers is imported, which no command has done yet: its bars and advice are
    # not about what was asked.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    if "run" not in options:
        print(FIRST_STEPS, end="")
        return 0
    try:
        if getattr(options, "recipe", None) is not None:
            options = with_recipe(parser, options)
        return int(options.run(options))
    except ImportError as error:
        message = str(error)
        complain(message if "pip install" in message else f"{message}; this needs: {EXTRA}")
        return 2
    except BrokenPipeError:
        # Whoever read what is printed has stopped reading, as `head` does: there is no more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        print(f"\nneural-attention: {getattr(options, 'when_stopped', STOPPED)}", file=sys.stderr)
        return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    """One line for a mistake, without the usage."""

    def error(self, message: str) -> Any:
        complain(f"{message}. See {self.prog} --help.")
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="neural-attention",
        description="Neural attention: compare it with the dot product, put it into a model.",
    )
    parser.add_argument("--version", action="version", version=f"neural-attention {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_compare(commands)
    add_train(commands)
    _add_convert(commands)
    add_report(commands)
    add_view(commands)
    add_translate(commands)
    add_bench(commands)
    _add_doctor(commands)
    _add_completion(commands)
    return parser


def _add_convert(commands: Any) -> None:
    convert = commands.add_parser(
        "convert",
        help="put score networks and neural projections into a transformers model",
        description=(
            "Convert a transformers checkpoint and save it beside its tokenizer. The result is "
            "opened by the Auto classes after `import neural_attention.hf`."
        ),
    )
    convert.add_argument("model", metavar="MODEL", help="a folder or a name on the hub")
    convert.add_argument("out", metavar="OUT", help="a folder that does not exist yet")
    convert.add_argument(
        "--score", default="hybrid", help="hybrid (default), neural, additive or dot (the model's)"
    )
    convert.add_argument(
        "--projection",
        nargs="+",
        default=["linear"],
        metavar="KIND",
        help="linear (default), mlp, residual or karbevski; or by place, such as q=mlp k=mlp o=mlp",
    )
    convert.add_argument(
        "--positions", default="model", help="model (default: its own), slopes, alibi or none"
    )
    convert.add_argument(
        "--layers", nargs="+", type=int, metavar="N", help="indices of layers (default: all)"
    )
    convert.add_argument(
        "--roles", nargs="+", metavar="ROLE", help="some of encoder, decoder, cross (default: all)"
    )
    convert.add_argument(
        "--init",
        default="preserve",
        help="preserve (default: compute what the model did) or random",
    )
    convert.add_argument("--width", type=int, help="channels of the score network (default: 16)")
    convert.add_argument("--preset", help="of the score network: paper, release, bahdanau or gatv2")
    convert.set_defaults(run=_convert, when_stopped=NOTHING_KEPT)


def _convert(options: argparse.Namespace) -> int:
    from neural_attention.hf.folders import convert_folder

    projection: str | dict[str, str] = options.projection[0]
    if len(options.projection) > 1 or "=" in projection:
        pairs = [part.partition("=") for part in options.projection]
        projection = {site: kind for site, _, kind in pairs}
        if len(projection) < len(pairs):
            raise ValueError(f"--projection names a place twice: {' '.join(options.projection)}.")
    layers = options.layers
    if options.roles:
        layers = dict.fromkeys(options.roles, options.layers)
    network = {"width": options.width, "preset": options.preset}
    network = {name: value for name, value in network.items() if value is not None}
    done = convert_folder(
        options.model,
        options.out,
        score=options.score,
        projection=projection,
        positions=options.positions,
        layers=layers,
        init=options.init,
        score_network=network or None,
    )
    before, after = done.parameters
    print(f"{options.out}: {done.model_class}")
    for role, indices in done.layers.items():
        print(f"{role} layers: {', '.join(map(str, indices))}")
    print(f"parameters: {before:,} before, {after:,} after")
    if done.cache.before:
        print(f"cache, bytes a token: {done.cache.before:,} before, {done.cache.after:,} after")
    if not done.has_processor:
        print("tokenizer: none was found")
    return 0


def _add_completion(commands: Any) -> None:
    completion = commands.add_parser(
        "completion",
        help="what makes a shell complete this command's words",
        description=(
            "Print a script for a shell, which completes commands, options and files. For bash: "
            "neural-attention completion bash > "
            "~/.local/share/bash-completion/completions/neural-attention"
        ),
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(run=_completion)


def _completion(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise ImportError("completion needs shtab: pip install shtab") from error
    print(shtab.complete(_parser(), shell=options.shell))
    return 0


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="what this installation can do here, and what to install for what it cannot",
        description="Backends, instruction sets, threads, GPU, versions, and what is missing.",
    )
    doctor.add_argument("--json", action="store_true", help="the same as JSON")
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from neural_attention.doctor import diagnose, print_report

    found = diagnose()
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        print_report(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
