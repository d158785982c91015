"""Which code was measured, and by which, as records keep it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_hwqueue import __version__

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.fingerprint import Fingerprint, Value


@dataclass(frozen=True)
class Provenance:
    """Which code was measured, and by which.

    Attributes:
        version: pytest-hwqueue's.
        git_commit: checked out in the tree under test; None where that is no git repository.
        git_dirty: whether tracked files differ from that commit; None where it is not known.
        unknown: why the commit is not known; empty if it is.

    """

    version: str = __version__
    git_commit: str | None = None
    git_dirty: bool | None = None
    unknown: str = "not asked for"

    def fields(self) -> dict[str, Any]:
        """Return the fields that every record has."""
        return {
            "version": self.version, "git_commit": self.git_commit, "git_dirty": self.git_dirty
        }  # fmt: skip

    def stamped(self, fingerprint: Fingerprint) -> Fingerprint:
        """Return a fingerprint with version and commit among its soft fields."""
        soft: dict[str, Value] = {**fingerprint.soft, "hwqueue_version": self.version}
        missing = dict(fingerprint.missing)
        if self.git_commit is None:
            missing["git_commit"] = self.unknown
        else:
            soft |= {"git_commit": self.git_commit, "git_dirty": self.git_dirty}
        return replace(fingerprint, soft=soft, missing=missing)
