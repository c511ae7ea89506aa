"""``python -m neural_attention`` is the command ``neural-attention``."""

import sys

from neural_attention.cli import main

sys.exit(main())
