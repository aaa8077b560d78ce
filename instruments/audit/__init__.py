"""An audit: any loss of any library as a black box, against the textbook and on several processes."""

from regbench.instruments.audit.audit import ALL_PROBES, assert_sound, audit

__all__ = ["ALL_PROBES", "assert_sound", "audit"]
