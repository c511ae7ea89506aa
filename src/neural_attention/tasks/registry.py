"""The tasks by name; each is imported when it is asked for, so that the command starts quickly."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from neural_attention.tasks.task import Task


@dataclass(frozen=True)
class Option:
    """An option of a task's command; its value is text.

    Attributes:
        name: of the keyword argument.
        metavar: what stands for the value.
        help: a line.
    """

    name: str
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        """On the command line."""
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True)
class Entry:
    """Where a task is, and what the command line must know of it.

    Attributes:
        place: module and class.
        about: what is compared, in a few words.
        options: those beyond the ones of every task.
    """

    place: str
    about: str
    options: tuple[Option, ...]


_TEXT = Option(
    "data",
    "TEXT",
    "a text file, a folder of .txt files, or a hub data set such as "
    "Salesforce/wikitext:wikitext-103-raw-v1 (default: built-in, a text in every Python)",
)

TASKS = {
    "lm": Entry(
        "neural_attention.tasks.language:LanguageModelling",
        "language models, by perplexity",
        (
            _TEXT,
            Option(
                "tokenizer",
                "NAME_OR_FOLDER",
                "an AutoTokenizer (default: a byte-level BPE trained on the training part)",
            ),
            Option("model", "NAME", "current or paper (default: the preset's)"),
        ),
    ),
    "images": Entry(
        "neural_attention.tasks.images:ImageClassification",
        "vision transformers, by accuracy",
        (
            Option(
                "data",
                "IMAGES",
                "a folder with a folder of images for each class, an .npz or .parquet file or a "
                "folder of them, or a hub data set such as uoft-cs/cifar10 (default: the preset's; "
                "built-in: the digits of scikit-learn)",
            ),
            Option("model", "NAME", "current or paper (default: the preset's)"),
        ),
    ),
    "translation": Entry(
        "neural_attention.tasks.translation:Translation",
        "translation models, by BLEU",
        (
            Option(
                "data",
                "PAIRS",
                "a folder of aligned files such as train.de and train.en, a .tsv or .parquet file "
                "or a folder of them, or a hub data set such as IWSLT/iwslt2017:iwslt2017-de-en "
                "(default: the preset's; built-in: German number words)",
            ),
            Option("source_language", "NAME", "ending or column of what is translated"),
            Option("target_language", "NAME", "ending or column of the translations"),
            Option("vocab_size", "N", "entries of the vocabulary that is trained on both"),
            Option(
                "model",
                "FOLDER_OR_NAME",
                "a pretrained Marian model such as Helsinki-NLP/opus-mt-de-en, or scratch "
                "(default: the preset's)",
            ),
        ),
    ),
    "masked-lm": Entry(
        "neural_attention.tasks.masked_lm:MaskedLanguageModelling",
        "masked language models such as RoBERTa, by perplexity of the masked tokens",
        (
            _TEXT,
            Option(
                "model",
                "NAME_OR_FOLDER",
                "a pretrained model with its tokenizer, such as FacebookAI/roberta-base, or "
                "scratch (default: the preset's)",
            ),
        ),
    ),
}


def load_task(name: str) -> Task:
    """A task by its word on the command line.

    Raises:
        ValueError: there is no such task.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known are {', '.join(TASKS)}.")
    module, _, attribute = TASKS[name].place.partition(":")
    task: Task = getattr(importlib.import_module(module), attribute)()
    return task
