"""Score networks and neural projections in Hugging Face transformers models.

:func:`convert` changes a model in place; :func:`from_pretrained` loads one again, and so do the
``Auto`` classes, for which this package registers itself when it is imported.
"""

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        'neural_attention.hf needs transformers: pip install "neural-attention[hf]"'
    ) from error

from .classes import register_configs
from .converting import convert
from .loading import from_pretrained
from .report import CacheReport, cache_report

__all__ = ["CacheReport", "cache_report", "convert", "from_pretrained"]

register_configs()
