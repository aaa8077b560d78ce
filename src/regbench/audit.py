"""For tests of one's own: `from regbench.audit import assert_sound`."""

from regbench.benchmark.audit import assert_sound

__all__ = ["assert_sound"]
