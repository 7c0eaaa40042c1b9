"""What goes wrong between the ranks of a tensor-parallel group.

Owns the exceptions of a group and nothing else. Imports neither torch nor the transports, so
that an engine loop may catch them without knowing how the ranks are connected.
"""

__all__ = ["RankFault", "RankLost", "RanksDiffer"]


class RankFault(Exception):
    """The group can no longer compute together: every rank has to start afresh."""


class RankLost(RankFault):
    """A rank has died, has gone silent, has left, or never came."""


class RanksDiffer(RankFault):
    """The ranks no longer do the same thing: calls, sizes or digests are not equal."""
