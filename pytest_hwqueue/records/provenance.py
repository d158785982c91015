"""What a record comes from: the product's version, and the commit of the tree under test."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hwqueue import __version__

if TYPE_CHECKING:
    from pytest_hwqueue.devices.fingerprint import Fingerprint, Value

# A git hook is run with these; they would name the hook's repository wherever git is asked.
OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")

_DIRTY = "-dirty"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


class OtherCommit(ValueError):
    """The commit that the user states is not the one that is checked out."""


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

    def to_json(self) -> dict[str, Any]:
        """Return its parts by name, for the process that measures."""
        return asdict(self)


def is_commit(text: str) -> bool:
    """Whether a text is a commit's full hash, with ``-dirty`` behind it or not."""
    return _COMMIT.fullmatch(text.removesuffix(_DIRTY)) is not None


def provenance_of(folder: Path, stated: str = "") -> Provenance:
    """Ask git for the commit of the tree that ``folder`` is in; untracked files do not count.

    Args:
        folder: in the tree under test.
        stated: by the user, where git does not know: a commit's full hash, with ``-dirty`` behind
            it if tracked files were changed.

    Raises:
        OtherCommit: if git knows, and it is not the commit stated.

    """
    described, reason = _describe(folder)
    if described is None:
        if not stated:
            return Provenance(unknown=reason)
        described = stated
    commit = described.removesuffix(_DIRTY)
    if stated and commit != stated.removesuffix(_DIRTY):
        raise OtherCommit(f"{folder} has commit {commit} checked out: leave it out, git is asked")
    return Provenance(git_commit=commit, git_dirty=described.endswith(_DIRTY), unknown="")


def _describe(folder: Path) -> tuple[str | None, str]:
    """Return the commit, marked if it is dirty; or None, and what git says instead."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_HOOK}
    # Refreshing the index must not take its lock from who works in the tree.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=64", "--exclude=*"],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        return None, f"git cannot be run: {error.strerror or error}"
    text = done.stdout.strip()
    if done.returncode == 0 and is_commit(text):
        return text, ""
    return None, " ".join(done.stderr.split()) or "git describes no commit"
