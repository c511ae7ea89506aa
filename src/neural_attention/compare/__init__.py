"""Fair comparison of attention: arms that differ in attention and in nothing else.

The rules are those of the protocol in ``docs/comparing.md``: the same data order and the same
initial values for every parameter that both arms have, the same learning-rate sweep for every arm,
choices on the validation part, several seeds with paired differences, and the test part read once.
"""

from neural_attention.compare.arms import Arm, parse_arm
from neural_attention.compare.comparing import compare

__all__ = ["Arm", "compare", "parse_arm"]
