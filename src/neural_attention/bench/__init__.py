"""The benchmark of the operator: this library's backends beside its peers, in one run."""
